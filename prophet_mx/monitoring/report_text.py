"""The verdict of ``prophet-mx report`` in a terminal, and the same figures for programs. Neither needs a package for templates."""

from typing import Any, Dict, Iterator, Sequence, Tuple

from .report_page import LITTLE, comparison, hints
from .report_shapes import ms
from .trace_figures import PARTS, Figures
from .trace_jobs import TracedJob, rank_of

FORMAT = "prophet_mx report 1"
WIDTH = 14  # of the words before a line
ENDS = ("least", "most")  # of a range over the workers


def text(jobs: Sequence[TracedJob]) -> str:
    """Some lines about each job; before those about two jobs, how they differ."""
    lines = [comparison(*jobs)] if len(jobs) == 2 else []
    for job in jobs:
        lines += [_title(job), *(f"  {word:{WIDTH}}{said}" for word, said in _facts(job, last=job is jobs[-1]))]
    return "\n".join(lines)


def _title(job: TracedJob) -> str:
    head = job.workers[0].trace.head
    name = f"{job.label}: {job.name}" if job.label else job.name
    return f"{name}: {len(job.workers)} of {head.get('workers')} worker(s), {head.get('servers')} server(s), policy {head.get('policy')}"


def _facts(job: TracedJob, last: bool) -> Iterator[Tuple[str, str]]:
    yield "iteration", ms(job.seconds)
    yield "stall", f"{_range(job, job.stalls)} ({job.stalls[1] / job.seconds:.0%}): forward waits for the first layer's values"
    yield "later waits", f"at most {ms(_waiting(job))}: forward may wait for later values, as the network is at work"
    bound = f"no order of sending takes less than about {ms(job.bound)}"
    little = job.gain < LITTLE * job.seconds
    yield "left to gain", ("nothing" if little else f"at most {ms(job.gain)} ({job.gain / job.seconds:.0%})") + f": {bound}"
    yield "waited for", _waited_for(job)
    yield "limit", f"{_limit(job)}: workers compute for at least {_range(job, _computing(job))}, the network needs {_needed(job)}"
    if last:
        for hint in hints(job):
            yield "next", f"{hint.sentence} See {hint.page}, “{hint.heading}”."


def _range(job: TracedJob, times: Tuple[float, float]) -> str:
    low, high = times
    return f"{ms(low)} to {ms(high)}" if high - low > LITTLE * job.seconds else ms(high)


def _computing(job: TracedJob) -> Tuple[float, float]:
    """The least and the most that a worker computes."""
    times = list(map(job.least_computing, job.workers))
    return min(times), max(times)


def _waiting(job: TracedJob) -> float:
    return max(map(job.waiting, job.workers))


def _waited_for(job: TracedJob) -> str:
    if job.stragglers:
        return f"{', '.join(map(rank_of, job.stragglers))}: {job.delay:.2f} times the computing of most workers"
    if not job.complete:
        return "unknown: give the traces of all workers"
    return "no worker" if len(job.workers) > 1 else "no worker: the job has one"


def _limit(job: TracedJob) -> str:
    return "network" if job.communicating > _computing(job)[1] else "computing"


def _needed(job: TracedJob) -> str:
    return f"about {ms(job.communicating)} for the bytes" if job.communicating else "an unknown time for the bytes"


def as_dict(jobs: Sequence[TracedJob]) -> Dict[str, Any]:
    """The figures for JSON, as docs/timeline.md lists them: seconds, bytes, shares from 0 to 1; None for what is not known."""
    answer: Dict[str, Any] = {"format": FORMAT, "jobs": [_job(job) for job in jobs]}
    if len(jobs) == 2:
        answer["speedup"] = jobs[0].seconds / jobs[1].seconds
    return answer


def _job(job: TracedJob) -> Dict[str, Any]:
    head = job.workers[0].trace.head
    return {
        "name": job.name,
        "label": job.label,
        "policy": head.get("policy"),
        "workers": head.get("workers"),
        "servers": head.get("servers"),
        "iteration_seconds": job.seconds,
        "stalled_seconds": dict(zip(ENDS, job.stalls)),
        "waiting_seconds": _waiting(job),
        "gain_seconds": job.gain,
        "bound_seconds": job.bound,
        "computing_seconds": dict(zip(ENDS, _computing(job))),
        "communication_seconds": job.communicating or None,
        "limit": _limit(job),
        "stragglers": [worker.trace.head.get("rank") for worker in job.stragglers],
        "straggler_factor": job.delay,
        "clock_accuracy_seconds": job.clocks.accuracy if job.clocks and len(job.workers) > 1 else None,
        "next": [hint._asdict() for hint in hints(job)],
        "ranks": [_rank(job, worker) for worker in job.workers],
    }


def _rank(job: TracedJob, worker: Figures) -> Dict[str, Any]:
    return {
        "rank": worker.trace.head.get("rank"),
        "trace": worker.trace.path,
        "iterations": len(worker.iterations),
        "iteration_seconds": worker.seconds,
        **{f"{part}_seconds": worker.part(part) for part in PARTS},
        "waiting_seconds": job.waiting(worker),
        "first_layer_seconds": worker.first_wait("total"),
        "links_busy": worker.utilisation,
        "sent_bytes": worker.middle(lambda iteration: iteration.bytes),
        "rate_bytes_per_second": worker.rate or None,
        "lost_events": worker.trace.lost,
    }
