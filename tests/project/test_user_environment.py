"""The README's own lines, in exactly the environment that users have: nothing of what makes other tests' processes start sooner.

Two more such jobs are in jobs/test_exactness.py and jobs/test_exit.py, and the demo's in test_demo.py.
"""

import re
import shlex
import sys

from support.commands import prophet_mx
from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")

# Before the README's lines, and after them. What a server, and the scheduler, does is all done inside "import mxnet".
BEFORE = """
import os, sys
from importlib.util import find_spec

def tell():
    own = [name for name in ("scipy", "sklearn") if find_spec(name) and not __import__(name).__path__]
    own += [name for name in ("mxnet.ndarray.register", "mxnet.symbol.register") if "exec" in vars(sys.modules[name])]
    print(os.environ["DMLC_ROLE"], "runs Python", sys.version_info[:2], "with everything" if not own else own, flush=True)

try:
    import mxnet as mx
except SystemExit:
    tell()
    raise
data = mx.io.NDArrayIter(mx.nd.ones((64, 10)), mx.nd.zeros((64,)), 8, label_name="softmax_label")
module = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4), name="softmax"))
"""
AFTER = """
tell()
print("accuracy", dict(module.score(data, "acc"))["accuracy"], "units", kv.stats()["units"], flush=True)
"""


def test_the_readmes_lines_train_with_the_readmes_command(tmp_path):
    [lines] = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "module.fit" in block]
    [command] = re.findall(r"^prophet-mx (launch -n 2 -s 1 -- python train.py)", README, re.MULTILINE)
    (tmp_path / "train.py").write_text(BEFORE + lines + AFTER)
    arguments = [sys.executable if word == "python" else word for word in shlex.split(command)]
    done = prophet_mx(*arguments, cwd=tmp_path, light=False, merged=True, expect=0)
    roles = re.findall(r"(scheduler|server|worker) runs Python \(.*\) with everything$", done.stdout, re.MULTILINE)
    assert sorted(roles) == ["scheduler", "server", "worker", "worker"], done.stdout
    # Two parameters, ten epochs of eight batches.
    found = re.findall(r"accuracy (\S+) units (\d+)$", done.stdout, re.MULTILINE)
    assert [accuracy for accuracy, _ in found] == ["1.0", "1.0"] and all(int(units) >= 80 for _, units in found), done.stdout
