"""Command-line options of the training scripts. Names and meanings are those of MXNet's and ByteScheduler's ImageNet examples."""

import argparse
import math
import os
import sys

import mxnet as mx

from prophet_mx.policies import settings as policies

# Optimizers whose whole state MXNet saves, so that a resumed run continues exactly where it stopped.
OPTIMIZERS = ("sgd", "nag", "signum", "adam", "adamax", "adagrad", "rmsprop", "adadelta", "ftrl", "lamb")
WITH_MOMENTUM = ("sgd", "nag", "signum")


AUTO = "auto"  # --load-epoch: the epoch is found when the number of workers is known


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help texts that end with the default, if there is one."""

    def _get_help_string(self, action):
        return action.help if action.default in (None, "") else super()._get_help_string(action)


class OptionError(Exception):
    """Options that do not fit each other, the files or the job. The message says what to do."""


def make_parser(doc):
    """The parser with all options that both training scripts have. ``doc``: what the script does, an empty line, an example."""
    description, example = doc.strip().split("\n\n")
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=_Formatter,
        epilog=f"example: {example.strip()} -- exit codes: 0 trained, 1 MXNet or Python stopped with an error, 2 a wrong option or "
        "a file that is missing (one line says what to do)",
    )
    for add in (_add_network, _add_data, _add_augmentation, _add_training, _add_communication, _add_checkpoints):
        add(parser)
    return parser


def _add_network(parser):
    group = parser.add_argument_group("network")
    group.add_argument(
        "--network",
        default="resnet",
        help="resnet, resnet-v1, vgg, alexnet, inception-v3, mobilenet, mobilenetv2, "
        "squeezenet, densenet, or any name of MXNet's model zoo such as resnet50_v1",
    )
    group.add_argument(
        "--num-layers", type=number(int, 1), help="number of layers, for networks with several depths (resnet: 50, vgg: 16, densenet: 121)"
    )
    group.add_argument("--num-classes", type=number(int, 2), default=1000, help="number of classes")
    group.add_argument("--image-shape", type=shape, default="3,224,224", help="channels, height and width of the network's input")
    group.add_argument(
        "--dtype",
        choices=("float32", "float16"),
        default="float32",
        help="type of weights and gradients; float16 needs a GPU, and keeps float32 weights in the optimizer",
    )


def _add_data(parser):
    group = parser.add_argument_group("data")
    group.add_argument("--data-train", metavar="FILE", help="RecordIO file of the training images")
    group.add_argument("--data-train-idx", metavar="FILE", help="its index (default: the same name with .idx)")
    group.add_argument("--data-val", metavar="FILE", help="RecordIO file of the validation images")
    group.add_argument("--data-val-idx", metavar="FILE", help="its index (default: the same name with .idx)")
    group.add_argument(
        "--num-examples",
        type=number(int, 1),
        help="images of an epoch, all workers together (default: those of the index; with --benchmark 100 batches)",
    )
    group.add_argument("--data-nthreads", type=number(int, 1), default=4, help="threads that decode and augment images")
    group.add_argument("--benchmark", type=int, choices=(0, 1), default=0, help="1: train on one synthetic batch, without files")
    group.add_argument("--rgb-mean", type=numbers(3), default="123.68,116.779,103.939", help="subtracted from the channels")
    group.add_argument("--rgb-std", type=numbers(3), default="1,1,1", help="divisor of the channels after that")


def _add_augmentation(parser):
    group = parser.add_argument_group("augmentation", "of the training images, by MXNet's ImageRecordIter")
    group.add_argument("--random-crop", type=int, choices=(0, 1), default=1, help="crop at random, else in the centre")
    group.add_argument("--random-mirror", type=int, choices=(0, 1), default=1, help="mirror half of the images")
    group.add_argument(
        "--random-resized-crop", type=int, choices=(0, 1), default=0, help="instead, crop a part of random area and aspect, and resize it"
    )
    group.add_argument("--min-random-area", type=number(float, 0, 1), default=1, help="smallest part for --random-resized-crop")
    group.add_argument("--max-random-aspect-ratio", type=number(float, 0, 1), default=0, help="largest change of the aspect")
    group.add_argument("--min-random-scale", type=number(float, 0), default=1, help="smallest scale before cropping")
    group.add_argument("--max-random-scale", type=number(float, 0), default=1, help="largest scale before cropping")
    group.add_argument("--max-random-rotate-angle", type=number(int, 0, 360), default=0, help="largest rotation in degrees")
    group.add_argument("--max-random-shear-ratio", type=number(float, 0, 1), default=0, help="largest shear")
    group.add_argument("--max-random-h", type=number(int, 0, 180), default=0, help="largest change of hue")
    group.add_argument("--max-random-s", type=number(int, 0, 255), default=0, help="largest change of saturation")
    group.add_argument("--max-random-l", type=number(int, 0, 255), default=0, help="largest change of lightness")
    group.add_argument("--pad-size", type=number(int, 0), default=0, help="pixels put around an image before cropping")
    group.add_argument("--resize", type=number(int, 1), help="resize the shorter side to this before cropping, also for validation")


def _add_training(parser):
    group = parser.add_argument_group("training")
    group.add_argument("--gpus", type=gpus, default="", help="GPUs of a worker, as 0 or 0,1,2,3; the CPU if empty")
    group.add_argument("--cpus", type=number(int, 1), default=1, help="CPU devices of a worker without GPUs, to try several devices")
    group.add_argument("--batch-size", type=number(int, 1), default=128, help="images per worker and iteration, all its GPUs together")
    group.add_argument("--num-epochs", type=number(int, 1), default=80, help="epochs in all, including those before a checkpoint")
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="the optimizer")
    group.add_argument("--lr", type=number(float, 0), default=0.1, help="learning rate")
    group.add_argument("--lr-factor", type=number(float, 0, 1), default=0.1, help="factor that reduces the learning rate")
    group.add_argument("--lr-step-epochs", type=epochs, default="30,60", help="epochs after which it is reduced; '' for never")
    group.add_argument("--warmup-epochs", type=number(int, 0), default=0, help="epochs in which the learning rate rises to --lr")
    group.add_argument("--warmup-strategy", choices=("linear", "constant"), default="linear", help="how it rises; constant: it stays 0")
    group.add_argument("--mom", type=number(float, 0, 1), default=0.9, help="momentum, for " + ", ".join(WITH_MOMENTUM))
    group.add_argument("--wd", type=number(float, 0), default=1e-4, help="weight decay")
    group.add_argument("--top-k", type=number(int, 0), default=5, help="report accuracy in the best k as well; 0: do not")
    group.add_argument("--disp-batches", type=number(int, 1), default=20, help="batches between two lines of speed and accuracy")
    group.add_argument("--seed", type=number(int, 0), default=0, help="two runs with the same seed see the same random numbers")


def _add_communication(parser):
    group = parser.add_argument_group("communication")
    group.add_argument(
        "--kv-store",
        default="device",
        metavar="TYPE",
        help="dist_sync and dist_device_sync train on several workers; local and device in this process alone",
    )
    group.add_argument(
        "--policy", choices=policies(), help="which gradient goes first; off is plain MXNet (default: PROPHET_POLICY, or prophet)"
    )
    group.add_argument("--gc-type", choices=("none", "2bit"), default="none", help="gradient compression")
    group.add_argument("--gc-threshold", type=number(float, 0), default=0.5, help="threshold of the 2bit compression")


def _add_checkpoints(parser):
    group = parser.add_argument_group("checkpoints")
    group.add_argument(
        "--model-prefix", metavar="PATH", help="write PATH-0001.params ... after each epoch; in a folder that all workers see"
    )
    group.add_argument("--save-period", type=number(int, 1), default=1, help="epochs between two checkpoints")
    group.add_argument(
        "--keep",
        type=number(int, 1),
        metavar="N",
        help="delete checkpoints once N later ones are complete on all workers (default: keep all)",
    )
    group.add_argument(
        "--load-epoch",
        type=epoch_or_auto,
        metavar="N",
        help="resume after this epoch, from the files of --model-prefix; auto: after the last epoch that all workers have saved, if any",
    )
    group.add_argument(
        "--update-on",
        choices=("auto", "servers", "workers"),
        default="auto",
        help="where the optimizer runs. Its state can be saved only on the workers: auto means the workers with "
        "--model-prefix, else the servers. The weights are the same",
    )


# -- types of options ----------------------------------------------------------------------------------------------------------


def number(kind, low, high=math.inf):
    """A number of type ``kind`` from ``low`` to ``high``."""
    allowed = f"a {'whole ' if kind is int else ''}number " + (f"from {low} to {high}" if high < math.inf else f"of at least {low}")

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: {allowed}")
        return value

    return parse


def _listed(text, kind, allowed, count=None, low=-math.inf):
    try:
        values = tuple(kind(item) for item in text.split(",")) if text else ()
    except ValueError:
        values = (math.nan,)
    if not all(low <= value < math.inf for value in values) or count not in (None, len(values)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: {allowed}")
    return values


def numbers(count):
    """``count`` numbers with commas between them."""
    return lambda text: _listed(text, float, f"{count} numbers such as 1,1,1", count)


def shape(text):
    """Channels, height, width."""
    values = _listed(text, int, "channels, height and width such as 3,224,224", 3, 1)
    if values[0] not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: 1 or 3 channels")
    return values


def gpus(text):
    """Numbers of GPUs."""
    values = _listed(text, int, "different numbers such as 0 or 0,1,2,3", low=0)
    if len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: every GPU once")
    return values


def epochs(text):
    """Rising epochs."""
    values = _listed(text, int, "rising epochs such as 30,60", low=1)
    if list(values) != sorted(set(values)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: rising epochs such as 30,60")
    return values


def epoch_or_auto(text):
    """A number of epochs, or AUTO."""
    if text == AUTO:
        return text
    try:
        return number(int, 1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number of at least 1, or {AUTO}") from None


# -- checks of several options ---------------------------------------------------------------------------------------------------


def parse(parser, argv=None):
    """The options, checked as far as one process can; exits with 2 and one line otherwise.

    Adds ``devices`` (list of contexts), ``first_epoch`` (see also :func:`common.checkpoint.resume`) and ``on_workers`` (whether the
    optimizer runs there).
    """
    args = parser.parse_args(argv)
    try:
        _check(args, os.path.basename(parser.prog))
    except OptionError as error:
        parser.error(str(error))
    args.devices = [mx.gpu(i) for i in args.gpus] or [mx.cpu(i) for i in range(args.cpus)]
    args.first_epoch = 0 if args.load_epoch in (None, AUTO) else args.load_epoch
    args.on_workers = args.update_on == "workers" or (args.update_on == "auto" and args.model_prefix is not None)
    return args


def _check(args, script):
    if args.kv_store.startswith("dist") and "DMLC_ROLE" not in os.environ:
        raise OptionError(
            f"--kv-store {args.kv_store} needs servers and workers: start them with 'prophet-mx launch -n 2 -s 1 -- python {script} ...'"
        )
    if not args.benchmark and args.data_train is None:
        raise OptionError("give the training images with --data-train, or train on synthetic ones with --benchmark 1")
    for name in ("data_train", "data_val"):
        path = None if args.benchmark else getattr(args, name)
        if path is None:
            continue
        index = getattr(args, name + "_idx") or os.path.splitext(path)[0] + ".idx"
        setattr(args, name + "_idx", index)
        for file, hint in ((path, ""), (index, "; make_rec.py writes it beside the RecordIO file")):
            if not os.path.isfile(file):
                raise OptionError(f"--{name.replace('_', '-')} {path}: there is no file {file}{hint}")
    devices = len(args.gpus) or args.cpus
    if args.batch_size % devices:
        raise OptionError(f"--batch-size {args.batch_size} cannot be divided over {devices} devices; allowed: a multiple of {devices}")
    missing = [i for i in args.gpus if i >= mx.context.num_gpus()]
    if missing:
        raise OptionError(f"--gpus: GPU {missing[0]} is not there; this MXNet sees {mx.context.num_gpus()}")
    if args.dtype == "float16" and not args.gpus:
        raise OptionError("--dtype float16 needs --gpus: MXNet has no float16 convolutions for CPUs")
    if args.dtype == "float16" and args.gc_type != "none":
        raise OptionError("--gc-type 2bit compresses float32 gradients only; leave out --dtype float16")
    if args.top_k == 1 or args.top_k >= args.num_classes:
        raise OptionError(
            f"--top-k {args.top_k} is not allowed; allowed: 0, or 2 to {args.num_classes - 1} with {args.num_classes} classes"
        )
    if args.random_resized_crop and (args.min_random_scale, args.max_random_scale) != (1, 1):
        raise OptionError("--random-resized-crop 1 scales the image already; leave out --min-random-scale and --max-random-scale")
    if args.min_random_scale > args.max_random_scale:
        raise OptionError(f"--min-random-scale {args.min_random_scale} is larger than --max-random-scale {args.max_random_scale}")
    if args.gc_type != "none" and not args.kv_store.startswith("dist"):
        raise OptionError(f"--gc-type {args.gc_type} needs --kv-store dist_sync")
    _check_checkpoint(args)


def _check_checkpoint(args):
    if args.load_epoch is None:
        return
    if args.model_prefix is None:
        raise OptionError("--load-epoch needs --model-prefix, the prefix of the files to resume from")
    if args.load_epoch != AUTO and args.load_epoch >= args.num_epochs:
        raise OptionError(
            f"--load-epoch {args.load_epoch}: nothing is left to train with --num-epochs {args.num_epochs}, "
            "which counts the epochs before the checkpoint as well"
        )


def run(main):
    """Call ``main``; an error in options, settings or files is one line and exit code 2."""
    from prophet_mx import ProphetError

    try:
        main()
    except (OptionError, ProphetError) as error:
        print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)
        sys.exit(2)
