"""The methods that a comparison runs, one entry each: to add one, add an entry."""

from types import MappingProxyType
from typing import Mapping, NamedTuple

from prophet_mx.errors import ConfigError


class Method(NamedTuple):
    """How a job's workers train.

    Attributes
    ----------
    name : in tables and on the command line.
    env : added to the environment of all the job's processes.
    wrap : whether the store is wrapped in ScheduledKVStore.
    pushpull : one ``pushpull`` per parameter, or ``push`` and ``pull``.
    """

    name: str
    env: Mapping[str, str] = MappingProxyType({})
    wrap: bool = False
    pushpull: bool = True


def _policy(name: str) -> Method:
    return Method(name, {"PROPHET_POLICY": name}, wrap=True)


METHODS = {
    method.name: method
    for method in (
        Method("pushpull"),  # stock MXNet, as Module and Trainer of 1.9.1 use it
        Method("push+pull", pushpull=False),  # stock MXNet, as older callers use it
        Method("p3", {"DMLC_PS_VAN_TYPE": "p3"}),  # MXNet's own P3, called as Module calls it
        Method("p3-push+pull", {"DMLC_PS_VAN_TYPE": "p3"}, pushpull=False),
        _policy("fifo"),
        _policy("priority"),
        _policy("prophet"),
        _policy("credit"),  # ByteScheduler's, with its default credit and partition
        _policy("prophet-icpp21"),  # the paper's rule to the letter
    )
}


def parse(text: str) -> Method:
    """The method of a name, or of a name and settings for all the job's processes: ``prophet:PROPHET_UNIT=4MB``. Raises ConfigError."""
    name, *settings = text.split(":")
    if name not in METHODS or not all("=" in setting for setting in settings):
        raise ConfigError(f"no method {text!r}; there are {', '.join(METHODS)}, each with :NAME=VALUE behind it if wanted")
    known = METHODS[name]
    return known._replace(name=text, env={**known.env, **dict(setting.split("=", 1) for setting in settings)})


STANDARD = ("pushpull", "push+pull", "p3", "fifo", "priority", "prophet")
