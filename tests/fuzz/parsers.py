"""What is fuzzed: for each parser, what any bytes must lead to. A function here takes bytes, hands what it makes of them to a
parser, and raises if that raises anything but a ProphetError, or if what the parser accepted breaks a rule.

They need no fuzzer: tests/fuzz/test_fuzz.py calls them with the seeds, and hypothesis with random bytes.
"""

import json
import math
import os
import tempfile
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, Callable, Dict, List

from prophet_mx.config import Config
from prophet_mx.errors import ConfigError, ProfileError, ProphetError
from prophet_mx.launcher.hosts import parse_host_list, parse_hosts
from prophet_mx.planning.bound import lower_bound
from prophet_mx.planning.orders import orders
from prophet_mx.planning.unit_sizes import unit_bytes
from prophet_mx.planning.units import cut
from prophet_mx.policies import POLICIES
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile, average_iterations, detect_steps
from prophet_mx.quantities import format_rate, parse_rate, parse_size
from prophet_mx.simulation.cluster import Cluster
from prophet_mx.simulation.predict import load_costs
from prophet_mx.sizes import Traffic


class Source:
    """Values of Python types made from bytes, with a preference for what parsers get wrong."""

    ODD = (
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        4,
        2**31,
        2**50,
        2**50 + 1,
        2**63,
        10**30,
        10**400,
        -0.0,
        0.5,
        1e-320,
        1e9,
        1e308,
        -1e308,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "auto",
        "a",
        "a\0b",
        "\ud800",
        b"",
        b"x",
        [],
        {},
        [None],
        [[0]],
        ["a"],
        {"a": 1},
    )

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, limit: int) -> int:
        return self.byte() % limit

    def number(self) -> float:
        """A float of up to four bytes over a wide range."""
        return (self.byte() * 256 + self.byte() - 32768) * 10.0 ** (self.byte() % 64 - 32)

    def whole(self) -> int:
        return int.from_bytes(bytes(self.byte() for _ in range(self.below(9))), "little", signed=True)

    def odd(self) -> Any:
        choice = self.below(len(self.ODD) + 3)
        if choice < len(self.ODD):
            return self.ODD[choice]
        return (self.number, self.whole, self.text)[choice - len(self.ODD)]()

    def text(self) -> str:
        length = self.below(16)
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        return self._data[self._at :]


def mostly(source: Source, usual: Any) -> Any:
    """``usual``, or now and then something odd."""
    return source.odd() if source.below(16) == 15 else usual


# -- profiles ------------------------------------------------------------------------------------------------------------------


def profile(data: bytes) -> None:
    """The text of a profile, or a document that is nearly one, or values for the constructors."""
    source = Source(data)
    kind = source.below(4)
    try:
        if kind == 0:
            found = GradientProfile.from_json(source.rest().decode("utf-8", "surrogateescape"))
        elif kind == 1:
            found = GradientProfile.from_json(json.dumps(_document(source), default=repr))
        elif kind == 2:
            found = GradientProfile(mostly(source, "job"), mostly(source, _gradients(source)), mostly(source, _steps(source)))
        else:
            found = _learned(source)
    except ProphetError as error:
        assert type(error) is ProfileError and "\n" not in str(error), repr(error)
        return
    _use(found, source)


def _document(source: Source) -> Any:
    gradients = []
    for place in range(source.below(5)):
        fields = {"name": f"g{place}", "bytes": 400, "forward": 0.1, "backward": 0.1, "ready": 1.0 * (4 - place), "spread": 0.0}
        for name in list(fields):
            fields[name] = mostly(source, fields[name])
        gradients.append(mostly(source, fields))
    return mostly(
        source,
        {
            str(mostly(source, "format")): mostly(source, "prophet_mx profile 1"),
            "name": mostly(source, "job"),
            "gradients": mostly(source, gradients),
            "steps": mostly(source, _steps(source)),
        }
        if source.below(8)
        else {"format": source.odd(), str(source.odd()): source.odd()},
    )


def _steps(source: Source) -> List[Any]:
    return [mostly(source, [mostly(source, source.below(5)) for _ in range(source.below(4))]) for _ in range(source.below(5))]


def _gradients(source: Source) -> List[Any]:
    return [
        mostly(source, Gradient(mostly(source, f"g{place}"), mostly(source, 4), ready=mostly(source, source.number())))
        for place in range(source.below(5))
    ]


def _learned(source: Source) -> GradientProfile:
    """As a job learns it: from samples of ready times."""
    count = source.below(6)
    names = [mostly(source, f"g{place}") for place in range(count)]
    samples = [mostly(source, [mostly(source, source.number()) for _ in range(count)]) for _ in range(source.below(4))]
    for find in (lambda: detect_steps(samples[0] if samples else source.odd()), lambda: average_iterations(mostly(source, samples))):
        try:
            find()
        except ProfileError:
            pass
    return GradientProfile.from_samples(
        mostly(source, "job"), mostly(source, names), [mostly(source, 400)] * count, mostly(source, samples)
    )


def _use(found: GradientProfile, source: Source) -> None:
    """Whatever was accepted survives its own text, and answers every question or says why not."""
    assert GradientProfile.from_json(found.to_json()) == found
    assert sorted(index for step in found.steps for index in step) == list(range(len(found.gradients)))
    rate = abs(source.number())
    questions: List[Callable[[], Any]] = [
        found.step_times,
        found.ready_times,
        lambda: found.scaled(mostly(source, None), mostly(source, source.number())),
        lambda: found.updated(mostly(source, [source.odd() for _ in found.gradients]), mostly(source, 0.1)),
        lambda: lower_bound(found, mostly(source, rate)),
    ]
    for ask in questions:
        try:
            answer = ask()
        except (ProfileError, ConfigError):
            continue
        if isinstance(answer, GradientProfile):
            assert len(answer.gradients) == len(found.gradients)
        elif isinstance(answer, float):
            assert answer >= 0


# -- layouts and orders ----------------------------------------------------------------------------------------------------------


def layout(data: bytes) -> None:
    """Sizes of gradients, the unit, and the orders of the units. Numbers are such as callers give, who check them."""
    source = Source(data)
    unit = unit_bytes(
        list(POLICIES)[source.below(len(POLICIES))],
        Traffic(
            [min(2**50, abs(source.whole())) for _ in range(source.below(10))],
            abs(source.number()),
            abs(source.number()),
            1 + source.below(1000),
            1 + source.below(1000),
        ),
        1 + source.below(2**22) if source.below(2) else None,
    )
    assert unit >= 0
    elements = source.below(256) ** (1 + source.below(3))
    slice_bytes = unit if source.below(2) else abs(source.whole())
    if elements * 4 > 50 * slice_bytes:
        slice_bytes = elements * 4 // 50  # up to a million slices are allowed, and take half a second
    parts = cut(elements, 4, slice_bytes)
    ends = [part.stop for part in parts]
    assert [part.start for part in parts] == [0, *ends[:-1]] and ends[-1] == elements
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    count = source.below(8)
    units = [((source.below(max(1, count)), source.below(8))[: 1 + source.below(2)], source.below(256)) for _ in range(source.below(12))]
    ready = {gradient: abs(source.number()) for gradient in range(count) if source.below(4)}
    steps = [[gradient] for gradient in sorted(ready, key=ready.__getitem__)]
    found = orders(units, ready, steps, 1.0 + source.below(200))
    for order in found:
        assert sorted(order) == list(range(len(units))), (units, ready, order)


# -- settings --------------------------------------------------------------------------------------------------------------------

NAMES = list(Config.__dataclass_fields__)


def config(data: bytes) -> None:
    """Variables of the environment, keywords, and direct construction."""
    source = Source(data)
    environ: Dict[Any, Any] = {}
    for _ in range(source.below(4)):
        name = f"PROPHET_{mostly(source, NAMES[source.below(len(NAMES))].upper())}"
        environ[name] = mostly(source, _text_of_a_setting(source))
    keywords = {
        NAMES[source.below(len(NAMES))]: source.odd() if source.below(2) else _text_of_a_setting(source) for _ in range(source.below(3))
    }
    for make in (lambda: Config.from_env(environ, **keywords), lambda: Config(**keywords)):
        try:
            found = make()
        except ConfigError as error:
            assert "\n" not in str(error), repr(error)
            continue
        assert Config.from_env({}, **{name: getattr(found, name) for name in NAMES}) == found
    text = source.text()
    for parse in (parse_rate, parse_size):
        try:
            number = parse(text)
        except ValueError:
            continue
        assert 0 < number < math.inf
        if 1e-3 <= number <= 1e15:
            assert abs(parse_rate(format_rate(number)) / number - 1) < 1e-3


def _text_of_a_setting(source: Source) -> str:
    if source.below(4) == 0:
        return source.text()
    number = source.odd() if source.below(4) == 0 else source.whole()
    return f"{number}{('', ' ', 'k', 'KiB', 'MB', 'Gbit', 'tib', 'auto', 'Gb/s', 'GBps')[source.below(10)]}"


# -- traces ----------------------------------------------------------------------------------------------------------------------

EVENTS = ("wait", "wire", "answer", "unpack", "iteration 0", "step 0", "gap", "u0", "link 0", "prophet_mx", "3 events lost", "thread_name")


def trace(data: bytes) -> None:
    """The file of a trace, raw bytes or events that are nearly right, and the figures and the job that are made of it."""
    from prophet_mx.monitoring.report_page import page
    from prophet_mx.monitoring.trace import load_trace
    from prophet_mx.monitoring.trace_figures import figures
    from prophet_mx.monitoring.trace_jobs import jobs

    source = Source(data)
    text = source.rest() if source.below(2) == 0 else json.dumps(_events(source), default=repr).encode()
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, suffix=".json") as file:
        file.write(text)
        file.flush()
        try:
            found = [figures(load_trace(file.name))]
            for job in jobs(found):
                assert 0 <= job.gain <= job.seconds < math.inf
            if find_spec("jinja2") is not None:
                page(found)
        except ProphetError as error:
            assert "\n" not in str(error), repr(error)


def _events(source: Source) -> List[Any]:
    head = {
        "ph": "M",
        "name": "prophet_mx",
        "pid": mostly(source, 0),
        "args": {
            name: mostly(source, value)
            for name, value in {"rank": 0, "workers": 2, "servers": 1, "policy": "fifo", "started": "2026"}.items()
        },
    }
    rows = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 1,
            "tid": unit + 1,
            "args": {
                name: mostly(source, value)
                for name, value in {"name": f"u{unit}", "parameter": f"w{unit}", "unit": unit, "bytes": 400, "rank": unit}.items()
            },
        }
        for unit in range(source.below(4))
    ]
    events = []
    for place in range(source.below(24)):
        args = {"iteration": mostly(source, place // 6), "step": mostly(source, 0), "units": 1, "bytes": 4, "rate": mostly(source, 1e6)}
        event = {
            "ph": "XXXXCi"[source.below(6)],
            "name": EVENTS[source.below(len(EVENTS))],
            "pid": source.below(2),
            "tid": source.below(6),
            "ts": abs(source.number()),
            "dur": source.below(200),
            "args": args,
        }
        events.append(mostly(source, {name: mostly(source, value) for name, value in event.items()}))
    head["args"]["format"] = "prophet_mx timeline 1"
    return [mostly(source, head), *rows, *events]


# -- hosts and costs -------------------------------------------------------------------------------------------------------------


def hosts(data: bytes) -> None:
    """A host file, a list of hosts, and a file of costs."""
    source = Source(data)
    words = [
        f"{source.text() if source.below(4) == 0 else 'gpu'} slots={source.odd()} address={source.text()}" for _ in range(source.below(4))
    ]
    costs = {mostly(source, field.name): source.odd() for field in fields(Cluster) if source.below(2)}
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None, suffix=".json") as file:
        file.write(json.dumps({str(name): value for name, value in costs.items()}, default=repr).encode())
        file.flush()
        for read in (
            lambda: parse_hosts("\n".join(words) if source.below(2) else source.text(), "hosts"),
            lambda: parse_host_list(source.text()),
            lambda: load_costs(file.name),
        ):
            try:
                read()
            except ProphetError as error:
                assert "\n" not in str(error), repr(error)


PARSERS: Dict[str, Callable[[bytes], None]] = {"hosts": hosts, "profile": profile, "layout": layout, "config": config}
if find_spec("prophet_mx.monitoring.trace") is not None:
    PARSERS["trace"] = trace


def seeds(name: str) -> List[bytes]:
    """Inputs from which a fuzzer gets deep soon."""
    if name == "profile":
        text = GradientProfile.from_samples("job", ["a", "b", "c"], [400, 40, 4], [[0.5, 0.4, 0.0]]).to_json().encode()
        return [b"\0" + text, b"\0" + text[:90], *(bytes([kind]) + bytes(range(low, 256, 3)) for kind in (1, 2, 3) for low in range(3))]
    if name == "trace":
        return [
            b"\0" + json.dumps(_events(Source(bytes(range(200)))), default=repr).encode(),
            *(b"\1" + bytes(range(low, 250)) * 2 for low in range(5)),
        ]
    return [bytes(range(low, 256, 5)) for low in range(5)]
