"""What a comparison says in words of a reader who wants to know how much faster a job gets, and what scheduling costs him."""

import statistics
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .cells import title
from .rows import JobRow
from .summaries import LEFT_OUT, CellSummary, Summary, summarise
from .tables import column, scaled
from .trainings import BUSY

About = Mapping[str, Any]
PLAIN = "pushpull"  # the method of the baseline


def table(rows: Sequence[JobRow], about: About) -> str:
    """A row per cell: ms per iteration of each method, the limit, and by how much the method that the others are compared with is
    faster than plain. Raises BelowBoundError."""
    cells = summarise(rows, about.get("methods", ()), about.get("cells", ()))
    names = list(dict.fromkeys(column(name, about) for cell in cells for name in cell.methods))
    bounds = [next((job.bound_ms for summary in cell.methods.values() for job in summary.jobs[:1] if job.bound_ms), None) for cell in cells]
    least = ["limit"] * any(bounds)
    heads = ["ms per iteration", *names, *least, "faster than plain by"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for cell, bound in zip(cells, bounds):
        found = {column(name, about): summary for name, summary in cell.methods.items()}
        texts = [title(cell.cell, cell.kind), *(_time(found.get(name)) for name in names)]
        texts += [f"{bound:.0f}" if bound else ""] * len(least) + [_gain(cell, cell.methods.get(PLAIN))]
        lines.append(f"| {' | '.join(texts)} |")
    shares = [row.cores_percent for row in rows if row.cores_percent is not None and not row.aside]
    busy = f" Workers and servers took {min(shares):.0f}% to {max(shares):.0f}% of the cores." if shares else ""
    busy += " Over 80%, the processor decides with the network." if shares and max(shares) > BUSY else ""
    return "\n".join(lines) + f"\n\n{scaled(rows)}{busy}"


def _time(summary: Optional[Summary]) -> str:
    if summary is None or not summary.jobs:
        return f"**{LEFT_OUT if summary is None else summary.note.split(':')[0]}**"
    return f"{summary.time.median:.0f}" + " **wrong values**" * bool(summary.wrong)


def _gain(cell: CellSummary, plain: Optional[Summary]) -> str:
    """As a share with its interval: ``40% (38% to 43%)``."""
    speed = cell.ours.speed_against(plain) if cell.methods and cell.ours.jobs and plain is not None and plain.jobs else None
    if speed is None:
        return ""
    median, low, high = (f"{round(100 * (value - 1))}%" for value in speed)
    return median if low == high else f"{median} ({low} to {high})"


def words(rows: Sequence[JobRow], about: About) -> str:
    """The same in a few sentences. Raises BelowBoundError."""
    cells = [cell for cell in summarise(rows, about.get("methods", ())) if cell.first and cell.ours.jobs]
    if not cells:
        return f"prophet_mx: {LEFT_OUT}."
    against: Dict[str, List[float]] = {}
    for cell in cells:
        for name, summary in cell.methods.items():
            speed = cell.ours.speed_against(summary) if summary is not cell.ours and summary.jobs else None
            if speed is not None:
                against.setdefault(column(name, about), []).append(speed.median - 1)
    of = f"In {len(cells)} kinds of jobs" if len(cells) > 1 else "In this job"
    begins = [f"{of}, training with prophet_mx is", *["It is"] * len(against)]
    sentences = [f"{begin} {_by(gains)} with {_called(name)}." for begin, (name, gains) in zip(begins, against.items())]
    if about.get("tune") and not about["best"]:
        sentences.append(f"{_called('credit, tuned')} is not measured yet.")
    left = [1 - 1 / cell.ours.ratio for cell in cells if cell.ours.ratio]
    if left:
        sentences.append(f"No order of sending can save more than another {max(max(left), 0):.0%} of an iteration.")
    return " ".join(sentences)


def _by(gains: Sequence[float]) -> str:
    """``33% to 93% faster than``; ``2% slower to 3% faster than``; ``as fast as``."""
    low, high = (round(100 * gain) for gain in (min(gains), max(gains)))
    if low == high:
        return f"{abs(low)}% {'faster' if low >= 0 else 'slower'} than" if low else "as fast as"
    if low < 0 < high:
        return f"{-low}% slower to {high}% faster than"
    return f"{low}% to {high}% faster than" if low >= 0 else f"{-high}% to {-low}% slower than"


_CALLED = {
    "plain dist_sync": "plain MXNet",
    "P3": "MXNet's own P3",
    "ByteScheduler": "ByteScheduler's method as it is shipped",
    "p3": "MXNet's own P3",
}
_CALLED.update({"credit": "ByteScheduler's method as it is shipped", "credit, tuned": "ByteScheduler's method with the best settings"})
_CALLED["ByteScheduler, tuned"] = _CALLED["credit, tuned"]


def _called(name: str) -> str:
    return _CALLED.get(name, name)


_COSTS: Dict[str, Callable[[JobRow], Optional[float]]] = {
    "processor of a worker, ms": lambda job: _of(job.time_ms, job.cpu_percent),
    "processor of all servers, ms": lambda job: _of(job.time_ms, job.server_cpu_percent),
    "memory of a worker, MB": lambda job: job.memory_mb,
    "start of a job, s": lambda job: job.start_s,
}


def _of(time: Optional[float], percent: Optional[float]) -> Optional[float]:
    return None if time is None or percent is None else time * percent / 100


def costs(rows: Sequence[JobRow], about: About) -> str:
    """A row per method: what it costs per iteration and job, as the median of the cells."""
    cells = summarise(rows, about.get("methods", ()))
    names = list(dict.fromkeys(column(name, about) for cell in cells for name in cell.methods))
    lines = [f"| per iteration and job | {' | '.join(_COSTS)} |", "|---|" + "---:|" * len(_COSTS)]
    for name in names:
        jobs = [
            [job for method, summary in cell.methods.items() if column(method, about) == name for job in summary.jobs] for cell in cells
        ]
        shown = []
        for cost in _COSTS.values():
            known = [[value for value in map(cost, mine) if value is not None] for mine in jobs]
            medians = [statistics.median(values) for values in known if values]
            shown.append(f"{statistics.median(medians):.{0 if max(medians) >= 20 else 1}f}" if medians else LEFT_OUT)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)
