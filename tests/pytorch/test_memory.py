"""How much memory a rank takes at most, in a process of its own."""

import json
import os
from textwrap import dedent

import pytest

from support.ranks import run_script

WIDTH, LAYERS = 1000, 8
GRADIENTS = 4 * LAYERS * (WIDTH + 1) * WIDTH  # bytes

TEXT = """
    import ctypes, gc, json, os, sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from prophet_mx.torch import ScheduledOptimizer, agreement

    width, layers, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    agreement.measure = lambda *_: agreement.GUESS
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # what is freed goes back to the system

    def status(name):
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    if way != "ddp":
        optimizer = ScheduledOptimizer(ddp, optimizer, warmup=1, fallback="off")
    batch = torch.ones(2, width)
    ddp(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    getattr(optimizer, "synchronize", int)()
    gc.collect()
    plans, found = 0, []
    for _ in range(4):
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        ddp(batch).square().mean().backward()
        optimizer.step()
        found.append(status("VmHWM"))
        optimizer.zero_grad()
    plans = getattr(optimizer, "stats", dict)().get("plans", 0)
    getattr(optimizer, "close", int)()
    print("RESULT", json.dumps([plans, found]))
"""


def peaks(way):
    """The plans made, and the most that rank 0 has had in each iteration, in bytes."""
    outputs = run_script(dedent(TEXT), arguments=[WIDTH, LAYERS, way], timeout=120)
    assert [code for code, _ in outputs] == [0, 0], "\n".join(output for _, output in outputs)
    [line] = [line for line in outputs[0][1].splitlines() if line.startswith("RESULT ")]
    return json.loads(line[len("RESULT ") :])


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="this system does not say what a process has had at most")
def test_an_iteration_that_takes_a_plan_needs_no_more_than_ddp():
    _, ddp = peaks("ddp")
    plans, ours = peaks("ours")
    assert plans == 1, "no plan was taken"
    assert max(ours) < max(ddp) + 0.3 * GRADIENTS, (ours, ddp, GRADIENTS)
