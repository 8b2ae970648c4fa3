"""What the tests of prophet_mx.torch run on every rank: the same training with DistributedDataParallel and with ScheduledOptimizer, and
whether all that can be seen of it is equal, bit for bit.

A training is a generator function. It gets a :class:`Method`, with which it makes its model and optimizer distributed, and yields whatever
is to be compared: losses, weights, or texts. At its end parameters, buffers, and the optimizer's state are compared as well.
"""

import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.torch import ScheduledOptimizer, agreement
from support.sent import sent

WARMUP = 2  # iterations before the plan
UNIT = 2048  # bytes: small, so that gradients of a few thousand elements are sliced
LINK = 0.0005  # seconds that each unit takes longer than it does on this machine
agreement.measure = lambda *_: agreement.GUESS  # takes longer than a training here; tests that run scripts measure

Training = Callable[["Method"], Iterator[Any]]


class Method:
    """How a training is made distributed; as it stands here, by DDP. ``model`` and ``optimizer`` are what :meth:`wrap` gave last.

    ``planned``: its collectives went by a plan at the end, if there is one.
    """

    planned = True

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, **ddp: Any) -> Tuple[nn.Module, torch.optim.Optimizer]:
        """The model and the optimizer to train with; ``ddp``: options of DistributedDataParallel, which ScheduledOptimizer has as well."""
        self.raw, self.model, self.optimizer = model, DistributedDataParallel(model, **ddp), optimizer
        return self.model, self.optimizer

    def no_sync(self) -> Any:
        """Iterations within only add up gradients."""
        return self.model.no_sync()

    def close(self) -> None:
        """Called at the end, also after an exception."""

    def check(self) -> None:
        """Sees whether there is a plan already."""


def register(model: DistributedDataParallel, hook: Callable[..., Any], state: Any = None) -> None:
    """Also where DDP itself does not take a hook for bfloat16, as there is no NCCL; gloo sums such numbers as well."""
    model._check_comm_hook = lambda hook: None  # type: ignore[method-assign]
    model.register_comm_hook(state, hook)


class Hooked(Method):
    """DDP with a communication hook."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        super().__init__()
        self.hook = hook

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, **ddp: Any) -> Tuple[nn.Module, torch.optim.Optimizer]:
        super().wrap(model, optimizer, **ddp)
        register(self.model, self.hook)
        return self.model, self.optimizer


class Scheduled(Method):
    """ScheduledOptimizer around a model that DDP does not know; ``options`` are its settings."""

    slow = LINK
    optimizer: ScheduledOptimizer

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"warmup": WARMUP, "unit": UNIT, **options})
        self.planned = False

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, **ddp: Any) -> Tuple[nn.Module, torch.optim.Optimizer]:
        self.raw, self.model = model, self.distributed(model, ddp)
        self.optimizer = ScheduledOptimizer(self.model, optimizer, **self.options, **(ddp if self.model is model else {}))
        return self.model, self.optimizer

    def distributed(self, model: nn.Module, ddp: Dict[str, Any]) -> nn.Module:
        return model

    def no_sync(self) -> Any:
        return self.optimizer.no_sync()

    def close(self) -> None:
        if hasattr(self, "optimizer"):
            self.check()
            self.optimizer.close()

    def check(self) -> None:
        exchange = self.optimizer._exchange  # None: it is closed
        self.planned = self.planned or exchange is not None and not exchange.recording


class ScheduledDDP(Scheduled):
    """ScheduledOptimizer around a DDP model."""

    def distributed(self, model: nn.Module, ddp: Dict[str, Any]) -> nn.Module:
        return DistributedDataParallel(model, **ddp)

    def no_sync(self) -> Any:
        return self.model.no_sync()


METHODS = {"plain module": Scheduled, "DDP model": ScheduledDDP}


@contextmanager
def slow_link(seconds: float) -> Iterator[None]:
    """Whatever another thread than this one starts takes so much longer: what is not awaited is then used too early."""
    names, user = ("allreduce", "send", "recv"), threading.current_thread()
    entries = {name: dist.ProcessGroup.__dict__[name] for name in names}

    class Late:
        """A handle whose ``wait`` comes back later than the sum."""

        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self, *arguments: Any) -> Any:
            time.sleep(seconds)
            return self.work.wait(*arguments)

        def is_completed(self) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.work, name)

    def late(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*arguments: Any, **options: Any) -> Any:
            work = original(*arguments, **options)
            return Late(work) if threading.current_thread() is not user else work

        return start

    for name in names:
        setattr(dist.ProcessGroup, name, late(getattr(dist.ProcessGroup, name)))
    try:
        yield
    finally:
        for name, entry in entries.items():
            setattr(dist.ProcessGroup, name, entry)


def copied(value: Any) -> Any:
    """The value as it is now: tensors are copied, and keep neither class nor history."""
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor).clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return value


def run(training: Training, method: Method) -> List[Any]:
    """All that the training yields, and at the end its parameters, buffers and the optimizer's state."""
    torch.manual_seed(0)
    try:
        with slow_link(getattr(method, "slow", 0)):
            seen = [copied(value) for value in training(method)]
            ends = {"parameters": dict(method.raw.named_parameters()), "buffers": dict(method.raw.named_buffers())}
            ends["gradients"] = {name: parameter.grad for name, parameter in ends["parameters"].items()}
            ends["optimizer"] = method.optimizer.state_dict()
            ends = copied(ends)
        method.check()
        assert method.planned, "there was no plan yet: this compared DDP with itself"
        return [*seen, ends]
    finally:
        method.close()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def differences(expected: Any, got: Any, where: str = "") -> Iterator[str]:
    """In words, where two results of :func:`run` differ by a bit."""
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        if expected.shape != got.shape or expected.dtype != got.dtype:
            yield f"{where}: {got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
        elif not torch.equal(bits(expected), bits(got)):
            apart = (expected.double() - got.double()).abs().max().item()
            yield f"{where}: {int((expected != got).sum())} of {got.numel()} elements, by up to {apart:g}"
    elif isinstance(expected, dict) and isinstance(got, dict):
        if expected.keys() != got.keys():
            yield f"{where}: has {sorted(map(str, got))}, not {sorted(map(str, expected))}"
        for key in [key for key in expected if key in got]:
            yield from differences(expected[key], got[key], f"{where}[{key!r}]")
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            yield f"{where}: {len(got)} values, not {len(expected)}"
        for place, pair in enumerate(zip(expected, got)):
            yield from differences(*pair, f"{where}[{place}]")
    elif expected != got or type(expected) is not type(got):
        yield f"{where}: {got!r}, not {expected!r}"


def assert_equal(expected: Any, got: Any, what: str) -> None:
    found = list(differences(expected, got))
    assert not found, "\n".join([f"{what}: {len(found)} differences", *found[:12]])


def same(training: Training, *methods: Method) -> None:
    """The training ends as with DDP, bit for bit, by each method (default: around a plain module and around a DDP model)."""
    expected = run(training, Method())
    for method in methods or [make() for make in METHODS.values()]:
        assert_equal(expected, run(training, method), f"{type(method).__name__} {method.options}")


def assert_same_on_all_ranks(tensors: Iterable[torch.Tensor]) -> None:
    """Every rank calls this with its own; bit for bit."""
    for mine in tensors:
        every = [torch.empty_like(mine, requires_grad=False) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine.detach())
        assert all(torch.equal(every[0], each) for each in every)


def batches(count: int, *shape: int, whole: bool = False) -> Iterator[torch.Tensor]:
    """So many batches, others on each rank; ``whole``: of small whole numbers."""
    random = torch.Generator().manual_seed(1000 + dist.get_rank())
    for _ in range(count):
        yield torch.randint(-3, 4, shape, generator=random).float() if whole else torch.randn(shape, generator=random)


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """An iteration as most scripts have it, up to its step(); the loss."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    return loss


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """A whole one; the loss."""
    loss = backward(model, optimizer, batch)
    optimizer.step()
    return loss


def counted_steps(model: nn.Module, optimizer: torch.optim.Optimizer, width: int) -> Generator[torch.Tensor, None, int]:
    """Four whole ones with rows of this width; their losses. Returns how many bytes this rank has sent in them."""
    getattr(optimizer, "synchronize", int)()
    with sent() as found:
        for batch in batches(4, 2, width):
            yield step(model, optimizer, batch)
        getattr(optimizer, "synchronize", int)()
    return found[0]
