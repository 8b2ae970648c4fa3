"""The report's verdict: how much of an iteration is stall, what is left to gain, who is waited for, and where the documentation says more.
Pure: jobs in, sentences out."""

from typing import List, NamedTuple, Sequence

from .report_shapes import ms
from .trace_jobs import Job, rank_of

LITTLE = 0.04  # of an iteration: less than that is called nothing
BUSY = 0.9  # of the time: links that carry bytes for longer are the limit
HELP = "docs/troubleshooting.md"  # what the hints name
NO_SPEED_UP = "There is no speed-up"  # its heading there


class Hint(NamedTuple):
    """What to look at next: a sentence, and where the documentation says more."""

    sentence: str
    page: str = HELP
    heading: str = NO_SPEED_UP


def comparison(before: Job, after: Job) -> str:
    """How much faster or slower the second job is."""
    factor = before.seconds / after.seconds
    change = f"{factor:.2f} times as fast, better" if factor >= 1 else f"{1 / factor:.2f} times as slow, worse"
    if abs(factor - 1) < LITTLE:
        change = "about the same"
    return f"An iteration takes {ms(after.seconds)} after ({after.name}) and {ms(before.seconds)} before ({before.name}): {change}."


def verdict(job: Job) -> str:
    """Two sentences: how much of an iteration is stall, and what is left to gain."""
    low, high = job.stalls
    who = "the worker stalls" if len(job.workers) == 1 else "the workers stall"
    shares = f"{low / job.seconds:.0%}"
    if high - low > LITTLE * job.seconds:
        stall, shares = f"{ms(low)} to {ms(high)}", f"{shares} to {high / job.seconds:.0%}"
    else:
        stall, shares = ms(high), f"{high / job.seconds:.0%}"
    left = max(0.0, job.seconds - job.bound)
    bound = f"the lower bound for this profile is about {ms(job.bound)}, which no order of sending can beat"
    if left < LITTLE * job.seconds:
        gain = f"Nothing is left to gain by another order: {bound}"
    else:
        gain = f"At most {ms(left)} are left to gain ({job.seconds / job.bound:.2f} times as fast): {bound}"
    return f"{_which(job, who)} for {stall} of each {ms(job.seconds)} iteration ({shares}), waiting for the first layer's values. {gain}."


def straggler(job: Job) -> str:
    """Who is waited for; empty if no worker is slower than the others."""
    slow = job.stragglers
    if not slow:
        return ""
    names = ", ".join(map(rank_of, slow))
    are, who = ("is a straggler", "it") if len(slow) == 1 else ("are stragglers", rank_of(job.slowest))
    return (
        f"{_which(job, names)} {are}: {who} computes for {ms(job.slowest.computing)} of an iteration, "
        f"{job.delay:.2f} times as long as most of the others, which wait for it."
    )


def _which(job: Job, sentence: str) -> str:
    """The beginning of a sentence about one of two jobs, or about the only one."""
    sentence = f"{job.label}, {sentence}" if job.label else sentence
    return sentence[0].upper() + sentence[1:]


def hints(job: Job) -> List[Hint]:
    """What to do about the stall."""
    found = []
    if job.stragglers:
        found.append(Hint("No order of sending makes a slow worker faster: look at its machine, its data and its batch size."))
    if job.middle(lambda worker: worker.utilisation) > BUSY:
        found.append(Hint("The links are busy nearly all the time: fewer bytes, more servers or a faster network help, and nothing else."))
    elif job.seconds - job.bound >= LITTLE * job.seconds:
        found.append(Hint("Time is left to gain: check that all gradients are scheduled, and that large ones are cut."))
    elif job.stalls[1] < LITTLE * job.seconds:
        found.append(Hint("Computing is the limit: the network hides behind it."))
    lost = sum(worker.trace.lost for worker in job.workers)
    if lost:
        found.append(Hint(f"{lost} events were lost: some times are missing.", "docs/timeline.md", "Crashes, full disks, size"))
    return found


def opening(all_jobs: Sequence[Job]) -> List[str]:
    """What the page says first."""
    if len(all_jobs) == 1:
        return [verdict(all_jobs[0])]
    return [comparison(*all_jobs), verdict(all_jobs[-1])]
