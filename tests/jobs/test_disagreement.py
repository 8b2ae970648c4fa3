"""What is taken to be equal on all workers, unlike on one: the right result, or an error that names it. Never a hang.

More ways in which keys differ are in tests/unit/mxnet/test_negotiation.py, without processes; settings are in
test_settings_on_one_worker.py.
"""

import re

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "unlike.py"
SMALL = {"PROPHET_UNIT": "3000", "PROPHET_BANDWIDTH": "1Gbit"}


def outputs(*arguments, servers=1, expect=0, timeout=40, **env):
    """The workers' outputs by rank."""
    job = run_cluster(JOB, 2, servers, args=arguments, env={**SMALL, **env}, timeout=timeout, expect=expect)
    found = {int(re.search(r"^rank (\d)$", worker.output, re.MULTILINE).group(1)): worker.output for worker in job.workers}
    return found[0], found[1], job.logs()


@pytest.mark.parametrize(
    "case", ["int_order", "early_and_late", "wrapped_late", "wrapped_late_on_rank_0", "policy_order", "optimizer", "optimizer other"]
)
def test_the_result_is_right(case):
    *workers, logs = outputs(*case.split())
    assert all("\nright" in output for output in workers), logs


KEYS = "worker 1 has initialised other keys than rank 0: "

REFUSED = {
    "text_order": (f"KVStoreError: {KEYS}text key 2 is 'd' here, 'c' on rank 0. All workers have to initialise the same keys",) * 2,
    "shape": (f"KVStoreError: {KEYS}key 2 is (51,) float32 here, (50,) float32 on rank 0",) * 2,
    "compressed_and_shape": (f"KVStoreError: {KEYS}key 2 is (51,) float32 here, (50,) float32 on rank 0", "its own error says"),
    "bound": ("KVStoreError: MXNET_KVSTORE_BIGARRAY_BOUND is 5000 on worker 1 and 1000000 on rank 0: set the same on all workers",) * 2,
    "policy_unknown": ("ConfigError: policy='toy', which rank 0 uses, is not known to this worker; it knows: fifo,", "policy='toy', which"),
}


@pytest.mark.parametrize("case, other, rank_0", [(case, *words) for case, words in REFUSED.items()], ids=REFUSED)
def test_an_error_on_all_workers_names_what_is_unlike(case, other, rank_0):
    told, own, logs = outputs(case, servers=2 if case == "bound" else 1)
    assert f"refused by {other}" in own, logs
    assert "refused by KVStoreError: told by worker 1: " in told and rank_0.replace("KVStoreError: ", "") in told, logs
    assert "internal error" not in logs


ALONE = {
    "text_missing": f"{KEYS}key 'd' was initialised on rank 0, but not here",
    "text_missing_on_rank_0": f"{KEYS}text key 3 is 'd' here, none on rank 0",
    "version": "worker 1 has prophet_mx 0.0.9, rank 0 has 0.1.0: install the same version everywhere",
    "compression": "gradient compression is on on worker 1 and off on rank 0: set the same on all workers",
}


@pytest.mark.parametrize("case, error", ALONE.items(), ids=ALONE)
def test_a_worker_that_cannot_take_part_ends_at_once_with_an_error(case, error):
    """The launcher ends the others. Their watchdog says what they are waiting for."""
    _, own, logs = outputs(case, "alone", expect=1)
    assert f"refused by KVStoreError: {error}" in own, logs


def test_the_others_say_that_a_worker_has_not_wrapped_its_store():
    told, _, logs = outputs("not_wrapped", expect=75, PROPHET_STALL_WARN="1", PROPHET_STALL_ABORT="3")
    assert "must push their first gradient as well, each through a ScheduledKVStore" in told, logs
