"""Profiles as tests want them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Optional, Sequence

from hypothesis import strategies as st

from prophet_mx.planning.bound import scaled_to_rho
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile, detect_steps
from prophet_mx.profiling.model_profiles import FOLDER

DATA = Path(FOLDER)
RESNET18 = GradientProfile.load(str(DATA / "resnet18_v1.json")).scaled(compute=0.3)


def make_profile(
    sizes: Sequence[int], forward: Sequence[float], backward: Sequence[float], steps: Optional[Iterable[Iterable[int]]] = None
) -> GradientProfile:
    """A profile of gradients of these sizes and compute times; without ``steps`` each gradient is a step of its own."""
    gradients = [Gradient(f"g{index}", *fields) for index, fields in enumerate(zip(sizes, forward, backward))]
    return GradientProfile("tiny", gradients, steps or [[index] for index in reversed(range(len(gradients)))])


def network_like() -> GradientProfile:
    """A model of 24 layers in 6 steps whose last layers hold most bytes, at rho 0.95 on a link that two workers share."""
    sizes = [4 * 2500 * (1 + index) ** 2 for index in range(24)]
    profile = make_profile(sizes, [0.01] * 24, [0.02] * 24, [list(range(20 - 4 * step, 24 - 4 * step)) for step in range(6)])
    return scaled_to_rho(profile, 59e6, 0.95)


def transformer(layers: int, width: int, vocabulary: int, tokens: int) -> GradientProfile:
    """An encoder like BERT on sequences of so many tokens: a large embedding that forward needs first, then layers that are all alike."""
    block = [("query", width), ("key", width), ("value", width), ("attention", width), ("wide", 4 * width), ("narrow", 4 * width)]
    sizes = [("word_embedding", vocabulary * width, 0), ("position_embedding", 4 * tokens * width, 0)]
    for layer in range(layers):
        for name, outputs in block:
            sizes.append((f"layer{layer}_{name}_weight", width * outputs, 2 * tokens * width * outputs))
            sizes.append((f"layer{layer}_{name}_bias", width if name == "narrow" else outputs, 0))
        sizes += [(f"layer{layer}_norm{place}_{name}", width, 20 * tokens * width) for place in range(2) for name in ("gamma", "beta")]
    total = 3 * sum(work for _, _, work in sizes)
    gradients = [Gradient(name, 4 * elements, work / total, 2 * work / total) for name, elements, work in sizes]
    per_layer = (len(sizes) - 2) // layers
    steps = [list(range(first, first + per_layer)) for first in reversed(range(2, len(sizes), per_layer))]
    return GradientProfile("transformer", gradients, [*steps, [0, 1]])


def profile_of(ready: Sequence[float], sizes: Optional[Sequence[int]] = None) -> GradientProfile:
    """What one iteration with these ready times makes."""
    names = [f"layer{index}" for index in range(len(ready))]
    return GradientProfile.from_samples("job", names, sizes or [4] * len(ready), [ready])


def recorded(profile: GradientProfile) -> GradientProfile:
    """As a job keeps it: when gradients became ready, and no compute times."""
    return replace(profile, gradients=tuple(replace(g, forward=None, backward=None) for g in profile.gradients))


@st.composite
def profiles(draw: Any) -> GradientProfile:
    """Any profile that is allowed."""
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=12, unique=True))
    ready = draw(st.lists(st.floats(0, 1e3), min_size=len(names), max_size=len(names)))
    seconds = st.none() | st.floats(0, 1e9)
    gradients = [
        Gradient(name, draw(st.integers(1, 2**50)), draw(seconds), draw(seconds), time, draw(seconds)) for name, time in zip(names, ready)
    ]
    return GradientProfile(draw(st.text(min_size=1)), gradients, detect_steps(ready))
