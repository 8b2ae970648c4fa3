"""The process groups that a ScheduledOptimizer makes: of which backend they are, and that none is left."""

import gc
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta
from inspect import signature

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx import ProphetError
from prophet_mx.torch import ScheduledOptimizer
from prophet_mx.torch.strategies import backend_for
from support.rank import COLLECTIVE
from support.ranks import on_ranks
from support.training import backward, batches, same, step

WIDTH = 16


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))


def train_in(group):
    """Four iterations, with a plan from the second on, by an optimizer that is closed at the end."""
    model = net()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), process_group=group, warmup=1)
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.close()


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
    assert len(made) == 2, "the program's, and one for gradients; what travels beside them goes by gloo"
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.close()


@pytest.mark.parametrize("given", ["job", "group", "DDP model", "setting"])
@on_ranks(2)
def test_the_time_out_is_that_of_the_process_group(given):
    """Of the one of which ours have the ranks; unless the settings have another."""
    seconds = {"job": COLLECTIVE, "setting": 41}.get(given, 37)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=37)) if given in ("group", "DDP model") else None
    model = net()
    if given == "DDP model":
        model = DistributedDataParallel(model, process_group=group)
    options = {"group": {"process_group": group}, "setting": {"stall_abort": 41}}.get(given, {})
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    found = [each._get_backend(torch.device("cpu")) for each in optimizer._schedule.parts.groups]
    if hasattr(found[0], "options"):  # an older PyTorch does not tell the time-out
        assert [each.options._timeout for each in found] == [timedelta(seconds=seconds)] * 2
    optimizer.close()


@on_ranks(2)
def test_optimizers_one_after_the_other_in_one_process_group():
    """PyTorch would give the groups of the next the names of those that were destroyed, and the ranks would look for each other there."""
    group = dist.new_group([0, 1])
    for _ in range(3):
        train_in(group)


@on_ranks(3)
def test_a_rank_may_be_in_more_process_groups_than_another():
    """PyTorch would give groups of the pair another name on each of its ranks."""
    pair = dist.new_group([0, 1])
    dist.new_group([0, 2])
    dist.new_group([0])
    if dist.get_rank() < 2:
        train_in(pair)


@pytest.mark.parametrize("clips", [False, True])
@on_ranks(4, timeout=120)
def test_pairs_that_train_at_once(clips):
    """Each with its own batches; ranks 1 to 3 have another number in their pair than in the job. The pairs' models differ in size."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    mine = int(dist.get_rank() in (1, 2))

    def training(method):
        model = nn.Sequential(nn.Linear(WIDTH, 20 + 30 * mine), nn.Tanh(), nn.BatchNorm1d(20 + 30 * mine), nn.Linear(20 + 30 * mine, 2))
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        forward, optimizer = method.wrap(model, made, process_group=pairs[mine], find_unused_parameters=True)
        for batch in batches(16, 4, WIDTH):
            yield backward(forward, optimizer, batch)
            if clips:
                yield nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()

    same(training)


@pytest.mark.skipif("sort_ranks" not in signature(dist.new_group).parameters, reason="this PyTorch sorts the ranks of all groups")
@on_ranks(2)
def test_the_first_rank_of_a_group_is_that_of_the_program():
    """Its weights are the ones that all begin with; and a DDP of the same group that is put around the model later is taken."""
    group = dist.new_group([1, 0], sort_ranks=False)
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(dist.get_rank())
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.0), process_group=group)
    assert model.weight.item() == 1
    ddp = DistributedDataParallel(model, process_group=group)
    step(ddp, optimizer, torch.ones(1, 1))
    optimizer.close()


@on_ranks(3)
def test_a_rank_in_two_groups_that_train_in_turns():
    """DDP in each; the optimizers are closed, in another order each time, and made again."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2])]
    mine = [pair for pair in pairs if dist.get_rank(pair) >= 0]
    count = len(dist.distributed_c10d._world.pg_map)
    for turn in range(3):
        models = [DistributedDataParallel(net(), process_group=pair) for pair in mine]
        optimizers = [ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=1) for model in models]
        for batch in batches(5, 4, WIDTH):
            for model, optimizer in zip(models, optimizers):
                step(model, optimizer, batch)
        for optimizer in optimizers[:: -1 if turn % 2 else 1]:
            optimizer.close()
        assert len(dist.distributed_c10d._world.pg_map) == count


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, PyTorch chooses NCCL, which has nothing for processors")
def test_a_job_that_names_no_backend_is_one_of_gloo(tmp_path):
    dist.init_process_group(store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    try:
        assert backend_for(torch.device("cpu"), None) == backend_for(torch.device("cpu"), dist.group.WORLD) == "gloo"
        models = [net(), net()]
        optimizers = [ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
        for model, optimizer in zip(models, optimizers):
            step(model, optimizer, torch.ones(1, WIDTH))
            optimizer.close()
    finally:
        dist.destroy_process_group()


@on_ranks(2)
def test_no_process_group_is_left():
    """After close(), which may come after the program has destroyed all groups."""
    model, count = net(), len(dist.distributed_c10d._world.pg_map)
    for _ in range(3):
        optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=1)
        for batch in batches(4, 4, WIDTH):
            step(model, optimizer, batch)
        optimizer.close()
        assert len(dist.distributed_c10d._world.pg_map) == count
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step(model, optimizer, batch)
    optimizer.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    optimizer.close()
    store = dist.FileStore(tempfile.mkstemp()[1], 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # for the end of the test


@pytest.mark.parametrize("cycle", [False, True], ids=["at once", "in a cycle"])
@on_ranks(2)
def test_an_optimizer_that_nobody_has_any_more_is_closed(cycle):
    """With updates that nobody has waited for; so the model can have another one."""
    model, groups = net(), len(dist.distributed_c10d._world.pg_map)
    threads = threading.active_count()
    for _ in range(2):
        optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=1)
        optimizer.itself = optimizer if cycle else None
        for batch in batches(4, 4, WIDTH):
            step(model, optimizer, batch)
        del optimizer
        gc.collect()
        assert len(dist.distributed_c10d._world.pg_map) == groups
        assert threading.active_count() == threads
        assert all(type(each) is nn.Parameter for each in model.parameters())


@on_ranks(2)
def test_threads_end_at_once_after_a_collective_that_failed():
    """The thread that starts collectives waits for a place among those under way, or for a gradient: neither comes."""
    model = net()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=1, unit=64)
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.synchronize()
    dist.barrier()

    class Failing:
        def wait(self):
            raise RuntimeError("as planned")

    allreduce = dist.ProcessGroup.__dict__["allreduce"]
    dist.ProcessGroup.allreduce = lambda *arguments: Failing()
    try:
        with pytest.raises(ProphetError, match="as planned"):
            step(model, optimizer, batch)
            optimizer.synchronize()
    finally:
        dist.ProcessGroup.allreduce = allreduce
    began = time.monotonic()
    with suppress(ProphetError):  # if updates were under way
        optimizer.close()
    assert time.monotonic() - began < 5
