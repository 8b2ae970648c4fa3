"""The files in examples/clusters: parsed, and run as far as it goes without a cluster.

Where a cluster would start processes, stand-ins for its programs (mpirun, srun, hostname) print or start what they were told to.
What is started is the real thing: MXNet's scheduler, servers and workers with the variables that the recipe gives them.
"""

import os
import sys
from textwrap import dedent

import pytest

from prophet_mx.launcher.hosts import parse_hosts
from prophet_mx.launcher.launch import free_port, run_job
from support.cluster import package_env
from support.commands import run
from support.paths import ROOT

CLUSTERS = ROOT / "examples" / "clusters"
SCRIPTS = sorted(path for path in CLUSTERS.rglob("*") if path.suffix in (".sh", ".sbatch"))
LIMIT = 60

TRAIN = dedent("""
    import mxnet as mx
    kv = mx.kv.create('dist_sync')
    kv.init('a', mx.nd.zeros(5))
    value = mx.nd.zeros(5)
    kv.pushpull('a', mx.nd.ones(5) * (kv.rank + 1), out=value)
    print('rank', kv.rank, 'of', kv.num_workers, 'sum', value.asnumpy().tolist())
    """)

MPIRUN = """\
#!/bin/bash
# mpirun for one host: starts the processes, each with the rank that Open MPI would give it.
count=$2; shift 2
while [ "$1" != env ] && [ "$1" != hostname ]; do echo "option $1" >&2; shift; done
for rank in $(seq 0 $((count - 1))); do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$count "$@" & done
wait
"""

SRUN = """\
#!/bin/bash
# srun that prints its arguments, and runs what it was given as the worker of rank 3.
printf 'srun <%s>\\n' "$@"
while [ "${1#--}" != "$1" ]; do case $1 in --ntasks=*) count=${1#*=};; esac; shift; done
SLURM_PROCID=3 SLURM_NTASKS=$count "$@"
"""


def programs(folder, **texts):
    """A folder with executable stand-ins, first on a PATH."""
    folder.mkdir()
    for name, text in texts.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def recipe(*command, **env):
    return run(*command, env=env)


def test_scripts_parse_and_can_be_run():
    assert [path.name for path in SCRIPTS] == ["mpirun.sh", "role.sh", "train.sbatch"]
    for path in SCRIPTS:
        assert os.access(str(path), os.X_OK), path
        assert recipe("bash", "-n", path).returncode == 0


def test_the_host_file():
    hosts = parse_hosts((CLUSTERS / "hosts").read_text(), "hosts")
    assert len(hosts) == 3 and hosts[2].address == "10.0.0.3"


# --- MPI ---


def test_mpi_runs_a_real_job(tmp_path):
    path = programs(tmp_path / "bin", mpirun=MPIRUN, hostname="#!/bin/sh\necho 127.0.0.1 10.9.9.9\n")
    (tmp_path / "train.py").write_text(TRAIN)
    # SLURM_PROCID: as inside of a Slurm job, where it is that of the job's script. PORT would make every process listen on it.
    done = recipe(
        CLUSTERS / "mpi" / "mpirun.sh",
        "1",
        "1",
        "--host",
        "a:3,b",
        "--",
        sys.executable,
        tmp_path / "train.py",
        PATH=path,
        SLURM_PROCID="0",
        DMLC_NODE_HOST="127.0.0.1",
        PORT=str(free_port()),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0 of 1 sum [1.0, 1.0, 1.0, 1.0, 1.0]\n", done.stderr
    assert "option --host\noption a:3,b\n" in done.stderr


@pytest.mark.parametrize(
    "arguments, part",
    [
        ([], "servers and workers come first"),
        (["1", "x", "--", "true"], "servers and workers come first"),
        (["1", "0", "--", "true"], "servers and workers come first"),
        (["1", "1", "--host", "a"], "no command"),
        (["1", "1", "--"], "no command"),
    ],
)
def test_mpi_says_what_is_wrong(arguments, part):
    done = recipe(CLUSTERS / "mpi" / "mpirun.sh", *arguments)
    assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1


JOB = {"DMLC_NUM_SERVER": "2", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}


@pytest.mark.parametrize(
    "rank, size",
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "OTHER"), ("SLURM_PROCID", "SLURM_NTASKS")],
)
def test_roles_by_rank(rank, size):
    roles = [
        recipe(
            CLUSTERS / "role.sh",
            "sh",
            "-c",
            'echo "$DMLC_ROLE $1 ${PORT-none} ${MXNET_ENGINE_TYPE-threaded}"',
            "-",
            "two  words",
            PORT="1",
            **{**JOB, rank: str(i), size: "6"},
        ).stdout
        for i in range(6)
    ]
    engines = [("scheduler", "threaded")] + 2 * [("server", "NaiveEngine")] + 3 * [("worker", "threaded")]
    assert roles == [f"{role} two  words none {engine}\n" for role, engine in engines]


@pytest.mark.parametrize(
    "env, part",
    [
        ({}, "no rank found"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "5"}, "5 processes were started, but the job has 6"),
        ({"SLURM_PROCID": "1", "DMLC_PS_ROOT_URI": ""}, "DMLC_PS_ROOT_URI is not set"),
    ],
)
def test_a_role_that_cannot_be_told(env, part):
    done = recipe(CLUSTERS / "role.sh", "true", **{**JOB, **env})
    assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1


# --- Slurm ---


@pytest.mark.parametrize(
    "numbers, tasks, role",
    [
        ({}, 5, "worker of 2+2 at 10.0.0.7:21234"),
        ({"SERVERS": "4", "WORKERS": "3"}, 8, "server of 4+3 at 10.0.0.7:21234"),
        ({"DMLC_PS_ROOT_URI": "10.0.0.9", "DMLC_PS_ROOT_PORT": "9091"}, 5, "worker of 2+2 at 10.0.0.9:9091"),
    ],
)
def test_slurm_starts_its_processes_with_srun(numbers, tasks, role, tmp_path):
    path = programs(tmp_path / "bin", srun=SRUN, hostname="#!/bin/sh\necho 10.0.0.7 10.9.9.9\n")
    show = 'echo "$DMLC_ROLE of $DMLC_NUM_SERVER+$DMLC_NUM_WORKER at $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT: $1 ${PORT-none}"'
    done = recipe(
        CLUSTERS / "slurm" / "train.sbatch",
        "sh",
        "-c",
        show,
        "-",
        "two  words",
        PATH=path,
        SLURM_JOB_NUM_NODES="2",
        SLURM_JOB_ID="31234",
        SLURM_SUBMIT_DIR=str(CLUSTERS),
        PORT="80",
        **numbers,
    )
    assert done.returncode == 0, done.stderr
    assert f"srun <--nodes=2>\nsrun <--ntasks={tasks}>\nsrun <--distribution=cyclic>" in done.stdout
    assert "srun <--kill-on-bad-exit=1>" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{role}: two  words none"


@pytest.mark.parametrize(
    "arguments, env, part",
    [
        ([], {}, "no command"),
        (["true"], {}, "not a Slurm job"),
        (["true"], {"SLURM_JOB_NUM_NODES": "2", "SLURM_SUBMIT_DIR": "/"}, "submit from examples/clusters"),
    ],
)
def test_slurm_says_what_is_wrong(arguments, env, part):
    done = recipe(CLUSTERS / "slurm" / "train.sbatch", *arguments, **env)
    assert done.returncode == 2 and part in done.stderr and len(done.stderr.splitlines()) == 1


# --- Kubernetes ---


@pytest.fixture(scope="module")
def manifest():
    """The documents of job.yaml by kind and name."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (the extra 'test' has it)")
    documents = list(yaml.safe_load_all((CLUSTERS / "kubernetes" / "job.yaml").read_text()))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def container(job):
    [found] = job["spec"]["template"]["spec"]["containers"]
    return found


def variables(manifest, job):
    """What a container of the job gets as environment; the pod's address as 127.0.0.1."""
    [source] = container(job)["envFrom"]
    env = dict(manifest["ConfigMap", source["configMapRef"]["name"]]["data"])
    for entry in container(job)["env"]:
        if "value" not in entry:
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        env[entry["name"]] = entry.get("value", "127.0.0.1")
    return env


def test_kubernetes_manifest_fits_together(manifest):
    jobs = {name: document for (kind, name), document in manifest.items() if kind == "Job"}
    assert sorted(jobs) == ["train-scheduler", "train-server", "train-worker"]
    env = {name: variables(manifest, job) for name, job in jobs.items()}
    service = manifest["Service", env["train-worker"]["DMLC_PS_ROOT_URI"]]
    scheduler = jobs["train-scheduler"]
    assert service["spec"]["selector"] == scheduler["spec"]["template"]["metadata"]["labels"]
    port = int(env["train-worker"]["DMLC_PS_ROOT_PORT"])
    assert [port] == [entry["port"] for entry in service["spec"]["ports"]]
    assert [port] == [entry["containerPort"] for entry in container(scheduler)["ports"]]
    for name, variable in (("train-server", "DMLC_NUM_SERVER"), ("train-worker", "DMLC_NUM_WORKER")):
        assert jobs[name]["spec"]["parallelism"] == jobs[name]["spec"]["completions"] == int(env[name][variable])
    for name, job in jobs.items():
        assert job["apiVersion"] == "batch/v1" and job["spec"]["backoffLimit"] == 0
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        assert env[name]["DMLC_ROLE"] == name.partition("-")[2] == job["spec"]["template"]["metadata"]["labels"]["role"]
        assert all(isinstance(value, str) for value in env[name].values())  # Kubernetes refuses numbers
    assert len({str(container(job)[key]) for job in jobs.values() for key in ("image",)}) == 1
    assert len({str(container(job)["command"]) for job in jobs.values()}) == 1


def test_the_variables_of_the_kubernetes_manifest_make_a_real_job(manifest, tmp_path):
    """On this machine: the Service's name, which only a cluster knows, becomes a name of this machine."""
    (tmp_path / "train.py").write_text(TRAIN)
    own = {"DMLC_PS_ROOT_URI": "localhost", "DMLC_PS_ROOT_PORT": str(free_port())}
    env = {name: {**variables(manifest, manifest["Job", f"train-{name}"]), **own} for name in ("scheduler", "server", "worker")}
    result = run_job(
        [sys.executable, str(tmp_path / "train.py")],
        int(env["worker"]["DMLC_NUM_WORKER"]),
        int(env["worker"]["DMLC_NUM_SERVER"]),
        env=package_env(),
        role_env=env,
        timeout=LIMIT,
        grace=5.0,
    )
    assert result.exit_code == 0, result.logs()
    assert sorted(worker.output.splitlines()[-1] for worker in result.workers) == [
        f"rank {rank} of 2 sum [3.0, 3.0, 3.0, 3.0, 3.0]" for rank in (0, 1)
    ], result.logs()
