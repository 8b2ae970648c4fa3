"""The best settings of a sweep, for a comparison with what is chosen or shipped."""

from typing import Dict, List, Sequence

from prophet_mx.errors import ConfigError

from .names import family
from .results import load
from .rows import JobRow
from .summaries import summarise


def best_methods(rows: Sequence[JobRow], cells: Sequence[str]) -> Dict[str, List[str]]:
    """Cell -> for each method that was swept there, the setting with the least median time. Raises ConfigError if a cell was not swept."""
    swept = {cell.cell: cell for cell in summarise(rows, ())}
    found: Dict[str, List[str]] = {}
    for cell in cells:
        if cell not in swept:
            raise ConfigError(f"no sweep has the cell {cell}")
        fastest: Dict[str, str] = {}
        summaries = [summary for summary in swept[cell].methods.values() if ":" in summary.method and summary.jobs]
        for summary in sorted(summaries, key=lambda summary: summary.time.median):
            fastest.setdefault(family(summary.method), summary.method)
        found[cell] = list(fastest.values())
    return found


def from_question(question: str, cells: Sequence[str]) -> Dict[str, List[str]]:
    """The same from a published sweep."""
    result = load(question)
    if result is None:
        raise ConfigError(f"benchmarks/results has no {question}: python -m benchmarks.questions {question} --publish")
    return best_methods(result.rows, cells)
