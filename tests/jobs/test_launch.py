"""The launcher as a library: environment, exit codes, endings. Most jobs here are tiny programs without MXNet."""

import json
import os
import signal
import time
from types import SimpleNamespace

import pytest

import prophet_mx.launcher.launch as launch_module
from prophet_mx.launcher.hosts import Host
from prophet_mx.launcher.launch import LaunchError, PlannedProcess, run_job, run_plans
from prophet_mx.machine import can_listen
from prophet_mx.place import VARIABLE, value_of
from support.cluster import run_cluster
from support.processes import JOB_LIMIT as LIMIT
from support.processes import ME, assert_gone, job, pids_in

# --- environment ---


def test_each_process_gets_its_role_and_the_same_address(monkeypatch):
    monkeypatch.setenv("PORT", "8080")
    monkeypatch.setenv("DMLC_INTERFACE", "eth7")
    monkeypatch.setenv("DMLC_ROLE", "server")
    result = job("import json; print(json.dumps(dict(os.environ)))", 3, 2)
    assert result.exit_code == 0, result.logs()
    assert [process.label for process in result.processes] == ["scheduler", "server 0", "server 1", "worker 0", "worker 1", "worker 2"]
    seen = [json.loads(process.output) for process in result.processes]
    assert [env["DMLC_ROLE"] for env in seen] == ["scheduler", "server", "server", "worker", "worker", "worker"]
    for env in seen:
        assert "PORT" not in env and "DMLC_INTERFACE" not in env
        assert env["DMLC_PS_ROOT_URI"] == env["DMLC_NODE_HOST"] == "127.0.0.1"
        assert (env["DMLC_NUM_WORKER"], env["DMLC_NUM_SERVER"]) == ("3", "2")
    assert len({env["DMLC_PS_ROOT_PORT"] for env in seen}) == 1


def test_env_for_all_and_for_one(monkeypatch):
    monkeypatch.setenv("FROM_OUTSIDE", "kept")
    result = job(
        "print(os.environ['FROM_OUTSIDE'], os.environ['A'], os.environ['B'], os.environ.get('PORT'))",
        2,
        1,
        env={"A": "all", "B": "all", "PORT": "1"},
        role_env={"worker": {"A": "worker"}, "worker 1": {"B": "one"}},
    )
    assert [process.output.strip() for process in result.processes] == [
        "kept all all None",
        "kept all all None",
        "kept worker all None",
        "kept worker one None",
    ]


def test_workers_share_the_cores_unless_told_otherwise(monkeypatch):
    show = "print(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert {process.output.strip() for process in job(show, 2).processes} == {"2"}
    assert {process.output.strip() for process in job(show, 5).processes} == {"1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert {process.output.strip() for process in job(show, 2).processes} == {"7"}


def test_servers_get_the_engine_that_hands_over_least_unless_told_otherwise(monkeypatch):
    show = "print(os.environ.get('MXNET_ENGINE_TYPE'))"
    monkeypatch.delenv("MXNET_ENGINE_TYPE", raising=False)
    assert [process.output.strip() for process in job(show, 1, 2).processes] == ["None", "NaiveEngine", "NaiveEngine", "None"]
    own = {"MXNET_ENGINE_TYPE": "ThreadedEngine"}
    assert {process.output.strip() for process in job(show, env=own).processes} == {"ThreadedEngine"}
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "ThreadedEngine")
    assert {process.output.strip() for process in job(show).processes} == {"ThreadedEngine"}


# --- endings ---


def test_success():
    result = job("print('done')", 2, 2)
    assert (result.exit_code, result.reason) == (0, "")
    assert [(p.returncode, p.ended_by_launcher, p.output) for p in result.processes] == [(0, False, "done\n")] * 5


def test_first_failure_ends_all_and_gives_the_exit_code():
    started = time.monotonic()
    result = job(
        """
        print('pid', os.getpid(), flush=True)
        if me == '1':
            time.sleep(0.5)
            print('it broke', file=sys.stderr)
            sys.exit(7)
        time.sleep(1000)
        """,
        2,
        1,
        role_env=ME,
    )
    assert result.exit_code == 7, result.logs()
    assert result.reason == "worker 1 ended with code 7"
    assert time.monotonic() - started < LIMIT / 2
    assert [p.label for p in result.processes if not p.ended_by_launcher] == ["worker 1"]
    assert "it broke" in result.workers[1].output and "it broke" in result.logs()
    pids = pids_in(result.logs())
    assert len(pids) == 4
    assert_gone(pids)


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_a_failing_scheduler_or_server_ends_the_workers(role):
    result = job(f"sys.exit(5) if role == {role!r} else time.sleep(1000)")
    assert result.exit_code == 5, result.logs()
    assert all(worker.returncode == -signal.SIGTERM and worker.ended_by_launcher for worker in result.workers)


def test_killed_by_a_signal():
    result = job("os.kill(os.getpid(), signal.SIGKILL) if me == '0' else time.sleep(1000)", role_env=ME)
    assert (result.exit_code, result.reason) == (137, "worker 0 was killed by SIGKILL")


def test_timeout_and_a_process_that_ignores_sigterm():
    started = time.monotonic()
    result = job(
        """
        if me == '0': signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('pid', os.getpid(), flush=True)
        time.sleep(1000)
        """,
        role_env=ME,
        timeout=2.0,
        grace=0.5,
    )
    assert result.exit_code == 124
    assert result.reason == "the job had not ended after 2 s"
    assert [worker.returncode for worker in result.workers] == [-signal.SIGKILL, -signal.SIGTERM]
    assert 2.4 < time.monotonic() - started < LIMIT / 2
    assert_gone(pids_in(result.logs()))


def test_a_stopped_process_ends_as_soon_as_the_others():
    started = time.monotonic()
    result = job("(time.sleep(0.5), sys.exit(75)) if role == 'worker' else os.kill(os.getpid(), signal.SIGSTOP)", grace=LIMIT)
    assert result.exit_code == 75 and time.monotonic() - started < LIMIT / 2, result.logs()
    assert [process.returncode for process in result.processes[:2]] == [-signal.SIGTERM] * 2


def test_servers_that_outlive_the_workers_are_ended_without_being_a_failure():
    notes = []
    result = job("time.sleep(0 if role == 'worker' else 1000)", sink=lambda *line: notes.append(line))
    assert result.exit_code == 0, result.logs()
    assert [p.label for p in result.processes if p.ended_by_launcher] == ["scheduler", "server 0"]
    assert any(label == "launch" and "scheduler, server 0" in text for label, text, _ in notes)


def test_servers_get_time_to_end_after_the_workers():
    result = job("time.sleep(0 if role == 'worker' else 0.5); print('saved')", grace=10.0)
    assert [(p.returncode, p.ended_by_launcher, p.output) for p in result.processes] == [(0, False, "saved\n")] * 4


def test_a_server_that_fails_after_the_workers_is_a_failure():
    result = job("role == 'server' and (time.sleep(0.5), sys.exit(9))", grace=10.0)
    assert (result.exit_code, result.reason) == (9, "server 0 ended with code 9")


@pytest.mark.parametrize("ending, code", [("pass", 0), ("sys.exit(3)", 3), ("time.sleep(1000)", 124)])
def test_what_a_process_started_itself_ends_with_the_job(ending, code):
    result = job(
        f"""
        child = subprocess.Popen(['sleep', '1000'])
        print('pid', child.pid, flush=True)
        if role == 'worker':
            {ending}
        """,
        timeout=LIMIT if code != 124 else 2,
    )
    assert result.exit_code == code, result.logs()
    pids = pids_in(result.logs())
    assert pids
    assert_gone(pids)


def test_nothing_is_left_when_the_sink_raises():
    pids = []

    def broken(label, text, final):
        pids.extend(pids_in(text))
        if len(pids) == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job("print('pid', os.getpid(), flush=True); time.sleep(1000)", sink=broken)
    assert len(pids) == 4
    assert_gone(pids)


def test_a_program_that_the_kernel_refuses(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(LaunchError, match="scheduler could not be started"):
        run_job([str(program)], timeout=LIMIT)


# --- MXNet ---


def test_a_real_dist_sync_job():
    workers, servers = 3, 2
    result = run_cluster(
        """
        import mxnet as mx
        kv = mx.kv.create('dist_sync')
        kv.init('a', mx.nd.zeros((2, 3)))
        value = mx.nd.zeros((2, 3))
        for _ in range(5):
            kv.push('a', mx.nd.ones((2, 3)) * (kv.rank + 1))
            kv.pull('a', out=value)
            value.wait_to_read()  # else the next push may count as another worker's part of this round
        print('rank', kv.rank, 'of', kv.num_workers, 'sum', value.asnumpy().tolist())
        """,
        workers,
        servers,
    )
    total = float(sum(range(1, workers + 1)))
    expected = {f"rank {rank} of {workers} sum {[[total] * 3] * 2}" for rank in range(workers)}
    assert {worker.output.strip().splitlines()[-1] for worker in result.workers} == expected, result.logs()
    assert [p.label for p in result.processes if p.ended_by_launcher] == [], result.logs()


def test_the_number_of_a_worker_is_its_rank_and_messages_have_both_where_it_is_not():
    """Where nothing takes its port from it: here, the last worker has one below those that the launcher chooses."""
    low = next(port for port in range(9000, 10000) if can_listen(port, "127.0.0.1"))
    result = run_cluster(
        """
        import os
        import mxnet as mx
        from prophet_mx import ScheduledKVStore
        kv = ScheduledKVStore(mx.kv.create('dist_sync'))
        print('rank', kv.rank, os.environ.get('PORT'))
        """,
        3,
        1,
        env={"PROPHET_LOG_LEVEL": "info"},
        role_env={"worker 2": {VARIABLE: value_of(2, low)}},
    )
    for worker, rank in zip(result.workers, (1, 2, 0)):
        assert f"\nrank {rank} None\n" in worker.output, result.logs()
        assert f"process worker {worker.index} of prophet-mx launch is rank {rank} of the job" in worker.output, result.logs()
        assert f"policy prophet, rank {rank} (process worker {worker.index}) of 3" in worker.output, result.logs()


def test_a_failed_cluster_shows_every_log_and_leaves_nothing():
    with pytest.raises(AssertionError) as caught:
        run_cluster(
            """
            import os
            print(os.environ['DMLC_ROLE'], 'has pid', os.getpid(), flush=True)
            import mxnet as mx
            kv = mx.kv.create('dist_sync')
            kv.init('a', mx.nd.zeros(2))
            if kv.rank == 0:
                print('rank 0 fails', flush=True)
                os._exit(3)  # an exception would wait for the other workers at MXNet's exit
            kv.push('a', mx.nd.ones(2))
            mx.nd.waitall()
            """,
            light=False,
        )
    logs = str(caught.value)
    assert "the job ended with 3, not 0" in logs
    for part in ("scheduler has pid", "server has pid", "worker has pid", "rank 0 fails"):
        assert part in logs
    assert len(pids_in(logs)) == 4
    assert_gone(pids_in(logs))


def test_a_host_with_many_processes_gets_pauses_between_connections(monkeypatch):
    pauses = []
    monkeypatch.setattr(launch_module, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    plans = [
        PlannedProcess("worker", index, ["true"], {}, Host(name), b"{}") for name, count in (("a", 9), ("b", 7)) for index in range(count)
    ]
    assert run_plans(plans, timeout=LIMIT).exit_code == 0
    assert len(pauses) == 1
