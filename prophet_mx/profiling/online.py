"""Learns the stepwise pattern of a running job: ready events in, the scheduler's steps out. Called from the caller's thread only,
once per iteration."""

import logging
from typing import Dict, List, Optional

from .. import _core
from .gradient_profile import GradientProfile

logger = logging.getLogger("prophet_mx")

FOLLOW = 0.2  # weight of a new iteration once the profile stands
FOLLOW_EVERY = 10  # one iteration in so many is looked at then: this runs in the caller's thread
FOLLOW_SPAN = 3  # iterations to record for one that is complete: its last gradients come while the next is being pushed


class ProfileLearner:
    """Collects the driver's ready events and keeps the profile current, whichever gradients a job pushes.

    A gradient that the profile does not have (an unfrozen layer, a new bucket, a saved profile of other layers) is in none of its steps
    until it is added: after ``warmup`` iterations, as in the first profile.

    Parameters
    ----------
    driver : where ready events come from and the steps go to.
    warmup : iterations that make the first profile; the very first iteration, which allocates and compiles, is not one of them. May be
        set until iterations begin.
    """

    def __init__(self, driver: "_core.Driver", warmup: int) -> None:
        self._driver = driver
        self.warmup = warmup
        self._times: Dict[int, Dict[int, float]] = {}  # iteration -> gradient -> time of its last ready unit
        self._samples: List[Dict[int, float]] = []  # likewise, of the iterations that are to make or to extend the profile
        self._gradients: List[int] = []  # of the profile: gradient index in forward order; changes only with it
        self.profile: Optional[GradientProfile] = None

    def iteration_begins(self, iteration: int, names: Dict[int, str], sizes: Dict[int, int]) -> None:
        """Take in what became ready since the last call. ``names`` and ``sizes`` (bytes) are by gradient index."""
        following = self.profile is not None and not self._samples
        if following and iteration % FOLLOW_EVERY == 0:
            self._driver.record(True)
        if following and iteration % FOLLOW_EVERY != FOLLOW_SPAN:
            return
        for number, gradient, seconds in self._driver.take_events():
            ready = self._times.setdefault(number, {})
            ready[gradient] = max(seconds, ready.get(gradient, seconds))
        # The very first iteration is not typical; the last two may still be under way.
        first = iteration - FOLLOW_SPAN if following else 1
        for number in sorted(self._times):
            if number < iteration - 1:
                ready = self._times.pop(number)
                if number >= first:
                    self._learn(ready, names, sizes)
        if following and not self._samples:
            self._driver.record(False)
            self._times.clear()

    def ready_times(self) -> Dict[int, float]:
        """By gradient index, seconds after the iteration's first ready gradient; empty until the profile stands."""
        return dict(zip(self._gradients, self.profile.ready_times())) if self.profile else {}

    def steps(self) -> List[List[int]]:
        """The steps as lists of gradient indices, earliest first; empty until the profile stands."""
        return [[self._gradients[member] for member in step] for step in self.profile.steps] if self.profile else []

    def use(self, profile: GradientProfile, gradients: Dict[str, int]) -> bool:
        """Start from a saved profile if all its gradients are among these (name -> index); whether they are."""
        if any(gradient.name not in gradients for gradient in profile.gradients):
            return False
        self._driver.record(False)
        self._install(profile, [gradients[gradient.name] for gradient in profile.gradients])
        return True

    def _learn(self, ready: Dict[int, float], names: Dict[int, str], sizes: Dict[int, int]) -> None:
        """One more iteration: when each of the gradients that it pushed became ready (seconds)."""
        if self.profile is not None and not self._samples and set(ready) <= set(self._gradients):
            self._install(self.profile.updated([ready.get(g) for g in self._gradients], FOLLOW), self._gradients)
            return
        self._samples.append(ready)
        if len(self._samples) < self.warmup:
            return
        gradients = sorted(set(self._gradients).union(*self._samples))
        rows = [[sample.get(g) for g in gradients] for sample in self._samples]
        self._samples = []
        profile = GradientProfile.from_samples("job", [names[g] for g in gradients], [max(1, sizes[g]) for g in gradients], rows)
        learned = profile if self.profile is None else self.profile.extended(profile)
        self._install(learned, gradients)
        logger.info("profile learned: %d gradients become ready in %d steps", len(gradients), len(learned.steps))

    def _install(self, profile: GradientProfile, gradients: List[int]) -> None:
        """Take a profile and the indices of its gradients, and hand the steps to the scheduler. A gradient without a step is not in it."""
        self.profile, self._gradients = profile, gradients
        step_of = [-1] * (max(gradients) + 1)
        for step, members in enumerate(profile.steps):
            for member in members:
                step_of[gradients[member]] = step
        self._driver.set_steps(step_of, list(profile.step_times()))
