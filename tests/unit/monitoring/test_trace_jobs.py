"""Traces put together to jobs: who belongs together, who is slow, and the lower bound."""

import pytest

from prophet_mx.errors import ConfigError
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from prophet_mx.monitoring.trace_jobs import jobs, rank_of
from support.traces import made, straggling, written


def load(*paths):
    return jobs([figures(load_trace(str(path))) for path in paths])


def traces(folder, *names, **facts):
    """Files of made traces, by name; a digit in the name is the rank."""
    return [written(folder / name, made(rank=int("".join(filter(str.isdigit, name)) or 0), **facts)) for name in names]


def test_the_workers_of_a_job_belong_together_and_those_of_another_do_not(tmp_path):
    fifo = traces(tmp_path, "fifo-0.json", "fifo-1.json", policy="fifo")
    prophet = traces(tmp_path, "prophet-0.json", "prophet-1.json", "prophet-12.json")
    found = load(*fifo, *prophet)
    assert [(job.name, [rank_of(worker) for worker in job.workers]) for job in found] == [
        ("fifo-*.json", ["worker 0", "worker 1"]),
        ("prophet-*.json", ["worker 0", "worker 1", "worker 12"]),
    ]


def test_the_same_rank_again_is_another_job_and_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = traces(tmp_path / "a", "t-0.json"), traces(tmp_path / "b", "t-0.json")
    assert [job.name for job in load(*first, *second)] == [str(first[0]), str(second[0])]
    with pytest.raises(ConfigError, match="traces of 3 jobs; allowed: those of one job, or of two"):
        load(*first, *second, *first)


def test_a_worker_that_the_others_wait_for_is_found(tmp_path):
    [job] = load(*straggling(tmp_path))
    assert [rank_of(worker) for worker in job.stragglers] == ["worker 1"] and job.slowest is job.workers[1]
    assert job.delay == pytest.approx(94 / 74)
    assert job.stalls == (pytest.approx(0.026), pytest.approx(0.046)) and job.seconds == pytest.approx(0.12)
    [slightly] = load(*straggling(tmp_path, late=5))  # 79 ms to 74: too little to be called slow
    assert slightly.stragglers == [] and slightly.delay == pytest.approx(79 / 74)
    [even] = load(*traces(tmp_path, "even-0.json", "even-1.json"))
    assert even.stragglers == [] and even.delay == pytest.approx(1)


def test_the_bound_is_that_of_the_sizes_times_and_rate_in_the_trace(tmp_path):
    """65 ms of compute: 43.3 of backward, of which the last 30 are the first layer's, and 21.7 of forward, 6.7 of them the second layer's.
    While the links were busy they carried 100 MB/s. So the first layer's 1 MB is there at 53.3 ms, and its forward takes 15 ms."""
    [job] = load(*traces(tmp_path, "t-0.json"))
    assert job.bound == pytest.approx(0.0533 + 0.015 + 0.0067, abs=1e-4)
    rate = {"ph": "C", "name": "link 0", "pid": 0, "ts": 1000, "args": {"rate": 1e12}}
    [fast] = load(written(tmp_path / "fast.json", [*made(), rate]))
    assert fast.bound == pytest.approx(0.065, rel=1e-3)
    [slow] = load(written(tmp_path / "slow.json", [*made(), {**rate, "args": {"rate": 1e6}}]))
    assert slow.bound == slow.seconds  # what was measured is not beaten by what no schedule can beat
