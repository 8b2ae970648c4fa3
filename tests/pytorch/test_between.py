"""Whatever a script does between two iterations, or between backward and step, it sees what it would see with DistributedDataParallel."""

import copy
import functools
import io
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from prophet_mx import ProphetError
from prophet_mx.torch import agreement
from support.ranks import on_ranks
from support.training import METHODS, WARMUP, Method, assert_equal, backward, batches, run, same, step

ITERATIONS = 7
WIDTH = 24


def net():
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, WIDTH), nn.Linear(WIDTH, 2))


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(model):
    return torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.02}, {"params": model[1:].parameters()}], lr=0.01)


def doing(what, make=momentum):
    """A training with ``what(model, optimizer, batch)`` after each iteration; what that yields is compared."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, make(model))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            yield from what(model, optimizer, batch)

    return training


# --- step ---


@pytest.mark.parametrize("clips", [False, True])
@on_ranks(2, timeout=120)
def test_a_rank_that_alone_leaves_out_a_step_holds_nobody_up(clips):
    """Its weights are others from then on, as with DistributedDataParallel. Ranks agree on plans in the third round and in the eleventh."""
    rounds = WARMUP + 1 + agreement.FIRST_LOOK

    def training(method, left_out):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for number, batch in enumerate(batches(rounds + 2, 4, WIDTH)):
            backward(forward, optimizer, batch)
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            if dist.get_rank() == 0 or number != left_out:
                optimizer.step()
        yield "ended"

    for number in range(rounds + 1):
        same(functools.partial(training, left_out=number))


# --- weights ---


def evaluates(model, optimizer, batch):
    model.eval()
    with torch.no_grad():
        yield model(batch)
    model.train()


def evaluates_a_part(model, optimizer, batch):
    with torch.inference_mode():
        yield model[3:](torch.ones(1, 40)).clone()


def reads_values(model, optimizer, batch):
    last = model[4]
    yield last.weight.detach().clone()
    yield model[3].weight.data.clone()
    yield [last.weight[0, 0].item(), last.weight.tolist(), float(last.bias.norm()), last.weight.detach().numpy().tolist()]
    yield nn.utils.parameters_to_vector(model.parameters())
    yield torch.stack([each.norm() for each in model.parameters()])
    yield torch._foreach_norm(list(model.parameters()))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Some(list):
    """A list of a class of its own."""


def reads_sequences(model, optimizer, batch):
    yield torch.cat(Pair(model[0].bias, model[4].bias))
    yield torch.stack(Some([model[0].bias, model[1].bias]))
    yield torch.cat(Pair(model[0].bias.grad, model[3].bias.grad))


def maps_over_rows(model, optimizer, batch):
    yield torch.vmap(lambda row: row.square().sum())(model[3].weight)


def reads_one_late_weight(model, optimizer, batch):
    yield model[0].weight.sum()


def reads_held_references(model, optimizer, batch):
    """References from before the first iteration: they are the parameters themselves."""
    yield [each.sum() for group in optimizer.param_groups for each in group["params"]]


def reads_its_memory(model, optimizer, batch):
    yield torch.from_numpy(model[0].bias.detach().numpy().copy())


def changes_weights(model, optimizer, batch):
    with torch.no_grad():
        model[4].weight.clamp_(-0.05, 0.05)
        model[3].weight.mul_(0.99)
        torch._foreach_add_(list(model[0].parameters()), 0.001)
    model[1].weight.data.add_(0.01)
    model[3].bias.data = model[3].bias.data * 0.5
    yield model[4].weight.detach()


def initialises_again(model, optimizer, batch):
    nn.init.constant_(model[4].bias, 0.25)
    nn.init.orthogonal_(model[3].weight)
    yield "done"


def keeps_an_average(model, optimizer, batch):
    """Exponential moving average by hand, of parameters and buffers."""
    if not hasattr(model, "average"):
        model.average = copy.deepcopy(model.state_dict())
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            model.average[name].lerp_(value, 0.25)
    yield dict(model.average)


def saves(model, optimizer, batch):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    yield torch.load(file)


@pytest.mark.parametrize(
    "what",
    [
        evaluates,
        evaluates_a_part,
        reads_values,
        reads_sequences,
        maps_over_rows,
        reads_one_late_weight,
        reads_held_references,
        reads_its_memory,
        changes_weights,
        initialises_again,
        keeps_an_average,
        saves,
    ],
    ids=lambda what: what.__name__,
)
@on_ranks(2)
def test_weights(what):
    same(doing(what))


@on_ranks(2)
def test_averaged_model_of_torch():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            average.update_parameters(model)
            yield average(torch.ones(2, WIDTH))
        yield dict(average.module.named_parameters())

    same(training)


@on_ranks(2)
def test_a_job_that_goes_on_from_saved_states():
    """With a model and an optimizer of its own, and in place."""

    def training(method):
        first = net()
        forward, optimizer = method.wrap(first, adam(first))
        data = list(batches(2 * ITERATIONS, 4, WIDTH))
        for batch in data[:ITERATIONS]:
            yield step(forward, optimizer, batch)
        saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
        yield step(forward, optimizer, data[ITERATIONS])
        first.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        for batch in data[ITERATIONS:]:
            yield step(forward, optimizer, batch)
        method.close()
        second = net()
        second.load_state_dict(saved[0])
        forward, optimizer = method.wrap(second, adam(second))
        optimizer.load_state_dict(saved[1])
        for batch in data[ITERATIONS:]:
            yield step(forward, optimizer, batch)

    same(training)


# --- hyperparameters ---


def halves_rates(model, optimizer, batch):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
        group["weight_decay"] += 0.001
    yield [group["lr"] for group in optimizer.param_groups]


def changes_betas(model, optimizer, batch):
    optimizer.param_groups[0]["betas"] = (0.8, 0.9)
    optimizer.param_groups[1]["lr"] = 0.03
    yield "done"


@pytest.mark.parametrize("make, what", [(momentum, halves_rates), (adam, halves_rates), (adam, changes_betas)])
@on_ranks(2)
def test_what_is_changed_after_step_does_not_reach_that_step(make, what):
    same(doing(what, make))


@pytest.mark.parametrize("whose", ["ours", "the user's own"])
@on_ranks(2)
def test_schedulers_of_either_optimizer(whose):
    """OneCycleLR changes rate and momentum after each step."""

    def training(method):
        model = net()
        inner = momentum(model)
        forward, optimizer = method.wrap(model, inner)
        scheduler = lr_scheduler.OneCycleLR(optimizer if whose == "ours" else inner, 0.2, total_steps=20)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer if whose == "ours" else inner, patience=0)
        for batch in batches(ITERATIONS, 4, WIDTH):
            loss = step(forward, optimizer, batch)
            scheduler.step()
            dist.all_reduce(mean := loss.detach().clone())
            plateau.step(mean)
            yield [loss, [group["lr"] for group in inner.param_groups]]

    same(training)


@on_ranks(2)
def test_a_rate_that_is_a_tensor():
    """Such a rate is changed in place."""

    def training(method):
        model = net()
        rate = torch.tensor(0.01)
        forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=rate))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            rate.mul_(0.5)

    same(training)


@on_ranks(2)
def test_a_group_that_is_added_later():
    """As when a pretrained part is thawed."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model[3:].parameters(), lr=0.1, momentum=0.9))
        for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            if place == ITERATIONS:
                optimizer.add_param_group({"params": list(model[:3].parameters()), "lr": 0.01})
            yield step(forward, optimizer, batch)

    same(training)


# --- gradients ---


def gradients_of(model):
    return [each.grad for each in model.parameters()]


@pytest.mark.parametrize("when", ["before backward", "after the step", "set to zero before", "set to zero after", "of the model", "never"])
@on_ranks(2)
def test_gradients_are_cleared(when):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for batch in batches(ITERATIONS, 4, WIDTH):
            if when in ("before backward", "set to zero before"):
                optimizer.zero_grad(set_to_none=when == "before backward")
            if when == "of the model":
                model.zero_grad()
            loss = forward(batch).square().mean()
            loss.backward()
            optimizer.step()
            yield loss
            if when in ("after the step", "set to zero after"):
                yield gradients_of(model)
                optimizer.zero_grad(set_to_none=when == "after the step")
                yield gradients_of(model)

    same(training)


def reads(model):
    yield gradients_of(model)


def scales(model):
    for each in model.parameters():
        each.grad.mul_(0.5)
    yield "done"


def replaces(model):
    for each in model.parameters():
        each.grad = each.grad.sign() * 0.01
    yield "done"


def drops_one(model):
    model[4].bias.grad = None
    yield "done"


def clips_the_norm(model):
    yield nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def clips_the_norm_of_a_list(model):
    yield nn.utils.clip_grad_norm_(list(model.parameters())[:3], 0.1, foreach=True)


def clips_values(model):
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    yield gradients_of(model)


@pytest.mark.parametrize(
    "what", [reads, scales, replaces, drops_one, clips_the_norm, clips_the_norm_of_a_list, clips_values], ids=lambda what: what.__name__
)
@on_ranks(2)
def test_gradients_between_backward_and_step(what):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for batch in batches(ITERATIONS, 4, WIDTH):
            loss = backward(forward, optimizer, batch)
            yield from what(model)
            optimizer.step()
            yield loss

    same(training)


@on_ranks(2)
def test_gradients_are_clipped_in_some_iterations():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            loss = backward(forward, optimizer, batch)
            if place % 3 == 0:
                yield nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            yield loss

    same(training)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clipped", [False, True])
@on_ranks(2)
def test_grad_scaler(clipped, fused):
    """With a step that is skipped on all ranks, as one of them has an infinite gradient. A fused optimizer can unscale by itself."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01, fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            loss = forward(batch).square().mean()
            if place == 4 and dist.get_rank() == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if clipped:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            yield [loss if place != 4 else "infinite", scaler.get_scale()]

    same(training)


@on_ranks(2)
def test_a_step_that_is_left_out():
    """Backward, and then no step: gradients of that iteration are thrown away."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            loss = backward(forward, optimizer, batch)
            if place % 4 != 3:
                optimizer.step()
            yield loss

    same(training)


@on_ranks(2)
def test_two_backwards_for_a_step():
    """Each is reduced by itself; their sum is stepped."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        data = batches(2 * ITERATIONS, 4, WIDTH)
        for batch in data:
            optimizer.zero_grad()
            losses = []
            for part in (batch, next(data)):
                losses.append(forward(part).square().mean())
                losses[-1].backward()
            optimizer.step()
            yield losses

    same(training)


@on_ranks(2)
def test_two_forwards_and_then_a_backward_of_each():
    """As a discriminator's losses of real and of made images. Both are reduced; DDP leaves the second one as it is on each rank."""

    def training(method):
        model = nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, 2))
        forward, optimizer = method.wrap(model, momentum(model))
        by_hand = type(method) is Method
        data = batches(2 * ITERATIONS, 4, WIDTH)
        for batch in data:
            optimizer.zero_grad()
            losses = [(model if by_hand else forward)(part).square().mean() for part in (batch, next(data))]
            for loss in losses:
                loss.backward()
                for param in model.parameters() if by_hand else ():
                    dist.all_reduce(param.grad.div_(2))
            optimizer.step()
            yield losses

    same(training)


@on_ranks(2)
def test_a_closure():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for batch in batches(ITERATIONS, 4, WIDTH):

            def closure():
                return backward(forward, optimizer, batch)

            yield optimizer.step(closure)

    same(training)


@on_ranks(2)
def test_step_hooks_run_once_per_step():
    def training(method):
        model = net()
        inner = momentum(model)
        forward, optimizer = method.wrap(model, inner)
        calls = []
        for name, target in (("ours", optimizer), ("inner", inner)):
            target.register_step_pre_hook(lambda *arguments, name=name: calls.append("before " + name))
            target.register_step_post_hook(lambda *arguments, name=name: calls.append("after " + name))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            yield sorted(calls)
            calls.clear()

    same(training)


# --- collectives of the script's own, and exceptions ---


@on_ranks(2)
def test_collectives_of_the_script_between_iterations():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            handle = dist.all_reduce(early := torch.full((1000,), float(place)), async_op=True)
            loss = step(forward, optimizer, batch)
            handle.wait()
            dist.all_reduce(mean := loss.detach().clone())
            dist.barrier()
            objects = [None, None]
            dist.all_gather_object(objects, place)
            yield [loss, early, mean, objects]

    same(training)


class Fault(torch.autograd.Function):
    """Raises in backward."""

    class PlannedError(Exception):
        pass

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Fault.PlannedError


def training_with_a_fault(fault):
    """One in which, if ``fault``, one iteration is tried twice, as backward raises in its middle at first."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            if fault and place == 4:
                hook = model[2].register_forward_hook(lambda module, inputs, output: Fault.apply(output))
                with pytest.raises(Fault.PlannedError):
                    forward(batch).square().mean().backward()
                hook.remove()
            yield step(forward, optimizer, batch)

    return training


@pytest.mark.parametrize("method", METHODS)
@on_ranks(2)
def test_an_exception_in_backward_reaches_the_script(method):
    """What follows is right, or refused by an error of ours, or by the one with which DDP refuses to go on."""
    expected = run(training_with_a_fault(False), Method())
    try:
        got = run(training_with_a_fault(True), METHODS[method]())
    except (ProphetError, RuntimeError) as refused:
        assert isinstance(refused, ProphetError) or "Expected to have finished reduction" in str(refused), refused
    else:
        assert_equal(expected[-1]["parameters"], got[-1]["parameters"], method)


# --- groups of the optimizer ---


def swaps(first, second, place):
    first[-1], second[-1] = second[-1], first[-1]


def moves(first, second, place):
    """One at a time, and back when there are no more."""
    source, target = (first, second) if place < 3 else (second, first)
    target.append(source.pop())


def takes_out_and_back(first, second, place):
    """What is in no group keeps its value, and its gradients add up."""
    if place == 1:
        first.taken = second.pop()
    if place == 4:
        first.append(first.taken)


@pytest.mark.parametrize("change", [swaps, moves, takes_out_and_back], ids=lambda change: change.__name__)
@on_ranks(2)
def test_parameters_that_change_their_group(change):
    """Each update has the hyperparameters of the group that the parameter is in at step(), also while the update before is under way."""

    class Parameters(list):
        taken = None

    def training(method):
        model = net()
        groups = [{"params": model[:3].parameters(), "lr": 0.1}, {"params": model[3:].parameters(), "lr": 0.01, "weight_decay": 0.1}]
        made = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        first, second = (Parameters(group["params"]) for group in made.param_groups)
        made.param_groups[0]["params"], made.param_groups[1]["params"] = first, second
        forward, optimizer = method.wrap(model, made)
        for place, batch in enumerate(batches(ITERATIONS + 2, 4, WIDTH)):
            optimizer.zero_grad()
            forward(batch).square().mean().backward()
            if place % 3 == 1:
                change(first, second, place)
            optimizer.step()
            if place % 3 == 2:
                change(first, second, place)
        yield "done"

    same(training)


@on_ranks(2)
def test_a_parameter_that_comes_into_a_second_group_is_an_error():
    for make in METHODS.values():
        method = make()
        model = net()
        made = torch.optim.SGD([{"params": model[:3].parameters()}, {"params": model[3:].parameters()}], lr=0.1)
        forward, optimizer = method.wrap(model, made)
        step(forward, optimizer, next(batches(1, 4, WIDTH)))
        made.param_groups[1]["params"].append(made.param_groups[0]["params"][0])
        with pytest.raises(ProphetError, match=r"group 1 of the optimizer has a parameter of shape \(40, 24\) a second time"):
            step(forward, optimizer, next(batches(1, 4, WIDTH)))
        method.close()
