"""Rounds of collectives: their counters, and the timeline's recorder of them, where no compiled scheduler and recorder do both.

As the compiled recorder does (``timeline/recorder.pyx``), it only keeps numbers until the timeline's thread asks for text.
"""

import time
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .trace_file import GAP_ROW, ITERATION_ROW, LINK_COUNTERS, LINK_ROW, STEP_ROW

CAPACITY = 1 << 15  # units that are kept until their text is asked for

Landed = Tuple[int, float, float, float]  # unit, and when it was ready, started, landed (time.perf_counter)


class UnitFacts(NamedTuple):
    """What is fixed about a unit."""

    parameters: Tuple[int, ...]  # indices of its parameters, the most urgent first
    bytes: int  # size of its payload
    urgency: int  # 0 is needed first by the next forward
    step: int  # the step in which it becomes ready, -1 if that is not known


class Round(NamedTuple):
    """All units of a round, in the order in which they landed."""

    number: int
    units: List[Landed]

    @property
    def begin(self) -> float:
        """When its first unit was ready."""
        return min(ready for _, ready, _, _ in self.units)


class RoundRecorder:
    """Keeps rounds until the timeline's thread asks for their text, in the format of a trace. One that was under way when it began is
    left out.

    Contract: :meth:`landed` and :meth:`round_ends` are called in the thread that sees collectives end, :meth:`updated` in the one that
    updates parameters, all else in the timeline's.

    Parameters
    ----------
    process : number of the rank's process in the trace; its units have the next one.

    Attribute ``lost``: units that did not fit.
    """

    def __init__(self, process: int) -> None:
        self.lost = 0
        self._process = process
        self._origin = time.perf_counter()
        self._every = self._iterations_every = 1
        self._landing: List[Landed] = []  # of the round that is under way
        self._rounds: Deque[Round] = deque()  # over, and not yet asked for
        self._updates: Deque[Tuple[int, int, float]] = deque()  # round, parameter, when it was updated
        self._held: Optional[Round] = None  # the newest round that was asked for: its updates, and its end, come with the next one
        self._updated: Dict[int, Dict[int, float]] = {}  # by round and parameter
        self._free = 0.0  # when the unit landed that was told last
        self._idle = 0.0  # since when nothing was ready or under way, as far as that is told; 0 at first

    # -- what happens ------------------------------------------------------------------------------------------------------

    def landed(self, unit: Landed) -> None:
        """A unit of the round under way has landed."""
        self._landing.append(unit)

    def round_ends(self, number: int, units: int) -> None:
        """The round of this number, which has so many units, has landed."""
        landed, self._landing = self._landing, []
        if len(self._rounds) * units > CAPACITY:
            self.lost += units
        elif len(landed) == units:
            self._rounds.append(Round(number, landed))

    def updated(self, number: int, parameter: int, now: float) -> None:
        """A parameter was updated by its gradient of this round."""
        if len(self._updates) < CAPACITY:
            self._updates.append((number, parameter, now))

    # -- for the timeline --------------------------------------------------------------------------------------------------

    def keep(self, every: int, iterations_every: int) -> None:
        """Tell one round in ``every``, and of the others when one in ``iterations_every`` began."""
        self._every, self._iterations_every = every, iterations_every

    def now_us(self) -> int:
        """The time of an event that happens now."""
        return self._us(time.perf_counter())

    def text(self, facts: Sequence[UnitFacts], labels: Sequence[bytes], rate: float, last: bool) -> bytes:
        """The events of all rounds but the newest, whose updates may not be done; with ``last`` of that, too."""
        rounds = [self._held] if self._held is not None else []
        while self._rounds:
            rounds.append(self._rounds.popleft())
        while self._updates:
            number, parameter, now = self._updates.popleft()
            self._updated.setdefault(number, {})[parameter] = now
        self._held = rounds.pop() if rounds and not last else None
        events: List[str] = []
        for place, each in enumerate(rounds):
            following = rounds[place + 1] if place + 1 < len(rounds) else self._held
            events += self._round(each, following, facts, labels, rate)
            self._updated = {number: updated for number, updated in self._updated.items() if number > each.number}
        return "".join(events).encode("utf-8")

    # -- text --------------------------------------------------------------------------------------------------------------

    def _round(
        self, each: Round, following: Optional[Round], facts: Sequence[UnitFacts], labels: Sequence[bytes], rate: float
    ) -> Iterator[str]:
        number, kept = each.number, each.number % self._every == 0
        if following is not None and following.number == number + 1 and number % self._iterations_every == 0:
            yield self._slice('"iteration"', self._process, ITERATION_ROW, each.begin, following.begin, number)
        for begin, end in self._gaps(each):
            if kept:
                yield self._slice('"compute gap"', self._process, GAP_ROW, begin, end, number)
        free, self._free = self._free, each.units[-1][3]
        if not kept:
            return
        yield from self._steps(each, facts)
        for unit, ready, started, landed in each.units:
            name = labels[unit].decode("utf-8") if unit < len(labels) else '"unit"'
            yield self._slice('"wait"', self._process + 1, unit + 1, ready, started, number, f',"step":{facts[unit].step}')
            yield self._slice('"wire"', self._process + 1, unit + 1, started, landed, number)
            yield self._slice('"answer"', self._process + 1, unit + 1, landed, landed, number)
            yield self._slice(name, self._process, LINK_ROW, max(started, free), landed, number)
            updated = [self._updated.get(number, {}).get(parameter) for parameter in facts[unit].parameters]
            known = [max(landed, when) for when in updated if when is not None]
            if known:
                yield self._slice('"unpack"', self._process + 1, unit + 1, landed, max(known), number)
            free = landed
        yield from self._counters(each, facts, rate)

    def _gaps(self, each: Round) -> Iterator[Tuple[float, float]]:
        """The times before and between a round's units in which none was ready or under way."""
        for _, ready, _, landed in sorted(each.units, key=lambda unit: unit[1]):
            if 0 < self._idle < ready:
                yield self._idle, ready
            self._idle = max(self._idle, landed)

    def _steps(self, each: Round, facts: Sequence[UnitFacts]) -> Iterator[str]:
        steps: Dict[int, List[Tuple[float, int]]] = {}
        for unit, ready, _, _ in each.units:
            steps.setdefault(facts[unit].step, []).append((ready, facts[unit].bytes))
        for step, members in sorted(steps.items()):
            if step >= 0:
                begin, end = min(members)[0], max(members)[0]
                about = f',"step":{step},"units":{len(members)},"bytes":{sum(size for _, size in members)}'
                yield self._slice('"step"', self._process, STEP_ROW, begin, end, each.number, about)

    def _counters(self, each: Round, facts: Sequence[UnitFacts], rate: float) -> Iterator[str]:
        moments: List[Tuple[float, int, int]] = []  # when, and by how much bytes in flight and waiting units change
        for unit, ready, started, landed in each.units:
            moments += [(ready, 0, 1), (started, facts[unit].bytes, -1), (landed, -facts[unit].bytes, 0)]
        flight = waiting = 0
        for when, size, units in sorted(moments):
            flight, waiting = flight + size, waiting + units
            if size:
                about = f'{{"in flight":{flight},"ready units":{waiting},"rate":{rate:.0f}}}'
                yield f',\n{{"ph":"C","name":"{LINK_COUNTERS}0","pid":{self._process},"ts":{self._us(when)},"args":{about}}}'

    def _slice(self, name: str, process: int, row: int, begin: float, end: float, number: int, about: str = "") -> str:
        """``name`` is a JSON text."""
        since = self._us(begin)
        return (
            f',\n{{"ph":"X","name":{name},"pid":{process},"tid":{row},"ts":{since},"dur":{self._us(end) - since},'
            f'"args":{{"iteration":{number}{about}}}}}'
        )

    def _us(self, when: float) -> int:
        """Microseconds since the origin: whole ones, so that slices which touch do not overlap."""
        return max(0, int((when - self._origin) * 1e6 + 0.5))


class RoundCounters:
    """The counters of one rank.

    Contract: :meth:`ready` is called in the threads that make gradients, :meth:`started` in the one thread that starts collectives,
    :meth:`landed` in the one that sees them end. Each writes attributes of its own, so there is no lock. A unit becomes ready again only
    after its :meth:`landed` has returned. A thread that reads at the same time gets numbers that differ by a unit or so.

    Parameters
    ----------
    names : of the parameters, by index, plus a label for units without parameters.

    Attributes
    ----------
    gradients : the gradient of each unit of all plans; only grows.
    labels : what each of these gradients is called; only grows.
    recorder : the timeline's, None while there is none.
    rate : payload that the plan expects to carry (bytes/s); 0 while it is not known.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.gradients: List[int] = []
        self.labels: Dict[int, str] = {}
        self.recorder: Optional[RoundRecorder] = None
        self.rate = 0.0
        self._facts: List[UnitFacts] = []  # of all plans
        self._base = 0  # of the plan's units in it
        self._sizes: List[int] = []  # of the plan's units, as are the next two
        self._ready: List[float] = []  # when each became ready last
        self._started: List[float] = []
        self._round = self._left = 0  # the round whose units land, and how many of them have not
        self._started_bytes = 0
        self._landed_units = self._landed_bytes = 0
        self._wait_seconds = self._first_seconds = self._busy_seconds = 0.0
        self._first_count = self._first_ahead = 0
        self._free = 0.0  # when a unit landed last

    def plan(self, units: Sequence[UnitFacts], rate: float) -> None:
        """There are other units from now on, the most urgent first. Nothing is under way."""
        place = len(self.labels)
        self.labels.update((place + index, name) for index, name in enumerate(self._names))
        self._base, self.rate = len(self._facts), rate
        self._sizes = [unit.bytes for unit in units]
        self._ready, self._started, self._left = [0.0] * len(units), [0.0] * len(units), len(units)
        self._facts += units
        self.gradients += [place + (unit.parameters[0] if unit.parameters else len(self._names) - 1) for unit in units]

    @property
    def planned(self) -> int:
        """Units of a round."""
        return len(self._sizes)

    @property
    def largest(self) -> int:
        """Bytes of the plan's largest unit."""
        return max(self._sizes, default=0)

    # -- what happens ------------------------------------------------------------------------------------------------------

    def ready(self, unit: int) -> None:
        """All gradients of this unit are in it."""
        self._ready[unit] = time.perf_counter()
        if unit == 0:
            self._first_ahead += self._started_bytes - self._landed_bytes

    def started(self, unit: int) -> None:
        """Its collective is under way."""
        self._started[unit] = time.perf_counter()
        self._started_bytes += self._sizes[unit]

    def landed(self, unit: int) -> None:
        """It is summed up."""
        ready, started, now = self._ready[unit], self._started[unit], time.perf_counter()
        self._landed_units += 1
        self._landed_bytes += self._sizes[unit]
        self._wait_seconds += started - ready
        self._busy_seconds += now - max(self._free, ready)
        self._free = now
        if unit == 0:
            self._first_seconds += now - ready
            self._first_count += 1
        self._left -= 1
        recorder = self.recorder
        if recorder is not None:
            recorder.landed((self._base + unit, ready, started, now))
        if not self._left:
            if recorder is not None:
                recorder.round_ends(self._round, len(self._sizes))
            self._round += 1
            self._left = len(self._sizes)

    # -- what is shown -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Dict[str, Any]:
        """The counters at this moment, in the words of :meth:`prophet_mx._core.Driver.snapshot`. "Answered" is: summed up.

        Iterations are not counted, as the caller is never ahead of its gradients. A link's backlog is what it carried, and the time that
        passed, while the unit whose turn it was was ready.
        """
        return {
            "units": self._landed_units,
            "bytes": self._landed_bytes,
            "wait_seconds": self._wait_seconds,
            "first_seconds": self._first_seconds,
            "first_answers": self._first_count,
            "first_ahead": self._first_ahead,
            "links": [{"rate": self.rate, "backlog_seconds": self._busy_seconds, "backlog_bytes": self._landed_bytes}],
        }

    def record_timeline(self, recorder: Optional[RoundRecorder]) -> None:
        """Tell this recorder what happens; None: nobody."""
        self.recorder = recorder

    def drain_timeline(self, recorder: RoundRecorder, labels: Sequence[bytes], last: bool = False) -> bytes:
        """The recorder's events that can be told by now as JSON objects, each with ``,\\n`` before it; with ``last`` all of them."""
        return recorder.text(self._facts, labels, self.rate, last)

    def unit_facts(self, unit: int) -> Dict[str, Any]:
        """What is fixed about a unit of all plans, for the timeline."""
        facts = self._facts[unit]
        more = {"parameters": [self._names[index] for index in facts.parameters]} if len(facts.parameters) > 1 else {}
        return {"gradient": facts.parameters[0] if facts.parameters else -1, "bytes": facts.bytes, "link": 0, "rank": facts.urgency, **more}
