"""The policies, as data: one row each. Nothing else in prophet_mx asks for a policy by its name; :data:`DEFAULT` names the usual one.

What a row's columns mean, and how to add one, is in docs/adding-a-policy.md. The compiled scheduler reads a row when it is made.
"""

from enum import Enum
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from .errors import ConfigError, not_allowed
from .sizes import Traffic, smallest_unit

DEFAULT = "prophet"
OFF = "off"  # the setting that leaves plain dist_sync as it is
UNLIMITED = 2**62  # bytes
DERIVED = 0  # bytes: derived from the window, see sizes.py

WHOLE = 0  # bytes: gradients are not cut
P3_UNIT = 160_000  # bytes: the 40,000 float32 elements of MXNet's P3 (Jayarajan et al., MLSys 2019)
CREDIT_UNIT = 4_000_000  # bytes: the 1 million float32 parameters of ByteScheduler's default partition (Peng et al., SOSP 2019)
CREDIT = 16_000_000  # bytes: ByteScheduler's credit of 4 million float32 parameters

Order = Callable[[int, int], int]
Unit = Callable[[Traffic], float]


class Window(Enum):
    """What may be in flight to a server. The rules are in _core/scheduler/policy.pyx; the values are the documentation's words."""

    DRAIN = "a unit, and what the link carries until the next one can follow"
    BLOCK = "the same, or a block predicted to fit the interval, if that is more"
    INTERVAL = "what fits the predicted interval, then one at a time"
    NONE = "no limit"


class Policy(NamedTuple):
    """One policy.

    Attributes
    ----------
    name : as the setting ``policy`` has it.
    about : where it comes from.
    order : of a unit's urgency (0: what the next forward needs first) and its bytes, a number: in each iteration units with smaller ones
        leave first. None: units leave as they become ready. Called when a unit is made or its urgency changes, never while it waits.
    unit : bytes that large gradients are cut into, or :data:`WHOLE`; or a function of a worker's :class:`~prophet_mx.sizes.Traffic`.
    window : what may be in flight.
    lead : unanswered bytes above which a worker waits for the others, :data:`UNLIMITED`, or :data:`DERIVED`.
    urgent_passes : whether a unit may pass ``lead`` while next to nothing more urgent is unanswered.
    groups : whether small gradients share messages.
    """

    name: str
    about: str
    order: Optional[Order]
    unit: Union[int, Unit]
    window: Window
    lead: int = DERIVED
    urgent_passes: bool = True
    groups: bool = False


def urgency(place: int, size: int) -> int:
    """the most urgent first"""
    return place


def unit_by_messages(traffic: Traffic) -> float:
    """the smallest that messages allow"""
    return smallest_unit(traffic)


POLICIES: Dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("fifo", "what stock MXNet does", None, WHOLE, Window.DRAIN, UNLIMITED),
        Policy("priority", "MXNet's P3 (MLSys 2019), with limits", urgency, P3_UNIT, Window.DRAIN),
        Policy("prophet", "the default, after Prophet (ICPP 2021)", urgency, unit_by_messages, Window.BLOCK, groups=True),
        Policy("credit", "ByteScheduler (SOSP 2019)", urgency, CREDIT_UNIT, Window.NONE, CREDIT, urgent_passes=False),
        Policy("prophet-icpp21", "Prophet to the letter", urgency, WHOLE, Window.INTERVAL, UNLIMITED),
    )
}


def settings() -> Tuple[str, ...]:
    """What the setting ``policy`` may be."""
    return (*POLICIES, OFF)


def add(policy: Policy) -> None:
    """Add a policy to the table, for this process. In a job every worker has to, before it makes its store.

    Raises
    ------
    ConfigError
        the name is taken or not in lower case, or a size is out of range.
    """
    if policy.name in settings():
        raise ConfigError(not_allowed(f"name={policy.name!r}", f"a name that no policy has: {', '.join(settings())} are taken"))
    if policy.name != policy.name.lower() or not policy.name.strip():
        raise ConfigError(not_allowed(f"name={policy.name!r}", "a name in lower case"))
    for field, value in (("unit", policy.unit), ("lead", policy.lead)):
        if isinstance(value, int) and not 0 <= value <= UNLIMITED:
            raise ConfigError(not_allowed(f"{field}={value}", "bytes from 0 to 2**62"))
    POLICIES[policy.name] = policy


def table() -> str:
    """The documentation's table of the policies, in Markdown."""
    rows: List[Tuple[str, ...]] = [("policy", "what it is", "order", "units", "in flight to a server", "unanswered"), ("---",) * 6]
    rows += [_cells(policy) for policy in POLICIES.values()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(policy: Policy) -> Tuple[str, ...]:
    order = (policy.order.__doc__ or policy.order.__name__) if policy.order else "as they become ready"
    if callable(policy.unit):
        unit = policy.unit.__doc__ or policy.unit.__name__
    else:
        unit = f"{policy.unit:,} bytes" if policy.unit else "whole gradients"
    if policy.groups:
        unit += "; small gradients share messages"
    lead = {UNLIMITED: "no limit", DERIVED: "twice that, a unit and two messages"}.get(policy.lead, f"{policy.lead:,} bytes")
    if policy.lead != UNLIMITED:
        lead += "; the urgent may pass" if policy.urgent_passes else "; nothing passes"
    return f"`{policy.name}`", policy.about, order, unit, policy.window.value, lead
