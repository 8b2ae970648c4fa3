"""A setting that one worker has alone: it is rank 0's for all, and the others are told so once, or it is that worker's own business."""

import dataclasses
import json
import re
import shutil
import socket
from types import SimpleNamespace

import pytest

from prophet_mx import Config
from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "one_worker.py"
WHOLE, IN_FOURS = 6, 24  # units of an iteration: of six gradients that stay whole, or are cut into four
ITERATIONS = 24


def by_rank(*settings, **more):
    """The workers' outputs, by rank; every value that they got was right."""
    job = run_cluster(JOB, 2, 1, args=settings, timeout=40, **more)
    outputs = sorted((worker.output for worker in job.workers), key=lambda output: re.search(r"^rank (\d)$", output, re.MULTILINE).group(1))
    return outputs, [re.search("^result (.*)$", output, re.MULTILINE).group(1).split() for output in outputs]


def told(output):
    """What a worker's log says of settings that are not rank 0's."""
    return re.findall(r"^WARNING worker \d: all workers use rank 0's settings: (.*)$", output, re.MULTILINE)


SHARED = {
    # What the two workers have; what rank 1 is told; the policy, and the units of an iteration.
    "set-0": (
        ["0:unit=3000", "0:PROPHET_POLICY=fifo", "1:PROPHET_BANDWIDTH=100Mbit", "1:PROPHET_MESSAGE_COST=200us", "1:warmup=1000"],
        "policy=fifo, not prophet; unit=3000, not auto; bandwidth=auto, not 1.25e+07; message_cost=auto, not 0.0002; warmup=3, not 1000",
        "fifo",
        IN_FOURS,
    ),
    "set-1": (
        ["0:PROPHET_BANDWIDTH=100Mbit", "0:PROPHET_MESSAGE_COST=10ms", "0:warmup=1", "1:unit=3000", "1:PROPHET_POLICY=fifo"],
        "policy=prophet, not fifo; unit=auto, not 3000; bandwidth=1.25e+07, not auto; message_cost=0.01, not auto; warmup=1, not 3",
        "prophet",
        WHOLE,
    ),
    "off-0": (["0:policy=off", "1:PROPHET_UNIT=3000"], "policy=off, not prophet", "off", 0),
    "off-1": (["0:PROPHET_UNIT=3000", "1:policy=off"], "policy=prophet, not off; unit=3000, not auto", "prophet", IN_FOURS),
}


@pytest.mark.parametrize("settings, other, policy, units", SHARED.values(), ids=SHARED)
def test_rank_0_decides_and_the_other_is_told_once(settings, other, policy, units, tmp_path):
    outputs, results = by_rank(*settings, f"1:timeline={tmp_path / 'trace.json'}")
    assert [told(output) for output in outputs] == [[], [other]]
    assert [result[:2] for result in results] == 2 * [[policy, str(units * ITERATIONS)]]
    if policy != "off":  # both have learned, and use rank 0's orders
        assert all(int(result[3]) > 0 for result in results)
        assert all(f"the order of {units} units now follows the profile" in output for output in outputs)
        events = json.loads((tmp_path / "trace-1.json").read_text(encoding="utf-8"))
        assert events[0]["args"]["policy"] == policy and [event for event in events if event["name"].startswith("layer0")]


@pytest.mark.parametrize("rank", [0, 1])
def test_all_other_settings_are_a_workers_own(rank, tmp_path):
    """The smallest limits on one worker alone, whose gradients become ready in the opposite order, wait for nobody."""
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    local = {
        "window": 1,
        "lead": 1,
        "drain": "predicted",
        "profile": tmp_path / "profile.json",
        "timeline": tmp_path / "trace.json",
        "timeline_limit": 2000000,
        "log_level": "debug",
        "log_every": 5,
        "metrics_port": port - rank,
        "metrics_host": "127.0.0.2",
        "stall_warn": 30,
        "stall_abort": 35,
    }
    outputs, results = by_rank(*(f"{rank}:PROPHET_{name.upper()}={value}" for name, value in local.items()), env={"PROPHET_UNIT": "3000"})
    shared = {"policy", "unit", "groups", "bandwidth", "message_cost", "warmup"}
    of_pytorch = {"clipping", "compress", "fallback"}
    assert {field.name for field in dataclasses.fields(Config)} == {*local, *shared, *of_pytorch}
    assert all(told(output) == [] for output in outputs)
    assert [result[:2] for result in results] == 2 * [["prophet", str(IN_FOURS * ITERATIONS)]]
    assert results[rank][2] == "predicted" and results[1 - rank][2] == "tcp"
    signs = ("iterations 1 to 6: ", f"metrics: http://127.0.0.2:{port}/metrics", "at most 2 MB")
    assert [[sign in output for sign in signs] for output in outputs] == [[i == rank] * 3 for i in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == (["profile.json"] if rank == 0 else []) + [f"trace-{rank}.json"]


def test_an_engine_that_cannot_schedule_on_rank_0_alone_leaves_all_unscheduled():
    outputs, results = by_rank("0:MXNET_ENGINE_TYPE=NaiveEngine")
    assert [result[:2] for result in results] == 2 * [["off", "0"]]
    assert [len(re.findall("WARNING.* gradient traffic is not scheduled: .*NaiveEngine", output)) for output in outputs] == [1, 1]


def test_an_engine_that_cannot_schedule_on_another_worker_alone_is_an_error_there():
    job = run_cluster(JOB, 2, 1, args=["1:MXNET_ENGINE_TYPE=NaiveEngine"], timeout=40, expect=1)
    errors = re.findall(r"^prophet_mx\.errors\.KVStoreError: worker 1: (.*)$", job.logs(), re.MULTILINE)
    assert len(errors) == 1 and "unset MXNET_ENGINE_TYPE" in errors[0]
    assert len([worker for worker in job.workers if worker.returncode == 1]) == 1


def test_a_timeline_that_cannot_begin_anew_is_only_logged(tmp_path, caplog):
    """A worker takes rank 0's policy at the first push, where the others wait. Its timeline, whose head has the policy, begins anew."""
    from prophet_mx.mxnet.api import bind
    from prophet_mx.mxnet.data_path import ScheduledPath
    from prophet_mx.mxnet.keys import KeyBook

    bind()
    folder = tmp_path / "removed"
    folder.mkdir()
    own = Config(timeline=str(folder / "trace.json"))
    path = ScheduledPath(SimpleNamespace(type="dist_sync", rank=1, num_workers=2), own, KeyBook(1, 10**6))
    path.start()
    try:
        shutil.rmtree(folder)
        path.adopt(dataclasses.replace(own, timeline=None, policy="fifo"))
        assert path.stats()["policy"] == "fifo"
        assert f"timeline='{folder}/trace-1.json' is not allowed" in caplog.text
    finally:
        path.close()
