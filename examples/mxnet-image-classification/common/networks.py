"""Networks of MXNet's model zoo by the names that MXNet's ImageNet example gives them."""

import mxnet as mx
from mxnet.gluon.model_zoo import vision

from .options import OptionError

# --network: name in the model zoo, the number of layers unless given (None: the network has no choice of layers)
FAMILIES = {
    "resnet": ("resnet{}_v2", 50),  # as in MXNet's example, where 'resnet' is the version with identity mappings
    "resnet-v1": ("resnet{}_v1", 50),
    "vgg": ("vgg{}", 16),
    "vgg-bn": ("vgg{}_bn", 16),
    "densenet": ("densenet{}", 121),
    "alexnet": ("alexnet", None),
    "inception-v3": ("inceptionv3", None),
    "mobilenet": ("mobilenet1.0", None),
    "mobilenetv2": ("mobilenetv2_1.0", None),
    "squeezenet": ("squeezenet1.1", None),
}


def zoo_name(network, layers=None):
    """The model zoo's name.

    >>> zoo_name("resnet-v1", 18)
    'resnet18_v1'
    """
    if network not in FAMILIES:
        return network
    name, usual = FAMILIES[network]
    return name.format(layers or usual)


def make(args):
    """The network as a Gluon block, not initialised. Its parameters have shapes, and the same names in every process.

    Gluon would find the shapes in a first forward pass. Where MKLDNN is used that leaves convolutions' weights in a layout of its
    own, which makes the servers of MXNet 1.9 fail when these weights are their first values.

    Raises
    ------
    OptionError
        the model zoo has no such network, or it does not take images of this shape.
    """
    name = zoo_name(args.network, args.num_layers)
    try:
        net = vision.get_model(name, classes=args.num_classes, prefix="net_")  # a scope of its own for names
    except ValueError:
        layers = "" if args.num_layers is None else f" --num-layers {args.num_layers}"
        raise OptionError(
            f"--network {args.network}{layers} is not allowed; allowed: {', '.join(FAMILIES)} with the layers that "
            "the model zoo has, or one of its own names such as resnet18_v1"
        ) from None
    symbol = net(mx.sym.var("data"))
    try:
        shapes, _, running = symbol.infer_shape(data=(1,) + args.image_shape)
    except mx.base.MXNetError as error:
        reason, shape = str(error).strip().splitlines()[-1], ",".join(map(str, args.image_shape))
        raise OptionError(f"{name} does not take images of --image-shape {shape} ({reason})") from None
    parameters = net.collect_params()
    for name, shape in zip(symbol.list_arguments() + symbol.list_auxiliary_states(), shapes + running):
        if name in parameters:  # all but the data
            parameters[name].shape = shape
    return net


def symbol(args):
    """The network as a symbol for Module, with a softmax and its loss."""
    net = make(args)
    data = mx.sym.var("data")
    if args.dtype != "float32":
        net.cast(args.dtype)
        data = mx.sym.cast(data, args.dtype)
    return mx.sym.SoftmaxOutput(mx.sym.cast(net(data), "float32") if args.dtype != "float32" else net(data), name="softmax")
