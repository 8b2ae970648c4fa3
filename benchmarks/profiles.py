"""Profiles of MXNet's model zoo and of two transformers: what a job with such a model would send, computed from its layers.

    python -m benchmarks.profiles resnet50_v1 --compute 900ms --scale 0.5 --out resnet50-half.json
    python -m benchmarks.profiles vgg16 --compute 900ms --rho 1 --rate 59MB --out vgg16.json
    python -m benchmarks.profiles standard --out prophet_mx/profiling/models

Sizes are those of the learned parameters in forward order. The compute time is split over the operators by their floating
point operations; backward takes twice as long as forward. An operator's time belongs to its last learned parameter, one
without a parameter (activation, pooling) to the operator before it: forward then starts an operator when all its parameters
are there, and backward makes all its gradients ready at its end.
"""

import argparse
import json
import math
import os
import sys
from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import compute_time, count, link_rate
from prophet_mx.errors import ProfileError, ProphetError
from prophet_mx.planning.bound import rho, scaled_to_rho
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile

STANDARD = (
    "resnet18_v1",
    "resnet50_v1",
    "resnet152_v1",
    "inceptionv3",
    "vgg16",
    "vgg19",
    "mobilenetv2_1.0",
    "densenet121",
    "bert_base",
    "transformer_base",
)
BYTES_PER_ELEMENT = 4
DECIMALS = 8  # of the times in seconds: enough for any layer, and the files stay small

# MXNet runs operators in bulks and tells the KVStore at the end of each: 62 gradients of ResNet-18 come in 5 bursts.
GRADIENTS_PER_STEP = 12
FEWEST_STEPS = 4

# Operators other than convolution and dense wait for memory. Moving an element costs as much time as some tens of operations.
FLOPS_PER_ELEMENT = 20

PREFIX = "net_"  # of the zoo's parameters

Shape = Tuple[int, ...]


class Parameter(NamedTuple):
    """A learned parameter: its elements, the operator (its number in forward order) that reads it, that operator's share of
    the FLOPs (0 unless this is the operator's last parameter)."""

    name: str
    elements: int
    operator: int
    flops: int


def build_profile(
    model: str, batch: int = 32, steps: Optional[int] = None, image: Optional[int] = None, compute: float = 1.0
) -> GradientProfile:
    """The profile of a model, of which one iteration computes for ``compute`` seconds.

    Parameters
    ----------
    model : a name that ``mxnet.gluon.model_zoo.vision.get_model`` knows, or one of :data:`benchmarks.transformers.TRANSFORMERS`.
    batch : images or sentences per iteration and worker; it changes only how compute time divides itself over layers, and little.
    steps : number of steps in which the gradients become ready; None for about one per 12 gradients, at least 4.
    image : height and width of an image, None for the model's usual (299 for Inception, else 224).

    Raises
    ------
    ProfileError
        there is no such model, it does not take such images, or it has fewer operators with parameters than ``steps``.
    """
    if batch < 1 or (image is not None and image < 1):
        raise ProfileError(f"batch {batch} and image {image} must be at least 1")
    if not 0 < compute < math.inf:
        raise ProfileError(f"compute time {compute} s must be positive and finite")
    parameters = _parameters(model, batch, image)
    if steps is None:
        operators = len({parameter.operator for parameter in parameters})
        steps = min(operators, max(FEWEST_STEPS, round(len(parameters) / GRADIENTS_PER_STEP)))
    total = sum(parameter.flops for parameter in parameters)
    times = [compute * parameter.flops / (3 * total) for parameter in parameters]
    gradients = [
        Gradient(parameter.name, parameter.elements * BYTES_PER_ELEMENT, round(time, DECIMALS), round(2 * time, DECIMALS))
        for parameter, time in zip(parameters, times)
    ]
    profile = GradientProfile(model, gradients, _split(parameters, steps))
    ready = [round(time, DECIMALS) for time in profile.ready_times()]
    return replace(profile, gradients=tuple(replace(gradient, ready=time) for gradient, time in zip(gradients, ready)))


def _parameters(model: str, batch: int, image: Optional[int]) -> List[Parameter]:
    import mxnet as mx

    from .transformers import LENGTH, TRANSFORMERS

    data: Shape
    if model in TRANSFORMERS:
        if image is not None:
            raise ProfileError(f"{model} takes sentences, not images")
        symbol, data = TRANSFORMERS[model](), (batch, LENGTH)
        learned = set(symbol.list_arguments()) - {"data"}
    else:
        try:
            # A prefix of its own makes the names independent of what was built before in this process.
            net = mx.gluon.model_zoo.vision.get_model(model, prefix=PREFIX)
        except ValueError as error:
            raise ProfileError(f"MXNet's model zoo has no model {model!r}; of transformers there are {', '.join(TRANSFORMERS)}") from error
        size = image or (299 if model.lower().startswith("inception") else 224)
        symbol, data = net(mx.sym.var("data")), (batch, 3, size, size)
        learned = {name for name, parameter in net.collect_params().items() if parameter.grad_req != "null"}
    internals = symbol.get_internals()
    try:
        arguments, outputs, _ = internals.infer_shape(data=data)
    except mx.base.MXNetError as error:
        raise ProfileError(f"{model} does not take images of shape {data}: {str(error).splitlines()[-1]}") from error
    shapes = dict(zip(internals.list_arguments(), arguments))
    shapes.update(zip(internals.list_outputs(), outputs))
    return _attribute(json.loads(symbol.tojson())["nodes"], shapes, learned)


def _attribute(nodes: List[dict], shapes: Dict[str, Shape], learned: set) -> List[Parameter]:
    """The learned parameters in forward order, with the FLOPs of all operators attributed to them."""
    result: Dict[str, Parameter] = {}
    waiting = 0  # FLOPs before the first operator that has a parameter
    last = None
    for number, node in enumerate(nodes):
        if node["op"] == "null":
            continue
        inputs = [nodes[entry[0]] for entry in node["inputs"]]
        own = [entry["name"] for entry in inputs if entry["op"] == "null" and entry["name"] in learned]
        for name in own:
            # A parameter that several operators share is needed by the first, and its gradient complete after the first's.
            if name not in result:
                short = name[len(PREFIX) :] if name.startswith(PREFIX) else name
                result[name] = Parameter(short, math.prod(shapes[name]), number, 0)
                last = name
        flops = _flops(node, inputs, shapes) + waiting
        waiting = 0 if last else flops
        if last:
            result[last] = result[last]._replace(flops=result[last].flops + flops)
    return list(result.values())


def _flops(node: dict, inputs: List[dict], shapes: Dict[str, Shape]) -> int:
    """Floating point operations of an operator's forward; a multiplication and an addition are two."""
    name = node["name"]
    # An operator of several outputs names them output0, output1, ...; the first is the one that carries the data.
    output = math.prod(shapes.get(name + "_output") or shapes.get(name + "_output0") or (0,))
    if node["op"] in ("Convolution", "FullyConnected"):
        weight = shapes[inputs[1]["name"]]  # (outputs, inputs of one output, kernel height, kernel width)
        return 2 * output * math.prod(weight[1:])
    if node["op"] == "batch_dot":
        return 2 * output * shapes[inputs[0]["name"] + "_output"][-1]
    if node["op"] == "Reshape":  # the same bytes under another shape
        return 0
    return FLOPS_PER_ELEMENT * output


def _split(parameters: Sequence[Parameter], steps: int) -> Tuple[Tuple[int, ...], ...]:
    """Indices in ``steps`` groups of about as many gradients each, the last layers first, no operator's in two groups."""
    operators: List[List[int]] = []
    for index in reversed(range(len(parameters))):
        if operators and parameters[operators[-1][0]].operator == parameters[index].operator:
            operators[-1].append(index)
        else:
            operators.append([index])
    if not 1 <= steps <= len(operators):
        raise ProfileError(f"{steps} steps: the model's {len(operators)} operators with parameters allow 1 to {len(operators)}")
    groups: List[List[int]] = [[]]
    placed = 0
    for done, operator in enumerate(operators):
        full = placed >= len(groups) * len(parameters) / steps
        needed = steps - len(groups) == len(operators) - done
        if groups[-1] and len(groups) < steps and (full or needed):
            groups.append([])
        groups[-1].extend(operator)
        placed += len(operator)
    return tuple(tuple(sorted(group)) for group in groups)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a name in MXNet's model zoo, a transformer, or 'standard' for " + ", ".join(STANDARD))
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write; with 'standard', a directory")
    parser.add_argument("--batch", type=count, default=32, help="images per iteration (default 32)")
    parser.add_argument("--image", type=count, help="height and width of an image (default: the model's usual)")
    parser.add_argument("--steps", type=count, help="steps in which gradients become ready (default: one per 12 gradients)")
    parser.add_argument("--compute", type=compute_time, default=1.0, metavar="TIME", help="forward and backward (default: 1s)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="FACTOR", help="scale all sizes by this (default 1)")
    parser.add_argument("--rho", type=float, help="scale the sizes to this communication time / compute time at --rate")
    parser.add_argument("--rate", type=link_rate, help="one worker's share of the link, such as 500Mbit or 59MB/s")
    options = parser.parse_args(arguments)
    if (options.rho is None) != (options.rate is None):
        parser.error("--rho and --rate go together")
    models = STANDARD if options.model == "standard" else (options.model,)
    try:
        if options.model == "standard":
            os.makedirs(options.out, exist_ok=True)
        for model in models:
            profile = build_profile(model, options.batch, options.steps, options.image, options.compute)
            profile = profile.scaled(size=options.scale)
            if options.rho is not None:
                profile = scaled_to_rho(profile, options.rate, options.rho)
            path = os.path.join(options.out, model + ".json") if options.model == "standard" else options.out
            profile.save(path)
            print(_summary(profile, path, options.rate))
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _summary(profile: GradientProfile, path: str, rate: Optional[float]) -> str:
    text = (
        f"{path}: {len(profile.gradients)} gradients, {profile.total_bytes / 1e6:.1f} MB, {len(profile.steps)} steps, "
        f"compute {profile.compute_seconds:.3f} s"
    )
    return text + (f", rho {rho(profile, rate):.3f}" if rate else "")


if __name__ == "__main__":
    sys.exit(main())
