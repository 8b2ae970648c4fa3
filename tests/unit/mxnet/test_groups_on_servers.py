"""Groups of parameters in one array on the servers: bit for bit what separate updates give."""

import os
import pickle
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.mxnet.optimizers import ELEMENTWISE
from prophet_mx.mxnet.server_sgd import MOST
from prophet_mx.mxnet.slice_optimizer import SliceOptimizer
from support.paths import ROOT

SIZES = [64, 64, 7, 1000, 3, 64, 256, 1, 33, 512]
NAMES = ["bn_gamma", "bn_beta", "c_bias", "d_bias", "e_gamma", "f_beta", "g_gamma", "h_bias", "i_weight", "j_gamma"]
GROUP, WORKERS = 20, 3

SETTINGS = [
    *[(name, {}) for name in sorted(ELEMENTWISE)],
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "learning_rate": 1}),
    ("NAG", {"momentum": 0.9}),
    ("Signum", {"momentum": 0.0}),
    ("RMSProp", {"centered": True, "clip_weights": 2.0}),
]


def optimizer(name, clip=None, multi_precision=False, schedule=False, names=True, **more):
    """With multipliers by name and by number."""
    if schedule:
        more["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=more.setdefault("learning_rate", 0.1))
    found = mx.optimizer.create(
        name,
        param_idx2name=dict(enumerate(NAMES)) if names else None,
        clip_gradient=clip,
        multi_precision=multi_precision,
        wd=0.01,
        rescale_grad=0.5,
        **more,
    )
    found.set_lr_mult({"e_gamma": 0.5, "j_gamma": 2.0, 1: 0.3})
    found.set_wd_mult({**found.wd_mult, "g_gamma": 3.0, 2: 0.7})
    return found


def on_server(wrapped):
    """As it is there: pickled and read again."""
    return pickle.loads(pickle.dumps(wrapped))


def compare(make, rounds, dtype="float32", sizes=SIZES):
    """Updates of a group give in each round what separate updates of the members give that are present in all workers' messages.
    ``rounds`` are the words of each."""
    random = np.random.RandomState(0)
    first = [random.randn(size).astype(dtype) for size in sizes]
    weights = [mx.nd.array(values, dtype=dtype) for values in first]
    array = mx.nd.array(np.concatenate([*first, np.zeros(len(sizes), dtype)]), dtype=dtype)
    summed = array.copy()
    alone = mx.optimizer.get_updater(make())
    members = {GROUP: tuple(enumerate(sizes))}
    together = mx.optimizer.get_updater(on_server(SliceOptimizer(make(), {}, [], [], GROUP, GROUP, False, members, WORKERS)))
    for words in rounds:
        gradients = [random.randn(size).astype(dtype) for size in sizes]
        for number, (gradient, weight) in enumerate(zip(gradients, weights)):
            if words[number] == WORKERS:
                alone(number, mx.nd.array(gradient, dtype=dtype), weight)
        summed[:] = mx.nd.array(np.concatenate([*gradients, np.array(words, dtype)]), dtype=dtype)
        together(GROUP, summed, array)
        expected = np.concatenate([weight.asnumpy() for weight in weights] + [np.array(words, dtype)])
        assert array.asnumpy().tobytes() == expected.tobytes(), words
    return together


ALL = [WORKERS] * len(SIZES)
SOME = [3, 3, 0, 3, 1, 2, 3, 3, 3, 0]
ROUNDS = [ALL, ALL, SOME, ALL, SOME, SOME, [0] * len(SIZES), ALL, ALL, [0, 0, 3, 3, 3, 3, 3, 3, 0, 3], ALL, ALL]


@pytest.mark.parametrize("name, more", SETTINGS, ids=str)
@pytest.mark.parametrize("how", [{}, {"schedule": True, "clip": 0.2}, {"names": False}], ids=["fixed", "schedule", "numbers"])
def test_a_group_gets_what_separate_updates_give(name, more, how):
    compare(lambda: optimizer(name, **more, **how), ROUNDS)


# These keep states in single precision whatever the weights have, and MXNet's operators do not take both.
@pytest.mark.parametrize("name, more", [found for found in SETTINGS if found[0] not in ("AdaGrad", "RMSProp", "AdaDelta", "Ftrl", "Test")])
def test_half_precision_without_a_copy(name, more):
    compare(lambda: optimizer(name, **more), ROUNDS, "float16")


@pytest.mark.parametrize("name, more", SETTINGS, ids=str)
def test_half_precision_with_a_copy_in_single(name, more):
    compare(lambda: optimizer(name, multi_precision=True, schedule=True, **more), ROUNDS, "float16")


@given(
    st.lists(st.one_of(st.just(ALL), st.lists(st.integers(0, WORKERS), min_size=10, max_size=10)), min_size=1, max_size=8), st.booleans()
)
def test_any_members_in_any_rounds(rounds, momentum):
    compare(lambda: optimizer("sgd", momentum=0.9 * momentum, schedule=True), rounds)
    compare(lambda: optimizer("adam"), rounds)


def test_a_group_of_more_runs_than_one_call_takes():
    def make():
        found = mx.optimizer.create("sgd", momentum=0.9)
        found.set_lr_mult(dict.fromkeys(range(0, 2 * MOST + 7, 2), 0.5))
        return found

    sizes = [1 + number % 5 for number in range(2 * MOST + 7)]
    some = [WORKERS * (number % 3 > 0) for number in range(len(sizes))]
    compare(make, [[WORKERS] * len(sizes), some, [WORKERS] * len(sizes)], sizes=sizes)


class Counting(mx.lr_scheduler.LRScheduler):
    """Another rate at each call, which a user's schedule may have."""

    calls = 0

    def __call__(self, num_update):
        self.calls += 1
        return 0.1 / self.calls


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_schedule_of_the_user_is_asked_once_per_member(name):
    compare(lambda: mx.optimizer.create(name, lr_scheduler=Counting()), ROUNDS)


class Calls(mx.optimizer.Adam):
    made = 0

    def update(self, *arguments):
        Calls.made += 1
        super().update(*arguments)


Calls.__module__ = mx.optimizer.Adam.__module__  # as MXNet's own


@pytest.mark.parametrize("names, calls", [(False, 1 + 2), (True, 7 + 6)])
def test_neighbours_with_equal_settings_are_updated_in_one_call(names, calls):
    update = mx.optimizer.get_updater(
        SliceOptimizer(
            Calls(**(dict(param_idx2name=dict(enumerate(NAMES)), wd=0.01) if names else {})),
            {},
            [],
            [],
            20,
            20,
            False,
            {20: tuple(enumerate(SIZES))},
            1,
        )
    )
    Calls.made = 0
    array = mx.nd.ones((sum(SIZES) + len(SIZES),))
    for words in ([1] * 10, [1, 1, 1, 0, 0, 1, 1, 1, 1, 1]):
        gradient = mx.nd.ones(array.shape)
        gradient[sum(SIZES) :] = mx.nd.array(words)
        update(20, gradient, array)
    assert Calls.made == calls


@pytest.mark.parametrize(
    "name, more",
    [("sgd", {}), ("sgd", {"momentum": 0.9}), ("ccsgd", {"momentum": 0.9}), ("sgd", {"momentum": -0.5}), ("lamb", {}), ("adam", {})],
)
@pytest.mark.parametrize("dtype, multi_precision", [("float32", False), ("float32", True), ("float16", False), ("float16", True)])
def test_whole_parameters_and_slices_get_the_optimizers_own_update(name, more, dtype, multi_precision):
    """Also where MXNet's operator is called without it."""
    sliced = {} if name == "lamb" else {30: 3, 31: 3}
    alone = mx.optimizer.get_updater(optimizer(name, 0.3, multi_precision, True, **more))
    wrapped = mx.optimizer.get_updater(
        on_server(SliceOptimizer(optimizer(name, 0.3, multi_precision, True, **more), sliced, [], [], 30, 31, False))
    )
    random = np.random.RandomState(0)
    expected = [mx.nd.array(random.randn(10), dtype=dtype) for _ in range(5)]
    found = [array.copy() for array in expected]
    for _ in range(6):
        for number in range(5):
            gradient = mx.nd.array(random.randn(10), dtype=dtype)
            alone(number, gradient, expected[number])
            if number != 3 or not sliced:
                wrapped(number, gradient, found[number])
            else:
                wrapped(30, gradient[:4], found[3][:4])
                wrapped(31, gradient[4:], found[3][4:])
    assert [array.asnumpy().tobytes() for array in found] == [array.asnumpy().tobytes() for array in expected]


def test_values_that_come_with_an_optimizer_count_until_a_group_was_updated():
    """Servers without an optimizer store sums, also of members that are not in a message. Weights of a later optimizer are there."""
    vars(mx.optimizer).pop("prophet_mx_groups", None)  # in this process, other tests are the same server
    text = np.array([1, 2, 3], "float16").tobytes().hex()
    weights = mx.nd.array([77, 77, 77, 0, 0])
    expected = []
    for values in (np.array([1, 2, 3.0]), None):
        sent = SliceOptimizer(mx.optimizer.SGD(), {}, [], [], 90, 90, False, {90: ((0, 2), (1, 1))}, 2, values={90: ("float16", text)})
        update = mx.optimizer.get_updater(pickle.loads(pickle.dumps(sent, 0).decode().encode()))  # as MXNet sends it
        expected = expected if values is None else values
        for words in ([2, 0], [2, 2]):
            update(90, mx.nd.array([1, 1, 1, *words]), weights)
            expected = expected - 0.01 * np.array([1, 1, words[1] == 2])
            np.testing.assert_allclose(weights.asnumpy(), [*expected, *words], rtol=1e-6)


class Stateless(mx.optimizer.SGD):
    def create_state_multi_precision(self, index, weight):
        raise ValueError("no room")


def test_sums_that_a_server_holds_in_more_bits_than_workers_got_stay():
    """MXNet's servers may hold numbers of half precision in single. The last message had the first member of all workers."""
    vars(mx.optimizer).pop("prophet_mx_groups", None)
    values = {92: ("float16", np.array([1, 2, 3], "float16").tobytes().hex())}
    sent = SliceOptimizer(mx.optimizer.SGD(learning_rate=1.0), {}, [], [], 92, 92, False, {92: ((0, 2), (1, 1))}, 2, values=values)
    update, weights = mx.optimizer.get_updater(on_server(sent)), mx.nd.array([1.0001, 2.0001, 77, 2, 1])
    update(92, mx.nd.array([1, 1, 1, 2, 2]), weights)
    np.testing.assert_allclose(weights.asnumpy(), [0.0001, 1.0001, 2, 2, 2], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "failing",
    [
        mx.optimizer.create("dcasgd", momentum=0.9),
        mx.optimizer.create("sgd", momentum="0.9"),  # from a command line: fails as the operator is chosen
        mx.optimizer.create("sgd", wd="0.1"),
        mx.optimizer.create("adam", begin_num_update="1"),
        Stateless(),
    ],
    ids=["operator", "momentum", "decay", "count", "state"],
)
def test_workers_get_the_words_of_a_group_whose_update_fails(failing):
    """A server prints the error, answers, and updates nothing, as for keys of their own."""
    members = {91: ((0, 2), (1, 1))}
    update = mx.optimizer.get_updater(on_server(SliceOptimizer(failing, {}, [], [], 91, 91, False, members, 2)))
    weights = mx.nd.array([1, 2, 3, 0, 0])
    for words in ([2, 2], [2, 1], [2, 2]):
        with pytest.raises((ValueError, TypeError)):
            update(91, mx.nd.array([1, 1, 1, *words]), weights)
        assert weights.asnumpy().tolist() == [1, 2, 3, *words]


class Failing(mx.lr_scheduler.LRScheduler):
    def __call__(self, num_update):
        if num_update == 2:
            raise ValueError("no rate")
        return 0.1


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_an_update_that_fails_counts_for_a_slice_as_for_its_parameter(name):
    """Corrections of the bias go by the number of updates."""
    results = []
    for wraps in (False, True):
        made = mx.optimizer.create(name, learning_rate=0.1, lr_scheduler=Failing(0.1))
        update = mx.optimizer.get_updater(SliceOptimizer(made, {5: 0}, [], [], 5, 5, False) if wraps else made)
        weight, failed = mx.nd.ones((3,)), 0
        for step in range(5):
            try:
                update(5 if wraps else 0, mx.nd.array([1, -step, 2]), weight)
            except ValueError:
                failed += 1
        results.append((failed, weight.asnumpy().tobytes()))
    assert results[0] == results[1] and results[0][0] == 1


def test_sparse_weights_are_left_to_the_optimizer():
    def make():
        return mx.optimizer.create("sgd", momentum=0.9)

    results = []
    for update in (mx.optimizer.get_updater(make()), mx.optimizer.get_updater(SliceOptimizer(make(), {}, [], [], 9, 9, False))):
        weight = mx.nd.ones((4, 2)).tostype("row_sparse")
        for row in (1, 2, 1):
            update(0, mx.nd.sparse.row_sparse_array((np.ones((1, 2), "float32"), [row]), shape=(4, 2)), weight)
        results.append(weight.asnumpy().tobytes())
    assert results[0] == results[1]


SERVER = """
import pickle, sys
import mxnet as mx
from mxnet.ndarray import array, ones, zeros
del mx.nd  # a server runs inside "import mxnet", which has not come to this name
sys.modules["prophet_mx"] = None
update = mx.optimizer.get_updater(pickle.load(sys.stdin.buffer))
weights = array([1, 2, 3, 0, 0])
for words in ([2, 2], [2, 1], [0, 2]):
    update(9, array([1, 1, 1, *words]), weights)
update(8, ones((2,)), (part := zeros((2,))))
print(weights.asnumpy().tolist() + part.asnumpy().tolist())
"""


def test_a_server_needs_nothing_but_mxnet():
    sent = SliceOptimizer(mx.optimizer.create("sgd", learning_rate=1.0), {8: 2}, [], [], 8, 9, False, {9: ((0, 2), (1, 1))}, 2)
    done = subprocess.run(
        [sys.executable, "-c", SERVER], input=pickle.dumps(sent), capture_output=True, check=True, cwd=os.path.dirname(ROOT)
    )
    assert done.stdout.decode().strip() == str([-1.0, 0.0, 1.0, 0.0, 2.0, -1.0, -1.0])
