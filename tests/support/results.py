"""Made-up results of comparisons."""

from benchmarks.comparison.command import CellOfJobs
from benchmarks.comparison.results import Files, comparison_table, write
from benchmarks.comparison.rows import JobRow

CELL = "resnet50_v1,workers=2,servers=1,rho=1,compute=0.15,rate=1Gbit"


def job(method, time_ms, turn=1, cell=CELL, **more):
    """A job that took so long, with a bound of 150 ms; one that failed without a time."""
    values = {
        "bound_ms": 150.0,
        "compute_ms": 150.0,
        "rho": 1.0,
        "megabytes": 8.97,
        "model_megabytes": 102.23,
        "goodput_gbit": 0.95,
        "goodput_share": 0.95,
        "calls_ms": 5.0,
        "cpu_percent": 20.0,
        "memory_mb": 300.0,
        "iterations": 20,
    }
    if time_ms is None:
        return JobRow(cell, "", method, turn, more["aside"])
    return JobRow(
        cell, "", method, turn, **{"aside": "", "time_ms": float(time_ms), "p10_ms": time_ms, "p90_ms": time_ms, **values, **more}
    )


def cell_of(rows, cell=CELL):
    """A cell of a comparison that has run when its first round has."""
    return CellOfJobs(cell, "", lambda kept: list(rows) if kept.number == 1 else [])


def jobs(method, *times, **more):
    """A job per round."""
    return [job(method, time, number + 1, **more) for number, time in enumerate(times)]


def about(**more):
    """A result's metadata."""
    return {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "date": "2026-11-23 05:00 UTC",
        "command": "python -m benchmarks.run --cell resnet50_v1,rho=1,compute=0.15",
        "machine": "two cores",
        "cells": [CELL],
        "methods": [],
        "best": {},
        "seed": 0,
        **more,
    }


def published(root, question, rows, **more):
    """Write them as a published result of the checkout at ``root``."""
    described = about(**more)
    files = Files.published(question, root / "benchmarks" / "results")
    write(files, JobRow._fields, rows, comparison_table(rows, described), described)
    return files
