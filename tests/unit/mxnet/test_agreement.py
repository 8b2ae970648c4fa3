"""Which gradients the workers agree to slice, and where the slices are."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from prophet_mx.config import Config
from prophet_mx.mxnet.agreement import Agreeing
from prophet_mx.mxnet.arrays import new_arrays
from prophet_mx.mxnet.keys import MEETING_INTS, KeyBook, Shape
from prophet_mx.simulation.cluster import Unit, make_units
from prophet_mx.sizes import MAX_UNIT
from support.profiles import make_profile
from support.stores import Servers, Store


def test_each_slice_of_half_precision_is_on_one_of_two_servers():
    """6 MB of fp16 in units of 4 MB, which have 2 million elements."""
    book = KeyBook(2, 1000 * 1000)
    book.add("w", Shape((3_000_000,), np.float16, 3_000_000, 6_000_000))
    slices = Agreeing(None, book, False).slices(MAX_UNIT)["w"]
    names, made = book.slice_keys([2 * (part.stop - part.start) for part in slices], [])
    for name in made:
        book.made(name)
    assert {book.server_of(name, part.stop - part.start) for name, part in zip(names, slices)} == {0, 1}


@pytest.mark.parametrize("servers, sliced", [(1, True), (2, False)])
def test_no_more_slices_are_made_than_mxnet_can_place(servers, sliced):
    """Text keys are numbered as they come, and with several servers MXNet's placement overflows at 215,330."""
    book = KeyBook(servers, 1000 * 1000)
    book.add("w", Shape((900_000,), np.float32, 900_000, 3_600_000))
    assert bool(Agreeing(SimpleNamespace(rank=1), book, False).slices(8)) == sliced


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("texts", [True, False])
def test_units_are_on_the_servers_where_the_simulator_has_them(servers, texts):
    """Weights are whole, and with two servers all on the first: the slices of the last gradient make up for it."""
    sizes = [120_000, 400] * 8 + [4_000_000, 80, 1_000_000, 120_000]
    profile = make_profile(sizes, [0.0] * len(sizes), [0.0] * len(sizes))
    book = KeyBook(servers, 10**6)
    names = [gradient.name if texts else index for index, gradient in enumerate(profile.gradients)]
    for name, size in zip(names, sizes):
        book.add(name, Shape((size // 4,), np.float32, size // 4, size))
    store = Store(Servers(1), 0)
    store.init(names, [mx.nd.zeros((size // 4,)) for size in sizes])
    agreeing = Agreeing(store, book, False)
    config = agreeing.settings(Config.read(bandwidth=1e8, unit=100_000)[0], True, None)[1]
    slices = agreeing.slices(agreeing.agree(config, None, False).unit)
    keys = agreeing.make_slices(slices, None, lambda key: new_arrays(book.shapes[key].shape, np.float32, mx.cpu(), slices[key]))

    numbers = store.numbers
    units = [
        Unit(index, 4 * store.servers.values[numbers[key]].size, numbers[key] * 9973 % servers)
        for index, (name, size) in enumerate(zip(names, sizes))
        for key in keys.get(name, [name])
    ]
    assert units == make_units(profile, servers, 100_000)
    load = [sum(unit.bytes for unit in units if unit.server == server) for server in range(servers)]
    assert max(load) - min(load) <= 100_000
    assert numbers[agreeing.order_key] == max(set(numbers.values()) - set(MEETING_INTS))
    assert not texts or agreeing.wrapping.last == numbers[agreeing.order_key]
