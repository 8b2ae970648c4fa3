"""The command ``prophet-mx launch``, as far as it starts nothing: wrong arguments and help."""

import socket

import pytest

from support.commands import cli


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--hostfile", "/no/such/file"], ["/no/such/file", "cannot be read", "gpu1 slots=2"]),
        (["--hostfile", "FILE", "-n", "3"], ["--workers 3", "at most 2"]),
        (["--hostfile", "FILE"], ["no.such.host.invalid", "address="]),
        (["-H", "a:0"], ["-H", "'a:0'", "gpu1,gpu2"]),
        (["-H", "no.such.host.invalid:2", "-n", "3"], ["--workers 3", "at most 2", "-H HOST:N"]),
        (["-H", "a:512,b:2"], ["514 workers", "--workers N, up to 512"]),
        (["-H", "a,b", "--hostfile", "FILE"], ["-H", "--hostfile", "one of them"]),
        (["--ssh-option", "Port=1"], ["--ssh-option Port=1", "-H HOST,HOST", "--hostfile FILE"]),
        (["--chdir", "/x"], ["--chdir /x", "-H HOST,HOST", "--hostfile FILE"]),
        (["--python", "python3"], ["--python python3", "-H HOST,HOST", "--hostfile FILE"]),
        (["-H", "127.0.0.1", "--ssh-option", "Nonsense=1"], ["--ssh-option", "onsense"]),
        (["--hostfile", "LOCAL", "--ssh-option", "Nonsense=1"], ["--ssh-option", "onsense"]),
        (["--hostfile", "/"], ["--hostfile /", "cannot be read"]),
        (["--env", "DMLC_NUM_WORKER=3"], ["--env DMLC_NUM_WORKER=3", "--workers N"]),
        (["--env", "DMLC_NODE_HOST=10.0.0.1"], ["--env DMLC_NODE_HOST=10.0.0.1", "address=IP", "DMLC_INTERFACE"]),
        (["--env", "PORT=80"], ["--env PORT=80", "listen"]),
        (["--log-dir", "FILE"], ["--log-dir '", "FILE' is not allowed (File exists); allowed: a folder in which files can be written"]),
        (["--gpus-per-worker", "2", "--env", "CUDA_VISIBLE_DEVICES=0,1,2"], ["--gpus-per-worker 2", "0,1,2", "at least 4 GPUs"]),
        (["--env", "1A=2"], ["--env 1A=2", "NAME=VALUE"]),
        (["--env", "NO_SUCH_VARIABLE"], ["NO_SUCH_VARIABLE", "not set here"]),
        (["--port", "0"], ["--port", "'0'", "1 to 65535"]),
    ],
)
def test_a_wrong_argument_of_hosts_is_one_line_and_code_2(arguments, parts, tmp_path):
    (tmp_path / "FILE").write_text("no.such.host.invalid slots=2\n")
    (tmp_path / "LOCAL").write_text("a address=127.0.0.1\n")
    done = cli("launch", *[str(tmp_path / word) if word in ("FILE", "LOCAL") else word for word in arguments], "--", "true")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.mark.parametrize(
    "name, value, parts",
    [
        ("PROPHET_POLICY", "pfo", ["PROPHET_POLICY='pfo' is not allowed (not one of the names)", "allowed: one of fifo, ", "off"]),
        ("PROPHET_POLICY", "prophit", ["PROPHET_POLICY='prophit' is not allowed (not one of the names; did you mean 'prophet'?)"]),
        ("PROPHET_POLCY", "off", ["PROPHET_POLCY='off' is not a setting of prophet_mx; did you mean 'PROPHET_POLICY'?"]),
        (
            "PROPHET_COMPRESS",
            "bf16",
            ["PROPHET_COMPRESS='bf16' is not allowed for MXNet, whose servers do not know bf16; allowed: 'off', or fp16"],
        ),
        ("PROPHET_FALLBACK", "off", ["PROPHET_FALLBACK='off' is not allowed, as it has no effect with MXNet; allowed: 'auto'"]),
        ("PROPHET_TIMELINE", "/no/such/folder/trace.json", ["PROPHET_TIMELINE=", "its folder does not exist"]),
    ],
)
def test_a_wrong_setting_starts_nothing(name, value, parts, monkeypatch):
    for arguments in (["--env", f"{name}={value}"], []):
        done = cli("launch", "--dry-run", *arguments, "--", "true")
        assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("prophet-mx launch: error: ") and all(part in done.stderr for part in parts), done.stderr
        monkeypatch.setenv(name, value)


def test_a_folder_on_other_hosts_need_not_exist_here(tmp_path):
    (tmp_path / "hosts").write_text("a address=10.0.0.1\n")
    more = ["--env", "PROPHET_TIMELINE=/no/such/folder/trace.json"]
    done = cli("launch", "--hostfile", tmp_path / "hosts", "--dry-run", *more, "--", "true")
    assert done.returncode == 0 and "/no/such/folder/trace.json" in done.stdout, done.stderr


def test_a_dry_run_prints_no_value_that_may_be_secret(tmp_path, monkeypatch):
    (tmp_path / "hosts").write_text("a address=10.0.0.1\n")
    monkeypatch.setenv("TOKEN", "51ac-secret")
    for where in ([], ["--hostfile", tmp_path / "hosts"]):
        done = cli(
            "launch", *where, "--dry-run", "--env", "TOKEN", "--env", "OTHER=51ac-secret", "--env", "PROPHET_UNIT=5000", "--", "true"
        )
        assert done.returncode == 0 and "51ac-secret" not in done.stdout, done.stdout
        assert all(text in done.stdout for text in ("TOKEN", "OTHER", "PROPHET_UNIT", "5000", "(hidden)" if where else '="$TOKEN"'))
    shares = cli("launch", "--dry-run", "--gpus-per-worker", 1, "--env", "CUDA_VISIBLE_DEVICES=4,5", "--", "true").stdout.splitlines()
    assert "CUDA_VISIBLE_DEVICES=4 " in shares[-3] and "CUDA_VISIBLE_DEVICES=5 " in shares[-1], shares  # not what was given


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = cli("launch", "--port", port, "--", "true")
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert f"--port {port} is not allowed" in done.stderr and "a free port" in done.stderr


def test_a_loopback_address_among_others_is_refused(tmp_path):
    """As Debian gives to a machine's own name: the other hosts would connect to themselves."""
    (tmp_path / "hosts").write_text("a address=127.0.1.1\nb address=10.0.0.2\n")
    done = cli("launch", "--hostfile", str(tmp_path / "hosts"), "--dry-run", "--", "true")
    assert done.returncode == 2 and "127.0.1.1" in done.stderr and "'a slots=1 address=" in done.stderr


def test_help_explains_the_host_file():
    text = cli("launch", "--help").stdout
    for part in ("prophet-mx launch --hostfile hosts --schedule -- python train.py", "slots=2", "--dry-run", "255"):
        assert part in text


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["nonsense"], ["nonsense", "launch"]),
        (["launch"], ["no command", "-- python train.py"]),
        (["launch", "-n", "0", "--", "true"], ["--workers", "'0'", "1 to 512"]),
        (["launch", "-n", "two", "--", "true"], ["--workers", "'two'", "1 to 512"]),
        (["launch", "-s", "-1", "--", "true"], ["--servers", "-1", "1 to 512"]),
        (["launch", "--timeout", "nan", "--", "true"], ["--timeout", "'nan'", "positive number of seconds"]),
        (["launch", "--", "no-such-program"], ["no-such-program", "PATH"]),
        (["launch", "--restarts", "-1", "--", "true"], ["--restarts", "'-1'", "0 to 1000"]),
        (["launch", "--restarts", "often", "--", "true"], ["--restarts", "'often'", "0 to 1000"]),
        (["launch", "--gpus-per-worker", "0", "--", "true"], ["--gpus-per-worker", "'0'", "1 to 64"]),
        (["launch", "--grace", "0", "--", "true"], ["--grace", "'0'", "positive number of seconds"]),
        (["launch", "--nosuch", "1", "--", "true"], ["--nosuch"]),
    ],
)
def test_a_wrong_argument_is_one_line_and_code_2(arguments, parts):
    done = cli(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


def test_a_script_that_cannot_be_executed_is_started_with_python(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for script, end in (("train.py", "; did you mean 'python train.py'?\n"), ("other.py", "an executable file\n")):
        done = cli("launch", "--", script)
        assert done.returncode == 2 and f"the command '{script}' cannot be started" in done.stderr and done.stderr.endswith(end)


def test_help_shows_an_example_and_the_exit_codes():
    overview, launch = cli("--help"), cli("launch", "--help")
    assert overview.returncode == launch.returncode == 0
    assert "  prophet-mx launch -n 2 -s 1 -- python train.py\n" in overview.stdout
    assert "prophet-mx launch -n 2 -s 1 -- python train.py" in launch.stdout
    for code in ("124", "130", "143"):
        assert code in launch.stdout
