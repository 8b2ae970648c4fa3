"""Where results are written: a scratch folder, or, if a command is told to publish, benchmarks/results/QUESTION.

A published result is three files: data.csv, table.md, and metadata.json. A scratch result is the same, as NAME.csv, NAME.md and NAME.json.
"""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.errors import ConfigError, not_allowed

from ..questions import QUESTIONS
from .metadata import fingerprint, made
from .rows import JobRow, read, write_csv
from .tables import detail

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULTS, SCRATCH = BENCHMARKS / "results", BENCHMARKS / "scratch"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class Files(NamedTuple):
    """The three files of a result."""

    data: Path
    table: Path
    about: Path

    @classmethod
    def published(cls, question: str, results: Optional[Path] = None) -> "Files":
        folder = (results or RESULTS) / question
        return cls(folder / "data.csv", folder / "table.md", folder / "metadata.json")

    @classmethod
    def named(cls, folder: Path, name: str) -> "Files":
        return cls(*(folder / f"{name}.{suffix}" for suffix in ("csv", "md", "json")))


class Result(NamedTuple):
    """What was read. ``about``: the metadata; ``table``: the file's text."""

    question: str
    about: Dict[str, Any]
    table: str
    files: Files

    @property
    def rows(self) -> List[JobRow]:
        """The jobs, of a comparison."""
        return read(self.files.data)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What :func:`destinations` reads."""
    parser.add_argument("--name", help="name of the files NAME.csv, NAME.md and NAME.json (default: the command and the time)")
    parser.add_argument("--results", type=Path, default=SCRATCH, metavar="FOLDER", help="folder for them (default benchmarks/scratch)")
    parser.add_argument(
        "--publish",
        type=_question,
        metavar="QUESTION",
        help="also replace the result in benchmarks/results/QUESTION, see benchmarks.questions",
    )
    parser.add_argument("--published", type=Path, help=argparse.SUPPRESS)  # in place of benchmarks/results


def _question(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(not_allowed(repr(text), "a name of benchmarks.questions --list"))
    return text


def source(text: str, results: Optional[Path] = None) -> Path:
    """The data of a run, named by a question or by its CSV file."""
    published = Files.published(text, results).data
    return published if _NAME.fullmatch(text) and published.exists() else Path(text)


def destinations(options: argparse.Namespace, module: str) -> List[Files]:
    """Where a command writes, the scratch folder first."""
    name = options.name or time.strftime(f"{module}-%Y%m%d-%H%M%S")
    found = [Files.named(options.results, name)]
    return found + ([Files.published(options.publish, options.published)] if options.publish else [])


def write(files: Files, fields: Sequence[str], rows: Sequence[Sequence[Any]], table: Optional[str], about: Mapping[str, Any]) -> None:
    """Write the three files of a result, without the table if that is None; ``table`` does not have what ``about`` says.

    A published result also gets the fingerprint of the files that could alter it, so that one can tell whether it is that of the
    present code where the history was written anew and its commit is gone. One of which ``about`` tells stays.
    """
    question = QUESTIONS.get(files.about.parent.name) if files.about == Files.published(files.about.parent.name).about else None
    if question:
        about = {"fingerprint": fingerprint(question.alters), **about}
    files.data.parent.mkdir(parents=True, exist_ok=True)
    write_csv(files.data, fields, rows)
    files.about.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if table is None:
        files.table.unlink(missing_ok=True)
    else:
        files.table.write_text(f"{made(about)}\n\n`{about['command']}`\n\n{table}", encoding="utf-8")


def write_everywhere(
    options: argparse.Namespace, module: str, fields: Sequence[str], rows: Sequence[Sequence[Any]], table: str, about: Mapping[str, Any]
) -> None:
    """Write a result to all :func:`destinations`, and print where its table is."""
    for files in destinations(options, module):
        write(files, fields, rows, table, about)
        print(f"written: {files.table}")


def interrupted(files: Files, about: Mapping[str, Any]) -> Tuple[List[JobRow], Dict[str, Any]]:
    """The jobs and the metadata of a run that ended before its time, if the same was asked of the same code; else none, and ``about``.
    ``done`` has the rounds of each cell, ``found`` what was found out of it."""
    fresh: Dict[str, Any] = {**about, "done": {}, "found": {}}
    try:
        old: Dict[str, Any] = json.loads(files.about.read_text(encoding="utf-8"))
        rows = read(files.data)
    except (OSError, ValueError):
        return [], fresh
    same = ("code", "dirty", "cells", "methods", "seed", "repeats", "iterations", "warmup")
    return (rows, old) if all(old.get(name) == fresh.get(name) for name in same) and "done" in old else ([], fresh)


def comparison_table(rows: Sequence[JobRow], about: Mapping[str, Any]) -> str:
    """The table of a comparison, below how many jobs there are. Raises BelowBoundError."""
    aside = sum(bool(row.aside) for row in rows)
    why = ": data.csv says why" if aside else ""
    return f"Seed {about['seed']}. {len(rows)} jobs, {aside} set aside{why}.\n\n{detail(rows, about)}"


def load(question: str, results: Optional[Path] = None) -> Optional[Result]:
    """A published result; None if there is none. Raises ConfigError if its files cannot be used."""
    files = Files.published(question, results)
    if not files.about.exists():
        return None
    try:
        about = json.loads(files.about.read_text(encoding="utf-8"))
        return Result(question, about, files.table.read_text(encoding="utf-8"), files)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{files.about.parent} is no result: {error}") from None
