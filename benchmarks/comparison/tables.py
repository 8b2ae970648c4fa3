"""Tables of a comparison, in Markdown: all that was measured, and what fits into a page."""

import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence

from prophet_mx.quantities import format_rate

from .cells import family, model, title
from .rows import JobRow, by_cell
from .summaries import LEFT_OUT, CellSummary, Summary, summarise
from .trainings import BUSY, KIND_OF_DEVICES
from .trainings import table as of_training

About = Mapping[str, Any]  # see metadata.py
COMPRESSES = "it sends gradients in 16 bits, which changes the result"
SHOWN = {"pushpull": "plain dist_sync", "p3-push+pull": "p3"}  # in pages, the baseline has one name


def detail(rows: Sequence[JobRow], about: About) -> str:
    """A table per cell with all that was measured. Raises BelowBoundError."""
    cells = summarise(rows, about.get("methods", ()), about.get("cells", ()))
    return f"{scaled(rows)}\n\n" + "\n".join(map(_detail, cells))


def _detail(cell: CellSummary) -> str:
    if cell.first is None:
        reasons = dict.fromkeys(summary.note for summary in cell.methods.values())
        return f"**{cell.cell}**: {'; '.join(reasons) or LEFT_OUT}\n"
    if cell.first.images:
        return of_training(cell, cell.first)
    first = _bounded(cell) or cell.first
    share = "" if first.goodput_share is None else f", {first.goodput_share:.0%} of their rate"
    about = f"links carried {format_rate((first.goodput_gbit or 0) * 1e9 / 8)} each way{share}"
    if first.bound_ms is not None:
        about = f"{first.megabytes:g} MB, compute {first.compute_ms:g} ms, rho {first.rho:g}, {about}, bound {first.bound_ms:g} ms"
    kind = {"cpu": ", all on the processor", "device": ", device emulated"}.get(cell.kind, "")
    ours = cell.ours
    head = (
        f"**{cell.cell}{kind}**: {about}\n\n"
        f"| method | time, ms (95%) | 10% to 90% | time / bound | speed of {ours.method} against it (95%) | calls, ms | CPU "
        "| servers' CPU | memory, MB | jobs |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    return head + "".join(_line(summary, ours) for summary in cell.methods.values()) + _lost(cell)


def _lost(cell: CellSummary) -> str:
    """What the network lost, and what the jobs took of the processor, by method; nothing of results that do not tell."""
    found = [(summary.method, summary.jobs) for summary in cell.methods.values() if summary.jobs and summary.jobs[0].port_drops is not None]
    if not found:
        return ""
    lines = ["", "| method | packets dropped by ports | by hosts | bytes sent again | of all cores |", "|---|---:|---:|---:|---:|"]
    for method, jobs in found:
        values = [_mean(jobs, "port_drops"), _mean(jobs, "host_drops")]
        values += [_mean(jobs, "resent_percent", 2, "%"), _mean(jobs, "cores_percent", 0, "%")]
        lines.append(f"| {method} | {' | '.join(values)} |")
    busy = max((job.cores_percent or 0 for _, jobs in found for job in jobs), default=0) > BUSY
    return "\n".join(lines + [""] + ["\nProcesses took over 80% of the cores: the processor decides with the network.\n"] * busy)


def _bounded(cell: CellSummary) -> Optional[JobRow]:
    """A job with a bound, which compressed gradients do not have; None if the cell has no such job."""
    jobs = (job for summary in cell.methods.values() for job in summary.jobs[:1])
    return next((job for job in jobs if job.bound_ms is not None), None)


def _line(summary: Summary, ours: Summary) -> str:
    if not summary.jobs:
        return f"| {summary.method} | **{summary.note}** |" + " |" * 8 + "\n"
    jobs = summary.jobs
    against = ours.speed_against(summary) if summary is not ours and ours.jobs else None
    ratio = summary.ratio
    cells = [
        summary.method,
        summary.time.text(1),
        f"{_mean(jobs, 'p10_ms')} to {_mean(jobs, 'p90_ms')}",
        "" if ratio is None else f"{ratio:.3f}",
        against.text(2) if against else "",
        _mean(jobs, "calls_ms", 1),
        _mean(jobs, "cpu_percent", unit="%"),
        _mean(jobs, "server_cpu_percent", unit="%"),
        _mean(jobs, "memory_mb"),
        f"{len(jobs)} of {summary.tried}",
    ]
    return "| " + " | ".join(cells) + " |" + (f" **{summary.wrong} wrong values**" if summary.wrong else "") + "\n"


def _mean(jobs: Sequence[JobRow], name: str, digits: int = 0, unit: str = "") -> str:
    values = [value for value in (getattr(job, name) for job in jobs) if value is not None]
    return f"{statistics.fmean(values):.{digits}f}{unit}" if values else ""


def column(method: str, about: About) -> str:
    """The column that a method stands in: its label, or that of what was tuned."""
    labels = about.get("labels", {})
    if method in labels:
        return str(labels[method])
    tuned = any(method in methods for methods in about.get("best", {}).values())
    return f"{labels.get(family(method), family(method))}, tuned" if tuned else SHOWN.get(method, method)


def compact(rows: Sequence[JobRow], about: About) -> str:
    """One table: a row per cell, and per method the median time and what that is of the bound. Raises BelowBoundError."""
    cells = summarise(rows, about.get("methods", ()), about.get("cells", ()))
    columns = list(dict.fromkeys(column(name, about) for cell in cells for name in cell.methods))
    lines = ["| ms per iteration (time / bound) | bound | " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) + 1)]
    for cell in cells:
        bounded = _bounded(cell)
        bound = f"{bounded.bound_ms:.0f}" if bounded else ""
        found: Dict[str, Summary] = {column(name, about): summary for name, summary in cell.methods.items()}
        row = [_short(found[name]) if name in found else ("" if cell.methods else f"**{LEFT_OUT}**") for name in columns]
        lines.append(f"| {title(cell.cell, cell.kind)} | {bound} | " + " | ".join(row) + " |")
    return "\n".join(lines) + f"\n\n{scaled(rows)}"


def _short(summary: Summary) -> str:
    if not summary.jobs:
        return f"**{summary.note.split(':')[0]}**"
    ratio = summary.ratio
    wrong = " **wrong values**" if summary.wrong else ""
    time = f"{summary.time.median:.0f}"
    return (time if ratio is None else f"{time} ({ratio:.2f})") + wrong


def scaled(rows: Sequence[JobRow]) -> str:
    """What the models were scaled to, in a sentence."""
    ranges: Dict[str, List[JobRow]] = {}
    for mine in by_cell(rows).values():
        for row in mine:
            if row.megabytes and row.model_megabytes:
                ranges.setdefault(model(row.cell), []).append(row)
    if any(row.kind == KIND_OF_DEVICES for row in rows):
        return "Models are not scaled. GPUs and the network are emulated: MXNet's CUDA build runs, but computes no values."
    if not ranges:
        return "Models are not scaled, and nothing is emulated but the network."
    parts = [_scaled(name, found[0].model_megabytes or 0, [row.megabytes or 0 for row in found]) for name, found in ranges.items()]
    return f"Computing is emulated, and gradients are resized to suit the links: {', '.join(parts)} per iteration."


def scaling(profile: str, model_megabytes: float, megabytes: Sequence[float]) -> str:
    """What one model was scaled to."""
    return f"computing is emulated, {_scaled(model(profile), model_megabytes, megabytes)} per iteration"


def _scaled(name: str, model_megabytes: float, megabytes: Sequence[float]) -> str:
    sizes = sorted({round(each) for each in megabytes})
    sent = f"{sizes[0]} MB" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} MB"
    return f"{name} at its full {sizes[0]} MB" if sizes == [round(model_megabytes)] else f"{name} from {model_megabytes:.0f} to {sent}"


def claims(rows: Sequence[JobRow], about: About) -> str:
    """How the method that the others are compared with does in the cells, as a list of sentences. Raises BelowBoundError."""
    cells = [cell for cell in summarise(rows, about.get("methods", ())) if cell.first and cell.ours.jobs]
    if not cells:
        return f"- {LEFT_OUT}"
    ours = _code(column(cells[0].ours.method, about))
    lines = []
    ratios = [cell.ours.ratio for cell in cells if cell.ours.ratio is not None]
    if ratios:
        lines.append(
            f"- {ours} takes {_range(ratios)} of the bound in {_number(len(ratios), 'cell')}, "
            f"{statistics.median(ratios):.2f} in the median."
        )
    against: Dict[str, List[float]] = {}
    compared, slower, same = 0, [], 0
    unranked: Dict[str, None] = {}  # in order
    for cell in cells:
        rest = [summary for summary in cell.methods.values() if summary is not cell.ours and summary.jobs]
        speeds = {summary.method: cell.ours.speed_against(summary) for summary in rest}
        known = {method: speed for method, speed in speeds.items() if speed is not None}
        for method, speed in known.items():
            against.setdefault(column(method, about), []).append(speed.median)
        ranked = {method: speed for method, speed in known.items() if cell.ours.ratio is None or cell.methods[method].ratio is not None}
        unranked.update(dict.fromkeys(_code(column(method, about)) for method in known if method not in ranked))
        if not ranked:
            continue
        compared += 1
        worst = min(ranked, key=lambda method: ranked[method].median)
        if ranked[worst].high < 1:
            digits = 2 if ranked[worst].high < 0.995 else 3  # not "1.00 (0.99 to 1.00) times"
            slower.append(f"{title(cell.cell, cell.kind)} ({ranked[worst].text(digits)} times as fast as {column(worst, about)})")
        same += ranked[worst].low <= 1 <= ranked[worst].high
    lines += [f"- {_range(speeds)} times as fast as {_code(name)} ({_number(len(speeds), 'cell')})." for name, speeds in against.items()]
    if against:
        lines.append(_rank(ours, compared, same, slower) + (f" {', '.join(unranked)} is not counted: {COMPRESSES}." if unranked else ""))
    return "\n".join(lines)


def _rank(ours: str, cells: int, same: int, slower: Sequence[str]) -> str:
    fastest = cells - same - len(slower)
    if fastest == cells:
        return f"- {ours} was fastest in " + (f"all {cells} cells." if cells > 1 else "the one cell with others to compare.")
    counts = ((fastest, "fastest"), (same, "as fast as the fastest, within measurement error,"), (len(slower), "slower"))
    parts = [f"{what} in {count}" for count, what in counts if count]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"- Of {_number(cells, 'cell')}, {ours} was {listed}" + (f": {'; '.join(slower)}." if slower else ".")


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" + "s" * (count != 1)


def _code(name: str) -> str:
    return name if " " in name else f"`{name}`"
