"""Reads a trace that the timeline wrote, with suspicion. Times are seconds since the timeline was started."""

import json
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

from ..config import shown
from ..errors import TraceError
from ..profiling.gradient_profile import MAX_GRADIENT_BYTES, MAX_SECONDS
from ..profiling.steps import finite
from ..user_files import read_text
from .trace_file import FORMAT, GAP_ROW, HEAD, ITERATION_ROW, LINK_COUNTERS, LINK_ROW, LOST, STAGES, STEP_ROW

LONG = 2**63  # what the recorder writes is less
MOST_RATE = 1e15  # bytes/s
MOST_MACHINES = 10**6


@dataclass(frozen=True)
class TracedUnit:
    """What is fixed about a unit: its name, its parameter's, and payload ``bytes``; urgency 0 is needed first by the next forward."""

    name: str
    parameter: str
    bytes: int
    urgency: int


@dataclass
class Passage:
    """One unit in one iteration: when it became ready, was released, when the link turned to it (``wire``), when its last byte had
    drained, when it was answered, and when its values were in the caller's arrays (``landed``; as answered where that is unknown)."""

    unit: int
    ready: float = math.nan
    released: float = math.nan
    wire: float = math.nan
    drained: float = math.nan
    answered: float = math.nan
    landed: float = math.nan
    step: int = -1

    @property
    def complete(self) -> bool:
        """Whether every time is known."""
        return not any(math.isnan(t) for t in (self.ready, self.released, self.wire, self.drained, self.answered))


@dataclass(frozen=True)
class TracedBlock:
    """Units that left one after the other because they fit the predicted interval: on which link, when, how many, their ``bytes``, and
    the bytes ``predicted`` to fit."""

    link: int
    begin: float
    end: float
    units: int
    bytes: int
    predicted: int


@dataclass
class Trace:
    """A trace: what its head says, and by iteration what was recorded.

    Attributes
    ----------
    units : by unit index.
    iterations : number -> (begin, end), from its first ready gradient to the next iteration's.
    passages : number -> the units' passages, by unit.
    wires : number -> times in which a link carried a unit: (link, begin, end).
    steps : number -> (step, begin, end, units, bytes).
    blocks : number -> the gradient blocks.
    gaps : times (begin, end) in which no gradient waited or was on its way.
    rates : by link, the last one known (bytes/s).
    lost : events that did not fit the recorder's buffer.
    """

    path: str
    head: Dict[str, Any]
    units: Dict[int, TracedUnit] = field(default_factory=dict)
    iterations: Dict[int, Tuple[float, float]] = field(default_factory=dict)
    passages: Dict[int, Dict[int, Passage]] = field(default_factory=dict)
    wires: Dict[int, List[Tuple[int, float, float]]] = field(default_factory=dict)
    steps: Dict[int, List[Tuple[int, float, float, int, int]]] = field(default_factory=dict)
    blocks: Dict[int, List[TracedBlock]] = field(default_factory=dict)
    gaps: List[Tuple[float, float]] = field(default_factory=list)
    rates: Dict[int, float] = field(default_factory=dict)
    lost: int = 0


def load_trace(path: str) -> Trace:
    """The trace in a file.

    Raises TraceError if it cannot be read, is not complete JSON, or is not a trace of prophet_mx.
    """
    try:
        events = json.loads(read_text(path, pipes=True))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: damaged, or not a trace: not a complete JSON text ({error})") from None
    if not isinstance(events, list) or not events or not isinstance(events[0], dict) or events[0].get("name") != HEAD:
        raise TraceError(f"{path}: not a trace of prophet_mx; PROPHET_TIMELINE=trace.json makes a job write one")
    head: Any = events[0].get("args")
    process: Any = events[0].get("pid")
    stated = head.get("format") if isinstance(head, dict) else None
    if stated != FORMAT:
        raise TraceError(f"{path}: its format is {stated!r:.80}, this version reads {FORMAT!r}")
    for name in ("rank", "workers", "servers"):
        if name in head and not _is_whole(head[name], 0, MOST_MACHINES):
            raise TraceError(f"{path}: damaged: it names {shown(head[name]):.80} {name}; allowed: a whole number up to {MOST_MACHINES}")
    reader = _Reader(Trace(path, head), process)
    for number, event in enumerate(events):
        try:
            reader.take(event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise TraceError(f"{path}: damaged: event {number} is {str(event)[:80]!r} ({type(error).__name__})") from None
    return reader.trace


class _Reader:
    def __init__(self, trace: Trace, process: int) -> None:
        self.trace = trace
        self._process = process
        self._by_name: Dict[str, int] = {}

    def take(self, event: Dict[str, Any]) -> None:
        """Take in one event."""
        phase, name = event["ph"], event["name"]
        if phase == "X":
            begin = _time(event["ts"])
            end = begin + _time(event["dur"])
            self._slice(_whole(event["pid"]), str(name), _whole(event["tid"]), begin, end, event["args"])
        elif phase == "C" and name.startswith(LINK_COUNTERS):
            self.trace.rates[int(name[len(LINK_COUNTERS) :])] = _number(event["args"]["rate"], MOST_RATE)
        elif phase == "M" and name == "thread_name" and "parameter" in event["args"]:
            facts = event["args"]
            unit = _whole(facts["unit"])
            self.trace.units[unit] = TracedUnit(str(facts["name"]), str(facts["parameter"]), _bytes(facts["bytes"]), _whole(facts["rank"]))
            self._by_name[str(facts["name"])] = unit
        elif phase == "i" and name.endswith(LOST):
            self.trace.lost += _whole(int(name.split()[0]))

    def _slice(self, process: int, name: str, row: int, begin: float, end: float, args: Dict[str, Any]) -> None:
        trace, iteration = self.trace, _whole(args["iteration"])
        if process == self._process + 1:
            if name in STAGES and row - 1 in trace.units:
                self._stage(name, self._passage(iteration, row - 1), begin, end, args)
        elif row == ITERATION_ROW:
            trace.iterations[iteration] = (begin, end)
        elif row == STEP_ROW:
            trace.steps.setdefault(iteration, []).append(
                (_whole(args["step"], -1), begin, end, _whole(args["units"]), _bytes(args["bytes"]))
            )
        elif row == GAP_ROW:
            trace.gaps.append((begin, end))
        elif row >= LINK_ROW and "block" in args:
            block = TracedBlock(row - LINK_ROW, begin, end, _whole(args["units"]), _bytes(args["bytes"]), _whole(args["predicted"], -LONG))
            trace.blocks.setdefault(iteration, []).append(block)
        elif row >= LINK_ROW:
            trace.wires.setdefault(iteration, []).append((row - LINK_ROW, begin, end))
            if name in self._by_name:
                self._passage(iteration, self._by_name[name]).wire = begin

    def _passage(self, iteration: int, unit: int) -> Passage:
        passages = self.trace.passages.setdefault(iteration, {})
        if unit not in passages:
            passages[unit] = Passage(unit)
        return passages[unit]

    @staticmethod
    def _stage(name: str, passage: Passage, begin: float, end: float, args: Dict[str, Any]) -> None:
        if name == "wait":
            passage.ready, passage.released, passage.step = begin, end, _whole(args["step"], -1)
        elif name == "wire":
            passage.drained = end
            if math.isnan(passage.wire):  # its slice in the link's row comes later, if it comes
                passage.wire = begin
        elif name == "answer":
            passage.answered = end
            if math.isnan(passage.landed):
                passage.landed = end
        else:
            passage.landed = end


def _time(value: Any) -> float:
    """Seconds of a number of microseconds."""
    return _number(value, MAX_SECONDS * 1e6) * 1e-6


def _number(value: Any, high: float) -> float:
    """A number from 0; ValueError if it is none, or larger than ``high``."""
    number = finite(value)
    if number is None or not 0 <= number <= high:
        raise ValueError("a number is out of range")
    return number


def _whole(value: Any, low: int = 0, high: int = LONG) -> int:
    """A whole number; ValueError if it is none, lower than ``low``, or larger than ``high``."""
    if not _is_whole(value, low, high):
        raise ValueError("a whole number is out of range")
    number: int = value
    return number


def _bytes(value: Any) -> int:
    return _whole(value, 0, MAX_GRADIENT_BYTES)


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
