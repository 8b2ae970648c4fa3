"""Scripts for Horovod, and for ByteScheduler on it, with another import: the weights of DistributedDataParallel, bit for bit."""

import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import prophet_mx.horovod as hvd
from prophet_mx import ConfigError
from support.ranks import on_ranks, run_script
from support.training import Hooked, Method, Scheduled, assert_equal, assert_same_on_all_ranks, batches, differences, run, same, step

SCRIPT = """
import sys
import torch
import prophet_mx.horovod as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(24, 24), torch.nn.ReLU())], torch.nn.Linear(24, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average)
if sys.argv[1] == "scheduled":
    import prophet_mx.horovod as bsc
    optimizer = bsc.ScheduledOptimizer(model, optimizer, num_steps=20)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8)
random = torch.Generator().manual_seed(100 + hvd.rank())
for _ in range(20):
    batch, labels = torch.randn(8, 24, generator=random), torch.randint(0, 5, (8,), generator=random)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
print("loss", hvd.allreduce(loss.detach(), name="loss").item(), "of", hvd.rank(), hvd.size(), hvd.local_rank())
print("weights", sum(param.double().sum().item() for param in model.parameters()))
print("average", [param.detach().numpy().tobytes().hex() for param in model.parameters()][-1])
hvd.shutdown()
"""
DDP = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(24, 24), torch.nn.ReLU())], torch.nn.Linear(24, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * dist.get_world_size(), momentum=0.9)
ddp = torch.nn.parallel.DistributedDataParallel(model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8)
random = torch.Generator().manual_seed(100 + dist.get_rank())
for _ in range(20):
    batch, labels = torch.randn(8, 24, generator=random), torch.randint(0, 5, (8,), generator=random)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(ddp(batch), labels).backward()
    optimizer.step()
    scheduler.step()
print("weights", sum(param.double().sum().item() for param in model.parameters()))
print("average", [param.detach().numpy().tobytes().hex() for param in model.parameters()][-1])
"""


def told(text, *arguments, size=2, env=None):
    """The lines that each rank of a script has written."""
    found = run_script(text, size, arguments=arguments, env=env)
    assert [code for code, _ in found] == [0] * size, found
    return [dict(line.split(" ", 1) for line in output.splitlines() if re.match("loss|weights|average", line)) for _, output in found]


@pytest.mark.parametrize("how", ["alone", "scheduled"])
def test_a_script_trains_to_the_weights_of_ddp(how):
    expected, found = told(DDP), told(SCRIPT, how, env={"LOCAL_RANK": "0"})
    for rank in range(2):
        assert (found[rank]["weights"], found[rank]["average"]) == (expected[rank]["weights"], expected[rank]["average"])
        assert found[rank]["loss"].endswith(f"of {rank} 2 0")
    assert found[0]["loss"].split()[0] == found[1]["loss"].split()[0]


class Horovod(Scheduled):
    """hvd.DistributedOptimizer, which adds up by itself what ``backward_passes_per_step`` says."""

    def wrap(self, model, optimizer, **ddp):
        self.raw, self.model = model, model
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **self.options)
        return self.model, self.optimizer

    def no_sync(self):
        return nullcontext()


def net():
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3))


def training(method, passes=1, clips=False):
    """With so many backward passes per step."""
    model = net()
    forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for batch in batches(6, 6, 12):
        optimizer.zero_grad()
        *first, last = batch.chunk(passes)
        for part in first:
            with method.no_sync():
                forward(part).square().mean().backward()
        loss = forward(last).square().mean()
        loss.backward()
        if clips:
            getattr(optimizer, "synchronize", int)()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with getattr(optimizer, "skip_synchronize", nullcontext)() if clips else nullcontext():
            optimizer.step()
        yield loss


@pytest.mark.parametrize("passes", [1, 2, 3])
@on_ranks(2)
def test_several_backward_passes_per_step(passes):
    same(partial(training, passes=passes), Horovod(backward_passes_per_step=passes))


@on_ranks(2)
def test_gradients_are_clipped_between_synchronize_and_step():
    clipped = partial(training, clips=True)
    same(clipped, Horovod())
    assert list(differences(run(training, Method()), run(clipped, Method())))


@on_ranks(2)
def test_a_layer_that_one_rank_alone_uses_is_updated_by_both():
    """Horovod sends zeros for it, as DistributedDataParallel does with find_unused_parameters."""
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in batches(4, 6, 12):
        step(model if dist.get_rank() == 0 else model[:3], optimizer, batch)
    assert_same_on_all_ranks(model.parameters())
    optimizer.close()


@on_ranks(2)
def test_gradients_as_16_bits_are_those_of_the_hook():
    assert_equal(run(training, Hooked(fp16_compress_hook)), run(training, Horovod(compression=hvd.Compression.fp16)), "fp16")


@on_ranks(2)
def test_what_the_functions_return():
    rank = hvd.rank()
    ones = torch.full((3,), 1.0 + rank)
    assert (hvd.size(), hvd.allreduce(ones).tolist(), ones.tolist()) == (2, [1.5] * 3, [1.0 + rank] * 3)
    assert hvd.allreduce(ones, average=False).tolist() == hvd.allreduce(ones, op=hvd.Sum).tolist() == [3.0] * 3
    assert hvd.allreduce(torch.tensor([3 + rank])).tolist() == [3] and hvd.allreduce(ones, op=hvd.Max).tolist() == [2.0] * 3
    assert hvd.allreduce(ones, compression=hvd.Compression.fp16).dtype == torch.float32
    handle = hvd.allreduce_async(ones, op=hvd.Product)
    assert hvd.synchronize(handle).tolist() == [2.0] * 3 and hvd.poll(handle)
    assert [found.tolist() for found in hvd.grouped_allreduce([ones, ones[:1]], op=hvd.Min)] == [[1.0] * 3, [1.0]]
    assert hvd.allreduce_(ones.clone()).tolist() == [1.5] * 3
    assert hvd.allgather(torch.arange(4).reshape(2, 2)[: rank + 1]).tolist() == [[0, 1], [0, 1], [2, 3]]
    assert hvd.allgather(torch.tensor(rank)).tolist() == [0, 1]
    assert hvd.broadcast(ones, 1).tolist() == [2.0] * 3 and ones.tolist() == [1.0 + rank] * 3
    assert hvd.broadcast_object({"epoch": rank}, root_rank=1) == {"epoch": 1}
    assert hvd.allgather_object(str(rank)) == ["0", "1"]
    assert (hvd.gloo_built(), hvd.mpi_built(), hvd.nccl_built()) == (True, False, dist.is_nccl_available())
    hvd.barrier()
    assert hvd.broadcast_(ones, 0).tolist() == [1.0] * 3


@on_ranks(2)
def test_states_become_those_of_the_root():
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + dist.get_rank()))
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    for state in (model.state_dict(), dict(enumerate(one["exp_avg"] for one in optimizer.state.values()))):
        found = hvd.allgather_object([value.tolist() for value in state.values()])
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"op": hvd.Adasum}, "op=Adasum is not allowed; allowed: Average"),
        ({"op": hvd.Sum}, "op=Sum is not allowed"),
        ({"process_set": 1}, "process_set=1 is not allowed"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor=2.0 is not allowed"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0 is not allowed"),
        ({"compression": "8bit"}, "compression='8bit' is not allowed"),
    ],
)
def test_what_would_give_another_result_is_refused(arguments, said):
    model = net()
    with pytest.raises(ConfigError, match=re.escape(said)):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **arguments)


def test_what_there_is_not_says_what_to_use():
    for name, word in (("join", "batches"), ("elastic", "torchrun"), ("add_process_set", "new_group")):
        with pytest.raises(AttributeError, match=word):
            getattr(hvd, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        hvd.nonsense  # noqa: B018


def test_a_single_process_needs_no_launcher():
    code, output = run_script(
        """
        import os
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        import torch, prophet_mx.horovod as hvd
        hvd.init()
        model = torch.nn.Linear(3, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        before = model.weight.detach().clone()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        print("moved", (before - model.weight.detach()).tolist(), hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        """,
        1,
    )[0]
    assert code == 0 and re.search(r"moved \[\[(0\.9|1\.)\d*.*\]\] 0 1 0 1", output), output


def test_a_launcher_that_does_not_say_where_rank_0_is():
    code, output = run_script(
        """
        import os
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ.update(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
        import prophet_mx.horovod as hvd
        hvd.init()
        """,
        1,
    )[0]
    assert code != 0 and "ConfigError: MASTER_ADDR and MASTER_PORT must say where rank 0 is" in output, output
