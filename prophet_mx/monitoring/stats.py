"""What ``ScheduledKVStore.stats()`` shows: the same keys in every mode, and before the first step."""

from typing import Any, Dict, List, Optional, TypedDict

from ..policies import OFF
from ..profiling.gradient_profile import GradientProfile
from .metrics import first_unit, utilisation


class Stats(TypedDict):
    """The result of :meth:`ScheduledKVStore.stats`. Where nothing is scheduled, numbers are 0 and lists are empty.

    Attributes
    ----------
    policy : rank 0's from the first push on; ``off`` if nothing is scheduled.
    drain : how bytes that have left are counted; ``none`` if they are not.
    iterations : that were begun.
    units, bytes : released.
    blocks : gradient blocks: units that fit a predicted interval.
    block_units, block_bytes : sent as part of a block; the rest was sent unit by unit.
    wait_seconds : sum over units, from ready to released.
    inverted_bytes : released ahead of more urgent ready ones.
    yields : units that the lead limit let go because nothing happened on their links: workers wait for different values.
    first_wait : mean seconds from ready to answered of the most urgent unit.
    first_ahead : mean bytes that were sent and not yet answered on its link when it became ready.
    utilisation : share of the link used while there was something to send, 0 to 1.
    rates : bytes/s to each server.
    message_seconds : a worker's time for a message while all workers send as fast as they can, 0 if not measured.
    unit_bytes : size of a slice of a large gradient, 0 if none is sliced.
    saturated : numbers that were beyond what 16 bits hold, with ``compress``. What they lack travels in later iterations.
    steps : lists of names of the parameters whose gradients become ready together; empty until learned.
    step_times : seconds after the iteration's first ready gradient, for each step.
    failure : the internal error that ended scheduling, in words; '' without one.
    """

    policy: str
    drain: str
    iterations: int
    units: int
    bytes: int
    blocks: int
    block_units: int
    block_bytes: int
    wait_seconds: float
    inverted_bytes: int
    yields: int
    first_wait: float
    first_ahead: float
    utilisation: float
    rates: List[float]
    message_seconds: float
    unit_bytes: int
    saturated: int
    steps: List[List[str]]
    step_times: List[float]
    failure: str


def stats(
    state: Dict[str, Any],
    profile: Optional[GradientProfile] = None,
    policy: str = OFF,
    drain: str = "none",
    message_seconds: float = 0.0,
    unit_bytes: int = 0,
    failure: str = "",
) -> Stats:
    """Of a ``state`` as :meth:`prophet_mx._core.Driver.snapshot` gives it; empty where nothing is scheduled."""
    links = state.get("links", [])
    first = first_unit(state) if state else {"first_wait": 0.0, "first_ahead": 0.0}
    return {
        "policy": policy,
        "drain": drain,
        "iterations": state.get("iterations", 0),
        "units": state.get("units", 0),
        "bytes": state.get("bytes", 0),
        "blocks": state.get("blocks", 0),
        "block_units": state.get("block_units", 0),
        "block_bytes": state.get("block_bytes", 0),
        "wait_seconds": state.get("wait_seconds", 0.0),
        "inverted_bytes": state.get("inverted_bytes", 0),
        "yields": state.get("yields", 0),
        "first_wait": first["first_wait"],
        "first_ahead": first["first_ahead"],
        "utilisation": utilisation(links),
        "rates": [link["rate"] for link in links],
        "message_seconds": message_seconds,
        "unit_bytes": unit_bytes,
        "saturated": state.get("saturated", 0),
        "steps": profile.step_names() if profile else [],
        "step_times": list(profile.step_times()) if profile else [],
        "failure": failure,
    }
