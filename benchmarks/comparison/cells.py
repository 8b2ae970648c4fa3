"""A cell of a comparison: a model, a cluster, and how communication and compute compare; and how cells and methods are called in tables."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from prophet_mx.errors import ConfigError
from prophet_mx.planning.bound import communication_seconds, job_bound, rho, scaled_to_rho, worker_rate
from prophet_mx.planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.model_profiles import FOLDER
from prophet_mx.quantities import RATE_EXAMPLES, format_rate, parse_rate, parse_size

PROFILES = Path(FOLDER)
DEFAULT_COMPUTE = 1.0  # seconds per iteration
HALVED = "PROPHET_COMPRESS=fp16"  # in the name of a method that sends 16 bits


class Load(NamedTuple):
    """What a cell's workers do once the goodput is known.

    ``rate``: one worker's share of the links (bytes/s); ``env``: for all processes of the job; ``model_bytes``: of all gradients, were
    they not scaled; ``slow``: the factor on the slowest worker's compute time; ``own``: how many times ``rate`` a worker's own link
    carries; ``bound``: seconds per iteration that nothing can beat.
    """

    profile: GradientProfile
    rate: float
    env: Dict[str, str]
    model_bytes: int
    slow: float
    own: float = 1.0
    bound: float = 0.0

    def at(self, rate: float) -> "Load":
        """The same work with another share of the links."""
        return self._replace(rate=rate, bound=job_bound(self.profile, rate * self.own, rate, [[1.0], [self.slow]]))

    def of(self, method: str) -> "Load":
        """What travels with this method: where it compresses, gradients in 16 bits."""
        return self._replace(profile=self.profile.halved()).at(self.rate) if HALVED in method else self

    @property
    def rho(self) -> float:
        return rho(self.profile, self.rate)


TEXTS = ("update", "keys", "hosts", "congestion")  # a cell's settings that are words


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return text

    return read


@dataclass(frozen=True)
class Cell:
    """One row's worth of conditions, written ``resnet50_v1,rho=1,workers=2,servers=1,rate=1Gbit``.

    Attributes
    ----------
    profile : a name in ``prophet_mx/profiling/models`` or the path of a profile.
    workers, servers : how many.
    rate : bytes/s of every link.
    rho : communication time / compute time, at the measured goodput.
    compute : seconds of forward and backward.
    scale : factor on all sizes.
    slow : the last worker computes by this factor longer than the others.
    jitter : every operation's compute time is drawn between 1 - jitter and 1 + jitter times its own.
    update : ``servers`` if they update the parameters, by SGD with momentum, as Module and Trainer do. P3 cannot: its workers get sums.
    slowed : rates, and with them the time of queues, are divided, and compute times multiplied, by it, so that a few cores carry many
        processes. All other settings are of the job as it would be. TCP's timeouts, and the processor time of a message, stay as they are.
    ports : bytes that a port of the switch holds; what comes when it is full is dropped. By default 6 ms at the link's rate.
    hosts : ``hold`` if they hold their own packets back, as hosts do; else they drop as ports do, as on a policed link.
    congestion : TCP's congestion control, ``cubic`` or ``bbr``; by default the former.
    keys : ``names`` if they are numbers in the order of the sorted names, as Trainer numbers them; else names in the order of the layers.

    Of rho, compute and scale two may be given; ``compute`` is 1 s unless rho and scale are. Sizes follow from rho and compute,
    compute from rho and scale.
    """

    profile: str
    workers: int = 2
    servers: int = 1
    rate: float = 125e6
    rho: Optional[float] = None
    compute: Optional[float] = None
    scale: Optional[float] = None
    slow: Optional[float] = None
    jitter: Optional[float] = None
    update: Optional[str] = None
    keys: Optional[str] = None
    slowed: Optional[float] = None
    ports: Optional[float] = None
    hosts: Optional[str] = None
    congestion: Optional[str] = None

    def __post_init__(self) -> None:
        if None not in (self.rho, self.compute, self.scale):
            raise ConfigError("a cell takes two of rho, compute and scale: the third follows")

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """The cell of a text as above. Raises ConfigError."""
        profile, *settings = [part.strip() for part in text.split(",")]
        kinds = {
            "workers": int,
            "servers": int,
            "rate": parse_rate,
            "rho": float,
            "compute": float,
            "scale": float,
            "slow": float,
            "jitter": float,
            "update": _one_of("servers"),
            "keys": _one_of("names"),
            "slowed": float,
            "ports": parse_size,
            "hosts": _one_of("hold", "drop"),
            "congestion": _one_of("cubic", "bbr"),
        }
        values: Dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            try:
                values[name] = kinds[name](value)
                if not isinstance(values[name], str) and not values[name] > 0:
                    raise ValueError("not positive")
            except (KeyError, ValueError) as error:
                raise ConfigError(
                    f"cell {text!r}: {setting!r} is not allowed ({error}); the settings are "
                    + ", ".join(kinds)
                    + f"; a rate is such as {RATE_EXAMPLES}"
                ) from None
        return cls(profile, **values)

    def __str__(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name):g}"
            for f in fields(self)[1:]
            if f.name not in ("rate", *TEXTS) and getattr(self, f.name) is not None
        ]
        shown += [f"{name}={getattr(self, name)}" for name in TEXTS if getattr(self, name) is not None]
        return ",".join([self.profile] + shown + [f"rate={self.rate * 8 / 1e9:g}Gbit"])

    @property
    def link_rate(self) -> float:
        """Bytes/s of the testbed's links."""
        return self.rate / (self.slowed or 1.0)

    def load(self, goodput: float) -> Load:
        """Scale the profile to this cell for links that carry ``goodput`` bytes/s. Raises ProfileError."""
        known = PROFILES / (self.profile + ".json")
        original = GradientProfile.load(str(known if known.exists() else self.profile))
        rate = worker_rate(goodput, self.workers, self.servers)
        if self.rho is not None and self.scale is not None:
            profile = original.scaled(size=self.scale)
            profile = profile.scaled(compute=communication_seconds(profile, rate) / self.rho)
        else:
            profile = original.scaled(compute=(self.compute or DEFAULT_COMPUTE) * (self.slowed or 1.0), size=self.scale or 1.0)
            profile = profile if self.rho is None else scaled_to_rho(profile, rate, self.rho)
        factor = profile.total_bytes / original.total_bytes
        # What MXNet would split over the servers at full size it splits here, whatever the method.
        env = {} if self.servers == 1 else {BIGARRAY_VARIABLE: str(max(1, round(BIGARRAY_BOUND * factor)))}
        return Load(profile, rate, env, original.total_bytes, self.slow or 1.0, max(1.0, self.workers / self.servers)).at(rate)

    @property
    def slowdown(self) -> Tuple[float, ...]:
        """Per worker, the factor on its compute times; empty if all are alike."""
        return () if self.slow is None else (1.0,) * (self.workers - 1) + (self.slow,)


REAL = "real"  # instead of a profile: real training
MODELS = {
    "densenet121": "DenseNet-121",
    "resnet18_v1": "ResNet-18",
    "resnet50_v1": "ResNet-50",
    "resnet152_v1": "ResNet-152",
    "bert_base": "BERT base",
    "transformer_base": "Transformer base",
    "bert_6_384": "BERT, 6 layers of 384",
    "inceptionv3": "Inception-v3",
    "vgg16": "VGG-16",
    "mobilenet1.0": "MobileNet",
    "mobilenetv2_1.0": "MobileNet-v2",
    REAL: "real training of a small network",
}
STEPS = ",ready=steps"
_OF_SCRIPTS = re.compile(r",(batch|device|script|side)=(\w+)")


def model(cell: str) -> str:
    """The name of a cell's model."""
    profile = cell.split(",", maxsplit=1)[0]
    return MODELS.get(profile, profile)


def title(text: str, kind: str = "") -> str:
    """A cell in words: ``ResNet-50, 150 ms, rho 1``; of workers, servers and rate only what is not 2, 1 and 1 Gbit/s. Who updates the
    parameters and how keys are called is the same in a whole question, and left out."""
    ranks = "ranks=" in text
    own = dict(_OF_SCRIPTS.findall(text))  # of cells of benchmarks.devices
    cell = Cell.parse(_OF_SCRIPTS.sub("", text.replace(STEPS, "").replace("ranks=", "workers=")))
    parts: List[str] = [model(text)]
    parts += [
        {"side": f"{value} pixels", "batch": f"batch {value}", "device": value.upper()}.get(name, value) for name, value in own.items()
    ]
    if cell.compute is not None:
        parts.append(f"{cell.compute * 1e3:g} ms")
    parts += [f"{name} {value:g}" for name, value in (("rho", cell.rho), ("scale", cell.scale)) if value is not None]
    if ranks and cell.workers != 2:
        parts.append(f"{cell.workers} ranks")
    if not ranks and (cell.workers, cell.servers) != (2, 1):
        parts.append(f"{cell.workers} workers, {cell.servers} server" + "s" * (cell.servers > 1))
    if cell.rate != Cell.rate:
        parts.append(format_rate(cell.rate))
    if cell.slow:
        parts.append(f"one {'rank' if ranks else 'worker'} {cell.slow - 1:.0%} slower")
    if cell.jitter:
        parts.append(f"compute times vary by {cell.jitter:.0%}")
    if cell.ports:
        parts.append(f"ports of {cell.ports / 1e3:g} KB")
    if cell.hosts == "drop":
        parts.append("hosts drop too")
    if cell.congestion:
        parts.append(cell.congestion.upper())
    if cell.slowed:
        parts.append(f"slowed down by {cell.slowed:g}")
    if STEPS in text:
        parts.append("gradients in steps")
    if kind == "cpu" and cell.profile != REAL:
        parts.append("all on the processor")
    return ", ".join(parts)


def family(method: str) -> str:
    """A method without its settings: of DDP without its buckets."""
    return re.sub(r"-\d+[KM]B$", "", method.split(":", maxsplit=1)[0])
