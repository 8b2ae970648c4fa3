"""The command ``prophet-mx simulate``: what each policy would give on clusters of some sizes and bandwidths."""

import argparse
import json
from typing import Any, Iterator, Sequence

from ..profiling.gradient_profile import GradientProfile
from ..simulation.cluster import PLAIN, Cluster
from ..simulation.simulator import simulate
from .question import EXIT_CODES, EXPLAINED, HEADINGS, Answer, add_question, as_dict, job_sentence, line, read, write_csv

HELP = "print a table of a job's iteration times on other networks and cluster sizes"
DESCRIPTION = "Simulate a training job and its cluster with prophet_mx's own scheduler, and print a table of iteration times."
EPILOG = f"""\
example, 64 workers and 64 servers at three bandwidths:
  prophet-mx simulate --model resnet50 --compute 300ms --bandwidth 10Gbit,25Gbit,100Gbit --workers 64

'prophet-mx predict' has these options too, and explains the table in words.

{EXPLAINED}

{EXIT_CODES}"""
add_options = add_question


def sweep(profile: GradientProfile, clusters: Sequence[Cluster], policies: Sequence[str], **options: Any) -> Iterator[Answer]:
    """Simulate every policy on every cluster; ``options`` are those of :func:`~prophet_mx.simulation.simulator.simulate`."""
    for cluster in clusters:
        plain = simulate(profile, cluster, PLAIN, **options)
        for policy in policies:
            yield Answer.of(plain if policy == PLAIN else simulate(profile, cluster, policy, **options), plain)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    question = read(arguments)
    if not arguments.json:
        print(job_sentence(question.profile, question.compute))
        print(line(HEADINGS))
    rows = []
    for row in sweep(question.profile, question.clusters, question.policies, **question.effort):
        rows.append(row.values())
        if not arguments.json:
            print(line(row.cells()), flush=True)
    if arguments.json:
        print(json.dumps(as_dict(question.profile, question.compute, rows), indent=1))
    return write_csv("simulate", arguments.csv, rows)
