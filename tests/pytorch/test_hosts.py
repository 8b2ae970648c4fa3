"""A job on two hosts, by the commands of docs/pytorch.md: each is a network namespace of its own, with a link between them, and gloo."""

import re
import shlex
import subprocess
import sys

import pytest

from benchmarks.testbed.network import Testbed, needed_privileges
from support.paths import ROOT
from support.ranks import environment

LIMIT = 120  # seconds; alone on the machine it takes a tenth of that

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.torch import ScheduledOptimizer


def sent():
    with open("/proc/net/dev") as file:
        return next(int(line.split()[9]) for line in file if line.strip().startswith("eth0:"))


def train(scheduled):
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Linear(256, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if scheduled:
        optimizer = ScheduledOptimizer(model, optimizer)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
    if scheduled:
        stats = optimizer.stats()
        assert stats["plans"] == 1
        print("sent", stats["bytes"] <= sent() - before)
        optimizer.close()
    return [each.detach().clone() for each in net.parameters()]


dist.init_process_group("gloo")
plain, before = train(False), sent()
assert all(map(torch.equal, plain, train(True)))
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the same weights")
dist.destroy_process_group()
"""


def test_two_hosts_by_the_commands_of_the_page(tmp_path):
    reason = needed_privileges()
    if reason:
        pytest.skip(reason)
    page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    section = page[page.index("## Several hosts") :].split("\n## ")[0]
    [interface] = re.findall(r"^export GLOO_SOCKET_IFNAME=(\w+)", section, re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^torchrun (.*)$", section, re.MULTILINE)]
    assert len(commands) == 2
    (tmp_path / "train.py").write_text(SCRIPT)
    with Testbed(workers=1, servers=1, rate=125e6) as bed:
        env = {**environment(), "GLOO_SOCKET_IFNAME": interface, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        options = {"env": env, "cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        launcher = [sys.executable, "-m", "torch.distributed.run"]
        jobs = [
            bed.popen(node, [*launcher, *(bed.nodes["s0"] if word == "host0" else word for word in words)], **options)
            for node, words in zip(bed.nodes, commands)
        ]
        outputs = [job.communicate(timeout=LIMIT)[0] for job in jobs]
    for rank, (job, output) in enumerate(zip(jobs, outputs)):
        assert job.returncode == 0 and f"rank {rank} of 2: the same weights" in output and "sent True" in output, "\n".join(outputs)
