"""Counts collectives, unit by unit and round by round, where no compiled scheduler does; and shows them to a timeline.

A *round* is one pass through the order of all units. In it each unit becomes ready, is started, and lands: it is summed up.

Contract: :meth:`Traffic.ready` is called in the threads that make gradients, :meth:`Traffic.started` in the one thread that starts
collectives, :meth:`Traffic.landed` in the one that sees them end. Each writes attributes of its own, so there is no lock. A unit becomes
ready again only after its ``landed()`` has returned. A thread that reads at the same time gets numbers that differ by a unit or so.
"""

import time
from typing import Any, Dict, List, Optional, Sequence

from .round_recorder import RoundRecorder, UnitFacts


class Traffic:
    """The counters of one rank.

    Parameters
    ----------
    names : of the parameters, by index; and one more, of what a unit is called that has none of them.

    Attributes
    ----------
    gradients, labels : of each unit of all plans, what it is of, and what that is called; both only grow.
    recorder : the timeline's, None while there is none.
    rate : of the plan, bytes/s of payload; 0 while it is not known.
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

        A link's backlog is what it carried, and the time that passed, while the unit whose turn it was was ready.
        """
        return {
            "iterations": self._round,
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
        return {"gradient": facts.parameters[0] if facts.parameters else -1, "bytes": facts.bytes, "link": 0, "rank": facts.rank, **more}
