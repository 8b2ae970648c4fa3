"""The digits example and the demo, run as a user runs them: real jobs of one server and two workers."""

import re
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from support.cluster import run_cluster
from support.commands import python
from support.paths import ROOT

for module in ("mxnet", "PIL", "sklearn", "tqdm"):
    pytest.importorskip(module)

EXAMPLE = ROOT / "examples" / "mxnet-image-classification" / "train_digits.py"
LIMIT = 120  # seconds; alone on the machine it takes a tenth of that


def train(data_dir, *args, **kwargs):
    return run_cluster(EXAMPLE, args=["--data-dir", data_dir, *args], timeout=LIMIT, light=False, **kwargs)


def accuracies(result):
    """Validation accuracy by rank, from the closing lines of all workers."""
    found = re.findall(r"^rank (\d): validation accuracy (\S+)$", "\n".join(w.output for w in result.workers), re.MULTILINE)
    return {int(rank): float(accuracy) for rank, accuracy in found}


def value_of(result, title):
    """The rest of rank 0's closing line that starts with ``title``."""
    lines = [line for worker in result.workers for line in worker.output.splitlines() if line.startswith(title)]
    assert len(lines) == 1, f"{len(lines)} lines start with {title!r}\n{result.logs()}"
    return lines[0][len(title) :].strip()


def test_trains_and_reports(tmp_path):
    data = tmp_path / "made" / "by the script"
    result = train(data, "--epochs", "2", "--require-accuracy", "0.6", env={"PROPHET_UNIT": "4MB", "PROPHET_GROUPS": "off"})  # 20 units
    found = accuracies(result)
    assert set(found) == {0, 1}, result.logs()
    assert min(found.values()) >= 0.6  # by chance: 0.1
    bars = [worker.output.count("epoch  2/2: 100%") for worker in result.workers]
    assert sorted(map(bool, bars)) == [False, True], result.logs()  # on rank 0 only
    assert float(value_of(result, "samples/s").split()[0].replace(",", "")) > 0
    assert value_of(result, "policy") == "prophet"
    assert value_of(result, "drain read from") in ("tcp", "nic", "predicted")
    assert re.match(r"[\d.]+ [kMG]?bit/s", value_of(result, "measured rate"))
    # 20 parameters of 288,170 floats together, 2 epochs of 22 iterations
    scheduled = re.match(r"([\d.]+) MB in ([\d,]+) units", value_of(result, "scheduled"))
    assert float(scheduled.group(1)) == pytest.approx(44 * 288170 * 4 / 1e6, rel=1e-3), result.logs()
    assert int(scheduled.group(2).replace(",", "")) == 44 * 20, result.logs()
    steps = int(value_of(result, "steps").split()[0])
    gradients = re.findall(r"^  step \d+ +after +[\d.]+ ms +(\d+) gradient", result.logs(), re.MULTILINE)
    assert steps == len(gradients) and sum(map(int, gradients)) == 20, result.logs()
    assert sorted(path.name for path in data.iterdir()) == ["train.idx", "train.rec", "validation.idx", "validation.rec"]


def test_scheduling_does_not_change_the_result(tmp_path):
    """And a second job uses the images that the first one wrote."""
    scheduled = accuracies(train(tmp_path, "--epochs", "1", "--require-accuracy", "0"))
    written = (tmp_path / "train.rec").stat().st_mtime_ns
    plain = accuracies(train(tmp_path, "--epochs", "1", "--require-accuracy", "0", "--policy", "off"))
    assert len(scheduled) == 2 and scheduled == plain
    assert (tmp_path / "train.rec").stat().st_mtime_ns == written


def test_too_low_accuracy_is_an_error(tmp_path):
    result = train(tmp_path, "--epochs", "1", "--require-accuracy", "1.01", expect=1)
    assert "lower than the required 1.01" in result.logs()


def test_without_a_launcher_says_how_to_start(tmp_path):
    assert "prophet-mx launch" in python(EXAMPLE, cwd=tmp_path, light=False, merged=True, expect=2).stdout
    assert not list(tmp_path.iterdir())


# -- demo.py and slow_link.py --------------------------------------------------------------------------------------------------


@pytest.fixture
def scripts(monkeypatch):
    """The modules demo and slow_link, as scripts of the folder import them."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return import_module("demo"), import_module("slow_link")


def test_demo_trains_to_the_same_weights_over_loopback_and_over_slow_links(tmp_path):
    arguments = ["--data-dir", tmp_path, "--epochs", "2", "--scale", "1", "--require-accuracy", "0.5"]  # by chance: 0.1
    output = python(EXAMPLE.parent / "demo.py", *arguments, cwd=tmp_path, light=False, merged=True, timeout=3 * LIMIT, expect=0).stdout
    rows = re.findall(r"^(loopback|links of \d+Mbit/s), (plain dist_sync|prophet_mx) +([\d,]+) +(0\.\d+)$", output, re.MULTILINE)
    assert [(links[:5], method) for links, method, _, _ in rows] == [
        ("loopb", "prophet_mx"),
        ("links", "plain dist_sync"),
        ("links", "prophet_mx"),
    ], output
    assert all(int(speed.replace(",", "")) > 0 and float(accuracy) >= 0.5 for _, _, speed, accuracy in rows), output
    assert "Weights: the same in all three trainings, bit for bit." in output, output
    assert re.search(
        r"^On loopback there is nothing to gain: an iteration takes \d+ ms, and its 1.2 MB of gradients$", output, re.MULTILINE
    )
    assert re.search(r"^links of \d+Mbit/s: prophet_mx is \d+\.\d\d times as fast as plain dist_sync\.$", output, re.MULTILINE), output
    assert output.count("epoch  2/2: 100%") == 3, output


def demo(scripts, monkeypatch, capsys, weights):
    """What demo.py prints, and its exit code, where trainings end with these weights on a kernel that slows nothing down; their rates."""
    seen = []

    def train(title, args, file, policy, rate=None):
        Path(file).write_bytes(weights[len(seen)])
        seen.append(rate)
        return 100.0 * len(seen), "0.9900"

    monkeypatch.setattr(scripts[0], "train", train)
    monkeypatch.setattr(scripts[1], "refusal", lambda: "Operation not supported")
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    try:
        scripts[0].main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    return capsys.readouterr().out, code, seen


def test_demo_goes_on_where_the_kernel_slows_nothing_down(scripts, monkeypatch, capsys):
    output, code, rates = demo(scripts, monkeypatch, capsys, [b"same"] * 3)
    assert (code, rates) == (0, [None] * 3)
    [line] = [line for line in output.splitlines() if "refuses" in line]
    assert "(Operation not supported): the links stay as they are" in line
    assert "loopback again: prophet_mx is 1.50 times as fast" in output


def test_demo_fails_if_weights_differ(scripts, monkeypatch, capsys):
    output, code, _ = demo(scripts, monkeypatch, capsys, [b"same", b"same", b"else"])
    assert code == 1 and "Weights: NOT the same." in output


def test_a_script_with_a_slow_link_has_slow_connections_at_both_ends(tmp_path):
    """Those that it opens and those that it accepts; and it ends when its main thread ends."""
    script = tmp_path / "script.py"
    script.write_text(
        dedent(
            """
            import socket, sys, time
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            end = time.monotonic() + 30
            while time.monotonic() < end and {each.getsockopt(socket.SOL_SOCKET, 47) for each in (client, server)} != {2_500_000}:
                time.sleep(0.01)
            print(*sys.argv[1:], __name__, *(each.getsockopt(socket.SOL_SOCKET, 47) for each in (client, server)))
            """
        )
    )
    done = python(EXAMPLE.parent / "slow_link.py", "20Mbit", script, "--its", "own", cwd=tmp_path, expect=0)
    assert done.stdout.split() == ["--its", "own", "__main__", "2500000", "2500000"]


def test_slow_link_says_what_is_wrong(scripts, monkeypatch, capsys, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('it runs')")
    monkeypatch.setattr(scripts[1], "refusal", lambda: "Operation not supported")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["slow_link.py", "20Mbit", str(script)])
    scripts[1].main()
    output = capsys.readouterr()
    assert output.out == "it runs\n"
    assert output.err == "slow_link.py: the kernel refuses to slow connections down (Operation not supported): they stay as they are\n"
    monkeypatch.setattr(sys, "argv", ["slow_link.py", "fast", str(script)])
    with pytest.raises(SystemExit) as ended:
        scripts[1].main()
    assert ended.value.code == 2 and "'fast' is not allowed; allowed: a rate such as 500Mbit" in capsys.readouterr().err
