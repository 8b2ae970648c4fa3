"""The profile of a job: how large its gradients are, when they become ready, and in which steps.

Backward makes gradients ready in *steps*: several at once, then a gap, much the same in every iteration. A
:class:`GradientProfile` says so for one model on one machine. It comes from ready times observed in a job
(:meth:`GradientProfile.from_samples`), from a model's layers (``benchmarks/profiles.py``) or from a file
(:meth:`GradientProfile.load`). Values are immutable; nothing here reads a clock or needs MXNet.

Times are seconds, sizes bytes. A gradient's index is its place in forward order and its priority: 0 is the most urgent.
"""

import math
import os
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from numbers import Integral
from typing import Iterable, List, Optional, Sequence, Tuple

from ..config import shown
from ..errors import ProfileError
from ..user_files import read_text
from . import profile_file
from .steps import Times, aligned, average_iterations, detect_steps, finite, from_zero, listed, move_towards

__all__ = ["Gradient", "GradientProfile", "Times", "average_iterations", "detect_steps"]

MAX_GRADIENT_BYTES = 2**50
MAX_SECONDS = 1e9


VECTORS = ("bias", "gamma", "beta", "running_mean", "running_var")  # how the names of parameters end that are vectors


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient.

    Attributes
    ----------
    name : the parameter's name.
    bytes : size on the wire (bytes).
    forward, backward : compute time of the operators that read the parameter and that produce its gradient (seconds),
        None if not known.
    ready : when it becomes ready after the iteration's first ready gradient (seconds), None if not known.
    spread : standard deviation of ``ready`` from iteration to iteration (seconds), None if not known.
    """

    name: str
    bytes: int
    forward: Optional[float] = None
    backward: Optional[float] = None
    ready: Optional[float] = None
    spread: Optional[float] = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProfileError(f"a gradient's name is a non-empty string, not {shown(self.name):.80}")
        size = self.bytes
        if isinstance(size, bool) or not isinstance(size, Integral) or not 1 <= size <= MAX_GRADIENT_BYTES:
            raise ProfileError(f"gradient {self.name!r}: bytes is a whole number from 1 to 2**50, not {shown(size):.80}")
        object.__setattr__(self, "bytes", int(size))
        for field in ("forward", "backward", "ready", "spread"):
            value = getattr(self, field)
            if value is not None:
                seconds = finite(value)
                if seconds is None or not 0 <= seconds <= MAX_SECONDS:
                    raise ProfileError(
                        f"gradient {self.name!r}: {field} is a number of seconds from 0 to 1e9, or null, not {shown(value):.80}"
                    )
                object.__setattr__(self, field, seconds)


@dataclass(frozen=True)
class GradientProfile:
    """A model's gradients in forward order, and the steps in which they become ready.

    Attributes
    ----------
    name : of the model or job.
    gradients : in forward order.
    steps : indices of the gradients that become ready together, earliest step first; every gradient is in exactly one.

    Raises
    ------
    ProfileError
        no gradients, two of the same name, or steps that do not fit the gradients.

    >>> profile = GradientProfile.from_samples("two layers", ["a", "b"], [400, 4000], [[0.03, 0.01], [0.04, 0.02]])
    >>> round(profile.gradients[0].ready, 6), profile.gradients[1].ready, profile.steps
    (0.02, 0.0, ((0, 1),))
    """

    name: str
    gradients: Tuple[Gradient, ...]
    steps: Tuple[Tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProfileError(f"a profile's name is a non-empty string, not {shown(self.name):.80}")
        object.__setattr__(self, "gradients", tuple(listed(self.gradients, "a profile's gradients")))
        object.__setattr__(
            self, "steps", tuple(tuple(listed(step, "a step's gradients")) for step in listed(self.steps, "a profile's steps"))
        )
        if not all(isinstance(gradient, Gradient) for gradient in self.gradients):
            raise ProfileError(f"profile {self.name!r} has gradients that are not a Gradient")
        if not self.gradients:
            raise ProfileError(f"profile {self.name!r} has no gradients")
        seen = set()
        for gradient in self.gradients:
            if gradient.name in seen:
                raise ProfileError(f"profile {self.name!r} has two gradients named {gradient.name!r}")
            seen.add(gradient.name)
        self._check_steps()

    def _check_steps(self) -> None:
        listed = [index for step in self.steps for index in step]
        if (
            any(isinstance(index, bool) or not isinstance(index, Integral) for index in listed)
            or sorted(listed) != list(range(len(self.gradients)))
            or not all(self.steps)
        ):
            raise ProfileError(
                f"profile {self.name!r}: the steps do not hold each of the {len(self.gradients)} gradients "
                "exactly once, by its index, with none empty"
            )
        object.__setattr__(self, "steps", tuple(tuple(map(int, step)) for step in self.steps))
        starts = [
            min(known)
            for known in ([time for time in (self.gradients[i].ready for i in step) if time is not None] for step in self.steps)
            if known
        ]
        if starts != sorted(starts):
            raise ProfileError(f"profile {self.name!r}: the steps are not in the order in which they become ready")

    @classmethod
    def from_samples(cls, name: str, names: Sequence[str], sizes: Sequence[int], samples: Iterable[Times]) -> "GradientProfile":
        """The profile that ready times of some iterations make; see :func:`average_iterations`.

        ``names`` and ``sizes`` (bytes) are in forward order, as are the times of each sample.
        """
        ready, spread = average_iterations(samples)
        names, sizes = listed(names, "names"), listed(sizes, "sizes")
        if not len(names) == len(sizes) == len(ready):
            raise ProfileError(f"profile {shown(name):.80}: {len(names)} names, {len(sizes)} sizes and {len(ready)} ready times")
        gradients = tuple(Gradient(*fields) for fields in zip(names, sizes, [None] * len(ready), [None] * len(ready), ready, spread))
        return cls(name, gradients, detect_steps(ready))

    @property
    def total_bytes(self) -> int:
        """Bytes one worker sends in one iteration."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def has_compute(self) -> bool:
        """Whether every gradient's forward and backward times are known."""
        return all(g.forward is not None and g.backward is not None for g in self.gradients)

    @property
    def compute_seconds(self) -> float:
        """Seconds of forward and backward of one iteration without any communication."""
        return math.fsum(forward + backward for forward, backward in self.compute_times())

    def compute_times(self) -> List[Tuple[float, float]]:
        """Seconds of each gradient's (forward, backward). Raises ProfileError if one is not known."""
        known = [(g.forward, g.backward) for g in self.gradients if g.forward is not None and g.backward is not None]
        if len(known) < len(self.gradients):
            missing = next(g.name for g in self.gradients if g.forward is None or g.backward is None)
            raise ProfileError(
                f"profile {self.name!r} has no compute times (forward, backward) for some gradients, beginning with {missing!r}"
            )
        return known

    def backward_ready_times(self) -> Tuple[float, ...]:
        """Seconds from the start of backward to when each gradient is ready, from the compute times and the steps.

        Backward runs the last gradient's operators first; a step is ready when all its operators have run.
        """
        ends = list(accumulate(backward for _, backward in reversed(self.compute_times())))[::-1]
        times = [0.0] * len(ends)
        for step in self.steps:
            for index in step:
                times[index] = ends[min(step)]
        return tuple(times)

    def ready_times(self) -> Tuple[float, ...]:
        """Seconds from the iteration's first ready gradient to when each is ready.

        As observed where that is known; else from the compute times; else as its step, which is when it was expected.
        """
        observed = [gradient.ready for gradient in self.gradients]
        if None in observed:
            if self.has_compute:
                times = self.backward_ready_times()
                return tuple(time - min(times) for time in times)
            for step, start in zip(self.steps, self.step_times()):
                for index in step:
                    observed[index] = start if observed[index] is None else observed[index]
        return tuple(time for time in observed if time is not None)  # all are known now

    def step_names(self) -> List[List[str]]:
        """The names of the gradients of each step."""
        return [[self.gradients[index].name for index in step] for step in self.steps]

    def step_times(self) -> Tuple[float, ...]:
        """Seconds from the iteration's first ready gradient to the first ready one of each step."""
        known: Times = [gradient.ready for gradient in self.gradients]
        if None in known and self.has_compute:
            known = self.ready_times()
        starts = []
        for step in self.steps:
            times = [time for time in (known[index] for index in step) if time is not None]
            if not times:
                raise ProfileError(
                    f"profile {self.name!r} has neither ready times nor compute times for the step of {self.gradients[step[0]].name!r}"
                )
            starts.append(min(times))
        return tuple(starts)

    def step_intervals(self) -> Tuple[float, ...]:
        """Seconds between each step and the next: one fewer than there are steps."""
        times = self.step_times()
        return tuple(later - earlier for earlier, later in zip(times, times[1:]))

    def halved(self) -> "GradientProfile":
        """The same model with gradients that travel in 16 bits, all but vectors. Those are told by the usual ends of their names."""
        halves = (
            gradient if gradient.name.endswith(VECTORS) else replace(gradient, bytes=max(1, gradient.bytes // 2))
            for gradient in self.gradients
        )
        return replace(self, gradients=tuple(halves))

    def scaled(self, compute: Optional[float] = None, size: float = 1.0) -> "GradientProfile":
        """The same model on another machine: all times in proportion so that one iteration computes for ``compute`` seconds
        (None: times as they are), all sizes times ``size``, in whole words of 4 bytes.

        Raises ProfileError if the factors are not positive and finite, or if the compute times are not known.
        """
        stretch = 1.0
        if compute is not None:
            total = self.compute_seconds
            stretch = (finite(compute) or 0.0) / total if total else 0.0
            if not 0 < stretch < math.inf:
                raise ProfileError(f"cannot scale the {total} s of profile {self.name!r} to {shown(compute):.80} s")
        factor = finite(size) or 0.0
        if factor <= 0:
            raise ProfileError(f"a size factor is a positive, finite number, not {shown(size):.80}")

        def times(value: Optional[float]) -> Optional[float]:
            return None if value is None else value * stretch

        def resized(count: int) -> int:
            return count if factor == 1 else max(4, 4 * round(min(count * factor, 8.0 * MAX_GRADIENT_BYTES) / 4))

        return replace(
            self,
            gradients=tuple(
                Gradient(g.name, resized(g.bytes), times(g.forward), times(g.backward), times(g.ready), times(g.spread))
                for g in self.gradients
            ),
        )

    def updated(self, sample: Times, weight: float = 0.1) -> "GradientProfile":
        """This profile moved towards the ready times of one more iteration, and its steps found anew.

        One odd iteration moves a gradient by at most ``weight`` (above 0, up to 1) times three times its usual spread; when
        the odd becomes usual, the spread grows and the profile follows.
        """
        share = finite(weight)
        if share is None or not 0 < share <= 1:
            raise ProfileError(f"a weight is a number above 0, up to 1, not {shown(weight):.80}")
        sample = listed(sample, "the ready times of an iteration")
        if len(sample) != len(self.gradients):
            raise ProfileError(f"profile {self.name!r} has {len(self.gradients)} gradients, the sample {len(sample)}")
        ready, spread = move_towards([g.ready for g in self.gradients], [g.spread for g in self.gradients], sample, share)
        gradients = tuple(replace(g, ready=time, spread=deviation) for g, time, deviation in zip(self.gradients, ready, spread))
        return GradientProfile(self.name, gradients, detect_steps(ready))

    def extended(self, newer: "GradientProfile") -> "GradientProfile":
        """This profile with the gradients that only ``newer`` has, in the order of ``newer``, and its steps found anew.

        ``newer`` has all of this profile's gradients, also those that it has no times of. The times of the two are laid over each other by
        the gradients that both have times of. ProfileError if a gradient is missing in ``newer``.
        """
        mine = {gradient.name: gradient for gradient in self.gradients}
        missing = set(mine) - {gradient.name for gradient in newer.gradients}
        if missing:
            raise ProfileError(f"profile {self.name!r} cannot be extended: the newer one lacks {min(missing)!r}")
        known = [mine[gradient.name].ready if gradient.name in mine else None for gradient in newer.gradients]
        observed = aligned([gradient.ready for gradient in newer.gradients], known)
        ready = from_zero([new if old is None else old for old, new in zip(known, observed)])
        gradients = tuple(replace(mine.get(gradient.name, gradient), ready=time) for gradient, time in zip(newer.gradients, ready))
        return GradientProfile(self.name, gradients, detect_steps(ready))

    def to_json(self) -> str:
        """The profile as JSON text, one gradient or step per line."""
        return profile_file.dumps(self.name, [asdict(gradient) for gradient in self.gradients], self.steps)

    @classmethod
    def from_json(cls, text: str) -> "GradientProfile":
        """The profile of a JSON text; ProfileError if it is truncated, not a profile, or not consistent."""
        name, gradients, steps = profile_file.loads(text)
        return cls(name, tuple(Gradient(**fields) for fields in gradients), tuple(map(tuple, steps)))

    def save(self, path: str) -> None:
        """Write the profile to ``path``; a concurrent reader sees the old file or the new one, whole.

        Raises ProfileError if it cannot be written; the old file is then as it was.
        """
        try:
            profile_file.replace_text(path, self.to_json())
        except (OSError, TypeError, ValueError) as error:
            raise ProfileError(f"cannot write the profile {shown(path)}: {error}") from error

    @classmethod
    def load(cls, path: str, pipes: bool = False) -> "GradientProfile":
        """The profile in the file ``path``, or with ``pipes`` also in a pipe; ProfileError, with the path, if it cannot be read or is not a
        profile."""
        try:
            return cls.from_json(read_text(os.fspath(path), pipes))
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None
        except (OSError, TypeError, ValueError) as error:  # ValueError: no text, or a zero byte in the path
            raise ProfileError(f"cannot read the profile {shown(path)}: {getattr(error, 'strerror', None) or error}") from error
