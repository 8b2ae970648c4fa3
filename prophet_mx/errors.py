"""Every error that prophet_mx raises on purpose derives from :class:`ProphetError`; and the words of those about a value."""

from difflib import get_close_matches
from typing import Any, Iterable, Type


class ProphetError(Exception):
    """Base class of all errors of prophet_mx."""


class MXNetMissingError(ProphetError, ImportError):
    """MXNet is needed and is not installed; the message says how to install it."""


class MissingPackageError(ProphetError, ImportError):
    """An optional package is needed and is not installed; the message says how to install it."""


class UnsupportedMXNetError(ProphetError):
    """The engine layout of the installed MXNet is not known."""


class ConfigError(ProphetError, ValueError):
    """A setting has a wrong value; the message names the setting, the value and what is allowed."""


class KVStoreError(ProphetError, ValueError):
    """A call to :class:`~prophet_mx.ScheduledKVStore` cannot be carried out; nothing was sent.

    If MXNet raises an error for the same call, this one is also an instance of that class, such as ``mx.MXNetError``.
    """


class CollectiveError(ProphetError, RuntimeError):
    """Gradients cannot be reduced: another rank has ended or does not take part, or a gradient is missing."""


class ProfileError(ProphetError, ValueError):
    """A profile is empty, truncated or inconsistent."""


class TraceError(ProphetError, ValueError):
    """A trace is damaged, was not written by prophet_mx, or is too short."""


class LaunchError(ProphetError):
    """A job could not be started."""


class SimulationError(ProphetError):
    """A simulated job came to a standstill: a fault in the scheduler."""


def not_allowed(what: str, allowed: str, why: str = "") -> str:
    """The words about a value: what it is of, and what is allowed in its place. ``why`` goes on from "is not allowed".

    >>> not_allowed("warmup=0", "a whole number from 1")
    'warmup=0 is not allowed; allowed: a whole number from 1'
    """
    return f"{what} is not allowed{why}; allowed: {allowed}"


def meant(word: str, known: Iterable[str]) -> str:
    """What may have been meant by a word that is not known; nothing if none is like it.

    >>> meant("predcit", ["launch", "predict"]), meant("train", ["launch", "predict"])
    ("; did you mean 'predict'?", '')
    """
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one; '' if none is like it."""
    near = get_close_matches(word, list(known), 1, 0.75)
    return near[0] if near else ""


def need_whole(name: str, value: Any, low: int, high: Any = None, unit: str = "", error: Type[ProphetError] = ConfigError) -> None:
    """``error`` unless the value is a whole number from ``low``, up to ``high`` if that is given; ``unit`` says of what."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"from {low}" + ("" if high is None else f" to {high}") + unit
        raise error(not_allowed(f"{name}={value!r}", f"a whole number {limits}"))
