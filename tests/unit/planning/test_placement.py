"""Which servers the slices are on: bytes per server even out, and every slice has a key of its own there."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning.placement import even_servers, server_of, slice_numbers
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.cluster import SPREAD, make_units
from support.profiles import DATA

SIZES = st.lists(st.integers(1, 10**6), max_size=60)
LOADS = st.lists(st.integers(0, 10**7), min_size=1, max_size=12)


@given(SIZES, LOADS, st.integers(0, 10**5))
def test_no_server_gets_a_slice_that_another_had_better_take(slices, loads, message):
    total = list(loads)
    servers = even_servers(slices, loads, message)
    assert len(servers) == len(slices)
    for server, size in zip(servers, slices):
        total[server] += size + message
    assert all(total[server] <= min(total) + max(slices) + message for server in set(servers))


@pytest.mark.parametrize("message, messages", [(0, 40), (4000, 24)])
def test_servers_share_messages_as_well_as_bytes(message, messages):
    """Where messages cost much, one server does not get all of the small ones because another has a large gradient."""
    assert even_servers([1000] * 40, [0, 40_000], message).count(0) == messages


def test_the_most_urgent_units_are_on_different_servers():
    """BERT on 64 servers has two or three units for each. With the largest placed first, 11 servers had two of the most urgent 64."""
    units = make_units(model_profile("bert_base"), 64, 4_000_000, grouped=True, message=2_300_000)
    assert len({unit.server for unit in units[:64]}) == 64


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000))
def test_neighbours_are_on_different_servers(servers, rounds, load):
    chosen = even_servers([4000] * servers * rounds, [load] * servers)
    for first in range(len(chosen) - servers + 1):
        assert len(set(chosen[first : first + servers])) == servers


@given(SIZES, LOADS, st.integers(0, 300000))
def test_every_slice_has_one_key_on_its_server(slices, loads, first):
    numbers = slice_numbers(slices, loads, count(first))
    assert len(set(numbers)) == len(numbers) and all(number >= first for number in numbers)
    assert [server_of(number, len(loads)) for number in numbers] == even_servers(slices, loads)


@given(SIZES, LOADS, st.integers(0, 20))
def test_every_slice_has_one_key_also_if_there_are_few(slices, loads, more):
    numbers = slice_numbers(slices, loads, range(7, 7 + len(slices) + more))
    assert len(set(numbers)) == len(slices) and set(numbers) <= set(range(7, 7 + len(slices) + more))


def test_a_server_that_no_key_is_on_holds_nothing_up():
    """With 9973 servers the product of every key is a multiple of their number."""
    assert len(set(slice_numbers([4] * 3, [8] + [0] * 9972, count(5)))) == 3


@pytest.mark.parametrize("servers", [2, 4, 8, 16])
def test_the_fullest_server_of_a_shipped_model_has_little_more_than_the_mean(servers):
    """At most one unit, where there are 40 for each server; when slices were numbered in turn, it was up to 2.3."""
    for path in sorted(DATA.glob("*.json")):
        profile = GradientProfile.load(str(path))
        size = profile.total_bytes // (40 * servers)
        load = [0] * servers
        for unit in make_units(profile, servers, size):
            assert unit.server != SPREAD
            load[unit.server] += unit.bytes
        assert max(load) <= profile.total_bytes / servers + size, path.name
