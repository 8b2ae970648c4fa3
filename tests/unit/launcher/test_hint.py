"""The word about a script of PyTorch: said if it is certain, and never about a script that may be MXNet's."""

import pytest

from prophet_mx.launcher.hint import torch_hint
from support.commands import cli


@pytest.mark.parametrize(
    "files, said",
    [
        ({"train.py": "import torch"}, True),
        ({"train.py": "def main():\n    from torch.nn import Linear\n"}, True),
        ({"train.py": "import torch, data", "data.py": "import numpy"}, True),
        ({"train.py": "import torch\nimport mxnet as mx"}, False),
        ({"train.py": "import torch, data", "data.py": "import models", "models.py": "from mxnet import nd"}, False),
        ({"train.py": "import torch, models", "models/__init__.py": ""}, False),
        ({"train.py": "import torch\nfrom . import models"}, False),
        ({"train.py": "import torch, importlib\nimportlib.import_module('mx' + 'net')"}, False),
        ({"train.py": "import torch, data", "data.py": "print 'old Python'"}, False),
        ({"train.py": "import torch, gluoncv"}, False),
        ({"train.py": "import torchless"}, False),
        ({"train.py": "# import torch"}, False),
        ({"train.py": "\0"}, False),
    ],
)
def test_a_script_of_pytorch(files, said, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    words = "train.py imports torch and not mxnet, and this starts MXNet jobs; for PyTorch: torchrun --nproc-per-node 4 train.py --lr 'a b'"
    assert torch_hint(["python3", "-u", "train.py", "--lr", "a b"], 4) == (words if said else "")


@pytest.mark.parametrize("command", [["true"], ["python", "-c", "import torch"], ["python", "missing.py"], ["cat", "train.py"]])
def test_what_is_no_script_is_not_judged(command, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import torch")
    monkeypatch.chdir(tmp_path)
    assert torch_hint(command, 2) == ""


def test_the_hint_is_said_and_the_job_runs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("if 0: import torch\nprint('ran')\n")
    done = cli("launch", "-n", 1, "--timeout", 30, "--", "python3", script)
    assert done.returncode == 0 and done.stdout.count("ran\n") == 3, done.stdout + done.stderr
    assert done.stdout.startswith(f"[launch] {script} imports torch and not mxnet") and "torchrun --nproc-per-node 1" in done.stdout
