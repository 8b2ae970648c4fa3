"""The digits example, run by the command of its README."""

import re
import runpy
import shlex
import sys
from importlib.util import find_spec

import pytest

from prophet_mx.launcher.launch import free_port
from support.commands import run
from support.paths import ROOT
from support.ranks import environment, run_script

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs the extra demo")

FOLDER = ROOT / "examples" / "pytorch"
SCRIPT = FOLDER / "train_digits.py"
LIMIT = 200  # seconds; alone on the machine it takes a tenth of that


def test_both_train_to_the_same_weights_and_tell_their_rates():
    """By the README's command."""
    [command] = re.findall(r"^torchrun (.*train_digits\.py)$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    words = [*launcher, *shlex.split(command), "--epochs", "1", "--require-accuracy", "0.5"]  # by chance: 0.1
    output = run(*words, cwd=FOLDER, package=False, env=environment(), timeout=LIMIT, merged=True, expect=0).stdout
    accuracies = re.findall(
        r"^(?:DistributedDataParallel|ScheduledOptimizer) +validation accuracy (\S+) +([\d,]+) images/s", output, re.MULTILINE
    )
    assert len(accuracies) == 2 and accuracies[0][0] == accuracies[1][0], output
    assert all(int(rate.replace(",", "")) > 0 for _, rate in accuracies), output
    assert re.search(r"^2 ranks, links of [\d.]+ [MG]bit/s: communication takes 1.0 times as long as computation", output, re.MULTILINE), (
        output
    )
    assert re.search(r"^weights and statistics +the same, bit for bit$", output, re.MULTILINE), output


def test_a_rate_can_be_set_and_too_low_accuracy_is_an_error():
    arguments = ["--epochs", "1", "--rate", "1Gbit", "--require-accuracy", "1.01"]
    (code, told), (other, silent) = run_script(SCRIPT.read_text(encoding="utf-8"), arguments=arguments, timeout=LIMIT)
    assert (code, other) == (1, 1) and "lower than the required 1.01" in told, told + silent
    assert re.search(r"^2 ranks, links of 1 Gbit/s: communication takes \S+ times", told, re.MULTILINE), told


def test_without_a_launcher_it_says_how_to_start(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2 and "torchrun --nproc-per-node 2 train_digits.py" in capsys.readouterr().err
