"""The process groups that a ScheduledOptimizer makes: of which backend they are, and that none is left."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.torch import ScheduledOptimizer
from support.ranks import on_ranks
from support.training import batches, step

WIDTH = 16


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))


made = []  # ranks in groups of the other backend


def other(store, rank, size, timeout):
    made.append(rank)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


@pytest.mark.parametrize("around", ["plain module", "DDP model"])
@on_ranks(2)
def test_gradients_travel_by_the_backend_of_the_process_group(around):
    """Its name is another than that of the default group, as NCCL's is under a default of gloo."""
    if not hasattr(dist.Backend, "OTHER"):
        dist.Backend.register_backend("other", other, devices=["cpu"])
    made.clear()
    group = dist.new_group([0, 1], backend="other")
    model = net()
    if around == "DDP model":
        model = DistributedDataParallel(model, process_group=group)
    given = {} if around == "DDP model" else {"process_group": group}
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), **given)
    assert len(made) == 3, "the program's, and two for gradients and buffers"
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.close()
