"""The checks of ``prophet-mx doctor`` that look at this machine's software and at the job's environment; see also network.

A check is a function from :class:`Environment` to findings. *Error*: the job would fail, hang, or not be scheduled at all. *Warning*: it
runs, but slower or less safely than it could. Nothing is changed, nothing is sent but one TCP connection to the job's scheduler.
"""

import difflib
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from ..config import PREFIX, PYTORCH_POLICIES, SERVERS_ONLY, Config
from ..cuda import DRIVER, LIBRARIES, with_libraries
from ..errors import ConfigError
from ..machine import usable_cores
from ..planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from ..policies import OFF
from ..sizes import MIN_UNIT

OK, WARNING, ERROR = "ok", "warning", "error"
MXNET, PYTORCH = "mxnet", "torch"  # the frameworks, as they are imported
PROBE_SECONDS = 120.0
ROLES = ("scheduler", "server", "worker")
BULK_NODES = 60  # operators in one bulk: MXNet's default is 15, ResNet-50's backward has about 200
SMALLEST_UNIT = MIN_UNIT // 4  # elements of 4 bytes
CPU_THREADS = "MXNET_CPU_WORKER_NTHREADS"  # of the engine, 1 by default

INSTALL = "pip install mxnet==1.9.1 'numpy<1.24'; for GPUs: mxnet-cu112==1.9.1"
INSTALL_PYTORCH = "pip install 'torch>=2.1'"
BUILD = "build prophet_mx again for this Python: pip install --force-reinstall --no-deps ."
PROBE = "prophet_mx.mxnet.probe"  # run, never imported: nothing here needs MXNet


class Finding(NamedTuple):
    """What a check found: ``check`` is its name, ``status`` one of ok, warning, error; ``do`` is '' if nothing has to be done."""

    check: str
    status: str
    found: str
    do: str = ""


@dataclass(frozen=True)
class Environment:
    """What is looked at: the environment that the job's processes would have, the scheduler's address, and how many workers and servers
    run on this machine, where that is known. ``frameworks`` are those that the job may use."""

    environ: Mapping[str, str]
    scheduler: Optional[Tuple[str, int]] = None
    workers: Optional[int] = None
    servers: Optional[int] = None
    frameworks: Tuple[str, ...] = (MXNET,)

    def number(self, name: str) -> Optional[int]:
        """A variable as a whole number; None if it is not set or is not one."""
        try:
            return int(self.environ.get(name, ""))
        except ValueError:
            return None


def check_python(job: Environment) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 8) <= sys.version_info[:2] <= (3, 11):
        yield Finding("python", OK, version)
    elif PYTORCH in job.frameworks and sys.version_info[:2] >= (3, 8):
        also = f"{version}, for PyTorch; MXNet 1.9.1 needs 3.8 to 3.11"
        yield Finding("python", OK, also if MXNET in job.frameworks else version)
    else:
        yield Finding("python", ERROR, f"{version} cannot run MXNet 1.9.1", "use Python 3.8 to 3.11")


def run_probe(module: str, environ: Mapping[str, str]) -> Dict[str, Any]:
    """The line of JSON that a module prints, in a fresh Python with this environment but outside of the job; ``error`` where there is
    none."""
    env = {name: value for name, value in environ.items() if not name.startswith(("DMLC_", "PS_", PREFIX))}
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, [env.get("PYTHONPATH")]), str(Path(__file__).resolve().parents[2])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", module], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {PROBE_SECONDS:g} s"}
    for line in done.stdout.splitlines():
        if line.startswith("{"):  # what is imported may print as well
            found: Dict[str, Any] = json.loads(line)
            return found
    return {"error": (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]}


def probe_mxnet(environ: Mapping[str, str]) -> Dict[str, Any]:
    """What a fresh Python says of numpy, MXNet and the compiled core, with CUDA's libraries where 'prophet-mx launch' finds them."""
    found = run_probe(PROBE, {**environ, **with_libraries(environ)})
    return {"mxnet_error": [found["error"]]} if "error" in found else found


def check_mxnet(job: Environment) -> Iterator[Finding]:
    if find_spec("mxnet") is None:
        if PYTORCH in job.frameworks and find_spec("torch") is None:
            yield Finding("mxnet", ERROR, "neither MXNet 1.9.1 nor PyTorch is installed", f"{INSTALL}; for PyTorch: {INSTALL_PYTORCH}")
        else:
            yield Finding("mxnet", ERROR, "MXNet 1.9.1 is not installed", INSTALL)
        return
    found = probe_mxnet(job.environ)
    numpy = found.get("numpy", "")
    if numpy and tuple(int(part) for part in numpy.split(".")[:2]) >= (1, 24):
        yield Finding("numpy", ERROR, f"{numpy} breaks 'import mxnet'", "pip install 'numpy<1.24'")
    elif numpy:
        yield Finding("numpy", OK, numpy)
    if "mxnet_error" in found:
        why = found["mxnet_error"][0]
        lacks_cuda = any(name in why for name in (*LIBRARIES, DRIVER))
        yield Finding("mxnet", ERROR, f"cannot be imported: {why}", "see the checks 'cuda' and 'driver'" if lacks_cuda else INSTALL)
        return
    if not found["mxnet"].startswith("1.9."):
        yield Finding("mxnet", ERROR, f"{found['mxnet']}: its engine is not supported", "pip install mxnet==1.9.1 or mxnet-cu112==1.9.1")
    else:
        yield Finding("mxnet", OK, found["mxnet"])
    if found["dist"]:
        yield Finding("dist_kvstore", OK, "included in this MXNet")
    else:
        yield Finding("dist_kvstore", ERROR, "this MXNet was built without DIST_KVSTORE: no dist_sync", "install a wheel from PyPI")
    if found["cuda"] and not found["gpus"]:
        yield Finding("gpu", WARNING, "MXNet for CUDA sees no GPU", "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU wheel")
    elif found["cuda"]:
        yield Finding("gpu", OK, f"{found['gpus']} seen by MXNet")
    if not found["gpus"]:
        yield from check_engine_threads(job)
    if "core_error" in found:
        yield Finding("core", ERROR, f"the compiled module does not work: {found['core_error']}", BUILD)
    else:
        yield Finding("core", OK, "the compiled module works with this MXNet")


def check_core(job: Environment) -> Iterator[Finding]:
    """Whether it can be imported. :func:`check_mxnet` says whether it works with MXNet."""
    if MXNET in job.frameworks and find_spec("mxnet") is not None:
        return
    error = core_error()
    if error is None:
        yield Finding("core", OK, "the compiled module can be imported")
    else:
        yield Finding("core", ERROR, f"the compiled module does not work: {error}", BUILD)


def core_error() -> Optional[str]:
    """Why the compiled module cannot be imported; None if it can."""
    try:
        from .. import _core  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def check_engine_threads(job: Environment) -> Iterator[Finding]:
    """Whether messages wait for operators: where workers train on their CPUs, the engine runs both in the same threads."""
    if job.environ.get("DMLC_ROLE", "worker") != "worker" or processes_here(job)[0] == 0:
        return
    threads = job.number(CPU_THREADS) or 1
    if threads > 1:
        yield Finding("engine_threads", OK, f"{CPU_THREADS}={threads}: messages need not wait for operators on the CPU")
    else:
        what = "no GPU: if workers train on this machine, messages wait for operators in the engine's only thread for the CPU"
        yield Finding("engine_threads", WARNING, what, f"set {CPU_THREADS}=2 for the workers")


def check_engine(job: Environment) -> Iterator[Finding]:
    engine = job.environ.get("MXNET_ENGINE_TYPE", "")
    if engine == "NaiveEngine" and job.environ.get("DMLC_ROLE") != "server":
        yield Finding("engine", ERROR, "MXNET_ENGINE_TYPE=NaiveEngine: nothing would be scheduled", "unset MXNET_ENGINE_TYPE")
    else:
        yield Finding("engine", OK, engine or "MXNet's default")


def check_van(job: Environment) -> Iterator[Finding]:
    van = job.environ.get("DMLC_PS_VAN_TYPE", "")
    if van == "p3":
        what = "DMLC_PS_VAN_TYPE=p3 selects MXNet's own scheduling: prophet_mx would schedule nothing"
        yield Finding("van", ERROR, what, "unset DMLC_PS_VAN_TYPE on all processes")
    elif van not in ("", "zmq"):
        what = f"DMLC_PS_VAN_TYPE={van}: MXNet's wheels have only TCP (zmq), and no RDMA; a process with another transport ends at once"
        yield Finding("van", WARNING, what, "unset it; with an MXNet of your own that has it, expect coarser scheduling")
    else:
        yield Finding("van", OK, "ZMQ over TCP, without RDMA")


def check_port_variable(job: Environment) -> Iterator[Finding]:
    if "PORT" not in job.environ:
        yield Finding("PORT", OK, "not set")
        return
    found = f"PORT={job.environ['PORT']} is set: ps-lite makes every process listen on it, and the second one on a machine fails"
    if "DMLC_ROLE" in job.environ:
        yield Finding("PORT", ERROR, found, "unset PORT in the job's environment")
    else:
        yield Finding("PORT", WARNING, found, "unset PORT, or start the job with prophet-mx launch, which unsets it")


def check_mxnet_settings(job: Environment) -> Iterator[Finding]:
    fine = True
    for name in ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"):
        if (job.number(name) or 0) > BULK_NODES:
            fine = False
            what = f"{name}={job.environ[name]}: gradients become ready late, in few large steps"
            yield Finding("mxnet_settings", WARNING, what, f"unset {name} (15)")
    bound, servers = job.number(BIGARRAY_VARIABLE), job.number("DMLC_NUM_SERVER") or 2
    if bound is not None and bound <= SMALLEST_UNIT and servers > 1:
        fine = False
        what = f"{BIGARRAY_VARIABLE}={bound}: even small slices are split over all servers"
        yield Finding("mxnet_settings", WARNING, what, f"unset {BIGARRAY_VARIABLE} ({BIGARRAY_BOUND})")
    if job.number("PS_DROP_MSG"):
        fine = False
        what = f"PS_DROP_MSG={job.environ['PS_DROP_MSG']}: ps-lite drops messages, as in its own tests"
        yield Finding("mxnet_settings", ERROR, what, "unset PS_DROP_MSG")
    if fine:
        yield Finding("mxnet_settings", OK, "nothing prevents scheduling")


def check_settings(job: Environment) -> Iterator[Finding]:
    """Each PROPHET_ variable by itself, so that all that is wrong is named at once."""
    names = [PREFIX + field.name.upper() for field in fields(Config)]
    mine = sorted(name for name in job.environ if name.startswith(PREFIX))
    wrong = []
    for name in mine:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            do = f"did you mean {close[0]}?" if close else f"unset it; there are {', '.join(names)}"
            wrong.append(Finding("settings", ERROR, f"{name} is not a setting of prophet_mx", do))
            continue
        try:
            Config.from_env({name: job.environ[name]})
        except ConfigError as error:
            what, _, allowed = str(error).partition("; allowed: ")
            wrong.append(Finding("settings", ERROR, what, f"allowed: {allowed}"))
        else:
            wrong += _not_for(job, name)
    if job.environ.get(PREFIX + "METRICS_PORT", "auto").strip().lower() not in ("", "auto") and find_spec("prometheus_client") is None:
        wrong.append(
            Finding("settings", ERROR, f"{PREFIX}METRICS_PORT needs the package prometheus_client", "pip install 'prometheus_client>=0.14'")
        )
    yield from wrong
    if wrong:
        return
    policy = job.environ.get(PREFIX + "POLICY", "").strip().lower()
    if policy == OFF:
        yield Finding("settings", WARNING, "PROPHET_POLICY=off: nothing is scheduled", "unset it when the comparison is done")
    else:
        yield Finding("settings", OK, ", ".join(f"{name}={job.environ[name]}" for name in mine) or "all at their defaults")


def _not_for(job: Environment, name: str) -> Iterator[Finding]:
    """Whether a setting has no effect, or this value none, in a job of PyTorch."""
    if MXNET in job.frameworks or not job.environ[name].strip():
        return
    found = f"{name}={job.environ[name]} is not allowed for PyTorch"
    if name[len(PREFIX) :].lower() in SERVERS_ONLY:
        yield Finding("settings", ERROR, f"{found}, where it has no effect", f"unset {name}")
    elif name == PREFIX + "POLICY" and job.environ[name].strip().lower() not in PYTORCH_POLICIES:
        yield Finding("settings", ERROR, found, f"allowed: one of {', '.join(PYTORCH_POLICIES)}")


def check_files(job: Environment) -> Iterator[Finding]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = (job.number("DMLC_NUM_WORKER") or 1) + (job.number("DMLC_NUM_SERVER") or 1)
    if MXNET not in job.frameworks or of_torchrun(job):
        processes = job.number("WORLD_SIZE") or 1
    needed = 256 + 4 * processes  # two connections to and from every process, and the program's own files
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield Finding("open_files", OK, f"limit {'none' if soft == resource.RLIM_INFINITY else soft}")
    else:
        what = f"limit {soft}, but a job of {processes} processes may need {needed}"
        yield Finding("open_files", ERROR, what, f"ulimit -n {max(4096, needed)}")


def check_job(job: Environment) -> Iterator[Finding]:
    """The DMLC_ variables that every process of a job needs: all of them, or none."""
    needed = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
    missing = [name for name in needed if not job.environ.get(name)]
    if len(missing) == len(needed):
        yield Finding("job", OK, "no DMLC_ variables: a launcher sets them")
        return
    if missing:
        what = f"{', '.join(missing)} not set, although other DMLC_ variables are"
        yield Finding("job", ERROR, what, "set all of them for every process, or none")
        return
    role = job.environ["DMLC_ROLE"]
    wrong = [name for name in needed[3:] if (job.number(name) or 0) < 1]
    if role not in ROLES:
        yield Finding("job", ERROR, f"DMLC_ROLE={role}", f"one of {', '.join(ROLES)}")
    elif wrong:
        yield Finding("job", ERROR, f"{wrong[0]}={job.environ[wrong[0]]}", "a whole number from 1, the same for every process")
    else:
        yield Finding(
            "job", OK, f"{role} of a job with {job.environ['DMLC_NUM_WORKER']} worker(s) and {job.environ['DMLC_NUM_SERVER']} server(s)"
        )


def of_torchrun(job: Environment) -> bool:
    """Whether this is the environment of a process that torchrun, or what does as it does, has started."""
    return PYTORCH in job.frameworks and job.number("LOCAL_WORLD_SIZE") is not None


def processes_here(job: Environment) -> Tuple[int, int]:
    """How many workers and servers run on this machine: as asked, or all of a job on this machine alone, or one of each. With PyTorch there
    are no servers."""
    if MXNET not in job.frameworks or of_torchrun(job):
        here = max(job.number("LOCAL_WORLD_SIZE") or 1, 1)
        return (here if job.workers is None else job.workers), job.servers or 0
    alone = job.environ.get("DMLC_PS_ROOT_URI", "").startswith("127.")
    workers, servers = ((job.number(name) if alone else None) for name in ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER"))
    return (
        job.workers if job.workers is not None else max(workers or 1, 1),
        job.servers if job.servers is not None else max(servers or 1, 1),
    )


def check_cores(job: Environment, cores: Optional[int] = None) -> Iterator[Finding]:
    """Whether each process has a core, and whether the workers' threads have. ``cores`` is what :func:`usable_cores` gives."""
    cores = usable_cores() if cores is None else cores
    workers, servers = processes_here(job)
    without = servers == 0 and (MXNET not in job.frameworks or of_torchrun(job))
    shared = f"{cores} core(s) for {workers} worker(s)" + ("" if without else f" and {servers} server(s)")
    if workers + servers > cores:
        what = f"{shared}: the processes would wait for one another"
        yield Finding("cores", WARNING, what, "start fewer of them on this machine, or use more machines")
    else:
        yield Finding("cores", OK, shared)
    share = max(1, cores // max(workers, 1))
    threads = job.number("OMP_NUM_THREADS")
    if threads is None and "DMLC_ROLE" in job.environ and workers > 1 and share < cores:  # what starts the job has not set it
        what = f"each of {workers} workers starts {cores} threads on {cores} cores"
        yield Finding("threads", WARNING, what, f"set OMP_NUM_THREADS={share}")
    elif threads is not None and threads > share:
        found = f"OMP_NUM_THREADS={threads}: {workers} worker(s) start more threads than {cores} core(s) can run"
        launcher = "torchrun" if without else "prophet-mx launch"
        yield Finding("threads", WARNING, found, f"set OMP_NUM_THREADS={share}, or unset it and start the job with {launcher}")
