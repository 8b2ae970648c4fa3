"""A process that uses the emulated accelerator ends."""

from support.commands import python
from support.paths import ROOT


def test_a_process_that_forgets_to_close_still_exits():
    code = (
        "import mxnet as mx\nfrom benchmarks.testbed.accelerator import Accelerator\nfrom prophet_mx.mxnet.api import bind\nbind()\n"
        "a = mx.nd.zeros((4,)); d = Accelerator()\n"
        "for _ in range(20): d.op([], [a], 0.01)\n"
    )
    python("-c", code, cwd=ROOT, expect=0)
