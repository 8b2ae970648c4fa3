"""The digits example, run by the command of its README."""

import re
import shlex
import sys

import pytest

from prophet_mx.launcher.launch import free_port
from support.commands import run
from support.paths import ROOT
from support.ranks import environment

FOLDER = ROOT / "examples" / "pytorch"
LIMIT = 200  # seconds; alone on the machine it takes a tenth of that


def train(*arguments, expect=0):
    """What the README's command prints, with further arguments."""
    pytest.importorskip("sklearn", reason="needs the extra demo")
    [command] = re.findall(r"^torchrun (.*train_digits\.py)$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--master-port", str(free_port())]
    words = [*launcher, *shlex.split(command), *arguments]
    return run(*words, cwd=FOLDER, package=False, env=environment(), timeout=LIMIT, merged=True, expect=expect).stdout


def test_both_train_to_the_same_weights_and_tell_their_rates():
    output = train("--epochs", "2", "--rate", "1Gbit", "--require-accuracy", "0.6")  # by chance: 0.1
    accuracies = re.findall(
        r"^(?:DistributedDataParallel|ScheduledOptimizer) +validation accuracy (\S+) +([\d,]+) images/s", output, re.MULTILINE
    )
    assert len(accuracies) == 2 and accuracies[0][0] == accuracies[1][0], output
    assert all(int(rate.replace(",", "")) > 0 for _, rate in accuracies), output
    assert re.search(r"^2 ranks, links of 1 Gbit/s$", output, re.MULTILINE), output
    assert re.search(r"^weights and statistics +the same, bit for bit$", output, re.MULTILINE), output


def test_too_low_accuracy_is_an_error():
    assert "lower than the required 1.01" in train("--epochs", "1", "--rate", "off", "--require-accuracy", "1.01", expect=1)


def test_without_a_launcher_it_says_how_to_start():
    output = run(sys.executable, FOLDER / "train_digits.py", package=False, env=environment(), merged=True, expect=2).stdout
    assert "torchrun --nproc-per-node 2 train_digits.py" in output
