"""Which optimizers are known to be exact on slices, and to depend on the order of updates."""

import pickle

import mxnet as mx
import pytest

from prophet_mx.mxnet.optimizers import order_matters, slicing_allowed
from prophet_mx.mxnet.slice_optimizer import SliceOptimizer


@pytest.mark.parametrize("name", ["nadam", "lars", "lbsgd", "sgld"])
def test_what_depends_on_the_order_of_updates_is_known_and_what_is_derived_from_it_too(name):
    made = mx.optimizer.create(name)
    derived = type("Own", (type(made),), {})()
    assert order_matters(made) and order_matters(derived) and not slicing_allowed(made) and not slicing_allowed(derived)


def test_slices_go_on_from_the_updates_that_their_optimizer_has_made():
    """Of parameter 0 more than of parameter 1, before it was sent to the servers."""
    used = mx.optimizer.Adam()
    update = mx.optimizer.get_updater(used)
    for number in (0, 0, 0, 1):
        update(number, mx.nd.ones((2,)), mx.nd.ones((2,)))
    alone, sliced = (
        mx.optimizer.get_updater(pickle.loads(pickle.dumps(sent)))
        for sent in (used, SliceOptimizer(used, {5: 0, 6: 0, 7: 1}, [4], [], first=4, last=7, shift=False))
    )
    weights, parts = ([mx.nd.ones((2,)) for _ in range(3)] for _ in range(2))
    for step in range(3):
        gradient = mx.nd.array([1 + step, -2])
        for number, weight in zip((0, 2, 1), weights):
            alone(number, gradient, weight)
        for key, part in zip((5, 6, 7), parts):
            sliced(key, gradient, part)
    assert [part.asnumpy().tobytes() for part in parts] == [weights[place].asnumpy().tobytes() for place in (0, 0, 2)]


def test_what_is_measured_with_probes_changes_no_later_update():
    """Schedules and bias corrections go by the number of updates."""
    values = {}
    for probes in ([], [7, 8]):
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5)
        update = mx.optimizer.get_updater(
            SliceOptimizer(mx.optimizer.Adam(lr_scheduler=schedule), {5: 0, 6: 0}, [4], probes, first=4, last=8, shift=False)
        )
        for _ in range(5):
            for probe in probes:
                update(probe, mx.nd.ones((3,)), mx.nd.zeros((3,)))
        weights = [mx.nd.ones((3,)) for _ in range(2)]
        for _ in range(5):
            for part, weight in enumerate(weights):
                update(5 + part, mx.nd.array([1, 2, 3]), weight)
        values[len(probes)] = [weight.asnumpy().tobytes() for weight in weights]
    assert values[0] == values[2]


@pytest.mark.parametrize("shift, numbers", [(True, {5: 1, 8: 4, 9: 5}), (False, {5: 1, 8: 8, 9: 9})])
def test_keys_that_come_after_ours_have_the_numbers_that_they_would_have_without_them(shift, numbers):
    """Text keys are numbered as they come. Ours are 4 to 7, and 5 is a slice of 1."""
    inner = mx.optimizer.SGD(learning_rate=1.0)
    inner.set_lr_mult({number: number / 16 for number in range(1, 16)})
    update = mx.optimizer.get_updater(SliceOptimizer(inner, {5: 1}, [4], [], first=4, last=7, shift=shift))
    for key, number in numbers.items():
        weight = mx.nd.zeros((2,))
        update(key, mx.nd.ones((2,)), weight)
        assert weight.asnumpy().tolist() == [-number / 16] * 2, key
