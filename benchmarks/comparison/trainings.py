"""Training by a script: what its log says, what weights its jobs end with, and the table of such jobs."""

import re
import time
from typing import Any, Dict, List, NamedTuple, Optional

from prophet_mx.errors import ProphetError
from prophet_mx.quantities import format_rate

from .rows import JobRow
from .summaries import CellSummary, Summary, of_median

PLAIN = "pushpull"
KIND_OF_DEVICES = "gpu"  # of jobs on emulated GPUs, which compute no values
BUSY = 80  # percent of the cores
SAME = "weights as plain's"
_NAMES = {PLAIN: "plain `dist_sync`", "p3": "P3"}
_BATCH = re.compile(
    r"^([-\d]+ [:\d]+),(\d+) Node\[\d+\] Epoch\[\d+\] Batch \[\S+\]\s+Speed: \S+ samples/sec\s+accuracy=(\S+)$", re.MULTILINE
)
_POLICY = re.compile(r"\bpolicy (\S+) scheduled (\S+) MB in \d+ units over (\d+) iterations")


class WeightsDifferError(ProphetError):
    """Two jobs that must end with the same weights do not."""


class Log(NamedTuple):
    """What a worker has logged.

    Attributes
    ----------
    ends : when each batch but the first ended, seconds since 1970, to the millisecond.
    accuracies : share of these batches' images that was recognised.
    policy : that has scheduled; ``off`` if none has.
    bytes : of gradients per iteration, as far as a policy has scheduled them.
    """

    ends: List[float]
    accuracies: List[float]
    policy: str
    bytes: int

    @classmethod
    def read(cls, text: str) -> "Log":
        """The log of an example script that says something of every batch."""
        found = _BATCH.findall(text)
        ends = [time.mktime(time.strptime(moment, "%Y-%m-%d %H:%M:%S")) + int(part) / 1e3 for moment, part, _ in found]
        policy = _POLICY.search(text)
        scheduled = round(float(policy[2]) * 1e6 / int(policy[3])) if policy else 0
        return cls(ends, [float(accuracy) for _, _, accuracy in found], policy[1] if policy else "off", scheduled)


class Weights:
    """What the jobs of a cell end with: the same, bit for bit, whatever their method. ``found`` keeps it from round to round."""

    def __init__(self, cell: str, found: Dict[str, Any]) -> None:
        self._cell, self._found = cell, found

    def check(self, method: str, weights: str) -> None:
        """Compare a hash with that of the cell's first job. Raises WeightsDifferError."""
        first, right = self._found.setdefault("weights", [method, weights])
        if weights != right:
            raise WeightsDifferError(
                f"{self._cell}: a job of {method} ended with other weights than one of {first} "
                f"({weights[:12]}, not {right[:12]}): nothing of this run may be used"
            )


def table(cell: CellSummary, first: JobRow) -> str:
    """All that was measured of a cell, of which ``first`` is a job."""
    share = "" if first.goodput_share is None else f", {first.goodput_share:.0%} of their rate"
    plain = cell.methods.get(PLAIN)
    alone = (
        ""
        if not first.compute_ms
        else f"{first.compute_ms:g} ms of compute, which is {1e3 * first.images / first.compute_ms:.1f} samples/s, "
    )
    names = _columns(plain or next(iter(cell.methods.values())), None, first.kind == KIND_OF_DEVICES)
    head = (
        f"**{cell.cell}**: {first.images} samples and {first.megabytes or 0:g} MB per iteration, {alone}rho {first.rho or 0:g}, "
        f"links carried {format_rate((first.goodput_gbit or 0) * 1e9 / 8)} each way{share}\n\n"
        f"| method | {' | '.join(names)} |\n|---|{''.join('---|' if name == SAME else '---:|' for name in names)}\n"
    )
    return head + "".join(_line(summary, plain, first.kind == KIND_OF_DEVICES) for summary in cell.methods.values()) + _busy(cell)


def _busy(cell: CellSummary) -> str:
    """What is to be said of a cell on emulated GPUs."""
    shares = [job.cores_percent for summary in cell.methods.values() for job in summary.jobs if job.cores_percent is not None]
    if not shares:
        return ""
    warning = ": over 80%, so the processor decides with the network" if max(shares) > BUSY else ""
    return f"\nThere is no arithmetic. Workers and servers took {min(shares):.0f}% to {max(shares):.0f}% of the cores{warning}.\n"


def _line(summary: Summary, plain: Optional[Summary], on_devices: bool) -> str:
    name = _NAMES.get(summary.method, f"`{summary.method}`")
    cells = _columns(summary, plain, on_devices)
    if not summary.jobs:
        return f"| {name} | **{summary.note}** |" + " |" * (len(cells) - 1) + "\n"
    return f"| {name} | " + " | ".join(cells.values()) + " |\n"


def _columns(summary: Summary, plain: Optional[Summary], on_devices: bool) -> Dict[str, str]:
    """Head and text of each column but the first. Jobs on emulated GPUs have no accuracy, and no weights to compare."""
    jobs = summary.jobs
    against = summary.speed_against(plain) if jobs and plain and plain.jobs and plain is not summary else None
    found = {"ms (95%)": summary.time.text(0) if jobs else ""} if on_devices else {}
    found["samples/s (95%)"] = of_median([job.speed for job in jobs]).text(1) if jobs else ""
    found["against plain (95%)"] = against.text(2) if against else ""
    if not on_devices:
        found["accuracy"] = _median([job.accuracy for job in jobs])
        found[SAME] = _same(summary, plain)
    found["CPU of a worker"] = _median([job.cpu_percent for job in jobs], 1)
    found["servers' CPU"] = _median([job.server_cpu_percent for job in jobs], 1)
    if on_devices:
        found["of all cores"] = _median([job.cores_percent for job in jobs], 1)
    found["jobs"] = f"{len(jobs)} of {summary.tried}"
    return found


def _median(values: List[Optional[float]], unit: float = 100) -> str:
    """Of what is known of values in such units of a hundredth."""
    known = [value for value in values if value is not None]
    return f"{of_median(known).median * unit:.0f}%" if known else ""


def _same(summary: Summary, plain: Optional[Summary]) -> str:
    """Whether all jobs ended with the weights of plain's, bit for bit."""
    if plain is None or not plain.jobs:
        return "not compared"
    found = {job.weights for each in (summary, plain) for job in each.jobs}
    return "the same bits" if len(found) == 1 and "" not in found else "**others**"
