"""What a comparison of all-reduces is made of: its cells and its methods."""

import re
from dataclasses import replace
from typing import Dict, NamedTuple, Optional

from prophet_mx.errors import ConfigError
from prophet_mx.planning.bound import ring_rate
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.quantities import parse_size

from ..testbed.emulated import forward_groups
from .cells import REAL, STEPS, Cell, Load

KINDS = ("device", "cpu")


def by_operator(profile: GradientProfile) -> GradientProfile:
    """The profile as PyTorch has it: each operation's gradients are ready at the end of its own backward."""
    steps = tuple(tuple(indices) for indices, _ in reversed(forward_groups(profile)))
    return replace(profile, steps=steps, gradients=tuple(replace(gradient, ready=None) for gradient in profile.gradients))


class RingCell(NamedTuple):
    """A model, ranks in a ring, and how communication and compute compare.

    Attributes
    ----------
    cell : as of a comparison of parameter servers, with as many servers as workers: each rank's link then carries all of its own bytes.
    kind : "device" or "cpu", see testbed/emulated_torch.py; real training is on the processor.
    steps : gradients are ready in the profile's steps, many at once, as those of MXNet are, and of a model whose parts are compiled; else
        operation by operation. In a cell's text: ``ready=steps``.
    """

    cell: Cell
    kind: str
    steps: bool = False

    @classmethod
    def parse(cls, text: str, kind: str) -> "RingCell":
        """The cell of a text such as ``resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit`` or ``real,ranks=2,rate=1Gbit``."""
        cell = Cell.parse(text.replace(STEPS, "").replace("ranks=", "workers="))
        return cls(replace(cell, servers=cell.workers), kind, STEPS in text)

    def __str__(self) -> str:
        return re.sub(r",servers=\d+", "", str(self.cell)).replace("workers=", "ranks=") + STEPS * self.steps

    @property
    def ranks(self) -> int:
        return self.cell.workers

    def load(self, goodput: float) -> Optional[Load]:
        """The profile at this cell's sizes and times for links that carry ``goodput`` bytes/s, and its bound; None for real training."""
        if self.cell.profile == REAL:
            return None
        load = self.cell.load(ring_rate(goodput, self.ranks))
        profile = load.profile if self.steps else by_operator(load.profile)
        return load._replace(profile=profile).at(load.rate)


class RingMethod(NamedTuple):
    """How a job's ranks reduce: see RankTask. ``env`` is added to the environment of all of them. ``bf16``: gradients travel as such;
    ``clip``: they are clipped before the step, by a norm so large that they keep their values."""

    name: str
    scheduled: bool
    bucket: Optional[int]
    bf16: bool
    env: Dict[str, str]
    clip: bool = False


STANDARD = ("ddp", "ddp-1MB", "ddp-2MB", "ddp-4MB", "ddp-8MB", "ddp-bf16-2MB", "scheduled")


def parse(text: str) -> RingMethod:
    """``ddp``, ``ddp-4MB`` (buckets), ``ddp-bf16`` or ``ddp-clip``, with buckets too, ``scheduled``, ``scheduled-bf16`` or
    ``scheduled-clip``, with settings if wanted: ``scheduled:PROPHET_UNIT=1MB``. Raises ConfigError."""
    name, *settings = text.split(":")
    found = re.fullmatch(
        r"ddp(?P<bf16>-bf16)?(?P<clip>-clip)?(?:-(?P<bucket>\d+[KM]B))?|(?P<scheduled>scheduled)(?P<compress>-bf16)?(?P<clipped>-clip)?",
        name,
    )
    if not found or not all("=" in setting for setting in settings):
        raise ConfigError(f"no method {text!r}; there are {', '.join(STANDARD)}, with any size, and scheduled:NAME=VALUE")
    compress, bucket = found["compress"], found["bucket"]
    env = dict(setting.split("=", 1) for setting in settings)
    if compress:
        env = {"PROPHET_COMPRESS": "bf16", **env}
    bf16, clip = bool(found["bf16"] or compress), bool(found["clip"] or found["clipped"])
    return RingMethod(text, bool(found["scheduled"]), parse_size(bucket) if bucket else None, bf16, env, clip)
