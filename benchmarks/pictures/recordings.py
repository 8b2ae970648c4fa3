"""A recorded iteration of each method, as benchmarks/pictures/traces has it: read, and made of what a job has told.

The file has the metadata that every result has (commit, command, date, machine), the cell, and for each method an iteration's spans as
``[begin, end, gradient]`` in microseconds from the start of backward, with the lengths of all iterations that it was chosen from.
"""

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from prophet_mx.errors import ConfigError
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.profiling.gradient_profile import GradientProfile

from ..comparison.cells import Cell
from ..testbed.emulated import FORWARD, backward_steps, forward_groups, numbered
from .spans import Count, DrawnIteration, Operation, Span, carried, computed, lengths, of_median, plain_order, since

RECORDED = Path(__file__).resolve().parent / "traces" / "iteration.json"
Order = List[Tuple[int, int]]  # gradients, or parts of them, each with its bytes
LANES = ("backward", "forward", "sends", "receives")


class Recording(NamedTuple):
    """``about``: the metadata, the cell and the sizes; ``iterations``: by method."""

    about: Dict[str, Any]
    iterations: Dict[str, DrawnIteration]

    @property
    def cell(self) -> Cell:
        """What was recorded."""
        return Cell.parse(self.about["cell"])


class Told(NamedTuple):
    """What a job has told: a worker's ``result``, see watched.py; the ``counts`` of its link; the path of its ``trace``, if any."""

    result: Mapping[str, Any]
    counts: Sequence[Count]
    trace: str = ""


def load_recording(path: Path = RECORDED) -> Recording:
    """The recording in a file. Raises ConfigError if there is none."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        methods = about.pop("methods")
        return Recording(about, {name: _iteration(each) for name, each in methods.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no recorded iteration: {error!r}") from None


def _iteration(stored: Mapping[str, Any]) -> DrawnIteration:
    lanes = ([Span(begin / 1e6, end / 1e6, gradient) for begin, end, gradient in stored[lane]] for lane in LANES)
    return DrawnIteration(stored["iteration"] / 1e6, *lanes, stored["first layer"] / 1e6)


def stored(found: Tuple[DrawnIteration, List[float]]) -> Dict[str, Any]:
    """An iteration as it stands in the file, and the lengths of all."""
    one, seconds = found
    lanes = {lane: [[_us(span.begin), _us(span.end), span.gradient] for span in getattr(one, lane)] for lane in LANES}
    return {"iteration": _us(one.seconds), "of": [_us(each) for each in seconds], "first layer": _us(one.first_layer), **lanes}


def save_recording(path: Path, about: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a recording: a line for each entry, and for each lane."""
    lines = [f'"{name}": {json.dumps(value)}' for name, value in about.items()]
    each = []
    for method, entries in methods.items():
        inner = [f'  "{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in entries.items()]
        each.append(f'"{method}": {{\n' + ",\n".join(inner) + "\n }")
    lines.append('"methods": {\n ' + ",\n ".join(each) + "\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def drawn(told: Told, profile: GradientProfile, rate: float, first: int) -> Tuple[DrawnIteration, List[float]]:
    """The iteration of median length from number ``first`` on, and the seconds of all of them. ``rate``: of the link, bytes/s."""
    operations = [Operation(number, kind != FORWARD, place, begin, end) for number, kind, place, begin, end in told.result["spans"]]
    found = lengths(operations, first)
    number = of_median(found)
    steps = [min(step) for step, _ in backward_steps(profile)]
    layers = [group[0] for group, _ in forward_groups(profile)]
    backward, forward = computed(operations, number, steps, layers)
    begin = backward[0].begin
    seconds = {number: length for length, number in found}[number]
    counts = [count for count in told.counts if begin <= count.at <= begin + seconds]
    arrivals = {gradient: at for iteration, gradient, at in told.result["arrivals"] if iteration == number}
    sent, received = _orders(told, profile, arrivals, number)
    lanes = (
        backward,
        forward,
        carried([(count.at, count.sent) for count in counts], sent, rate),
        carried([(count.at, count.received) for count in counts], received, rate),
    )
    return DrawnIteration(seconds, *(since(lane, begin) for lane in lanes), arrivals[0] - begin), [length for length, _ in found]


def _orders(told: Told, profile: GradientProfile, arrivals: Mapping[int, float], number: int) -> Tuple[Order, Order]:
    """In which order gradients, or parts of them, were sent in an iteration, and came back."""
    if not told.trace:
        numbers = numbered(profile)
        sent = plain_order(profile, [numbers[index] for index in range(len(profile.gradients))])
        return sent, sorted(sent, key=lambda unit: arrivals[unit[0]])
    trace = load_trace(told.trace)
    index = {str(number): place for place, number in numbered(profile).items()}  # a trace has keys where it knows no names
    index.update({gradient.name: place for place, gradient in enumerate(profile.gradients)})
    passed = trace.passages[number].values()  # both count iterations from 0
    units = {each.unit: (index[trace.units[each.unit].parameter], trace.units[each.unit].bytes) for each in passed}
    first_sent = sorted(passed, key=lambda each: (each.drained, each.released))
    first_back = sorted(passed, key=lambda each: each.answered)
    return [units[each.unit] for each in first_sent], [units[each.unit] for each in first_back]


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
