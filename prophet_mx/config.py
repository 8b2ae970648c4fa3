"""Settings of prophet_mx: one frozen dataclass; :meth:`Config.from_env` is the only reader of the environment.

Every setting has a field here, an environment variable ``PROPHET_<FIELD>`` and a keyword argument of
:class:`~prophet_mx.ScheduledKVStore` of the same name. A keyword wins over the environment.
"""

import ipaddress
import os
from dataclasses import dataclass, field, fields
from typing import Any, Callable, List, Mapping, Optional, Tuple, Union

from . import bytescheduler, policies
from .errors import ConfigError, meant, nearest, not_allowed
from .machine import MAX_PORT
from .quantities import RATE_EXAMPLES, parse_rate, parse_size, parse_time
from .sizes import LARGEST_UNIT, MAX_BYTES

PREFIX = "PROPHET_"
DRAINS = ("auto", "tcp", "nic", "predicted")
COMPRESSED = ("bf16", "fp16")
PYTORCH_ONLY = {  # settings of which something has no effect with MXNet: what has, what is allowed there in words, and why no more
    "compress": ((None, "fp16"), "'off', or fp16", " for MXNet, whose servers do not know bf16"),
    "fallback": (("auto",), "'auto'", ", as it has no effect with MXNet"),
    "clipping": (("overlap",), "'overlap'", ", as it has no effect with MXNet"),
}
SERVERS_ONLY = ("groups", "drain", "bandwidth", "message_cost", "window", "lead")  # settings of the traffic to servers: none with PyTorch
PYTORCH_POLICIES = (policies.DEFAULT, policies.OFF)
LOG_LEVELS = ("debug", "info", "warning", "error")


def _auto(parse: Callable[[Any], Any], word: str = "auto") -> Callable[[Any], Any]:
    """``word`` (or None) as None, anything else by ``parse``."""
    return lambda value: None if value is None or str(value).lower() == word else parse(value)


def _off(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _auto(parse, "off")


def _choice(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if str(value).lower() not in names:
            raise ValueError("not one of the names" + meant(str(value).lower(), names))
        return str(value).lower()

    return parse


def _count(low: int, high: int) -> Callable[[Any], Any]:
    return _bounded(_whole, low, high)


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    try:
        return int(str(value))
    except ValueError:
        raise ValueError("not a whole number") from None


def _address(value: Any) -> str:
    return str(ipaddress.IPv4Address(str(value).strip()))


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


def _policy(value: Any) -> str:
    return _choice(*policies.settings())(value)  # now: a program may have added one


def _setting(default: Any, parse: Callable[[Any], Any], allowed: Union[str, Callable[[], str]]) -> Any:
    """A field whose values ``parse`` reads; it raises ValueError, TypeError or OverflowError for those that are not ``allowed``."""
    return field(default=default, metadata={"parse": parse, "allowed": allowed})


@dataclass(frozen=True)
class Config:
    """The settings of prophet_mx.

    Attributes
    ----------
    policy : which gradient goes first: one of :data:`prophet_mx.policies.POLICIES`, or ``off`` (plain dist_sync).
    drain : how to count the bytes that have left this worker: ``tcp`` (acknowledged bytes of its own connections), ``nic``
        (counters of the network interface), ``predicted`` (bytes / rate); ``auto`` takes the first that works here.
    bandwidth : bytes/s from this worker to one server, to start from; None to measure it.
    message_cost : seconds that a worker spends on a message while all workers send as fast as they can; None to measure it.
    unit : bytes per slice of a large gradient; None to derive it from the link.
    groups : whether small gradients share messages where the policy says so (``auto``), or never do (``off``).
    window : bytes in flight to a server above which nothing more is released, None to derive it from the link.
    lead : unanswered bytes above which this worker waits for the others, None to derive it from the link.
    profile : file to read the profile from, if it exists; rank 0 also keeps it there. None for none.
    warmup : iterations whose ready times make the first profile.
    clipping : with PyTorch, of gradients that are clipped by their norm: ``overlap``: most of their sums travel beside the next forward;
        ``wait``: each iteration waits for all.
    fallback : with PyTorch, ``auto``: go on as plain DistributedDataParallel if the first hundred iterations show that this is faster;
        ``off``: never.
    compress : as what gradients travel: ``fp16``, or with PyTorch ``bf16``; None for what they are.
    log_level : the lowest level that prophet_mx logs; None to leave that to the program.
    log_every : iterations between two lines of statistics in the log, 0 for none.
    metrics_port : a worker's Prometheus endpoint listens on this port plus its rank; None for no endpoint.
    metrics_host : address it listens on.
    timeline : file to write a trace of the job to, one per rank (``trace.json``: ``trace-0.json``, ...); None for none.
    timeline_limit : the largest size of this file in bytes; once half of it is used, only some iterations are written.
    stall_warn : seconds without an answer, while gradients wait, after which the log reports what is waiting and for which processes;
        None for never.
    stall_abort : seconds without an answer after which the process ends with stack traces and exit code 75; None for never.

    Raises
    ------
    ConfigError
        a value is not allowed.
    """

    policy: str = _setting(policies.DEFAULT, _policy, lambda: "one of " + ", ".join(policies.settings()))
    drain: str = _setting("auto", _choice(*DRAINS), "one of " + ", ".join(DRAINS))
    bandwidth: Optional[float] = _setting(
        None, _auto(_bounded(parse_rate, 1e4, 1e12)), "'auto', or a rate from 80 kbit/s to 8 Tbit/s such as " + RATE_EXAMPLES
    )
    message_cost: Optional[float] = _setting(
        None, _auto(_bounded(parse_time, 1e-7, 1)), "'auto', or a time from 0.1us to 1s such as 200us or 0.0002 (seconds)"
    )
    unit: Optional[int] = _setting(
        None, _auto(_bounded(parse_size, 4, LARGEST_UNIT)), "'auto', or a size from 4 bytes to 64 MB such as 256KiB or 250000 (bytes)"
    )
    groups: str = _setting("auto", _choice("auto", "off"), "'auto' (as the policy says), or 'off'")
    window: Optional[int] = _setting(
        None, _auto(_bounded(parse_size, 1, MAX_BYTES)), "'auto', or a size from 1 byte to 1 TiB such as 512KiB or 500000 (bytes)"
    )
    lead: Optional[int] = _setting(
        None, _auto(_bounded(parse_size, 1, MAX_BYTES)), "'auto', or a size from 1 byte to 1 TiB such as 1MiB or 1000000 (bytes)"
    )
    profile: Optional[str] = _setting(
        None, _auto(_path), "'auto' (none is kept), or the path of a file, in a folder that exists, to keep the profile in"
    )
    warmup: int = _setting(3, _count(1, 1000), "a whole number from 1 to 1000 (iterations)")
    compress: Optional[str] = _setting(None, _off(_choice(*COMPRESSED)), "'off', " + ", ".join(COMPRESSED))
    clipping: str = _setting("overlap", _choice("overlap", "wait"), "'overlap' (sums travel in halves), or 'wait' (for all sums)")
    fallback: str = _setting("auto", _choice("auto", "off"), "'auto' (as the first hundred iterations show), or 'off'")
    log_level: Optional[str] = _setting(
        None, _auto(_choice(*LOG_LEVELS)), "'auto' (as the program sets up logging), or one of " + ", ".join(LOG_LEVELS)
    )
    log_every: int = _setting(0, _count(0, 10**6), "a whole number from 0 (no lines) to 1000000 (iterations)")
    metrics_port: Optional[int] = _setting(
        None, _auto(_count(1, MAX_PORT)), f"'auto' (no endpoint), or a whole number from 1 to {MAX_PORT}"
    )
    metrics_host: str = _setting(
        "127.0.0.1", _address, "an IPv4 address of this machine such as 127.0.0.1, or 0.0.0.0 for all of its addresses"
    )
    timeline: Optional[str] = _setting(
        None,
        _auto(_path),
        "'auto' (none is written), or the path of a file, in a folder that exists; the rank is put "
        "into its name, or takes the place of {rank} in it",
    )
    timeline_limit: int = _setting(64 * 10**6, _bounded(parse_size, 10**6, MAX_BYTES), "a size from 1 MB to 1 TiB such as 64MB")
    stall_warn: Optional[float] = _setting(60.0, _off(_bounded(parse_time, 1, 86400)), "'off', or a time from 1 to 86400 (seconds)")
    stall_abort: Optional[float] = _setting(None, _off(_bounded(parse_time, 1, 86400)), "'off', or a time from 1 to 86400 (seconds)")

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            object.__setattr__(self, name, _parsed(name, name, getattr(self, name)))

    @classmethod
    def from_env(cls, environ: Optional[Mapping[str, str]] = None, **overrides: Any) -> "Config":
        """The settings of ``environ`` (default: the process's), with ``overrides`` on top.

        Raises
        ------
        ConfigError
            a value is not allowed, or an override or a ``PROPHET_`` variable is not a setting.
        """
        return cls.read(environ, **overrides)[0]

    @classmethod
    def read(cls, environ: Optional[Mapping[str, str]] = None, **overrides: Any) -> "Tuple[Config, List[str]]":
        """As :meth:`from_env`, and what was made of each ``BYTESCHEDULER_`` variable, in words."""
        environ = os.environ if environ is None else environ
        names = [each.name for each in fields(cls)]
        for variable in map(str, environ):
            if variable.startswith(PREFIX) and variable[len(PREFIX) :].lower() not in names:
                name = variable if variable.isidentifier() else repr(variable)
                word, called = variable[len(PREFIX) :].lower(), {each: PREFIX + each.upper() for each in names}
                raise _unknown(name, environ.get(variable), word, called)
        for name, value in overrides.items():
            if name not in names:
                raise _unknown(name, value, name, {each: each for each in names})
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
        translation = bytescheduler.translate(environ, values.get("policy", cls.policy), set(names), set(values))
        notes = translation.notes
        for name, text in translation.settings.items():
            variable = PREFIX + name.upper()
            try:
                values[name] = _parsed(name, variable, text)
            except ConfigError as error:  # the variables of another program are no reason to stop
                notes = [note.replace(f" is read as {variable}={text}", f" is not used: {error}") for note in notes]
        return cls(**values), notes


def check_for_mxnet(config: Config, variables: bool = False) -> None:
    """ConfigError if a setting that only PyTorch's adapter has is not at its default. It names the variable if ``variables`` set it."""
    for name, (values, allowed, why) in PYTORCH_ONLY.items():
        value = getattr(config, name)
        if value not in values:
            raise ConfigError(not_allowed(f"{PREFIX + name.upper() if variables else name}={value!r}", allowed, why))


def _unknown(name: str, value: Any, word: str, known: Mapping[str, str]) -> ConfigError:
    """``known`` has the settings' own names and what they are called here; ``word`` is what may be meant to be one of these names."""
    near = nearest(word, known)
    what = f"did you mean {known[near]!r}?" if near else f"the settings are {', '.join(known.values())}"
    return ConfigError(f"{name}={shown(value)} is not a setting of prophet_mx; {what}")


def shown(value: Any) -> str:
    """A value for an error message: its ``repr`` on one line, or its type where that fails (a number of thousands of digits)."""
    try:
        return repr(value).replace("\n", " ")
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _parsed(name: str, source: str, value: Any) -> Any:
    setting = Config.__dataclass_fields__[name].metadata
    try:
        return setting["parse"](value)
    except (ValueError, TypeError, OverflowError) as error:
        allowed = setting["allowed"]() if callable(setting["allowed"]) else setting["allowed"]
        raise ConfigError(not_allowed(f"{source}={shown(value)}", allowed, f" ({error})")) from None
