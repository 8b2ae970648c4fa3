"""A published result whose cells were measured one after another: cells that are measured anew replace their own rows, and no others."""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .results import Result
from .rows import JobRow

_OWN = ("commit", "dirty", "date", "machine", "command", "fingerprint")  # what each cell has for itself
_BY_CELL = ("best", "profiles")  # of what was searched and learned in it


def joined(
    old: Optional[Result], rows: Sequence[JobRow], about: Mapping[str, Any], fingerprint: str
) -> Tuple[List[JobRow], Dict[str, Any]]:
    """Rows and metadata of all cells in the order of ``about["cells"]``. ``fingerprint``: of what could alter these ``rows``.

    Each cell's own part of the metadata is in ``measured``. The result is said to be of the oldest one's commit, so that it counts as old
    as soon as one of its cells does. It has a fingerprint if all cells have the same.
    """
    anew = {row.cell for row in rows}
    kept = [row for row in (old.rows if old else ()) if row.cell in about["cells"] and row.cell not in anew]
    before = old.about if old else {}
    measured = {row.cell: before.get("measured", {}).get(row.cell) or _own(before) for row in kept}
    measured.update({cell: {**_own(about), "fingerprint": fingerprint} for cell in anew})
    parts = sorted(measured.values(), key=lambda part: part["date"])
    cells = list(about["cells"])
    whole = {
        **{name: value for name, value in about.items() if name != "only"},
        **{
            name: {cell: value for cell, value in {**before.get(name, {}), **about[name]}.items() if cell in measured}
            for name in _BY_CELL
            if name in about
        },
        "measured": {cell: measured[cell] for cell in cells if cell in measured},
        "commit": parts[0]["commit"],
        "dirty": any(part["dirty"] for part in parts),
        "date": " to ".join(dict.fromkeys([parts[0]["date"], parts[-1]["date"]])),
        "fingerprint": fingerprint if {part["fingerprint"] for part in parts} == {fingerprint} else "",
    }
    return sorted([*kept, *rows], key=lambda row: cells.index(row.cell)), whole


def _own(about: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: about.get(name, "") for name in _OWN}
