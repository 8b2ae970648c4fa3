"""What cannot be scheduled with the result of DistributedDataParallel is refused with words, or run as a whole; and settings."""

import copy
import os
import pickle
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

from prophet_mx import ProphetError
from prophet_mx.errors import ConfigError
from prophet_mx.torch import ScheduledOptimizer
from support.ranks import on_ranks
from support.training import METHODS, Scheduled, ScheduledDDP, batches, run, same, step

WIDTH = 24
ITERATIONS = 6


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def trained(make_optimizer, make_model=net):
    def training(method):
        model = make_model()
        forward, optimizer = method.wrap(model, make_optimizer(model.parameters()))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)

    return training


# --- optimizers that need more than one parameter at a time, or that are not known ---


class Own(torch.optim.Optimizer):
    """Steps along all gradients, divided by the norm of all of them together."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        params = [param for group in self.param_groups for param in group["params"]]
        norm = torch.stack([param.grad.norm() for param in params]).norm()
        for param in params:
            param.sub_(param.grad / norm, alpha=self.param_groups[0]["lr"])


class Derived(torch.optim.SGD):
    """An SGD that does something about all parameters after its step."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            params = [param for group in self.param_groups for param in group["params"]]
            norm = torch.stack([param.norm() for param in params]).norm()
            for param in params:
                param.div_(norm)


class Around(torch.optim.Optimizer):
    """Has an optimizer within, and only as much of the base class as ``step()`` needs: as Lookahead, it does not call its ``__init__``."""

    def __init__(self, inner, of_step=True):
        self.inner, self.state = inner, {}
        self.param_groups, self.defaults = inner.param_groups, inner.defaults
        if of_step:
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()

    def step(self, closure=None):
        self.inner.step(closure)
        with torch.no_grad():
            for param in self.param_groups[0]["params"]:
                param.mul_(0.9)

    def state_dict(self):
        return self.inner.state_dict()


WHOLE = {"own": Own, "derived": lambda params: Derived(params, lr=0.1), "around another": lambda params: Around(torch.optim.Adam(params))}


@pytest.mark.parametrize("name", WHOLE)
@on_ranks(2)
def test_an_optimizer_that_is_not_known_is_run_as_a_whole(name):
    same(trained(WHOLE[name]))


OPTIMIZERS = {"LBFGS": torch.optim.LBFGS, "SparseAdam": torch.optim.SparseAdam}


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2)
def test_an_optimizer_that_cannot_be_scheduled_is_refused(name):
    for make in METHODS.values():
        with pytest.raises(ConfigError, match=f"optimizer is {name}"):
            run(trained(OPTIMIZERS[name]), make())


@on_ranks(2)
def test_a_sparse_gradient_is_refused():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, WIDTH, sparse=True)

        def forward(self, batch):
            return self.embedding(batch.abs().long() % 10)

    with pytest.raises(ProphetError, match="'embedding.weight' has a sparse gradient"):
        run(trained(lambda params: torch.optim.SGD(params, lr=0.1), Sparse), Scheduled())


@pytest.mark.parametrize(
    "name, right", [("AcceleratedOptimizer", r"schedule\(model, optimizer\)"), ("LightningOptimizer", "configure_optimizers")]
)
def test_an_optimizer_in_which_a_framework_has_put_another_is_refused_by_name(name, right):
    framework = type("Derived", (type(name, (torch.optim.SGD,), {}),), {})
    model = net()
    with pytest.raises(ConfigError, match=f"{name}; allowed: .*{right}"):
        ScheduledOptimizer(model, framework(model.parameters(), lr=0.1))


# --- what the model and the script may not do ---


@pytest.mark.parametrize(
    "make, part",
    [
        (lambda model: ScheduledOptimizer(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1)), "allowed: a torch.nn.Module"),
        (lambda model: ScheduledOptimizer(model, "SGD"), "allowed: a torch.optim.Optimizer"),
        (lambda model: ScheduledOptimizer(model, torch.optim.SGD(net().parameters(), lr=0.1)), "not one of the model's"),
        (lambda model: ScheduledOptimizer(model.requires_grad_(False), torch.optim.SGD(model.parameters(), lr=0.1)), "no parameter"),
        (lambda model: ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), unit=1), "unit"),
        (lambda model: ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="fifo"), "policy='fifo'"),
        (lambda model: ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), units=1), "units"),
        (lambda model: ScheduledOptimizer(torch.jit.script(model), torch.optim.SGD(model.parameters(), lr=0.1)), "ScriptModule"),
        (lambda model: ScheduledOptimizer(model, Around(torch.optim.SGD(model.parameters()), False)), r"Optimizer.__init__\(\)"),
    ],
    ids=["no model", "no optimizer", "another's parameters", "nothing to train", "unit", "policy", "unknown setting", "script"]
    + ["no __init__"],
)
def test_a_wrong_argument_is_named(make, part):
    """Before anything is sent: there is no process group."""
    with pytest.raises((ProphetError, TypeError), match=part):
        make(net())


SHARDED = r"allowed: a model that each rank has as a whole.*with the model's own optimizer, without ScheduledOptimizer"


@pytest.mark.skipif(torch.__version__ < "2.6", reason="this PyTorch has it elsewhere")
@on_ranks(2)
def test_a_sharded_model_is_refused_with_what_to_use():
    """By FSDP2, on two dimensions, in a part, and by tensor parallelism; also afterwards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    hybrid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicated", "sharded"))
    for shard in (
        lambda model: fully_shard(model, mesh=mesh),
        lambda model: fully_shard(model, mesh=hybrid),
        lambda model: fully_shard(model[0], mesh=mesh),
        lambda model: parallelize_module(model[0], mesh, ColwiseParallel()),
    ):
        model = net()
        shard(model)
        with pytest.raises(ConfigError, match=f"'0.weight' is a DTensor, as of fully_shard.*{SHARDED}"):
            ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model = net()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fully_shard(model, mesh=mesh)
    with pytest.raises(ProphetError, match=r"'0.weight' is another one.*or fully_shard\(\)"):
        step(model, optimizer, torch.ones(4, WIDTH))
    optimizer.close()


def test_the_older_fsdp_is_refused_by_name():
    """It keeps plain parameters with use_orig_params; it needs an accelerator."""
    model = nn.Sequential(type("FullyShardedDataParallel", (nn.Linear,), {})(WIDTH, WIDTH))
    with pytest.raises(ConfigError, match=f"module '0' is a FullyShardedDataParallel.*{SHARDED}"):
        ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Tied(nn.Module):
    """Two parameters or buffers with one memory, by ``data``."""

    def __init__(self, other):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        other(self)


def ties_the_data(model):
    model.second.weight.data = model.first.weight.data


def ties_a_part(model):
    model.second.bias.data = model.first.weight.data[3]


def freezes_a_copy(model):
    ties_the_data(model)
    model.first.weight.requires_grad_(False)


def has_a_buffer(model):
    model.register_buffer("weight", model.second.weight.data)


@pytest.mark.parametrize("other", [ties_the_data, ties_a_part, freezes_a_copy, has_a_buffer], ids=lambda other: other.__name__)
def test_parameters_that_share_memory_are_refused(other):
    """Each use waits for the update of the tensor that is used, and the other's update would come later."""
    model = Tied(other)
    with pytest.raises(ConfigError, match="share memory"):
        ScheduledOptimizer(model, torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1))


def test_parameters_that_lie_side_by_side_in_one_memory_do_not_share_it():
    flat = torch.zeros(2, WIDTH, 2 * WIDTH)
    model = Tied(lambda model: None)
    model.first.weight.data, model.second.weight.data = flat[0, :, :WIDTH], flat[0, :, WIDTH:]
    model.first.bias.data, model.second.bias.data = flat[1, 0, :WIDTH], flat[1, 0, WIDTH:]
    with pytest.raises(ConfigError, match="init_process_group"):  # it has come so far
        ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_without_a_process_group_it_says_what_to_call():
    model = net()
    with pytest.raises(ConfigError, match="init_process_group"):
        ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


@on_ranks(2)
def test_ranks_with_different_settings_are_refused_on_all():
    model = net()
    with pytest.raises(ConfigError, match="ranks 0 and 1 have different settings"):
        ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), unit=1000 * (1 + dist.get_rank()))


@on_ranks(2)
def test_a_model_that_is_scheduled_already_is_refused_until_that_ends():
    model = net()
    first = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="already scheduled"):
        ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first.close()
    ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1)).close()


@on_ranks(2)
def test_a_gradient_of_a_gradient():
    """Through torch.autograd.grad, as for a penalty, it is right; of parameters themselves it is refused."""

    def training(method):
        model = net()
        _, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, WIDTH):
            optimizer.zero_grad()
            batch.requires_grad_()
            loss = model(batch).square().mean()
            [slope] = torch.autograd.grad(loss, batch, create_graph=True)
            if isinstance(method, Scheduled):
                (loss + slope.square().sum()).backward()
            else:  # DDP does not allow it: the same by hand
                (loss + slope.square().sum()).backward()
                for param in model.parameters():
                    dist.all_reduce(param.grad.div_(2))
            optimizer.step()
            yield loss

    same(training, Scheduled())

    model = net()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ProphetError, match="create_graph"):
        model(torch.ones(1, WIDTH)).square().mean().backward(create_graph=True)
    optimizer.close()


@on_ranks(2)
def test_the_optimizer_itself_is_not_copied():
    model = net()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ProphetError, match="state_dict"):
            copying(optimizer)
    optimizer.close()


@pytest.mark.parametrize("name", ["groups", "drain", "bandwidth", "message_cost", "window", "lead"])
@on_ranks(1)
def test_a_setting_without_an_effect_is_an_error(name):
    value = {"groups": "off", "drain": "tcp", "bandwidth": "1Gbit", "message_cost": "200us"}.get(name, "1MB")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    variable = f"PROPHET_{name.upper()}"
    allowed = "is not allowed for PyTorch, where it has no effect; the settings there are policy, unit, profile, .*stall_abort$"
    with pytest.raises(ConfigError, match=f"^{name}='{value}' {allowed}"):
        ScheduledOptimizer(model, optimizer, **{name: value})
    os.environ[variable] = value
    try:
        with pytest.raises(ConfigError, match=f"^{variable}='{value}' {allowed}"):
            ScheduledOptimizer(model, optimizer, policy="off")
    finally:
        del os.environ[variable]


# --- what it is ---


@on_ranks(2)
def test_it_is_an_optimizer_that_shares_groups_and_state():
    model = net()
    inner = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}])
    optimizer = ScheduledOptimizer(model, inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state and optimizer.defaults is inner.defaults
    lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)
    assert [group["lr"] for group in inner.param_groups] == [0.0005, 0.05]
    step(model, optimizer, torch.ones(1, WIDTH))
    assert optimizer.state_dict()["state"].keys() == inner.state_dict()["state"].keys() == {0, 1, 2, 3}
    optimizer.close()


@pytest.mark.parametrize("attribute", ["mixed_precision", "_use_python_reducer"])
@on_ranks(2)
def test_a_ddp_that_treats_gradients_in_a_way_of_its_own_is_refused(attribute):
    ddp = DistributedDataParallel(net())
    setattr(ddp, attribute, True)  # mixed precision needs a GPU
    with pytest.raises(ConfigError, match=attribute.replace("_use_", "")):
        ScheduledOptimizer(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))


@on_ranks(2)
def test_a_parameter_that_the_ddp_is_told_to_ignore_has_an_optimizer_of_its_own():
    """It is each rank's own. In the optimizer that is scheduled it is an error."""

    def training(method):
        model = net()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.weight"])
        ignored, *others = model.parameters()
        if isinstance(method, Scheduled):
            with pytest.raises(ConfigError, match="'0.weight', which the DistributedDataParallel was told to ignore.*optimizer of its own"):
                method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        forward, optimizer = method.wrap(model, torch.optim.SGD(others, lr=0.1, momentum=0.9))
        own = torch.optim.SGD([ignored], lr=0.1)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            own.step()
            own.zero_grad()

    same(training, ScheduledDDP())


@pytest.mark.parametrize("method", METHODS)
@on_ranks(2)
def test_the_policy_off_is_plain_ddp(method):
    class Off(METHODS[method]):
        def check(self):
            self.planned = True  # there is none, and none is wanted

    training = trained(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    same(training, Off(policy="off"))


@on_ranks(1)
def test_one_rank_alone():
    same(trained(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)))


@on_ranks(2)
def test_rank_0_alone_evaluates_the_plain_module_in_between():
    """No rank waits for another in an evaluation."""

    def training(method):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            if dist.get_rank() == 0:
                model.eval()
                with torch.no_grad():
                    yield model(torch.ones(3, WIDTH))
                model.train()

    same(training)


@on_ranks(2)
def test_no_sync_of_one_that_is_closed():
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = ScheduledOptimizer(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    optimizer.close()
    with pytest.raises(ConfigError, match="is closed; allowed: the DistributedDataParallel's own"):
        optimizer.no_sync()
    optimizer = ScheduledOptimizer(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), policy="off")
    with pytest.raises(ConfigError, match="with policy='off'"):
        optimizer.no_sync()
