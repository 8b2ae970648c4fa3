"""Numbers in 16 bits, and what they lose: the same bits with F16C and without, as NumPy rounds, and nothing lost in the sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import _core

LARGEST = 65504.0
KINDS = ("usual", "tiny", "huge", "any")


@pytest.fixture(params=[False, True], ids=["fast", "portable"], autouse=True)
def portable(request):
    """With what the processor has, and as if it had no F16C."""
    _core.portable(request.param)
    yield
    _core.portable(False)


def drawn(seed, count, kind):
    random = np.random.default_rng(seed)
    if kind == "any":  # any bits at all, among them those of infinities and of what is no number
        return random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    scale = {"usual": (-3, 3), "tiny": (-46, -3), "huge": (2, 38)}[kind]
    return (random.standard_normal(count) * 10.0 ** random.uniform(*scale, count)).clip(-3e38, 3e38).astype(np.float32)


def squeezed(values, lost, limit=LARGEST):
    halves = np.empty(values.size, np.float16)
    over = _core.squeeze(values.ctypes.data, lost.ctypes.data, halves.ctypes.data, values.size, limit)
    return halves, over


def as_sent(sums, limit):
    """The same in NumPy."""
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(sums)
        sent = np.where(finite, sums.clip(-limit, limit), sums).astype(np.float16)
        return sent, np.where(finite, sums - sent.astype(np.float32), np.float32(0)), int((finite & (np.abs(sums) > limit)).sum())


def same(one, other):
    """Whether two arrays have the same bits, but for what is no number."""
    numbers = ~np.isnan(one)
    return np.array_equal(numbers, ~np.isnan(other)) and one[numbers].tobytes() == other[numbers].tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(KINDS), st.sampled_from([LARGEST, 32752.0, 21824.0]))
def test_what_is_sent_and_what_is_lost_are_those_of_numpy(seed, count, kind, limit):
    values, lost = drawn(seed, count, kind), drawn(seed + 1, count, "tiny")
    with np.errstate(invalid="ignore", over="ignore"):
        expected, left, over = as_sent(lost + values, limit)
    halves, counted = squeezed(values, lost, limit)
    assert same(halves, expected) and same(lost, left) and counted == over


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_of_many_gradients_nothing_is_lost(seed, count):
    lost, arrived, wanted = np.zeros(count, np.float32), np.zeros(count), np.zeros(count)
    for step in range(30):
        values = drawn(seed + step, count, "usual")
        wanted += values
        arrived += squeezed(values, lost)[0]
    assert np.allclose(arrived + lost, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max() + 1e-3)
    assert np.abs(lost).max() <= 65504 / 2048  # half of a step at the most


def test_a_number_beyond_the_limit_arrives_in_the_end():
    lost, nothing = np.zeros(1, np.float32), np.zeros(1, np.float32)
    halves, over = squeezed(np.array([200000.0], np.float32), lost)
    found = [float(halves[0])]
    while over:
        halves, over = squeezed(nothing, lost)
        found.append(float(halves[0]))
    assert found == [65504.0, 65504.0, 65504.0, 3488.0] and lost == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(KINDS))
def test_workers_that_follow_the_changes_have_what_the_server_has_sent(seed, count, kind):
    master = drawn(seed, count, kind)
    sent = drawn(seed + 1, count, kind)
    held, there, change = sent.copy(), np.empty(count, np.float32), np.empty(count, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = as_sent(master - sent, LARGEST)[0]
    _core.change(master.ctypes.data, sent.ctypes.data, change.ctypes.data, count)
    halves = change.astype(np.float16)
    assert same(halves, expected) and same(halves.astype(np.float32), change)
    _core.follow(halves.ctypes.data, held.ctypes.data, there.ctypes.data, count)
    assert same(held, sent) and same(there, held)


def test_every_half_is_widened_as_numpy_does():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    values = np.empty(halves.size, np.float32)
    _core.widen(halves.ctypes.data, values.ctypes.data, halves.size)
    assert same(values, halves.astype(np.float32))
