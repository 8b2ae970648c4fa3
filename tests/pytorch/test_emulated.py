"""The benchmarks' emulated PyTorch model: its times, its gradients, its optimizer."""

import time

import pytest
import torch

from benchmarks.testbed import emulated_torch
from benchmarks.testbed.emulated_torch import CHECKED, LEAD, MEMORY_RATE, Device, EmulatedModel, EmulatedUpdates, stamp
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile

GRADIENTS = [Gradient("a", 400, 0.0, 0.0), Gradient("b", 4000, 0.03, 0.05), Gradient("c", 800, 0.02, 0.04)]
PROFILE = GradientProfile("three", GRADIENTS, ((2,), (0, 1)))


class Clock:
    """Time that passes only in sleep(), which ends a little late."""

    LATE = 0.0001

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.LATE


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(emulated_torch, "time", clock)
    return clock


def seconds(clock, device, iterations, host=0.0):
    """Of an iteration of four operations of 20 ms, before each of which the host is busy for so many seconds."""
    begin = clock.now
    for _ in range(iterations):
        for backward in (False, False, True, True):
            clock.now += host
            device.work(0.02, backward)
    return (clock.now - begin) / iterations


@pytest.mark.parametrize("ahead", [False, True])
def test_operations_take_their_time_although_each_sleep_ends_late(clock, ahead):
    assert seconds(clock, Device(ahead), 10) == pytest.approx(0.08, abs=Clock.LATE)


def test_on_the_processor_the_hosts_own_work_takes_time(clock):
    assert seconds(clock, Device(False), 10, host=0.005) == pytest.approx(0.1, abs=Clock.LATE)


def test_on_the_processor_what_the_bare_model_needs_is_part_of_its_operations(clock):
    device = Device(False)
    seconds(clock, device, 3, host=0.005)
    device.calibrate()
    assert seconds(clock, device, 10, host=0.005) == pytest.approx(0.08, abs=Clock.LATE)
    assert seconds(clock, device, 10, host=0.007) == pytest.approx(0.088, abs=Clock.LATE)


def test_beside_a_device_the_hosts_own_work_takes_none_in_backward_and_in_forward_but_for_the_lead(clock):
    assert seconds(clock, Device(True), 10, host=LEAD / 2) == pytest.approx(0.08, abs=LEAD)
    assert seconds(clock, Device(True), 10, host=0.005) == pytest.approx(0.088, abs=LEAD)


def test_a_slower_device_takes_longer(clock):
    assert seconds(clock, Device(True, stretch=2), 3) == pytest.approx(0.16, abs=LEAD)


def test_copies_take_a_device_s_time_and_none_on_the_processor(clock):
    for ahead, expected in ((True, 0.03), (False, 0.02)):
        device = Device(ahead)
        device.queue(round(0.01 * MEMORY_RATE))
        begin = clock.now
        device.work(0.02, backward=True)
        assert clock.now - begin == pytest.approx(expected, abs=2 * Clock.LATE)


def test_gradients_are_ready_in_the_order_of_backward_and_carry_the_stamps_of_their_iteration():
    model = EmulatedModel(PROFILE, Device(True), rank=1)
    ready = []
    for number, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda parameter, number=number: ready.append((number, time.perf_counter())))
    for iteration in range(2):
        ready.clear()
        begin = time.perf_counter()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        assert {number for number, _ in ready[:1]} == {2} and {number for number, _ in ready[1:]} == {0, 1}
        assert ready[-1][1] - ready[0][1] >= 0.045 and ready[-1][1] - begin >= 0.135  # sleeps are never too short
        for number, parameter in enumerate(model.parameters()):
            assert parameter.grad[0] == parameter.grad[-1] == stamp(1, number, iteration) and parameter.grad[1:-1].abs().sum() == 0
            parameter.grad = None


def test_a_calibrated_model_begins_with_its_first_iteration():
    device = Device(False)
    model = EmulatedModel(PROFILE, device, rank=0)
    model.calibrate(device)
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.zeros(1, requires_grad=True)).sum().backward()
    assert [parameter.grad[0] for parameter in model.parameters()] == [stamp(0, number, 0) for number in range(3)]


def test_emulated_updates_count_gradients_that_are_not_the_mean_of_their_iteration(monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", torch.optim.SGD.step)  # undone at the end
    model = EmulatedModel(PROFILE, Device(True), rank=0)
    updates = EmulatedUpdates(model, Device(True), ranks=2)
    updates.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, (stamp(0, number, 0) + stamp(1, number, 0)) / 2)
    optimizer.step()
    assert updates.wrong == 0 and all(parameter.abs().sum() == 0 for parameter in model.parameters())
    for _ in range(CHECKED):
        optimizer.step()  # the same gradients again, which are not those of the next iterations
    assert updates.wrong == 3


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_means_of_stamps_are_exact_in_bfloat16(ranks):
    for number in range(40):
        mean = sum(stamp(rank, number, 3) for rank in range(ranks)) / ranks
        parts = sum(torch.tensor(stamp(rank, number, 3) / ranks, dtype=torch.bfloat16) for rank in range(ranks))
        assert parts.item() == mean
