"""Which published results were made before a change that could alter them.

    python -m benchmarks.status

Asks git for the commits since each result's own that touch what its question depends on (benchmarks/questions.py). Where the clone does
not have that commit, as a shallow one may not, the result's fingerprint of these files tells whether they are still the same. If they are
not, it says that it cannot tell what has changed. Exit code 0.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

from .comparison.metadata import ROOT, fingerprint, git
from .comparison.results import RESULTS, load
from .questions import QUESTIONS, Question


class Status(NamedTuple):
    """``changes``: the commits since then that could alter a result, as ``HASH SUBJECT``; ``unknown``: why that is not known;
    ``same``: in that case, whether the files that could alter it are still the same.
    """

    question: str
    commit: str
    changes: List[str]
    unknown: str = ""
    dirty: bool = False
    same: bool = False

    @property
    def note(self) -> str:
        """What a reader of the result has to know; '' if it is that of the present code."""
        notes = ["Made with changes that are in no commit."] if self.dirty else []
        if self.same:
            notes.append(f"{self.unknown[0].upper()}{self.unknown[1:]}, but the files that could alter this result are still the same.")
        elif self.unknown:
            notes.append(f"Whether the code has changed since is not known: {self.unknown}.")
        elif self.changes:
            number = len(self.changes)
            notes.append(f"{number} later commit{'s' * (number > 1)} could alter this result, the last one: {self.changes[0]}.")
        return " ".join(notes)


def status(question: Question, about: Mapping[str, Any], root: Path = ROOT) -> Status:
    """The status of a result with the metadata ``about`` in the clone at ``root``."""
    commit, dirty = about["commit"], bool(about["dirty"])
    changes: List[str] = []
    unknown = _why_unknown(commit, root)
    if not unknown:
        changes = git("log", "--format=%h %s", f"{commit}..HEAD", "--", *question.alters, root=root).splitlines()
    same = bool(unknown) and bool(about.get("fingerprint")) and about["fingerprint"] == fingerprint(question.alters, root)
    return Status(question.name, commit, changes, unknown, dirty, same)


def _why_unknown(commit: str, root: Path) -> str:
    try:
        shallow = git("rev-parse", "--is-shallow-repository", root=root) == "true"
    except (OSError, subprocess.CalledProcessError):
        return "this is no clone with a history, or there is no git"
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD", root=root)
    except subprocess.CalledProcessError:
        return f"this clone is shallow and lacks commit {commit[:9]}" if shallow else f"commit {commit[:9]} is not in this history"
    return ""


def statuses(results: Path, root: Path = ROOT) -> List[Status]:
    """Of all published results. A folder that no question names has no status."""
    found = ((question, load(question.name, results)) for question in QUESTIONS.values())
    return [status(question, result.about, root) for question, result in found if result is not None]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    for each in statuses(RESULTS):
        print(f"{each.question}, commit {each.commit[:9]}: {each.note or 'no change since then could alter it'}")
        for change in each.changes:
            print(f"    {change}")
    missing = [name for name in QUESTIONS if load(name, RESULTS) is None]
    if missing:
        print(f"not measured: {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
