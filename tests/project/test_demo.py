"""The digits example, run as a user runs it: a real job of one server and two workers."""

import re

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
    result = train(data, "--epochs", "2", "--require-accuracy", "0.6", env={"PROPHET_UNIT": "4MB"})  # no gradient is cut then
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
