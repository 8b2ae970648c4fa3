"""What waits for what on an accelerator, and where gradients lie. There is none here: streams and events are stand-ins that note what is
asked of them, and all computation is on the CPU. tests/pytorch/test_gpu.py trains on a GPU."""

import contextlib
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from prophet_mx.planning.unit_sizes import fixed_sizes
from prophet_mx.planning.units import Member, partition
from prophet_mx.torch import ScheduledOptimizer, schedule
from prophet_mx.torch.flat import lay_out
from prophet_mx.torch.streams import Streams, streams_of
from support.ranks import on_ranks
from support.training import UNIT, Method, Scheduled, assert_equal, batches, run, step

WIDTH = 32
ITERATIONS = 8


class Device:
    """As ``torch.cuda``; ``log`` has (name of the thread, what it asked for, of what)."""

    def __init__(self):
        self.log = []
        self._local = threading.local()
        self._clock = 0
        device = self

        class Stream:
            def __init__(self, on=None):
                self.thread = threading.current_thread().name

            def wait_event(self, event):
                device.note("follows", (self, event))

            def synchronize(self):
                device.note("settled", self)

        class Event:
            def __init__(self, enable_timing=False):
                self.at = None

            def record(self, stream):
                device._clock += 1
                self.at, self.stream = device._clock, stream
                device.note("marked", self)

            def synchronize(self):
                device.note("awaited", self)

            def elapsed_time(self, other):
                return 1000.0 * (other.at - self.at)

        self.Stream, self.Event = Stream, Event

    def note(self, what, about):
        self.log.append((threading.current_thread().name.replace("prophet_mx-", ""), what, about))

    def current_stream(self, on):
        if not hasattr(self._local, "stream"):
            self._local.stream = self.Stream()
        return self._local.stream

    @contextlib.contextmanager
    def stream(self, stream):
        before, self._local.stream = self.current_stream(None), stream
        yield
        self._local.stream = before


@pytest.fixture
def devices():
    return [torch.device("cuda", 1), torch.device("cuda", 0)]


def test_our_threads_have_streams_of_their_own(devices):
    device = Device()
    mine = device.current_stream(None)
    streams = Streams(device, devices[:1])
    with streams.aside():
        assert device.current_stream(None) is not mine
        streams.settle()
    assert device.current_stream(None) is mine
    assert device.log[-1][1] == "settled" and device.log[-1][2] is not mine


def test_a_mark_is_used_again(devices):
    streams = Streams(Device(), devices)
    mark = streams.mark(devices[0])
    first = mark.at
    assert streams.mark(devices[0], mark) is mark and mark.at > first
    assert len(streams.marks()) == 2


def test_times_are_those_of_the_device(devices):
    streams = Streams(Device(), devices[:1])
    marks = [streams.mark(devices[0]) for _ in range(3)]
    assert streams.seconds(marks) == [0, 1, 2]
    assert Streams(Device(), devices).seconds(marks) is None  # two devices have no common clock


def test_the_cpu_and_devices_without_streams_have_none(monkeypatch):
    assert streams_of([torch.ones(1)]) is None
    assert streams_of([torch.ones(1, device="meta")]) is None
    monkeypatch.setattr(torch, "meta", SimpleNamespace(Stream=object), raising=False)
    assert streams_of([torch.ones(1), torch.ones(1, device="meta")]) is not None


def training(method):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
        yield step(forward, optimizer, batch)
        optimizer.zero_grad(set_to_none=number % 2 == 0)


@on_ranks(2)
def test_what_a_job_waits_for():
    """The same result, and every thread waits for what it has to on an accelerator."""
    device = Device()
    original, schedule.streams_of = schedule.streams_of, lambda params: Streams(device, [torch.device("cpu")])
    try:
        method = Scheduled()
        expected, got = run(training, Method()), run(training, method)
    finally:
        schedule.streams_of = original
    assert_equal(expected, got, "with streams")

    asked = Counter((thread, what) for thread, what, _ in device.log)
    stats = method.optimizer.stats()
    assert asked["land", "settled"] == stats["units"]  # none is there before the device has it
    marked = {id(event): event for thread, what, event in device.log if thread != "reduce" and what == "marked"}
    awaited = {id(event) for thread, what, event in device.log if thread == "reduce" and what == "awaited"}
    assert len(awaited) == 6 and awaited <= set(marked)  # one for each gradient
    # Of each gradient, in each iteration: the thread that starts collectives waits after it was written.
    for key in awaited:
        order = [what for thread, what, event in device.log if event is marked[key] and (what == "marked" or thread == "reduce")]
        assert order[:1] == ["marked"] and order.count("marked") == ITERATIONS
        assert all(two == "awaited" for one, two in zip(order, order[1:]) if one == "marked")
    # Updates come after step(), in a stream of their own, and are done before anybody goes on.
    updates = [(what, about) for thread, what, about in device.log if thread == "update"]
    assert updates[0][0] == "follows" and updates[-1][0] == "settled"
    followed = [about[1] for what, about in updates if what == "follows"]
    assert len({id(event) for event in followed}) == ITERATIONS and all(event.stream.thread == "MainThread" for event in followed)
    assert {about[0].thread for what, about in updates if what == "follows"} == {"prophet_mx-update"}
    runs = "".join("f" if what == "follows" else "s" for what, _ in updates)
    assert "ff" not in runs and "s" in runs


@on_ranks(2)
def test_join_is_refused():
    """It would mirror collectives that DistributedDataParallel does not start."""
    model = nn.Linear(WIDTH, WIDTH)
    ddp = nn.parallel.DistributedDataParallel(model)
    scheduled = ScheduledOptimizer(ddp, torch.optim.SGD(model.parameters(), lr=0.1), unit=UNIT)
    with pytest.raises(ValueError, match=r"join\(\)"), ddp.join():
        raise AssertionError("it began")
    scheduled.close()
    with ddp.join():
        ddp(torch.ones(1, WIDTH)).sum().backward()


# --- memory ---


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 200), st.sampled_from([torch.float16, torch.float64]))
def test_gradients_begin_as_if_each_had_memory_of_its_own(counts, unit, dtype):
    """Kernels read four numbers at once from there. Units have all elements, one after the other, in order. ``meta`` stands for a GPU."""
    itemsize = dtype.itemsize
    members = [Member(count * itemsize, itemsize, 0, urgency, 0.0) for urgency, count in enumerate(counts)]
    params = [torch.empty(count, dtype=dtype, device="meta") for count in counts]
    units = partition(members, fixed_sizes(unit * itemsize), 1e6)
    ranges, views = lay_out(units, params)
    assert all(view.storage_offset() * itemsize % 64 == 0 and view.shape == param.shape for view, param in zip(views, params))
    place = 0
    for part, slices in zip(ranges, (unit.slices for unit in units)):
        end = part.storage_offset() + part.numel()
        assert part.storage_offset() >= place
        for index, start, stop in slices:
            begin = views[index].storage_offset()
            assert place <= begin + start and begin + stop <= end
            place = begin + stop
