"""The plan of a round of collectives: its units, and the order in which all ranks start them; when it is made, and when made anew. Pure."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import Times
from .orders import ranked, static_order
from .owners import order_of_halves, owner_of_part, owners
from .unit_sizes import CollectiveCost, UnitSizes, collective_sizes, fixed_sizes
from .units import Member, MergedUnit, partition

DRIFT = 0.1  # of backward's time, by which most gradients become ready earlier or later: the profile is another
RATE_DRIFT = 0.03  # of the plan's rate
LEAST_RATE = 0.8  # of the measured rate
LEAST_OWNED = 0.5  # of all bytes, for a round in halves: what they save, others lose as links are busy in one direction only
STARTUP_OF_HALF = 1 / 6  # of that of an all-reduce, as a half is only sent
GUESS = CollectiveCost(0.0005, 100e6)  # until it is measured


# How sums travel: some before others, as the next forward needs them; or as gradients become ready, as the program waits for all before
# step(); or in halves (owners.py), as it waits there for the norm of all.
URGENT, TOGETHER, HALVES = "urgent", "together", "halves"


class Parameter(NamedTuple):
    """A parameter's name, the bytes of its gradient and of an element, and what gradients must have in common to share a unit. ``parts``:
    whether the ranks can find its norm if each has a part of it."""

    name: str
    bytes: int
    itemsize: int
    kind: Any
    parts: bool = False

    @property
    def elements(self) -> int:
        """Of its gradient."""
        return self.bytes // self.itemsize


class RoundPlan(NamedTuple):
    """The same on all ranks. Parameters are named by their indices."""

    units: List[MergedUnit]  # the most urgent first
    order: List[int]  # of units, in which they are started; in a round in halves, that of order_of_halves()
    urgency: List[int]  # of each parameter; 0 is needed first by the next forward
    cost: Optional[CollectiveCost] = None  # of a collective, None before it is measured
    profile: Optional[GradientProfile] = None  # that the plan was made of, in the order of forward; None before there is one
    owners: Sequence[Optional[int]] = ()  # of a round in halves: which rank owns each unit, None for all ranks
    way: str = URGENT  # or TOGETHER, or HALVES

    def steps(self) -> Dict[str, int]:
        """The step in which each parameter's gradient becomes ready, by name; empty before there is a profile."""
        if self.profile is None:
            return {}
        return {self.profile.gradients[index].name: step for step, members in enumerate(self.profile.steps) for index in members}


class RoundPlanner:
    """Makes the plans of one job. What it is given for a plan is the same on all ranks; what it tells of drift is one rank's.

    Parameters
    ----------
    parameters : in the order of the model.
    unit : bytes of a unit, if the user has set them.

    Attribute ``cost``: of a collective, for the next plan; None before :meth:`measured`.
    """

    def __init__(self, parameters: Sequence[Parameter], unit: Optional[int]) -> None:
        self._parameters, self._unit = list(parameters), unit
        self.cost: Optional[CollectiveCost] = None
        self._measured: Optional[CollectiveCost] = None
        self._seen: Optional[List[float]] = None  # ready times at the last look

    def measured(self, cost: CollectiveCost) -> None:
        """What a collective was found to cost before the job began."""
        self._measured = self.cost = cost

    def first_plan(self, unit: int) -> RoundPlan:
        """The plan until there is a profile, with units of so many bytes: the last parameters first, as backward mostly has them."""
        urgency = list(range(len(self._parameters)))
        units = partition(self._members(urgency, [0.0] * len(urgency)), fixed_sizes(unit), GUESS.rate)
        return RoundPlan(units, list(range(len(units)))[::-1], urgency)

    def plan(self, profile: GradientProfile, cost: CollectiveCost, way: str = URGENT, ranks: int = 0, divide: bool = True) -> RoundPlan:
        """The plan for a profile of all parameters and for a cost, in this ``way``. For HALVES: of so many ``ranks``, and whether these
        ``divide`` gradients that have parts. It is TOGETHER instead where little would travel in halves."""
        self.cost = cost
        places = {gradient.name: place for place, gradient in enumerate(profile.gradients)}
        urgency, ready = [places[each.name] for each in self._parameters], self._by_parameter(profile)
        if way == HALVES:
            of_half = cost._replace(startup=cost.startup * STARTUP_OF_HALF)
            units, owned = self._units_of_owners(urgency, ready, self._sizes(of_half, ready), cost.rate, ranks, divide)
            halved = sum(unit.bytes for unit, owner in zip(units, owned) if owner is not None)
            if halved >= LEAST_OWNED * sum(unit.bytes for unit in units):
                return RoundPlan(units, order_of_halves(units, owned, ranks, of_half), urgency, cost, profile, owned, way)
            way = TOGETHER
        sizes = self._sizes(cost, ready)
        if way == TOGETHER:
            sizes = fixed_sizes(sizes.most)
        units = partition(self._members(urgency if way == URGENT else ranked(list(zip(ready, urgency))), ready), sizes, cost.rate)
        return RoundPlan(units, static_order(units, cost), urgency, cost, profile, way=way)

    def _sizes(self, cost: CollectiveCost, ready: Sequence[float]) -> UnitSizes:
        return fixed_sizes(self._unit) if self._unit else collective_sizes(cost, max(ready))

    def _units_of_owners(
        self, urgency: Sequence[int], ready: Sequence[float], sizes: UnitSizes, rate: float, ranks: int, divide: bool
    ) -> Tuple[List[MergedUnit], List[Optional[int]]]:
        """The units of a round in halves, and the owner of each. What one rank owns shares no unit with what another owns, and a gradient
        with several owners shares none at all."""
        owned = owners([each.bytes for each in self._parameters], ready, ranks)
        divided = [divide and each.parts and owner is None for each, owner in zip(self._parameters, owned)]
        alone = [(owner, index if parts else None) for index, (owner, parts) in enumerate(zip(owned, divided))]
        units = partition(self._members(urgency, ready, alone), sizes, rate)
        first = [unit.slices[0] for unit in units]
        return units, [
            owner_of_part(part, self._parameters[part.gradient].elements, ranks) if divided[part.gradient] else owned[part.gradient]
            for part in first
        ]

    def resume(self, profile: GradientProfile, cost: CollectiveCost) -> RoundPlan:
        """The plan for the profile of an earlier job, from which drift counts."""
        self._seen = self._by_parameter(profile)
        return self.plan(profile, cost)

    def ready_times(self, samples: Sequence[Times]) -> List[float]:
        """When each parameter's gradient becomes ready (seconds), from some iterations."""
        return list(self._profile(range(len(self._parameters)), samples).ready_times())

    def profile(self, ready: Sequence[float], urgency: Sequence[int]) -> GradientProfile:
        """The profile, in the order of forward, of ready times and places in that order."""
        forward = sorted(range(len(urgency)), key=urgency.__getitem__)
        return self._profile(forward, [[ready[index] for index in forward]])

    def drifted(self, samples: Sequence[Times], rate: Optional[float]) -> bool:
        """Whether gradients become ready at other times than at the last look, or collectives are carried at another rate (bytes/s) than
        planned, so that another plan is due. ``rate`` is None if it is not known."""
        return self._ready_drifted(samples) | self._rate_drifted(rate)

    def _ready_drifted(self, samples: Sequence[Times]) -> bool:
        if not samples:
            return False
        now = self.ready_times(samples)
        if self._seen is None:
            self._seen = now
        moved = sorted(abs(new - old) for new, old in zip(now, self._seen))[len(now) // 2]
        drifted = moved > DRIFT * max(max(self._seen), max(now))
        if drifted:
            self._seen = now
        return drifted

    def _rate_drifted(self, rate: Optional[float]) -> bool:
        """Take the rate that the job itself gets. It is a little lower than the measured one, as computing needs the processors as well;
        where it is much lower, collectives wait for slow ranks, which is no matter of the rate."""
        if rate is None or self._measured is None or self.cost is None:
            return False
        taken = min(self._measured.rate, max(LEAST_RATE * self._measured.rate, rate))
        if abs(taken - self.cost.rate) <= RATE_DRIFT * self.cost.rate:
            return False
        self.cost = self._measured._replace(rate=taken)
        return True

    def _members(self, urgency: Sequence[int], ready: Sequence[float], alone: Sequence[Any] = ()) -> List[Member]:
        """``alone``: what else gradients must have in common to share a unit."""
        kinds: Dict[Any, int] = {}
        return [
            Member(each.bytes, each.itemsize, kinds.setdefault((each.kind, more), len(kinds)), place, moment)
            for each, place, moment, more in zip(self._parameters, urgency, ready, alone or [None] * len(urgency))
        ]

    def _profile(self, order: Sequence[int], samples: Sequence[Times]) -> GradientProfile:
        parameters = [self._parameters[index] for index in order]
        return GradientProfile.from_samples("job", [each.name for each in parameters], [max(1, each.bytes) for each in parameters], samples)

    def _by_parameter(self, profile: GradientProfile) -> List[float]:
        ready = dict(zip((gradient.name for gradient in profile.gradients), profile.ready_times()))
        return [ready[each.name] for each in self._parameters]
