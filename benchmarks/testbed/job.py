"""A job in a testbed: scheduler, servers and workers in their namespaces, with logs and a time limit, and none left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import psutil

import prophet_mx
from prophet_mx.launcher.environment import SERVER_ENGINE
from prophet_mx.profiling.gradient_profile import GradientProfile

from .emulated import Task
from .network import Testbed, TestbedError

_PORT = 9091  # of the scheduler; a namespace has all its ports to itself
# What children import: the prophet_mx that this process has, which need not be the one beside benchmarks/.
_PATH = [str(Path(prophet_mx.__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]


def node_environment(bed: Testbed, node: str, role: str, extra: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """The environment of a job's process: this one's without any job settings, plus its place in the job, plus ``extra``."""
    env = plain_environment()
    env.update(
        DMLC_ROLE=role,
        DMLC_PS_ROOT_URI=bed.nodes["s0"],
        DMLC_PS_ROOT_PORT=str(_PORT),
        DMLC_NUM_WORKER=str(bed.workers),
        DMLC_NUM_SERVER=str(bed.servers),
        DMLC_NODE_HOST=bed.nodes[node],
    )
    if role == "server":
        env = {**SERVER_ENGINE, **env}  # as prophet-mx launch starts them, for all methods
    env.update(extra or {})
    return env


def plain_environment() -> Dict[str, str]:
    """This process's environment without any job settings, for a process that imports what this one does."""
    env = {name: value for name, value in os.environ.items() if name != "PORT" and not name.startswith(("DMLC_", "PROPHET_", "PS_"))}
    env.update(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, [*_PATH, env.get("PYTHONPATH")])))
    return env


def run_job(
    bed: Testbed, profile: GradientProfile, task: Task, env: Optional[Mapping[str, str]] = None, timeout: float = 300
) -> List[Dict[str, Any]]:
    """Run ``task`` with ``profile`` on every worker of ``bed`` and return the workers' results by rank, to each of which
    ``server_cpu_seconds`` is added: the processor time of all servers together during the worker's loop.

    ``env`` is added to every process's environment; ``timeout`` in seconds.

    Raises
    ------
    TestbedError
        a process failed, or the time was up; the message holds every process's output.
    """
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        found = run_task(bed, profile, task, env or {}, timeout, folder, "benchmarks.testbed.emulated")
    return sorted(found, key=lambda result: result["rank"])


def run_task(
    bed: Testbed, profile: GradientProfile, task: Task, env: Mapping[str, str], timeout: float, folder: str, module: str
) -> List[Dict[str, Any]]:
    """As :func:`run_job`, but the workers run ``module``, all files stay in ``folder``, and the results are by worker."""
    profile.save(os.path.join(folder, "profile.json"))
    task_file = os.path.join(folder, "task.json")
    replace(task, profile=os.path.join(folder, "profile.json")).save(task_file)
    results = [os.path.join(folder, f"w{i}.json") for i in range(bed.workers)]
    clock = run_cluster(bed, [[sys.executable, "-m", module, task_file, result] for result in results], folder, env, timeout)["server"]
    found = read_results(results)
    for result in found:
        begin = result["begin"]
        result["server_cpu_seconds"] = clock.at(begin + result["wall_seconds"]) - clock.at(begin)
    return found


def run_cluster(
    bed: Testbed, commands: Sequence[List[str]], folder: str, env: Mapping[str, str], timeout: float
) -> "Dict[str, ProcessorClock]":
    """Run a job until it has ended: a scheduler, the servers of ``bed``, and a worker per command. Returns the clocks of ``server`` and
    ``worker``. Other arguments, and what is raised, as of :func:`run_processes`; ``env`` is added to every process's environment."""
    server = [sys.executable, "-c", "import mxnet"]
    roles = [("scheduler", "s0", "scheduler", server)]
    roles += [(f"s{i}", f"s{i}", "server", server) for i in range(bed.servers)]
    roles += [(f"w{i}", f"w{i}", "worker", command) for i, command in enumerate(commands)]
    clocks = {wanted: ProcessorClock([label for label, _, role, _ in roles if role == wanted]) for wanted in ("server", "worker")}
    environments = {label: node_environment(bed, node, role, env) for label, node, role, _ in roles}
    processes = {label: (node, command, environments[label]) for label, node, _, command in roles}
    run_processes(bed, processes, folder, timeout, list(clocks.values()))
    return clocks


def read_results(paths: Sequence[str]) -> List[Dict[str, Any]]:
    """What the processes of a job have written."""
    found = []
    for path in paths:
        with open(path) as file:
            found.append(json.load(file))
    return found


def run_processes(
    bed: Testbed,
    commands: Mapping[str, Tuple[str, List[str], Dict[str, str]]],
    folder: str,
    timeout: float,
    clocks: "Sequence[ProcessorClock]" = (),
) -> None:
    """Run processes until all have ended well: label -> node, command, environment. Their output goes to LABEL.log in ``folder``. None is
    left behind. ``timeout`` in seconds; ``clocks`` are read now and then.

    Raises
    ------
    TestbedError
        a process failed, or the time was up; the message holds every process's output.
    """
    processes = {}
    try:
        for label, (node, command, env) in commands.items():
            with open(os.path.join(folder, label + ".log"), "wb") as log:
                processes[label] = bed.popen(
                    node, command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, stdin=subprocess.DEVNULL, env=env
                )
        _wait(processes, time.monotonic() + timeout, clocks)
    except TestbedError as error:
        raise TestbedError(f"{error}\n{_logs(folder, processes)}") from None
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


class ProcessorClock:
    """The processor time of some of a job's processes together, by label, read now and then."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._read: List[Tuple[float, float]] = []

    def tick(self, processes: "Mapping[str, subprocess.Popen[bytes]]") -> None:
        """Read it, unless one of them has ended."""
        try:
            times = [psutil.Process(processes[label].pid).cpu_times() for label in self._labels]
        except psutil.Error:
            return
        self._read.append((time.monotonic(), sum(each.user + each.system for each in times)))

    def at(self, moment: float) -> float:
        """Seconds up to a moment of the monotonic clock: the reading next to it."""
        return min(self._read, key=lambda read: abs(read[0] - moment))[1]


def _wait(processes: "Mapping[str, subprocess.Popen[bytes]]", deadline: float, clocks: Sequence[ProcessorClock]) -> None:
    """Until all processes have ended well; servers end by themselves after the workers."""
    while True:
        for clock in clocks:
            clock.tick(processes)
        codes = {label: process.poll() for label, process in processes.items()}
        failed = {label: code for label, code in codes.items() if code not in (None, 0)}
        if failed:
            raise TestbedError("a job failed: " + ", ".join(f"{label} ended with {code}" for label, code in failed.items()))
        if all(code == 0 for code in codes.values()):
            return
        if time.monotonic() > deadline:
            running = ", ".join(label for label, code in codes.items() if code is None)
            raise TestbedError(f"a job did not end in time; still running: {running}")
        time.sleep(0.05)


def _logs(folder: str, processes: "Mapping[str, subprocess.Popen[bytes]]") -> str:
    parts = []
    for label in processes:
        with open(os.path.join(folder, label + ".log"), errors="replace") as log:
            parts.append(f"----- {label}\n{log.read()[-4000:].rstrip()}")
    return "\n".join(parts)
