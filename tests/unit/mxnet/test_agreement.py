"""Which gradients the workers agree to slice, and where the slices are."""

from types import SimpleNamespace

import numpy as np
import pytest

from prophet_mx.config import Config
from prophet_mx.mxnet.agreement import Agreeing
from prophet_mx.mxnet.keys import KeyBook, Shape
from prophet_mx.simulation.layout import Unit, make_units
from prophet_mx.sizes import MAX_UNIT
from support.profiles import make_profile


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


class Servers:
    """A store of which only the order of the keys is kept that are made on its servers."""

    rank, num_workers = 1, 2

    def __init__(self, keys):
        self.made = dict.fromkeys(keys)

    def broadcast(self, key, value, out):
        self.init([key], [value])

    def init(self, keys, values):
        for key, value in zip(keys, values):
            assert key not in self.made
            self.made[key] = value.size

    def push(self, key, value):
        pass

    pull, barrier = push, lambda self: None

    def pushpull(self, keys, values, out):
        assert set(keys) <= set(self.made)


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
    store = Servers(names)
    agreeing = Agreeing(store, book, False)
    config = agreeing.settings(Config.read(bandwidth=1e8, unit=100_000)[0], True, None)[1]
    slices = agreeing.slices(agreeing.agree(config, None, False).unit)
    keys = agreeing.make_slices(slices, None, None)

    numbers = {key: number if texts else key for number, key in enumerate(store.made)}
    units = [
        Unit(index, size if key == name else 4 * store.made[key], numbers[key] * 9973 % servers)
        for index, (name, size) in enumerate(zip(names, sizes))
        for key in keys.get(name, [name])
    ]
    assert units == make_units(profile, servers, 100_000)
    load = [sum(unit.bytes for unit in units if unit.server == server) for server in range(servers)]
    assert max(load) - min(load) <= 100_000
    assert numbers[agreeing.order_key] == max(numbers.values()) and agreeing.wrapping.last >= len(store.made) - 1
