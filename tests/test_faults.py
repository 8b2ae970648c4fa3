"""Processes that die, stop and fail: the user is told in time for whom the job waits; what can go on does, with the right values."""
import random
import re
import signal
import subprocess
import time

import pytest

from benchmarks.testbed.network import Testbed, needed_privileges
from cluster import run_cluster
from faults import JOB, FaultJob
from prophet_mx.launch import free_port

pytestmark = pytest.mark.alone

SHORT = {"PROPHET_STALL_WARN": "2", "PROPHET_UNIT": "4000"}
TOLD = 7            # seconds for a message that comes after 2: the machine may be busy
BROKEN = 5          # seconds for a message that does not wait for the stall


def stalls(job, label):
    return job.output(label).count("nothing has been answered for")


def test_stopped_processes_are_reported_and_continued_ones_go_on_and_what_breaks_is_told_at_once():
    with FaultJob(2, 2, {**SHORT, "PROPHET_STALL_ABORT": "7"}) as job:
        job.runs(10, 40)
        time.sleep(random.random() / 10)
        job.signal("worker 1", signal.SIGSTOP)
        job.says("worker 0", "another worker has not sent its part", TOLD)
        assert re.search(r"longest: \d+ \(\d+ units? in flight for \d s\)", job.output("worker 0")), job.logs()
        job.signal("worker 1", signal.SIGCONT)
        job.says("worker 0", "it goes on, after", TOLD)
        job.runs()
        assert stalls(job, "worker 0") == 1, job.logs()

        job.signal("server 0", signal.SIGSTOP)
        for label in job.workers:
            # The kernel of a stopped process takes the bytes, until its buffer is full.
            job.until(lambda: re.search(r"or the server itself is stopped|the server does not read, it is stopped", job.output(label)),
                      TOLD, f"that the server is stopped, from {label}")
            assert re.search(r"server [01] \(127.0.0.1:\d+\): \d+ in flight", job.output(label)), job.logs()
        job.signal("server 0", signal.SIGCONT)
        job.runs()

        job.kill("scheduler")
        for label in job.workers:
            job.says(label, "the connection to the job's scheduler", BROKEN)
        job.runs(30)

        job.kill("server 1")
        for label in job.workers:
            job.says(label, "the connection to server", BROKEN)
            assert re.search(r"connection to server [01] \(127.0.0.1:\d+\) is gone .* while \d+ requests wait", job.output(label))
        assert job.codes(20) == [75, 75], job.logs()
        for label in job.workers:
            assert "Thread 0x" in job.output(label) and "in check" in job.output(label), job.logs()


def test_a_killed_worker_is_reported_by_the_others_who_end_with_code_75_where_plain_dist_sync_hangs_in_silence():
    with FaultJob(2, 1, {**SHORT, "PROPHET_STALL_ABORT": "4"}) as job, FaultJob(2, 1, {"PROPHET_POLICY": "off"}) as plain:
        for each in (job, plain):
            each.runs(5, 40)
        time.sleep(random.random() / 10)
        for each in (job, plain):
            each.kill("worker 1")
        time.sleep(0.5)
        said = plain.output("worker 0")
        job.says("worker 0", "another worker has not sent its part", TOLD)
        assert job.codes(15)[0] == 75, job.logs()
        assert "PROPHET_STALL_ABORT" in job.output("worker 0")
        plain.kill("server 0")
        time.sleep(3)
        assert plain.output("worker 0") == said and plain.processes["worker 0"].poll() is None, plain.logs()


def fails(fault, expect, **env):
    began = time.monotonic()
    result = run_cluster(JOB, 2, 1, env={**SHORT, **env}, args=[fault], expect=expect, timeout=60, grace=2)
    return result, time.monotonic() - began


@pytest.mark.parametrize("fault, said", [
    ("ends_alone", "worker 1: nothing has been answered for 2 s, and the program waits for the other workers to end (MXNet's barrier)"),
    ("ends_alone_holding_the_store", "prophet_mx: worker 1 has ended and still waits for the others after 2 s")])
def test_a_worker_that_ends_before_the_others_is_told_of_and_the_launcher_ends_the_rest(fault, said):
    result, _ = fails(fault, 75, PROPHET_STALL_ABORT="3")
    assert "ended with code 75 (nothing was answered for PROPHET_STALL_ABORT seconds)" in result.reason
    assert "another worker has not sent its part" in result.logs()
    assert said in result.logs(), result.logs()


def test_ctrl_c_ends_a_worker_though_others_go_on():
    result, _ = fails("interrupted", 130)
    assert "KeyboardInterrupt" in result.logs()


def test_a_gradient_whose_producer_fails_is_an_exception_and_ends_the_worker():
    result, _ = fails("producer_raises", 1)
    assert any("MXNetError" in worker.output for worker in result.workers), result.logs()


def test_internal_errors_end_scheduling_but_not_training_and_wrong_calls_and_forks_do_no_harm():
    result = run_cluster(JOB, 4, 1, env={**SHORT, "DMLC_INTERFACE": "lo"}, args=["internal_errors"], timeout=60, grace=2)
    ends = sorted(re.search(r"all values were right (.*)", worker.output).group(1) for worker in result.workers)
    assert ends[0].startswith("the link monitor: OSError: [Errno 24] Too many open files"), result.logs()
    assert ends[1:] == [
        "the link monitor: TypeError: 'NoneType' object is not callable",
        "the profile: TypeError: 'NoneType' object is not callable",
        "the scheduler: unit 2 was not in the state that an event implies"], result.logs()
    for worker in result.workers:
        assert worker.output.count("scheduling has ended, training goes on") == 1, result.logs()


def test_where_no_thread_can_be_started_the_plain_store_is_as_it_was_and_a_job_that_runs_goes_on(tmp_path):
    pytest.importorskip("prometheus_client")
    result = run_cluster(JOB.with_name("no_threads.py"), 1, 1, env={"DMLC_INTERFACE": "lo"}, args=[tmp_path, free_port()], timeout=60)
    [worker] = result.workers
    assert "trained to the end" in worker.output and "Traceback" not in worker.output, worker.output
    assert worker.output.count("drain is predicted") == worker.output.count("the thread prophet_mx-nic cannot be started") == 1
    assert "WARNING drain is predicted from the measured rate; the thread prophet_mx-nic cannot be started (can't start" in worker.output


@pytest.mark.skipif(needed_privileges() is not None, reason=str(needed_privileges()))
def test_a_cut_link_is_told_from_a_slow_one_and_training_goes_on_when_it_is_back():
    with Testbed(workers=2, servers=1, rate=125e6) as bed:
        nodes = {"scheduler": "s0", "server 0": "s0", "worker 0": "w0", "worker 1": "w1"}

        def spawn(label, command, env, **options):
            env = {**env, "DMLC_PS_ROOT_URI": bed.nodes["s0"], "DMLC_NODE_HOST": bed.nodes[nodes[label]]}
            return bed.popen(nodes[label], command, env=env, **options)

        def link(state):
            subprocess.run(["ip", "-n", bed.namespace("hub"), "link", "set", "s0", state], check=True)

        with FaultJob(2, 1, SHORT, spawn) as job:
            job.runs(10, 40)
            bed.set_rate(bed.rate / 10)
            job.runs(20)
            assert stalls(job, "worker 0") == stalls(job, "worker 1") == 0, job.logs()
            # A worker sees the cut by what it has sent and is not acknowledged. If all that has arrived, it waits for an answer.
            for times in range(1, 6):
                link("down")
                for label in job.workers:
                    job.says(label, "nothing has been answered for", TOLD, times)
                link("up")
                job.runs(10, 30)
                if any("the network to it is cut" in job.output(label) for label in job.workers):
                    break
            else:
                raise AssertionError(f"nobody saw any of {times} cuts\n{job.logs()}")
            bed.set_rate(bed.rate * 10)
            job.runs()
            job.finish()
