"""PROPHET_PROFILE: a job leaves its profile, the next one starts from it, and a file that is no profile is refused."""

from prophet_mx.profiling.gradient_profile import GradientProfile
from support.cluster import run_cluster

JOB = """
import mxnet as mx
from prophet_mx import ScheduledKVStore
kv = ScheduledKVStore(mx.kv.create("dist_sync"), warmup=2)
weights = [mx.nd.zeros((50, 10 + i)) for i in range(8)]
for i, weight in enumerate(weights):
    kv.init(f"w{i}", weight)
for iteration in range(10):
    for i in reversed(range(8)):
        kv.pushpull(f"w{i}", mx.nd.ones((50, 10 + i)), out=weights[i], priority=-i)
    mx.nd.waitall()
    if iteration == 0:
        print("known at first:", sum(map(len, kv.stats()["steps"])))
assert all((weight == 2).asnumpy().all() for weight in weights)
"""


def known_at_first(result):
    return [
        line.split()[-1]
        for process in result.processes
        if process.role == "worker"
        for line in process.output.splitlines()
        if "known at first:" in line
    ]


def test_the_next_job_starts_from_the_profile_of_the_last(tmp_path):
    path = tmp_path / "profile.json"
    env = {"PROPHET_PROFILE": str(path), "PROPHET_UNIT": "500"}
    assert known_at_first(run_cluster(JOB, 2, 2, env=env)) == ["0", "0"]
    assert [gradient.name for gradient in GradientProfile.load(str(path)).gradients] == [f"w{i}" for i in range(8)]
    assert known_at_first(run_cluster(JOB, 2, 2, env=env)) == ["8", "8"]


def test_a_file_that_is_no_profile_ends_the_job_before_it_starts(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text('{"format": "something else"}')
    result = run_cluster(JOB, 1, 1, env={"PROPHET_PROFILE": str(path)}, expect=1)
    assert "ProfileError" in result.logs() and str(path) in result.logs() and "known at first" not in result.logs()
    assert path.read_text() == '{"format": "something else"}'
