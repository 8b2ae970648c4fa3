"""Settings of prophet_mx: one frozen dataclass; :meth:`Config.from_env` is the only reader of the environment.

Every setting has a field here, an environment variable ``PROPHET_<FIELD>`` and a keyword argument of
:class:`~prophet_mx.ScheduledKVStore` of the same name. A keyword wins over the environment.
"""
import math
import os
import re
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, NamedTuple, Optional

from .errors import ConfigError

PREFIX = "PROPHET_"
POLICIES = ("prophet", "priority", "fifo", "credit", "prophet-icpp21", "off")
DRAINS = ("auto", "tcp", "nic", "predicted")

_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tb": 10**12, "tib": 2**40}
_RATE_UNITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def _scaled(value: Any, units: Mapping[str, float]) -> float:
    """A number with an optional unit as a float; ValueError if it is not one, is not finite or is not positive."""
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        match = _NUMBER.fullmatch(str(value))
        if match is None or match.group(2).lower() not in units:
            raise ValueError("not a number with a known unit")
        number = float(match.group(1)) * units[match.group(2).lower()]
    if not math.isfinite(number) or number <= 0:
        raise ValueError("not a positive, finite number")
    return number


def parse_rate(value: Any) -> float:
    """A link rate in bytes/s from a number (bytes/s) or a text such as ``10Gbit``, ``25gbit`` or ``125MB`` (per second).

    >>> parse_rate("1Gbit")
    125000000.0
    """
    return _scaled(value, {**_SIZE_UNITS, **_RATE_UNITS})


def parse_size(value: Any) -> int:
    """A size in bytes from a number (bytes) or a text such as ``512KiB`` or ``4MB``.

    >>> parse_size("64KiB")
    65536
    """
    size = _scaled(value, _SIZE_UNITS)
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    return int(size)


def _auto(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``auto`` (or None) as None, anything else by ``parse``."""
    return lambda value: None if value is None or str(value).lower() == "auto" else parse(value)


def _choice(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if str(value).lower() not in names:
            raise ValueError("not one of the names")
        return str(value).lower()
    return parse


def _count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = int(str(value)) if not isinstance(value, bool) else low - 1
        if not low <= number <= high:
            raise ValueError("out of range")
        return number
    return parse


def _bounded(parse: Callable[[Any], Any], low: float, high: float) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        number = parse(value)
        if not low <= number <= high:
            raise ValueError("out of range")
        return number
    return bounded


def _path(value: Any) -> str:
    path = os.path.abspath(os.path.expanduser(os.fsdecode(value)))
    if "\0" in path:
        raise ValueError("a path has no zero bytes")
    if os.path.isdir(path):
        raise ValueError("it is a folder")
    if not os.path.isdir(os.path.dirname(path)):
        raise ValueError("its folder does not exist")
    return path


class _Setting(NamedTuple):
    parse: Callable[[Any], Any]
    allowed: str


_SETTINGS = {
    "policy": _Setting(_choice(*POLICIES), "one of " + ", ".join(POLICIES)),
    "drain": _Setting(_choice(*DRAINS), "one of " + ", ".join(DRAINS)),
    "bandwidth": _Setting(_auto(_bounded(parse_rate, 1e4, 1e12)),
                          "'auto', or a rate from 10 kB/s to 1 TB/s such as 10Gbit or 1.25e9 (bytes/s)"),
    "unit": _Setting(_auto(_bounded(parse_size, 4, 4_000_000)),
                     "'auto', or a size from 4 bytes to 4 MB such as 256KiB or 250000 (bytes)"),
    "window": _Setting(_auto(_bounded(parse_size, 1, 2**40)),
                       "'auto', or a size from 1 byte to 1 TiB such as 512KiB or 500000 (bytes)"),
    "lead": _Setting(_auto(_bounded(parse_size, 1, 2**40)),
                     "'auto', or a size from 1 byte to 1 TiB such as 1MiB or 1000000 (bytes)"),
    "profile": _Setting(_auto(_path), "'auto' (none is kept), or the path of a file, in a folder that exists, to keep the profile in"),
    "warmup": _Setting(_count(1, 1000), "a whole number from 1 to 1000 (iterations)"),
}


@dataclass(frozen=True)
class Config:
    """What a user may set.

    Attributes
    ----------
    policy : which gradient goes first: ``prophet`` (predicted blocks, urgent first), ``priority`` (P3: small slices, urgent first),
        ``fifo`` (as they become ready), ``credit`` (ByteScheduler: a credit of unanswered bytes), ``prophet-icpp21`` (the paper's
        rule to the letter), ``off`` (plain dist_sync).
    drain : how bytes that have left this worker are counted: ``tcp`` (acknowledged bytes of its own connections), ``nic``
        (counters of the network interface), ``predicted`` (bytes / rate); ``auto`` takes the first that works here.
    bandwidth : bytes/s to start from, None to measure.
    unit : bytes that large gradients are cut into, None to derive it from the link.
    window : bytes in flight to a server above which nothing more is released, None to derive it from the link.
    lead : unanswered bytes above which this worker waits for the others, None to derive it from the link.
    profile : file that the profile is read from, if it is there, and kept in by rank 0; None for none.
    warmup : iterations whose ready times make the first profile.

    Raises
    ------
    ConfigError
        a value is not allowed.
    """

    policy: str = "prophet"
    drain: str = "auto"
    bandwidth: Optional[float] = None
    unit: Optional[int] = None
    window: Optional[int] = None
    lead: Optional[int] = None
    profile: Optional[str] = None
    warmup: int = 3

    def __post_init__(self) -> None:
        for name in _SETTINGS:
            object.__setattr__(self, name, _parsed(name, name, getattr(self, name)))

    @classmethod
    def from_env(cls, environ: Optional[Mapping[str, str]] = None, **overrides: Any) -> "Config":
        """The settings of ``environ`` (default: the process's), with ``overrides`` on top.

        Raises
        ------
        ConfigError
            a value is not allowed, or an override or a ``PROPHET_`` variable is not a setting.
        """
        environ = os.environ if environ is None else environ
        names = [field.name for field in fields(cls)]
        for variable in map(str, environ):
            if variable.startswith(PREFIX) and variable[len(PREFIX):].lower() not in names:
                name = variable if variable.isidentifier() else repr(variable)
                raise ConfigError(f"{name}={shown(environ.get(variable))} is not a setting of prophet_mx; the settings are "
                                  + ", ".join(PREFIX + name.upper() for name in names))
        for name in overrides:
            if name not in names:
                raise ConfigError(f"{name}={shown(overrides[name])} is not a setting of prophet_mx; the settings are "
                                  + ", ".join(names))
        values = {}
        for name in names:
            if name in overrides:
                values[name] = _parsed(name, name, overrides[name])
                continue
            variable = PREFIX + name.upper()
            text = environ.get(variable, "")
            text = text.strip() if isinstance(text, str) else text
            if text != "":
                values[name] = _parsed(name, variable, text)
        return cls(**values)


def shown(value: Any) -> str:
    """A value for an error message: its ``repr`` on one line, or its type where that fails (a number of thousands of digits)."""
    try:
        return repr(value).replace("\n", " ")
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _parsed(name: str, source: str, value: Any) -> Any:
    setting = _SETTINGS[name]
    try:
        return setting.parse(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{source}={shown(value)} is not allowed ({error}); allowed: {setting.allowed}") from None
