"""The examples that learn from text, as jobs of two workers."""

import re

import pytest

from support.cluster import run_cluster
from support.paths import ROOT

FOLDER = ROOT / "examples" / "mxnet-text"


@pytest.mark.parametrize(
    "script, arguments",
    [
        ("train_transformer.py", ["--iterations", "100", "--batch-size", "4", "--length", "32"]),
        ("train_lstm.py", ["--lines", "400", "--epochs", "2", "--batch-size", "8", "--units", "32"]),
    ],
)
def test_both_learn_and_are_scheduled(script, arguments):
    job = run_cluster(FOLDER / script, 2, 1, args=["--kv-store", "dist_sync", *arguments], timeout=120)
    for worker in job.workers:
        perplexities = [float(found) for found in re.findall(r"perplexity[ =]([\d.]+)", worker.output)]
        assert len(perplexities) == 2 and perplexities[1] < perplexities[0] < 100, job.logs()
        assert re.search(r"policy prophet, [1-9]\d* units", worker.output), job.logs()
