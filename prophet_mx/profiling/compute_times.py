"""Compute times for a recorded profile, which knows only when gradients become ready. A simulation needs both."""

from dataclasses import replace
from typing import Optional, Tuple

from ..errors import ConfigError, ProfileError, not_allowed
from ..quantities import format_time
from .gradient_profile import GradientProfile

FEWEST_STEPS = 5  # from which a compute time is estimated


def complete(profile: GradientProfile, compute: Optional[float]) -> Tuple[GradientProfile, str]:
    """The profile with compute times, of ``compute`` seconds in all if that is given, and where they come from, in a word."""
    if profile.has_compute and profile.compute_seconds > 0:
        return profile.scaled(compute), "as in the profile" if compute is None else "as given"
    if compute is not None:
        return with_compute(profile, compute), "as given"
    return with_compute(profile, estimated_compute(profile)), "a guess from the recorded steps (--compute TIME sets it)"


def with_compute(profile: GradientProfile, seconds: float) -> GradientProfile:
    """A recorded profile, which knows only when gradients become ready, with compute times of ``seconds`` in all.

    Two thirds of it, or more if the steps take longer, are backward. A step's backward takes the time since the step before,
    and its forward has the same share of the time left; within a step all gradients take the same.

    Raises ConfigError if the recorded steps alone take longer.
    """
    steps = profile.step_times()
    if seconds <= steps[-1]:
        raise ConfigError(
            not_allowed(
                f"--compute {format_time(seconds)}",
                f"more than the {format_time(steps[-1])} from the first to the last step of the profile",
            )
        )
    backward = max(seconds * 2 / 3, steps[-1])
    gaps = [backward - steps[-1]] + list(profile.step_intervals())
    gradients = list(profile.gradients)
    for step, gap in zip(profile.steps, gaps):
        for index in step:
            gradients[index] = replace(gradients[index], backward=gap / len(step), forward=gap / len(step) * (seconds / backward - 1))
    return replace(profile, gradients=tuple(gradients))


def estimated_compute(profile: GradientProfile) -> float:
    """Seconds of forward and backward of a recorded profile, which knows only when gradients became ready: a guess.

    Backward lasts from its start to the last step: the recorded time from the first step to the last, and before it the mean
    interval between steps. Forward takes half as long as backward. With few steps that says too little: then backward runs in a
    few bulks, and most of its time is before the first step.

    Raises ProfileError if the gradients became ready in fewer than :data:`FEWEST_STEPS` steps, or all at once.
    """
    intervals = profile.step_intervals()
    if len(profile.steps) < FEWEST_STEPS or not sum(intervals) > 0:
        raise ProfileError(
            f"profile {profile.name!r} has no compute times, and with {len(profile.steps)} step(s) they cannot be "
            f"estimated; allowed: from {FEWEST_STEPS} steps on, or with --compute, the time of an iteration without "
            "communication: PROPHET_LOG_EVERY shows about that for one worker and one server on one machine"
        )
    return 1.5 * (sum(intervals) + sum(intervals) / len(intervals))
