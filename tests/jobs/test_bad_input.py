"""Wrong arguments of every method of a store: an error before anything is sent, and the job goes on as if nothing had been."""

import json
import re

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "bad_input.py"


def results(kind, wrong, file):
    """Of each worker: how many calls were refused, and what the training gave."""
    job = run_cluster(JOB, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit"}, args=[kind, wrong, file], timeout=90)
    return [
        (int(re.search(r"refused (\d+)", worker.output).group(1)), re.search(r"result (.*)", worker.output).group(1))
        for worker in job.workers
    ]


@pytest.mark.parametrize("kind", ["text", "number"])
def test_a_job_in_which_every_call_is_also_made_wrongly_trains_the_same(kind, tmp_path):
    wrong, right = results(kind, "wrong", tmp_path / "wrong"), results(kind, "right", tmp_path / "right")
    assert [count for count, _ in right] == [0, 0] and all(count > 300 for count, _ in wrong)
    assert [result for _, result in wrong] == [result for _, result in right]
    # And each wrong call raised what plain MXNet raises for it, where it raises.
    run_cluster(JOB, 1, 1, args=[kind, "plain", tmp_path / "plain"], timeout=90)
    plain = json.loads((tmp_path / "plain").read_text())
    assert sum(bool(kinds) for _, kinds in plain) > 150
    for rank in range(2):
        for ours in json.loads((tmp_path / f"wrong{rank}").read_text()):
            assert len(ours) == len(plain)
            assert [(what, kinds, mine) for (what, kinds), mine in zip(plain, ours) if not set(kinds) <= set(mine)] == []
