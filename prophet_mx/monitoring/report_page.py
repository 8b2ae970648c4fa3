"""The page of ``prophet-mx report``: one HTML text without anything to load. Its sentences are here and in ``templates/report.html``."""

from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from ..errors import MissingPackageError
from ..quantities import format_rate
from . import report_charts as charts
from . import report_shapes as shapes
from .report_shapes import INKS, LINES, Ink, digits, ms
from .trace_figures import PARTS, Figures
from .trace_file import STAGES
from .trace_jobs import TracedJob, rank_of

if TYPE_CHECKING:
    import jinja2

SAME = 0.02  # share of a number, or points of a percentage: what differs by less is called the same
PART_WORDS = {
    "backward": "backward: gradients are made and sent",
    "stalled": "stalled: forward waits for the first layer",
    "arriving": "arriving: forward runs as far as values have arrived, or waits for them",
    "compute": "compute: all values have arrived",
}
STAGE_WORDS = {
    "wait": "waits to be sent",
    "wire": "on the wire",
    "answer": "waits for the other workers and for the answer",
    "unpack": "answered, until its values can be used",
}
MARK_WORDS = {"step": "step: gradients become ready together", "block": "block: sent without a pause"}
LITTLE = 0.04  # of an iteration: less than that is called nothing
BUSY = 0.9  # of the time: links that carry bytes for longer are the limit
HELP = "docs/troubleshooting.md"  # what the hints name
NO_SPEED_UP = "There is no speed-up"  # its heading there


class Hint(NamedTuple):
    """What to look at next: a sentence, and where the documentation says more."""

    sentence: str
    page: str = HELP
    heading: str = NO_SPEED_UP


def comparison(before: TracedJob, after: TracedJob) -> str:
    """How much faster or slower the second job is."""
    factor = before.seconds / after.seconds
    change = f"{factor:.2f} times as fast, better" if factor >= 1 else f"{1 / factor:.2f} times as slow, worse"
    if abs(factor - 1) < LITTLE:
        change = "about the same"
    return f"An iteration takes {ms(after.seconds)} after ({after.name}) and {ms(before.seconds)} before ({before.name}): {change}."


def verdict(job: TracedJob) -> str:
    """Two sentences: how much of an iteration is stall, and what is left to gain."""
    low, high = job.stalls
    who = "the worker stalls" if len(job.workers) == 1 else "the workers stall"
    shares = f"{low / job.seconds:.0%}"
    if high - low > LITTLE * job.seconds:
        stall, shares = f"{ms(low)} to {ms(high)}", f"{shares} to {high / job.seconds:.0%}"
    else:
        stall, shares = ms(high), f"{high / job.seconds:.0%}"
    bound = f"the lower bound for this profile is about {ms(job.bound)}, which no order of sending can beat"
    if job.gain < LITTLE * job.seconds:
        gain = f"Nothing is left to gain by another order: {bound}"
    else:
        later = max(map(job.waiting, job.workers))
        where = f", of the stall and of {ms(later)} in which forward may wait for later values" if job.gain > low else ""
        gain = f"At most {ms(job.gain)} are left to gain ({job.seconds / job.bound:.2f} times as fast){where}: {bound}"
    return f"{_which(job, who)} for {stall} of each {ms(job.seconds)} iteration ({shares}), waiting for the first layer's values. {gain}."


def straggler(job: TracedJob) -> str:
    """Who is waited for; empty if no worker is slower than the others."""
    slow = job.stragglers
    if not slow:
        return ""
    names = ", ".join(map(rank_of, slow))
    are, who = ("is a straggler", "it") if len(slow) == 1 else ("are stragglers", rank_of(job.slowest))
    return (
        f"{_which(job, names)} {are}: {who} computes for at least {ms(job.slowest.computing)} of an iteration, "
        f"{job.delay:.2f} times as long as most of the others, which wait for it."
    )


def _which(job: TracedJob, sentence: str) -> str:
    """The beginning of a sentence about one of two jobs, or about the only one."""
    sentence = f"{job.label}, {sentence}" if job.label else sentence
    return sentence[0].upper() + sentence[1:]


def hints(job: TracedJob) -> List[Hint]:
    """What to do about the stall."""
    found = []
    left = job.gain >= LITTLE * job.seconds
    if job.stragglers:
        found.append(Hint("No order of sending makes a slow worker faster: look at its machine, its data and its batch size."))
    if left:
        found.append(Hint("Time is left to gain: check that all gradients are scheduled, and that large ones are cut."))
    elif job.stalls[1] < LITTLE * job.seconds:
        found.append(Hint("Computing is the limit: the network hides behind it."))
    elif job.middle(lambda worker: worker.utilisation) > BUSY:
        found.append(Hint("The links are busy nearly all the time: fewer bytes, more servers or a faster network help, and nothing else."))
    else:
        found.append(Hint("No order of sending shortens the rest of the stall: fewer bytes, more servers or a faster network do."))
    lost = sum(worker.trace.lost for worker in job.workers)
    if lost:
        found.append(Hint(f"{lost} events were lost: some times are missing.", "docs/timeline.md", "Crashes, full disks, size"))
    return found


def opening(all_jobs: Sequence[TracedJob]) -> List[str]:
    """What the page says first."""
    if len(all_jobs) == 1:
        return [verdict(all_jobs[0])]
    return [comparison(*all_jobs), verdict(all_jobs[-1])]


def page(all_jobs: Sequence[TracedJob]) -> str:
    """The HTML about the workers of one job, or of two jobs in comparison.

    Raises MissingPackageError if the package that fills in the template is not installed.
    """
    template = _template()
    workers = [(job, worker) for job in all_jobs for worker in job.workers]
    names = [rank_of(worker) if len(all_jobs) == 1 else f"{job.label}: {rank_of(worker)}" for job, worker in workers]
    longest = max(worker.median.seconds for _, worker in workers)
    return template.render(
        colours=shapes,
        inks=INKS,
        names=[job.name for job in all_jobs],
        labels=[job.label for job in all_jobs],
        verdict=opening(all_jobs),
        stragglers=list(filter(None, map(straggler, all_jobs))),
        hints=[*hints(all_jobs[-1]), Hint("What the words on this page mean.", "docs/timeline.md", "The report")],
        lines=list(zip(LINES, [job.label or job.name for job in all_jobs])),
        rows=table(all_jobs),
        workers=[_worker(name, job, worker) for name, (job, worker) in zip(names, workers)],
        jobs=[_shown(job, longest, ink) for job, ink in zip(all_jobs, LINES)],
        parts=[(part, PART_WORDS[part]) for part in PARTS],
        stages=[(stage, STAGE_WORDS[stage]) for stage in STAGES],
        marks=list(MARK_WORDS.items()),
        most_workers=charts.MOST_WORKERS,
        first_parameter=workers[0][1].first_parameter,
        composition=charts.composition([worker for _, worker in workers], names),
        first_layer=charts.first_layer([worker for _, worker in workers], names),
        times=charts.curves([_times(job.slowest) for job in all_jobs], 160, "ms", "iteration times"),
    )


def _shown(job: TracedJob, longest: float, ink: Ink) -> Dict[str, Any]:
    """A job on the page. ``lead`` is the worker whose charts are shown first; ``every`` has all parameters, if ``gantt`` leaves some out;
    ``together`` is None without a common clock, ``steps`` where the profile was not learned; ``others`` are the other workers' iterations,
    by name."""
    lead = job.slowest
    few, every = charts.heaviest(lead), charts.parameters(lead)
    return {
        "name": job.name,
        "label": job.label,
        "lead": rank_of(lead),
        "figures": lead,
        "together": charts.together(job),
        "accuracy": ms(job.clocks.accuracy) if job.clocks else "",
        "utilisation": charts.utilisation(lead, longest, ink),
        "steps": charts.step_pattern(lead, longest, ink) if lead.steps else None,
        "gantt": charts.gantt(lead, longest, few),
        "every": charts.gantt(lead, longest, every) if len(every) > len(few) else None,
        "others": [
            (rank_of(worker), charts.gantt(worker, longest, charts.heaviest(worker))) for worker in job.workers if worker is not lead
        ],
    }


def _worker(name: str, job: TracedJob, worker: Figures) -> Tuple[str, Tuple[str, ...], str]:
    """A row of the table of workers: name, cells, note."""
    stalled = worker.part("stalled")
    cells = (
        ms(worker.seconds),
        ms(worker.computing),
        ms(worker.part("arriving")),
        f"{ms(stalled)} ({stalled / worker.seconds:.0%})",
        ms(worker.first_wait("answer")),
        f"{worker.utilisation:.0%}",
    )
    return name, cells, "straggler" if any(worker is slow for slow in job.stragglers) else ""


def _template() -> "jinja2.Template":
    try:
        import jinja2
    except ImportError:
        raise MissingPackageError("the report needs the package jinja2; install it with \"pip install 'jinja2>=3'\"") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html")


class Row(NamedTuple):
    """A row of the table of jobs: ``better`` says whether less (-1) or more (1) of it is better, 0 if neither."""

    what: str
    number: float
    shown: str
    better: int = 0
    percent: bool = False


def rows(job: TracedJob) -> List[Row]:
    """One job's column of the table: medians over its workers."""

    def milliseconds(what: str, value: Callable[[Figures], float], better: int = -1) -> Row:
        seconds = job.middle(value)
        return Row(what, 1000 * seconds, ms(seconds), better)

    def share(what: str, value: Callable[[Figures], float], better: int = 0) -> Row:
        number = 100 * job.middle(value)
        return Row(what, number, f"{number:.1f}%", better, True)

    ahead = job.middle(lambda worker: worker.middle(lambda iteration: iteration.ahead)) / 1e3
    sent = job.middle(lambda worker: worker.middle(lambda iteration: iteration.bytes)) / 1e6
    rate = job.middle(lambda worker: worker.rate)
    return [
        milliseconds("iteration", lambda worker: worker.seconds),
        milliseconds("stalled until the first layer arrives", lambda worker: worker.part("stalled")),
        share("stalled, share of the iteration", lambda worker: worker.part("stalled") / worker.seconds, -1),
        milliseconds("first layer: from ready to arrived", lambda worker: worker.first_wait("total")),
        Row("first layer: bytes in front of it", ahead, f"{digits(ahead)} KB", -1),
        share("links busy", lambda worker: worker.utilisation),
        milliseconds("nothing to send: the network waits", lambda worker: worker.middle(lambda iteration: iteration.idle), 0),
        Row("sent per iteration", sent, f"{digits(sent)} MB"),
        Row("measured rate of the links", rate, format_rate(rate) if rate else "unknown"),
    ]


def table(all_jobs: Sequence[TracedJob]) -> List[Tuple[str, List[str], str, str]]:
    """The page's table: what, how it is shown for each job, by how much a second job differs, and whether that is better or worse."""
    return [(row[0].what, [cell.shown for cell in row], *_difference(row)) for row in zip(*map(rows, all_jobs))]


def _difference(row: Sequence[Row]) -> Tuple[str, str]:
    if len(row) != 2:
        return "", ""
    before, after = row
    if before.percent:
        change = f"{after.number - before.number:+.1f} points"
    elif before.number and (after.number or before.better):
        change = f"{100 * (after.number / before.number - 1):+.1f}%"
    else:
        return "", ""
    same = abs(after.number - before.number) <= SAME * (100 if before.percent else before.number)
    if same or not before.better:
        return change, "same" if same else ""
    return change, "better" if (after.number > before.number) == (before.better > 0) else "worse"


def _times(figures: Figures) -> List[Tuple[float, float]]:
    return [(number, 1000 * (end - begin)) for number, (begin, end) in sorted(figures.trace.iterations.items())]
