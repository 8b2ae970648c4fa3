"""ByteScheduler's environment variables, for jobs that come from there: what becomes a setting here, and what is not needed. Pure.

ByteScheduler counts a partition and a credit in parameters; here sizes are bytes, and a parameter is a float32.
"""

from typing import AbstractSet, Dict, List, Mapping, NamedTuple, Tuple

from .policies import POLICIES, Window
from .sizes import LARGEST_UNIT, MAX_BYTES

PREFIX = "BYTESCHEDULER_"
BYTES_PER_PARAMETER = 4

_LINK = "the link is measured (the policy 'credit' takes it)"
_TUNED = "nothing is tuned at run time"
_OTHER = "it is for other frameworks than MXNet's dist_sync"
_BUILD = "it was for building ByteScheduler"

NOT_NEEDED = {
    "BYTESCHEDULER_PARTITION": _LINK,
    "BYTESCHEDULER_CREDIT": _LINK,
    "BYTESCHEDULER_CREDIT_TUNING": _TUNED,
    "BYTESCHEDULER_PARTITION_TUNING": _TUNED,
    "BYTESCHEDULER_TUNING": _TUNED,
    "BYTESCHEDULER_QUEUE_TYPE": "PROPHET_POLICY says what goes first",
    "BYTESCHEDULER_TIMELINE": "PROPHET_TIMELINE names the file of a timeline",
    "BYTESCHEDULER_DEBUG": "the logger 'prophet_mx' has the levels of Python's logging",
    "BYTESCHEDULER_ROOT_IP": _OTHER,
    "BYTESCHEDULER_ROOT_PORT": _OTHER,
    "BYTESCHEDULER_WITH_MXNET": _BUILD,
    "BYTESCHEDULER_WITHOUT_MXNET": _BUILD,
    "BYTESCHEDULER_WITH_PYTORCH": _BUILD,
    "BYTESCHEDULER_WITHOUT_PYTORCH": _BUILD,
}
"""The variables that ByteScheduler and its examples know, and why one that is not mapped is not needed."""

# A larger partition only says "do not cut".
_LARGEST = {"unit": LARGEST_UNIT, "lead": MAX_BYTES}


class Translation(NamedTuple):
    """What ByteScheduler's variables say in terms of prophet_mx.

    ``settings`` are values of settings by their field of :class:`~prophet_mx.Config`; ``notes`` name every variable that was found.
    """

    settings: Dict[str, str]
    notes: List[str]


def translate(environ: Mapping[str, str], policy: str, known: AbstractSet[str], given: AbstractSet[str] = frozenset()) -> Translation:
    """Settings from the ``BYTESCHEDULER_`` variables of ``environ``.

    A partition and a credit become ``unit`` and ``lead`` only where they mean the same: with a ``policy`` that has no window, such as
    ``credit``. Values tuned for ByteScheduler would slow down the others, which measure the link. ``known`` are the settings there are,
    ``given`` those that have a value already, which wins.

    >>> translate({"BYTESCHEDULER_CREDIT": "1000000"}, "credit", {"lead"}).settings
    {'lead': '4000000'}
    """
    settings: Dict[str, str] = {}
    notes = []
    for variable in sorted(name for name in environ if isinstance(name, str) and name.startswith(PREFIX)):
        value = environ[variable].strip()
        field, translated = _translated(variable, value, policy)
        if field in known and field in given:
            notes.append(f"{variable} is not used, because PROPHET_{field.upper()} is set")
        elif field in known and translated:
            settings[field] = translated
            notes.append(f"{variable}={value} is read as PROPHET_{field.upper()}={translated}")
        elif variable not in NOT_NEEDED:
            notes.append(f"{variable} is not known")
        elif field and not translated and value:
            notes.append(f"{variable}={value} is not used, because it has no counterpart")
        else:
            notes.append(f"{variable} is not needed: {NOT_NEEDED[variable]}")
    return Translation(settings, notes)


def _translated(variable: str, value: str, policy: str) -> Tuple[str, str]:
    """The field and the value that a variable stands for; ('', '') if there is none, and no value if this one cannot be mapped."""
    row = POLICIES.get(policy)
    if variable in ("BYTESCHEDULER_PARTITION", "BYTESCHEDULER_CREDIT") and row is not None and row.window is Window.NONE:
        field = "unit" if variable.endswith("PARTITION") else "lead"
        try:
            parameters = int(float(value))
        except (ValueError, OverflowError):
            return field, ""
        return field, str(min(parameters * BYTES_PER_PARAMETER, _LARGEST[field])) if parameters > 0 else ""
    if variable == "BYTESCHEDULER_TIMELINE":
        return "timeline", value
    if variable == "BYTESCHEDULER_DEBUG":
        return ("log_level", "DEBUG") if value not in ("", "0") else ("", "")
    return "", ""
