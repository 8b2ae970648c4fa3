"""The timeline's recorder for collectives: rounds of units as they happened, and their text in the format of a trace.

As the compiled recorder does (``timeline/recorder.pyx``), it only keeps numbers until the timeline's thread asks for text.

Contract: :meth:`RoundRecorder.landed` and :meth:`RoundRecorder.round_ends` are called in the thread that sees collectives end,
:meth:`RoundRecorder.updated` in the one that updates parameters, all else in the timeline's.
"""

import time
from collections import deque
from typing import Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .trace_format import GAP_ROW, ITERATION_ROW, LINK_COUNTERS, LINK_ROW, STEP_ROW

CAPACITY = 1 << 15  # units that are kept until their text is asked for

Landed = Tuple[int, float, float, float]  # unit, and when it was ready, started, landed (time.perf_counter)


class UnitFacts(NamedTuple):
    """What is fixed about a unit.

    Attributes
    ----------
    parameters : indices of the parameters that it is of, the most urgent first.
    bytes : of its payload.
    rank : 0 is needed first by the next forward.
    step : in which it becomes ready, -1 if that is not known.
    """

    parameters: Tuple[int, ...]
    bytes: int
    rank: int
    step: int


class Round(NamedTuple):
    """All units of a round, in the order in which they landed."""

    number: int
    units: List[Landed]

    @property
    def begin(self) -> float:
        """When its first unit was ready."""
        return min(ready for _, ready, _, _ in self.units)


class RoundRecorder:
    """Keeps rounds. One that was under way when it began is left out.

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
