"""A PyTorch model that exists only as a profile: real parameters, hooks and autograd around compute that is slept.

Each step of the profile is a module with its parameters, whose gradients are ready at the end of its backward. That is a single
operation, as in PyTorch, where a comparison does not say otherwise (comparison/rings.py). Gradients are arrays that exist already: to make
them costs nothing but the step's time. They are zero but for two stamps, which depend on rank, parameter and iteration.

There are two kinds of time (:class:`Device`):

- *All on the processor*: what the host does between two operations takes its time, copies of gradients and updates among it. What Python
  and autograd need for the bare model is part of the operations' time, as it was where they were measured.
- *Device*: the host runs ahead of a device and only queues its work. What the host does in backward takes no time of the device, and in
  forward it may be late by LEAD. The optimizer's update (:class:`EmulatedUpdates`) and the copies of gradients between their own arrays and
  those that are reduced take the device's time for the bytes that they move. The copies are also made, since what is reduced is in the
  host's memory here; that is part of what the host does, for every method alike.

For either, sleeping a little too long is no delay: the next operation is that much shorter.
"""

import random
import statistics
import threading
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from prophet_mx.profiling.gradient_profile import GradientProfile

LEAD = 0.001  # seconds by which the host may be late in forward, as a device has that much work queued
MEMORY_RATE = 500e9  # bytes/s that a device reads or writes
CALIBRATION = 4  # iterations
CHECKED = 8  # each gradient is checked in one of so many iterations
COPY_TOUCHES, UPDATE_TOUCHES = 2, 5  # times that a gradient's bytes are read or written by its copy; by SGD with momentum


class Device:
    """A serial device, which the thread that makes it uses. Others have a stream of their own, beside it."""

    def __init__(self, ahead: bool, stretch: float = 1.0, jitter: float = 0.0, seed: int = 0) -> None:
        """``ahead``: the host runs ahead of it. All times are ``stretch`` times as long, and vary by ``jitter``."""
        self.ahead, self._stretch, self._jitter, self._random = ahead, stretch, jitter, random.Random(seed)
        self._owner = threading.get_ident()
        self._gaps: Dict[bool, List[float]] = {False: [], True: []}  # between operations, in forward and in backward (seconds)
        self._own = {False: 0.0, True: 0.0}  # of these, what the emulation itself needs
        self._free = self._left = time.perf_counter()  # when its work ends; when work() returned last

    def work(self, seconds: float, backward: bool = False) -> None:
        """Do an operation of so many seconds and wait for its end."""
        now = time.perf_counter()
        if not self.ahead:
            gap = now - self._left  # it slept until _left, which is what it meant to, or a little longer
            self._gaps[backward].append(gap)
            begin = self._free + max(0.0, gap - self._own[backward])
        elif backward:
            begin = self._free
        else:
            begin = max(self._free, now - LEAD)
        self._free = begin + seconds * self._stretch * (1 + self._jitter * self._random.uniform(-1, 1))
        if self._free > now:
            time.sleep(self._free - now)
        self._left = time.perf_counter()

    def calibrate(self) -> None:
        """What the host needed between operations so far, with nothing but the model, is part of their time from now on."""
        self._own = {backward: statistics.median(gaps) for backward, gaps in self._gaps.items() if gaps} or self._own

    def queue(self, size: int) -> None:
        """Have the device touch ``size`` bytes of its memory; other threads wait for the end. Nothing if all is on the processor."""
        if not self.ahead:
            return
        if threading.get_ident() == self._owner:
            self._free += size / MEMORY_RATE
        else:
            time.sleep(size / MEMORY_RATE)


class Layer(torch.nn.Module):
    """One step of a profile, with its parameters."""

    def __init__(self, device: Device, rank: int, sizes: Sequence[Tuple[int, int]], forward: float, backward: float) -> None:
        """``sizes``: the number and the elements of each parameter. ``forward`` and ``backward`` in seconds."""
        super().__init__()
        self.device, self.rank, self.seconds, self.iteration = device, rank, (forward, backward), 0
        self.numbers = [number for number, _ in sizes]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(elements)) for _, elements in sizes])
        self._gradients = [torch.zeros(elements) for _, elements in sizes]
        self._stamps = [gradient.numpy() for gradient in self._gradients]
        self._bytes = sum(4 * elements for _, elements in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _Operation.apply(x, self, *self.weights)
        return output

    def make_gradients(self) -> List[torch.Tensor]:
        """Run backward; the gradients of this iteration. Autograd may keep them, as nothing else refers to them."""
        self.device.queue(COPY_TOUCHES * self._bytes)
        self.device.work(self.seconds[1], backward=True)
        for number, values in zip(self.numbers, self._stamps):
            values[0] = values[-1] = stamp(self.rank, number, self.iteration)
        self.iteration += 1
        return [gradient.detach() for gradient in self._gradients]


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Layer, *weights: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        for weight in weights:
            weight.detach()  # what reads a weight uses it
        layer.device.work(layer.seconds[0])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        return (upstream[0], None, *ctx.layer.make_gradients())


class EmulatedModel(torch.nn.Module):
    """The model of a profile on a device."""

    def __init__(self, profile: GradientProfile, device: Device, rank: int) -> None:
        super().__init__()
        layers = []
        for indices in map(sorted, reversed(profile.steps)):
            members = [profile.gradients[index] for index in indices]
            sizes = [(index, max(1, member.bytes // 4)) for index, member in zip(indices, members)]
            seconds = [sum(time or 0.0 for time in times) for times in zip(*((member.forward, member.backward) for member in members))]
            layers.append(Layer(device, rank, sizes, *seconds))
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x)
        return output

    def calibrate(self, device: Device) -> None:
        """Run some iterations alone, so that one takes no longer than its operations: Python and autograd are part of their time."""
        for _ in range(CALIBRATION):
            self(torch.zeros(1, requires_grad=True)).sum().backward()
            self.zero_grad()
        device.calibrate()
        for layer in self.layers:
            layer.iteration = 0

    def numbered(self) -> Iterator[Tuple[torch.nn.Parameter, int]]:
        """Each parameter with its number."""
        for layer in self.layers:
            yield from zip(layer.weights, layer.numbers)


class EmulatedUpdates:
    """What takes the place of SGD's updates: the time of a device. It checks the stamps of the gradients.

    Attributes
    ----------
    wrong : gradients that were not the mean of all ranks' gradients of their iteration.
    """

    def __init__(self, model: EmulatedModel, device: Device, ranks: int) -> None:
        self._device, self._ranks, self._numbers = device, ranks, {id(parameter): number for parameter, number in model.numbered()}
        self._steps = dict.fromkeys(self._numbers, 0)
        self.wrong = 0

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """One step of an optimizer, for the parameters in its groups that have gradients."""
        size = 0
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            gradient, key = parameter.grad, id(parameter)
            if gradient is not None:
                number, iteration = self._numbers[key], self._steps[key]
                if (number + iteration) % CHECKED == 0:  # not all: what Python does here no device would wait for
                    values = gradient.detach().numpy().reshape(-1)
                    expected = sum(stamp(rank, number, iteration) for rank in range(self._ranks)) / self._ranks
                    self.wrong += int(values[0] != expected or values[-1] != expected)
                self._steps[key] = iteration + 1
                size += 4 * gradient.numel()
        self._device.queue(UPDATE_TOUCHES * size)

    def install(self) -> None:
        """Take the place of ``step`` in SGD itself: ScheduledOptimizer knows of PyTorch's own classes that they treat each parameter by
        itself, and not of any class derived from them."""
        torch.optim.SGD.step = lambda optimizer, closure=None: self.step(optimizer)  # type: ignore[method-assign]


def stamp(rank: int, number: int, iteration: int) -> float:
    """A small whole number: sums and means of up to four of them are exact, in bfloat16 too."""
    return float((5 * number + 7 * iteration) % 32 + rank)
