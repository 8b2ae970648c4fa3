"""SGD on servers: compiled, it has the bits of MXNet's operator whatever the settings; where it has not, MXNet's operator is called."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.mxnet import server_sgd
from prophet_mx.mxnet.server_sgd import SgdCall, coefficients

NUMBERS = [0, 1]
SIZES = [3001, 17]


def drawn(seed, size):
    random = np.random.RandomState(seed)
    values = random.randn(size) * 10.0 ** random.uniform(-40, 6, size)
    values[:: max(1, size // 5)] = 0.0
    return values.astype(np.float32)


def updated(make, steps, seed=0):
    """The bits of weights and velocities after some updates: of MXNet's own, and of a call for both arrays."""
    alone, shared = make(), make()
    weights = [[mx.nd.array(drawn(seed + number, SIZES[number])) for number in NUMBERS] for _ in range(2)]
    own = [alone.create_state(number, weights[0][number]) for number in NUMBERS]
    states = [shared.create_state(number, weights[1][number]) for number in NUMBERS]
    call = SgdCall(shared, NUMBERS, states, False)
    for step in range(steps):
        gradients = [mx.nd.array(drawn(seed + 10 + step * 2 + number, SIZES[number])) for number in NUMBERS]
        for number in NUMBERS:
            alone.update([number], [weights[0][number]], [gradients[number]], [own[number]])
            call.put(number, weights[1][number], gradients[number])
        call([step, step])
    return [
        [array.asnumpy().tobytes() for array in (*some, *(state for state in kept if state is not None))]
        for some, kept in zip(weights, (own, states))
    ]


@settings(max_examples=30)
@given(
    rate=st.floats(1e-6, 2),
    decay=st.sampled_from([0.0, 1e-4, 0.01]),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    rescale=st.sampled_from([1.0, 1 / 3, 1 / 256]),
    schedule=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_compiled_it_has_the_bits_of_mxnets_operator(rate, decay, momentum, rescale, schedule, seed):
    def make():
        factor = mx.lr_scheduler.FactorScheduler(step=1, factor=0.7, base_lr=rate) if schedule else None
        made = mx.optimizer.SGD(learning_rate=rate, wd=decay, momentum=momentum, rescale_grad=rescale, lr_scheduler=factor)
        made.set_lr_mult({0: 0.3})
        return made

    assert coefficients(rate, decay, rescale, momentum) is not None
    alone, shared = updated(make, 3, seed)
    assert alone == shared


def test_where_the_bits_differ_mxnets_operator_is_called(monkeypatch):
    def wrong(weight, velocity, gradient, count, decay, rate, momentum):
        pass

    monkeypatch.setattr(server_sgd, "compiled_sgd", wrong)
    monkeypatch.setattr(server_sgd, "_known", {})
    assert coefficients(0.1, 0.0, 1.0, 0.9) is None
    alone, shared = updated(lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9), 3)
    assert alone == shared


@pytest.mark.parametrize("clip", [None, 0.5], ids=["free", "clipped"])
def test_without_prophet_mx_on_the_server_the_bits_are_the_same(clip, monkeypatch):
    monkeypatch.setattr(server_sgd, "compiled_sgd", None)
    alone, shared = updated(lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=clip), 3)
    assert alone == shared
