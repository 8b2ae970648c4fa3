"""One worker of an emulated training job: Module's loop around a model that exists only as a profile.

Run as ``python -m benchmarks.testbed.emulated TASK RESULT`` (see :class:`Task` and :func:`benchmarks.testbed.job.run_job`).

An iteration is what ``Module.fit`` does: forward operations in forward order, each reading its parameters and the activation
before it; backward operations, one per step of the profile, each making the step's gradients ready at its end; ``pushpull``
(or ``push`` and ``pull``) of every parameter in index order; then the wait for the forward's output that a metric's update
makes. The worker thus runs ahead exactly as far as MXNet does.

Every gradient carries stamps, one float in 1024, that depend on worker, parameter and iteration; every forward operation
checks that its parameters hold what the sums of all workers' stamps must have left: the last sum itself, or with ``Task.sgd`` the weight
after as many updates. All other elements are zero and are checked at the end.
"""

import ctypes
import json
import random
import resource
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import psutil

from prophet_mx.profiling.gradient_profile import VECTORS, GradientProfile

STAMP_STRIDE = 1024
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Task:
    """What every worker of a job does.

    Attributes
    ----------
    profile : path of the profile, its sizes and times as they shall be.
    iterations : how many to run.
    wrap : whether the store is wrapped in ScheduledKVStore.
    pushpull : True for one ``pushpull`` per parameter, False for ``push`` then ``pull``.
    spans : whether to keep when each operation ran.
    slowdown : compute time of worker i times ``slowdown[i]``, if given.
    jitter : each operation's time is its own times a random number between ``1 - jitter`` and ``1 + jitter``.
    sgd : whether the servers update the parameters, by SGD with momentum.
    trainer : whether keys are numbers in the order of the sorted names, and are pushed in this order, as Trainer does.
    """

    profile: str
    iterations: int
    wrap: bool = False
    pushpull: bool = True
    spans: bool = False
    slowdown: Tuple[float, ...] = ()
    jitter: float = 0.0
    sgd: bool = False
    trainer: bool = False

    def save(self, path: str) -> None:
        with open(path, "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def load(cls, path: str) -> "Task":
        with open(path) as file:
            return cls(**json.load(file))


def stamp(rank: int, index: int, iteration: int) -> float:
    """The value a worker's gradient carries: a small whole number, so that sums are exact in any order."""
    return float((rank + 1) * (1 + (31 * iteration + 7 * index) % 101))


def total(workers: int, index: int, iteration: int) -> float:
    """What the workers' stamps add up to."""
    return stamp(0, index, iteration) * workers * (workers + 1) / 2


SGD = {"learning_rate": 0.125, "momentum": 0.875, "wd": 0.0}


def matrices(profile: GradientProfile) -> List[bool]:
    """Which parameters have more than one dimension, by their names."""
    return [not gradient.name.endswith(VECTORS) for gradient in profile.gradients]


def left(workers: int, gradients: int, iterations: int, sgd: bool, halved: Sequence[bool] = ()) -> List[List[float]]:
    """The stamp that each iteration leaves in each parameter. Where some travel in 16 bits (``halved``), which hold the workers' stamps
    and their sums exactly, workers have what these bits hold of the weight's changes."""
    import mxnet as mx
    import numpy as np

    totals = [[total(workers, index, iteration) for index in range(gradients)] for iteration in range(iterations)]
    if not sgd:
        return totals
    optimizer = mx.optimizer.create("sgd", **SGD)
    weight = mx.nd.zeros((gradients,))
    state = optimizer.create_state(0, weight)
    found = []
    there = weight.asnumpy()
    for sums in totals:
        optimizer.update([0], [weight], [mx.nd.array(sums)], [state])
        changed = there + (weight.asnumpy() - there).astype(np.float16)
        there = np.where(halved, changed, weight.asnumpy()) if halved else weight.asnumpy()
        found.append(there.tolist())
    return found


def forward_groups(profile: GradientProfile) -> List[Tuple[List[int], float]]:
    """The forward operations: (parameters read, seconds). A parameter without time belongs to the next one's operation."""
    groups: List[Tuple[List[int], float]] = []
    waiting: List[int] = []
    for index, gradient in enumerate(profile.gradients):
        waiting.append(index)
        if gradient.forward or index == len(profile.gradients) - 1:
            groups.append((waiting, gradient.forward or 0.0))
            waiting = []
    return groups


def backward_steps(profile: GradientProfile) -> List[Tuple[List[int], float]]:
    """The backward operations in order: (gradients made ready at the end, seconds)."""
    ready = profile.backward_ready_times()
    steps, clock = [], 0.0
    for step in sorted(profile.steps, key=lambda step: ready[step[0]]):
        steps.append((list(step), ready[step[0]] - clock))
        clock = ready[step[0]]
    return steps


class Model:
    """The arrays of a profile's model, and its operations on an accelerator."""

    def __init__(
        self, profile: GradientProfile, accelerator: Any, rank: int, left: List[List[float]], stretch: float = 1.0, jitter: float = 0.0
    ) -> None:
        import mxnet as mx

        self.profile, self.device, self.rank, self.left = profile, accelerator, rank, left
        self.stretch, self.jitter, self._random = stretch, jitter, random.Random(rank)
        self.elements = [max(1, gradient.bytes // 4) for gradient in profile.gradients]
        shapes = [(1, count) if matrix else (count,) for count, matrix in zip(self.elements, matrices(profile))]
        self.weights = [mx.nd.zeros(shape) for shape in shapes]
        self.gradients = [mx.nd.zeros(shape) for shape in shapes]
        self.forwards, self.steps = forward_groups(profile), backward_steps(profile)
        self.states = [accelerator.keep(mx.nd.zeros((1,))) for _ in range(len(self.forwards) + 1)]
        self.output = self.states[-1]
        mx.nd.waitall()
        self._weight_at = [_address(weight) for weight in self.weights]
        self._gradient_at = [_address(gradient) for gradient in self.gradients]

    def forward(self, iteration: int) -> None:
        """Push one forward pass, which checks the values that the iteration before left."""
        for place, (indices, seconds) in enumerate(self.forwards):
            checks = [(self._weight_at[i], self.elements[i], self.left[iteration - 1][i]) for i in indices if iteration]
            self.device.op(
                [self.states[place]] + [self.weights[i] for i in indices],
                [self.states[place + 1]],
                self._seconds(seconds),
                tag=_tag(iteration, FORWARD, place),
                checks=checks,
            )

    def backward(self, iteration: int) -> None:
        """Push one backward pass."""
        for place, (indices, seconds) in enumerate(self.steps):
            stamps = [(self._gradient_at[i], self.elements[i], stamp(self.rank, i, iteration)) for i in indices]
            self.device.op(
                [self.output] if place == 0 else [],
                [self.states[0]] + [self.gradients[i] for i in indices],
                self._seconds(seconds),
                tag=_tag(iteration, BACKWARD, place),
                stamps=stamps,
            )

    def _seconds(self, nominal: float) -> float:
        return nominal * self.stretch * (1 + self.jitter * self._random.uniform(-1, 1))

    def wrong_at_end(self) -> int:
        """Elements of all weights that differ from what the last iteration must have left. Waits for them."""
        wrong = 0
        for index, weight in enumerate(self.weights):
            values = weight.asnumpy().ravel()
            stamps = values[::STAMP_STRIDE]
            wrong += int((stamps != self.left[-1][index]).sum())
            wrong += int((values != 0).sum() - (stamps != 0).sum())
        return wrong


def _tag(iteration: int, kind: int, place: int) -> int:
    return (iteration * 2 + kind) * 4096 + place


def _untag(tag: int) -> Tuple[int, int, int]:
    return tag // 8192, tag // 4096 % 2, tag % 4096


def _address(array: Any) -> int:
    """Where an array that MXNet's own operators do not rewrite keeps its values."""
    import mxnet as mx

    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def train(task: Task) -> Dict[str, Any]:
    """Run this worker and return its result: ``starts`` (when each iteration's forward began, seconds of the monotonic clock),
    ``call_seconds`` (of the main thread in the store's calls, per iteration), ``begin`` of the loop
    on that clock, its ``cpu_seconds`` and ``wall_seconds``, ``memory_bytes`` (what was resident at its end), ``wrong``
    (elements with a wrong value), ``rank``, and ``spans`` if asked for."""
    import mxnet as mx

    from prophet_mx.config import Config
    from prophet_mx.mxnet.api import bind

    from .accelerator import Accelerator

    bind()
    kv = mx.kv.create("dist_sync")
    if task.wrap:
        from prophet_mx import ScheduledKVStore

        kv = ScheduledKVStore(kv)
    stretch = task.slowdown[kv.rank] if task.slowdown else 1.0
    with ExitStack() as stack:
        accelerator = stack.enter_context(Accelerator())
        profile = GradientProfile.load(task.profile)
        halved = matrices(profile) if task.wrap and Config.from_env().compress else ()
        after = left(kv.num_workers, len(profile.gradients), task.iterations, task.sgd, halved)
        model = Model(profile, accelerator, kv.rank, after, stretch, task.jitter)
        keys = numbered(profile) if task.trainer else {index: each.name for index, each in enumerate(profile.gradients)}
        for index, key in keys.items():
            kv.broadcast(key, model.weights[index], out=model.weights[index])
        if task.sgd:
            names = {number: profile.gradients[index].name for number, index in enumerate(keys)}
            kv.set_optimizer(mx.optimizer.create("sgd", param_idx2name=names, **SGD))
        mx.nd.waitall()
        kv._barrier()
        begin, cpu, calls = time.monotonic(), _cpu_seconds(), []
        for iteration in range(task.iterations):
            model.forward(iteration)
            model.backward(iteration)
            before = time.perf_counter()
            _update(kv, task.pushpull, keys, model)
            calls.append(time.perf_counter() - before)
            model.output.wait_to_read()
        memory = psutil.Process().memory_info().rss
        wrong = model.wrong_at_end()
        wall, cpu = time.monotonic() - begin, _cpu_seconds() - cpu
        spans = [_untag(tag) + (start, end) for tag, start, end in accelerator.take_trace()]
        wrong += accelerator.wrong
        stats = kv.stats() if task.wrap else {}
    mx.nd.waitall()
    kv._barrier()
    return {
        "rank": kv.rank,
        "starts": [span[3] for span in spans if span[1:3] == (FORWARD, 0)],
        "call_seconds": calls,
        "begin": begin,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "memory_bytes": memory,
        "wrong": wrong,
        "stats": stats,
        "spans": spans if task.spans else [],
    }


def numbered(profile: GradientProfile) -> Dict[int, int]:
    """Each parameter's number in the order of sorted names, in this order."""
    ordered = sorted(range(len(profile.gradients)), key=lambda index: profile.gradients[index].name)
    return {index: number for number, index in enumerate(ordered)}


def _update(kv: Any, pushpull: bool, keys: Mapping[int, Union[int, str]], model: Model) -> None:
    """As Module and Trainer update their parameters on the store. ``keys``: by parameter, in the order in which they are pushed."""
    for place, (index, key) in enumerate(keys.items()):
        gradient, weight = model.gradients[index], model.weights[index]
        if pushpull:
            kv.pushpull(key, gradient, out=weight, priority=-place)
        else:
            kv.push(key, gradient, priority=-place)
            kv.pull(key, out=weight, priority=-place)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    RESULT = train(Task.load(sys.argv[1]))
    with open(sys.argv[2], "w") as output:
        json.dump(RESULT, output)
