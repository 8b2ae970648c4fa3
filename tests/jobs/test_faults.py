"""Processes that die, stop and fail: the user is told in time for whom the job waits; what can go on does, with the right values."""

import re
import signal
import time

import pytest

from prophet_mx.launcher.launch import free_port
from support.cluster import run_cluster
from support.faults import ABORT, JOB, LATE, LOAD, PATIENCE, QUIET, SHORT, WARN, FaultJob, told


@pytest.mark.alone
def test_stopped_processes_are_reported_and_continued_ones_go_on_and_a_job_without_its_scheduler_ends_by_itself(rng):
    with FaultJob(2, 2, SHORT) as job:
        job.runs(10, 40)
        time.sleep(rng.random() / 10)
        stopped = job.signal("worker 1", signal.SIGSTOP)
        job.says("worker 0", "another worker has not sent its part", WARN + LATE + LOAD, stopped)
        assert told(job.output("worker 0"), QUIET, WARN) == 1, job.logs()
        assert re.search(r"longest: \d+ \(\d+ units? in flight for \d s\)", job.output("worker 0")), job.logs()
        continued = job.signal("worker 1", signal.SIGCONT)
        job.says("worker 0", "continues after", LATE + LOAD, continued)
        job.runs()
        assert told(job.output("worker 0"), QUIET, WARN) == 1, job.logs()

        stopped = job.signal("server 0", signal.SIGSTOP)
        for label in job.workers:
            # The kernel of a stopped process takes the bytes, until its buffer is full.
            job.until(
                lambda: re.search(r"or the server itself is stopped|the server does not read, it is stopped", job.output(label)),
                WARN + LATE + LOAD,
                f"that the server is stopped, from {label}",
                stopped,
            )
            assert re.search(r"server [01] \(127.0.0.1:\d+\): \d+ in flight", job.output(label)), job.logs()
        job.signal("server 0", signal.SIGCONT)
        job.runs()

        killed = job.kill("scheduler")
        for label in job.workers:
            job.says(label, "the connection to the job's scheduler", LATE + LOAD, killed)
        job.runs(30)
        job.finish(LATE + LOAD)


@pytest.mark.alone
def test_a_killed_server_is_told_of_at_once_and_all_workers_end_with_code_75_and_stack_traces():
    with FaultJob(2, 2, {**SHORT, "PROPHET_STALL_ABORT": str(ABORT)}) as job:
        job.runs(10, 40)
        killed = job.kill("server 1")
        for label in job.workers:
            job.says(label, "the connection to server", LATE + LOAD, killed)
            assert re.search(r"connection to server [01] \(127.0.0.1:\d+\) is lost .* while \d+ requests wait", job.output(label))
        assert job.codes(ABORT + LATE + LOAD, killed) == [75, 75], job.logs()
        for label in job.workers:
            assert "Thread 0x" in job.output(label) and "in check" in job.output(label), job.logs()
            assert told(job.output(label), r"no answer for (\d+) s; the process ends with exit code 75", ABORT) == 1, job.logs()


@pytest.mark.alone
def test_a_killed_worker_is_reported_by_the_others_who_end_with_code_75_where_plain_dist_sync_hangs_in_silence(rng):
    with FaultJob(2, 1, {**SHORT, "PROPHET_STALL_ABORT": str(ABORT)}) as job, FaultJob(2, 1, {"PROPHET_POLICY": "off"}) as plain:
        for each in (job, plain):
            each.runs(5, 40)
        time.sleep(rng.random() / 10)
        plain.kill("worker 1")
        killed = job.kill("worker 1")
        time.sleep(0.5)
        said = plain.output("worker 0")
        job.says("worker 0", "another worker has not sent its part", WARN + LATE + LOAD, killed)
        assert job.code("worker 0", ABORT + LATE + LOAD, killed) == 75, job.logs()
        assert told(job.output("worker 0"), QUIET, WARN) == 1, job.logs()
        assert "PROPHET_STALL_ABORT" in job.output("worker 0")
        plain.kill("server 0")
        time.sleep(3)
        assert plain.output("worker 0") == said and plain.processes["worker 0"].poll() is None, plain.logs()


@pytest.mark.alone
@pytest.mark.alone
@pytest.mark.parametrize(
    "fault, said",
    [
        ("ends_alone", "and the program is waiting for the other workers to end (MXNet's barrier)"),
        ("ends_alone_holding_the_store", f"prophet_mx: worker 1 has ended and is still waiting for the others after {WARN} s"),
    ],
)
def test_a_worker_that_ends_before_the_others_is_told_of_and_both_end(fault, said):
    with FaultJob(2, 1, {**SHORT, "PROPHET_STALL_ABORT": str(ABORT)}, fault=fault) as job:
        job.runs(10, 40)
        ended = time.monotonic()
        job.says(job.of_rank(1), said, WARN + LATE + LOAD, ended)
        job.says(job.of_rank(0), "another worker has not sent its part", WARN + LATE + LOAD, ended)
        assert job.codes(ABORT + LATE + LOAD, ended) == [75, 75], job.logs()
        by_watchdog = [told(job.output(job.of_rank(rank)), QUIET, WARN) for rank in (0, 1)]
        assert by_watchdog == [1, fault == "ends_alone"], job.logs()  # the other is told of when no Python runs any more


def test_the_launcher_ends_the_others_when_a_worker_has_waited_too_long():
    result = run_cluster(JOB, 2, 1, env={**SHORT, "PROPHET_STALL_ABORT": "2"}, args=["ends_alone"], expect=75, timeout=60, grace=2)
    assert "ended with code 75 (no answer for PROPHET_STALL_ABORT seconds)" in result.reason
    assert all(process.returncode == 75 or process.ended_by_launcher for process in result.processes), result.logs()


@pytest.mark.parametrize(
    "fault, code, seconds, said",
    [
        ("interrupted", -signal.SIGINT, 0, "KeyboardInterrupt"),
        ("interrupted_while_the_other_is_busy", 130, PATIENCE, "KeyboardInterrupt"),
        ("producer_raises", 1, 0, "MXNetError"),
    ],
)
def test_an_exception_or_ctrl_c_ends_one_worker_though_others_go_on(fault, code, seconds, said):
    """A shell, and the launcher, know the end by SIGINT as 130. The other worker waits for it, and is ended by PROPHET_STALL_ABORT."""
    with FaultJob(2, 1, {**SHORT, "PROPHET_STALL_ABORT": str(ABORT)}, fault=fault) as job:
        job.runs(10, 40)
        began = time.monotonic()
        failed = job.of_rank(1)
        assert job.code(failed, seconds + LATE + LOAD, began) == code, job.logs()
        assert said in job.output(failed), job.logs()
        if not seconds:
            assert job.code(job.of_rank(0), ABORT + LATE + LOAD, began) == 75, job.logs()
        else:
            assert time.monotonic() - began > seconds - LATE and job.processes[job.of_rank(0)].poll() is None, job.logs()


def test_internal_errors_end_scheduling_but_not_training_and_wrong_calls_and_forks_do_no_harm():
    result = run_cluster(JOB, 4, 1, env={**SHORT, "DMLC_INTERFACE": "lo"}, args=["internal_errors"], timeout=60, grace=2)
    ends = sorted(re.search(r"all values were right (.*)", worker.output).group(1) for worker in result.workers)
    assert ends[0].startswith("the link monitor: OSError: [Errno 24] Too many open files"), result.logs()
    assert ends[1:] == [
        "the link monitor: TypeError: 'NoneType' object is not callable",
        "the profile: TypeError: 'NoneType' object is not callable",
        "the scheduler: unit 2 was not in the state that an event implies",
    ], result.logs()
    for worker in result.workers:
        assert worker.output.count("scheduling has ended, training continues") == 1, result.logs()
        # The keys are older than the wrapper: rank 0 says why nothing is sliced.
        assert "layout: no gradient is sliced" in worker.output, result.logs()
    assert result.logs().count("large gradients are not sliced: keys were made before the store was wrapped") == 1, result.logs()


def test_where_no_thread_can_be_started_the_plain_store_is_as_it_was_and_a_job_that_runs_goes_on(tmp_path):
    pytest.importorskip("prometheus_client")
    result = run_cluster(JOB.with_name("no_threads.py"), 1, 1, env={"DMLC_INTERFACE": "lo"}, args=[tmp_path, free_port()], timeout=60)
    [worker] = result.workers
    assert "trained to the end" in worker.output and "Traceback" not in worker.output, worker.output
    assert worker.output.count("drain is predicted") == worker.output.count("the thread prophet_mx-nic cannot be started") == 1
    assert "WARNING drain is predicted from the measured rate; the thread prophet_mx-nic cannot be started (can't start" in worker.output
