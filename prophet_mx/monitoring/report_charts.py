"""The report's charts. Pure: figures in, shapes out."""

import math
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from .report_shapes import (
    ALARM,
    GRID,
    INKS,
    LEFT,
    LINES,
    MUTED,
    PLOT,
    TEXT,
    WIDTH,
    Chart,
    Curve,
    Ink,
    Line,
    Rect,
    Shape,
    Text,
    ms,
    plate,
    shorten,
    ticks,
    time_axis,
)
from .trace_figures import PARTS, Figures, Iteration, busy_shares, wires_between
from .trace_file import STAGES
from .trace_jobs import TracedJob, rank_of


def composition(workers: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per worker: what its iterations are made of."""
    return bars([[(part, worker.part(part)) for part in PARTS] for worker in workers], names, 30, "parts of an iteration, a row per worker")


def first_layer(workers: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per worker: what the first layer's values wait for."""
    rows = [[(stage, worker.first_wait(stage)) for stage in STAGES] for worker in workers]
    return bars(rows, names, 22, "wait of the first layer, a row per worker")


def bars(rows: Sequence[Sequence[Tuple[str, float]]], names: Sequence[str], height: float, label: str) -> Chart:
    """A bar for each row: its named times, one after the other."""
    longest = max(1e-6, max(sum(seconds for _, seconds in row) for row in rows))
    scale, below = PLOT / longest, (height + 8) * len(rows)
    shapes: List[Shape] = list(time_axis(longest, below + 6, 0))
    for place, (row, name) in enumerate(zip(rows, names)):
        x, y = float(LEFT), (height + 8) * place + 4
        shapes.append(Text(LEFT - 8, y + height / 2 + 4, shorten(name, 24), "end"))
        for part, seconds in row:
            shapes.append(Rect(x, y, seconds * scale, height, INKS[part], f"{name}: {part} {ms(seconds)}"))
            if seconds * scale > 72:
                shapes += plate(x + seconds * scale / 2, y + height / 2 + 4, ms(seconds))
            x += seconds * scale
    return Chart(below + 30, shapes, label)


def curves(series: Sequence[Sequence[Tuple[float, float]]], height: float, unit: str, label: str) -> Chart:
    """Lines over a common pair of axes: the horizontal axis is a count (of iterations), the vertical one begins at 0."""
    points = [point for one in series for point in one]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = 1.08 * max(y for _, y in points) or 1.0
    span = max(1e-9, right - left)

    def place(x: float, y: float) -> Tuple[float, float]:
        return LEFT + PLOT * (x - left) / span, height - height * y / top

    shapes: List[Shape] = []
    for tick in ticks(top, 4):
        y = height - height * tick / top
        shapes += [Line(LEFT, y, WIDTH - 10, y, GRID), Text(LEFT - 8, y + 4, f"{tick:g} {unit}", "end", 11, MUTED)]
    for tick in ticks(span):
        if tick == int(tick):
            shapes.append(Text(LEFT + PLOT * tick / span, height + 15, f"{left + tick:g}", "middle", 11, MUTED))
    for one, ink in zip(series, LINES):
        shapes.append(Curve([place(x, y) for x, y in one], ink))
    return Chart(height + 22, shapes, label)


def utilisation(figures: Figures, seconds: float, ink: Ink) -> Chart:
    """How busy the links were over the median iteration, drawn to a scale of ``seconds``."""
    height, scale = 90, PLOT / seconds
    shares = busy_shares(figures.trace, figures.median)
    width = figures.median.seconds / len(shares) * scale
    shapes: List[Shape] = [
        *time_axis(seconds, height, 0),
        Text(LEFT - 8, 10, "100%", "end", 11, MUTED),
        Text(LEFT - 8, height, "0%", "end", 11, MUTED),
    ]
    shapes += [
        Rect(LEFT + place * width, height - height * share, width, height * share, Ink(ink.colour), f"{100 * share:.0f}%")
        for place, share in enumerate(shares)
        if share > 0
    ]
    return Chart(height + 32, shapes, "link utilisation over one iteration")


def step_pattern(figures: Figures, seconds: float, ink: Ink) -> Chart:
    """A bar per step at the time it becomes ready, as high as its bytes."""
    height, scale = 110, PLOT / seconds
    top = max([step.bytes for step in figures.steps] + [1])
    shapes: List[Shape] = [*time_axis(seconds, height, 0), Text(LEFT - 8, 12, f"{top / 1e6:.3g} MB", "end", 11, MUTED)]
    for number, step in enumerate(figures.steps):
        tall = (height - 4) * step.bytes / top
        about = _step_words(number, step.begin, step.units, step.bytes)
        shapes.append(Rect(LEFT + step.begin * scale, height - tall, max(2.5, step.seconds * scale), tall, Ink(ink.colour), about))
    return Chart(height + 32, shapes, "step pattern")


def _step_words(number: int, begin: float, units: int, size: int) -> str:
    return f"step {number}: after {ms(begin)}, {units} units, {size / 1e6:.3g} MB"


HEAVIEST = 10  # parameters that are shown beside the first layer's
MOST_LINKS = 4  # that are shown
BAND = 18.0  # height of the row of the steps, and of a link's


def parameters(figures: Figures) -> List[str]:
    """The parameters of the median iteration, most urgent first."""
    trace = figures.trace
    urgencies: Dict[str, int] = {}
    for unit in trace.passages[figures.median.number]:
        facts = trace.units[unit]
        urgencies[facts.parameter] = min(facts.urgency, urgencies.get(facts.parameter, facts.urgency))
    return sorted(urgencies, key=lambda parameter: urgencies[parameter])


def heaviest(figures: Figures) -> List[str]:
    """The first layer's parameter and those that carry most bytes, most urgent first."""
    sizes: Dict[str, int] = {}
    for unit in figures.trace.passages[figures.median.number]:
        facts = figures.trace.units[unit]
        sizes[facts.parameter] = sizes.get(facts.parameter, 0) + facts.bytes
    every = parameters(figures)
    chosen = set(sorted(every[1:], key=lambda parameter: -sizes[parameter])[:HEAVIEST])
    return every[:1] + [parameter for parameter in every[1:] if parameter in chosen]


def gantt(figures: Figures, seconds: float, shown: Sequence[str]) -> Chart:
    """The median iteration, drawn to a scale of ``seconds``: its steps, the links with their blocks, a row for each of these parameters."""
    iteration = figures.median
    pitch = max(4.0, min(18.0, 900 / len(shown)))
    links = min(MOST_LINKS, max([link for link, _, _ in wires_between(figures.trace, iteration.number)], default=0) + 1)
    top = 6.0 + BAND * (1 + links)
    height, scale = top + pitch * len(shown), PLOT / seconds
    shapes: List[Shape] = [
        *time_axis(seconds, height + 2, 0),
        *_steps(figures, scale),
        *_links(figures, seconds, links),
        *_names(shown, top, pitch),
        *_passages(figures, seconds, {parameter: top + pitch * row for row, parameter in enumerate(shown)}, pitch * 0.85),
    ]
    marks = (
        (iteration.last_ready, "last gradient"),
        (iteration.first_there, "first layer's values: forward may begin"),
        (iteration.end, "next iteration"),
    )
    for place, (at, what) in enumerate(marks):  # one below the other, as they may be near
        x, y = LEFT + min(seconds, at - iteration.begin) * scale, height + 29 + 13 * place
        shapes += [Line(x, 0, x, y - 11, ALARM, "3 3"), Text(x, y, what, "end" if x > LEFT + PLOT / 2 else "start", 11, ALARM)]
    return Chart(height + 62, shapes, f"one iteration, {len(shown)} parameters")


MOST_WORKERS = 16  # that are shown beneath one another
ROWS = (("", 16.0), ("links", 9.0), ("first layer", 9.0))  # of a worker there, and their heights


def together(job: TracedJob) -> Optional[Chart]:
    """The same iteration of all workers beneath one another, on one clock and to one scale: its parts, when the links carried bytes, and
    the first layer's passage. None if the traces have no such iteration."""
    if not job.together or job.clocks is None:
        return None
    workers = list(zip(job.workers, job.together, job.clocks.each))[:MOST_WORKERS]
    start = min(clock.common(iteration.begin) for _, iteration, clock in workers)
    seconds = max(clock.common(iteration.end) for _, iteration, clock in workers) - start
    pitch, scale = sum(height + 3 for _, height in ROWS) + 8, PLOT / seconds
    shapes: List[Shape] = list(time_axis(seconds, pitch * len(workers) + 2, 0))
    for place, (worker, iteration, clock) in enumerate(workers):
        y = pitch * place + 4
        for (name, height), bars in zip(ROWS, (_parts(iteration), _wires(worker, iteration), _first(worker, iteration))):
            shapes.append(Text(LEFT - 8, y + height / 2 + 4, name or rank_of(worker), "end", 11 if name else 12, MUTED if name else TEXT))
            for begin, end, ink, what in bars:
                at, to = (min(max(0.0, clock.common(time) - start), seconds) for time in (begin, end))
                if to > at:
                    title = f"{rank_of(worker)}: {what} {ms(to - at)}, from {ms(at)}"
                    shapes.append(Rect(LEFT + at * scale, y, (to - at) * scale, height, INKS[ink], title))
            y += height + 3
    return Chart(pitch * len(workers) + 24, shapes, "one iteration of all workers on one clock")


Bar = Tuple[float, float, str, str]  # begin, end, ink, words


def _parts(iteration: Iteration) -> Iterator[Bar]:
    begin = iteration.begin
    for part in PARTS:
        yield begin, begin + iteration.parts[part], part, part
        begin += iteration.parts[part]


def _wires(worker: Figures, iteration: Iteration) -> Iterator[Bar]:
    for link, begin, end in wires_between(worker.trace, iteration.number):
        yield max(begin, iteration.begin), min(end, iteration.end), "wire", f"link {link} carries bytes for"


def _first(worker: Figures, iteration: Iteration) -> Iterator[Bar]:
    """The stages of the first layer's last unit."""
    begin = iteration.first_ready
    for stage in STAGES:
        yield begin, begin + iteration.first_layer[stage], stage, f"{worker.first_parameter}: {stage}"
        begin += iteration.first_layer[stage]


def _steps(figures: Figures, scale: float) -> Iterator[Shape]:
    begin = figures.median.begin
    yield Text(LEFT - 8, 6 + BAND - 7, "steps", "end", 11, MUTED)
    for step, at, to, units, size in figures.trace.steps.get(figures.median.number, []):
        width = max(3.0, (to - at) * scale)
        yield Rect(LEFT + (at - begin) * scale, 8, width, BAND - 6, INKS["step"], _step_words(step, at - begin, units, size))


def _links(figures: Figures, seconds: float, links: int) -> Iterator[Shape]:
    """A row for each link: its blocks, and in them the times in which it carried bytes."""
    iteration, scale = figures.median, PLOT / seconds
    blocks = figures.trace.blocks.get(iteration.number, [])
    for link in range(links):
        what = f"link {link}: blocks" if any(block.link == link for block in blocks) else f"link {link}"
        yield Text(LEFT - 8, 6 + BAND * (link + 2) - 7, what, "end", 11, MUTED)

    def bar(link: int, at: float, to: float) -> Tuple[float, float, float]:
        at, to = max(0.0, at - iteration.begin), min(seconds, to - iteration.begin)
        return LEFT + at * scale, 6 + BAND * (link + 1), max(1.0, (to - at) * scale)

    for block in blocks:
        if block.link < links:
            x, y, width = bar(block.link, block.begin, block.end)
            about = f"block of {block.units} units, {block.bytes / 1e3:.4g} KB; {block.predicted / 1e3:.4g} KB were predicted to fit"
            yield Rect(x, y + 1, width, BAND - 3, INKS["block"], about, TEXT)
    for link, at, to in wires_between(figures.trace, iteration.number):
        if link < links:
            x, y, width = bar(link, at, to)
            yield Rect(x, y + 5, width, BAND - 11, INKS["wire"], f"link {link} carries bytes for {ms(to - at)}")


def _names(shown: Sequence[str], top: float, pitch: float) -> Iterator[Shape]:
    named = max(1, math.ceil(10 / pitch))
    for row, parameter in enumerate(shown):
        if row % named == 0:
            yield Text(LEFT - 8, top + pitch * (row + 0.425) + 3.5, shorten(parameter, 26), "end", min(11, max(9, pitch * 0.7)))


def _passages(figures: Figures, seconds: float, rows: Dict[str, float], height: float) -> Iterator[Shape]:
    trace, begin, scale = figures.trace, figures.median.begin, PLOT / seconds
    passages = sorted(trace.passages[figures.median.number].items())
    for stage in ("wait", "answer", "unpack", "wire"):  # of a parameter's units, what is on the wire is on top
        for unit, passage in passages:
            at, to = {
                "wait": (passage.ready, passage.wire),
                "wire": (passage.wire, passage.drained),
                "answer": (passage.drained, passage.answered),
                "unpack": (passage.answered, passage.landed),
            }[stage]
            y = rows.get(trace.units[unit].parameter)
            if y is not None and to > at:
                at, to = at - begin, min(to - begin, seconds)
                about = f"{trace.units[unit].name}: {stage} {ms(to - at)}, from {ms(at)}"
                yield Rect(LEFT + at * scale, y, max(0.3, (to - at) * scale), height, INKS[stage], about)
