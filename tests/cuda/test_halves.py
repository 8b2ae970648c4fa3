"""Gradients of emulated GPUs that travel in 16 bits: the weights are those of the reference of tests/jobs/scripts/halves.py."""

from support.cluster import run_cluster
from support.paths import SCRIPTS


def test_updates_on_servers(emulated):
    env = {**emulated, "PROPHET_UNIT": "1KB", "PROPHET_BANDWIDTH": "1Gbit"}
    job = run_cluster(SCRIPTS / "halves.py", env=env, args=["sgd,sgd,adam", "gpu"], timeout=100)
    assert job.logs().count("exact ") == 2, job.logs()
