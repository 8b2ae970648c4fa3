"""Random models, optimizers and scripts: each training ends as with DistributedDataParallel, bit for bit."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from support.ranks import ranks
from support.training import METHODS, batches, same

WIDTH = 8
LAYERS = 4

# What a model does with its input, one after the other: (operation, which of its layers).
OPERATIONS = ("layer", "function", "transposed", "scale", "norm", "detached")
OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, foreach=True),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
}

MODELS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, LAYERS - 1)), min_size=1, max_size=7)
SCRIPTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(sorted(METHODS)),
        "operations": MODELS,
        "tied": st.booleans(),  # two layers have one weight
        "frozen": st.sampled_from([None, 0, 1]),  # a layer whose weight is not trained
        "skipped": st.sampled_from([0, 0, 2, 3]),  # every so many iterations, others on each rank, the last operation is left out
        "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "split": st.booleans(),  # two groups
        "unit": st.sampled_from([16, 200, 1000, 100000]),  # bytes
        "accumulate": st.integers(1, 3),
        "to_none": st.sampled_from([True, True, False, None]),  # zero_grad(set_to_none=...); None: not called at all
        "clipped": st.sampled_from([0, 0, 1, 3]),  # every so many iterations
        "read": st.sampled_from([None, None, "weights", "gradients", "output"]),  # after each iteration
        "rate": st.sampled_from([1.0, 0.5]),  # by which the learning rate changes after each step
    }
)


class Drawn(nn.Module):
    """A model of layers of one width, which may be used several times, or never."""

    def __init__(self, operations, tied, frozen, skipped):
        super().__init__()
        self.operations, self.skipped, self.calls = operations, skipped, 0
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(LAYERS))
        self.gain = nn.Parameter(torch.tensor(1.5))  # is always used
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        if tied:
            self.layers[1].weight = self.layers[2].weight
        if frozen is not None:
            self.layers[frozen].weight.requires_grad_(False)

    def forward(self, batch):
        self.calls += 1
        operations = self.operations
        if self.skipped and (self.calls + dist.get_rank()) % self.skipped == 0:
            operations = operations[:-1]
        for name, index in operations:
            layer = self.layers[index]
            if name == "layer":
                batch = torch.tanh(layer(batch))
            elif name == "function":
                batch = functional.linear(batch, layer.weight, layer.bias)
            elif name == "transposed":
                batch = batch @ layer.weight
            elif name == "scale":
                batch = batch * self.scales[index]
            elif name == "norm":
                batch = self.norms[index](batch)
            else:
                batch = batch + layer.weight.detach().sum(0)
        return batch * self.gain


def training_of(script):
    def training(method):
        model = Drawn(script["operations"], script["tied"], script["frozen"], script["skipped"])
        parameters = [each for each in model.parameters() if each.requires_grad]
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.02}] if script["split"] else parameters
        forward, optimizer = method.wrap(model, OPTIMIZERS[script["optimizer"]](groups), find_unused_parameters=True)
        data = batches(8 * script["accumulate"], 3, WIDTH)
        for iteration in range(8):
            yield from one_iteration(script, method, forward, optimizer, data, iteration)
            if script["read"] == "weights":
                yield [each.detach() for each in model.parameters()]
            elif script["read"] == "gradients":
                yield [each.grad for each in model.parameters()]
            elif script["read"] == "output":
                with torch.no_grad():
                    yield model(torch.ones(2, WIDTH))
            for group in optimizer.param_groups:
                group["lr"] *= script["rate"]

    return training


def one_iteration(script, method, forward, optimizer, data, iteration):
    if script["to_none"] is not None:
        optimizer.zero_grad(set_to_none=script["to_none"])
    for part in range(script["accumulate"]):
        with method.no_sync() if part < script["accumulate"] - 1 else nullcontext():
            loss = forward(next(data)).square().mean()
            loss.backward()
        yield loss
    if script["clipped"] and iteration % script["clipped"] == 0:
        yield nn.utils.clip_grad_norm_(method.raw.parameters(), 0.05)
    optimizer.step()


def compare(script):
    """On every rank."""
    same(training_of(script), METHODS[script["method"]](unit=script["unit"]))


@settings(max_examples=60)
@given(SCRIPTS)
def test_random_trainings(script):
    ranks(2).call(__file__, "compare", {"script": script}, timeout=10)
