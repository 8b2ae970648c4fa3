"""The first push. Workers that have made different keys: all take rank 0's, or an error on all of them names the first difference. Never
does one of them wait for another that has given up."""

import dataclasses
import threading

import mxnet as mx
import numpy as np
import pytest

from prophet_mx import Config, ConfigError, KVStoreError
from prophet_mx.mxnet.keys import MEETING_INTS, KeyBook, Shape, shape_of
from prophet_mx.mxnet.negotiation import negotiate
from prophet_mx.mxnet.parameters import GroupArrays, new_arrays
from prophet_mx.policies import POLICIES
from prophet_mx.simulation.cluster import Unit, make_units
from support.profiles import make_profile
from support.stores import Servers, Store, run_workers


class Side:
    """What a worker brings in: no profile."""

    profiled = False

    def __init__(self, book):
        self.book = book
        self.parameters = self

    def measured(self, rate, message, unit):
        pass

    def make(self, key, parts):
        shape = self.book.shapes[key]
        return new_arrays(shape.shape, shape.dtype, mx.cpu(), parts)

    def make_group(self, members, halved=False):
        shapes = [self.book.shapes[member] for member in members]
        wire = mx.nd.empty((sum(shape.elements for shape in shapes) + len(members),), dtype=shapes[0].dtype)
        values = [mx.nd.empty(shape.shape, dtype=shape.dtype) for shape in shapes]
        return GroupArrays(wire, wire, wire, list(zip(values, values)))


UNIT = 800  # bytes: two slices of each of the larger arrays
SETTINGS = Config.read(bandwidth=1e8, message_cost=1e-4, unit=UNIT)[0]


class Worker:
    """Makes keys, some of them before its store is wrapped, and meets the others.

    ``keys`` are names, or pairs of a name and an array; ``early`` is how many of them come first. ``calls`` says whether each is made by a
    call of its own, or all by one.
    """

    def __init__(self, keys, early=0, first=None, settings=SETTINGS, bound=10**6):
        self.keys = [key if isinstance(key, tuple) else (key, mx.nd.zeros((400,))) for key in keys]
        self.early, self.first, self.settings, self.bound = early, first, settings, bound

    def meet(self, store, calls=True, servers=1):
        book = KeyBook(servers, self.bound)
        if not calls:
            store.init([key for key, _ in self.keys], [value for _, value in self.keys])
        for place, (key, value) in enumerate(self.keys):
            if calls:
                store.init(key, value)
            if place >= self.early:
                book.add(key, shape_of(value) if value.stype == "default" else None)
                book.calls += calls or book.calls == 0
        book.gradient(self.keys[0][0] if self.first is None else self.first)
        layout = negotiate(store, book, self.settings, None, False, self.settings.policy != "off", lambda config, alike: Side(book))
        if not layout.scheduled:
            return None
        for key, _ in self.keys:
            book.gradient(key)
        return {
            key: [(store.numbers[name], layout.order_of(key, part)[1]) for part, name in enumerate(layout.keys_of(key))]
            for key, _ in self.keys
        }


def meet(*workers, **how):
    """What each worker sends a key as, and where that is in the total order; or its error."""
    return run_workers(len(workers), lambda store: workers[store.rank].meet(store, **how))


def zeros(shape, dtype="float32"):
    return mx.nd.zeros(shape, dtype=dtype)


ALIKE = {
    "ints in another order": (Worker([5, 3, 9]), Worker([9, 5, 3])),
    "ints in another order, and another is pushed first": (Worker([5, 3, 9], first=3), Worker([9, 5, 3], first=9)),
    "ints, wrapped earlier than rank 0": (Worker([5, 3, 9], early=3), Worker([9, 5, 3])),
    "ints, all wrapped late, another is pushed first": (Worker([5, 3, 9], early=3, first=9), Worker([3, 9, 5], early=3, first=5)),
    "early ints that are larger than others' keys": (Worker([150_000, 3], early=2), Worker([3, 150_000], early=2)),
    "texts, wrapped later than rank 0": (Worker("abc"), Worker("abc", early=3)),
    "texts, wrapped between two, later than rank 0": (Worker("abc"), Worker("abc", early=1)),
    "texts, wrapped earlier than rank 0": (Worker("abc", early=3), Worker("abc")),
    "texts, all wrapped late, another is pushed first": (Worker("abc", early=3, first="b"), Worker("abc", early=3, first="c")),
    "a sparse key": (
        Worker(["a", ("b", zeros((20, 20)).tostype("row_sparse"))]),
        Worker(["a", ("b", zeros((20, 20)).tostype("row_sparse"))]),
    ),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("workers", ALIKE.values(), ids=ALIKE)
def test_workers_use_the_same_keys_numbers_and_places(workers, servers):
    found = meet(*workers, servers=servers)
    assert found[0] == found[1]
    places = [place for units in found[0].values() for _, place in units]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("early, said", [(0, False), (1, True)])
def test_the_log_says_that_keys_were_made_too_early_only_if_some_were(early, said, caplog):
    """Of row_sparse keys none is ever cut, and that needs no word."""
    sparse = Worker([(name, zeros((20, 20)).tostype("row_sparse")) for name in "ab"], early)
    assert meet(sparse, sparse)[0].keys() == {"a", "b"}
    assert ("keys were made before the store was wrapped" in caplog.text) == said


DIFFERENT = {
    "texts in another order": (Worker("abc"), Worker("acb"), "text key 1 is 'c' here, 'b' on rank 0"),
    "one less at the end": (Worker("abc"), Worker("ab"), "key 'c' was initialised on rank 0, but not here"),
    "one less in between": (Worker("abc"), Worker("ac"), "text key 1 is 'c' here, 'b' on rank 0"),
    "one more at the end": (Worker("abc"), Worker("abcd"), "text key 3 is 'd' here, none on rank 0"),
    "one more before the store was wrapped": (Worker("abc"), Worker("xabc", early=1), "text key 1 is 'a' here, 'b' on rank 0"),
    "one more, all before the store was wrapped": (Worker("abc"), Worker("abcd", early=4), "1 more were initialised here"),
    "some less": (Worker("abcdefghi"), Worker("a"), "key 'b' was initialised on rank 0, but not here"),
    "some more": (Worker("a"), Worker("abcdefghi"), "text key 1 is 'b' here, none on rank 0"),
    "another shape": (Worker("abc"), Worker(["a", ("b", zeros((401,))), "c"]), "key 'b' is (401,) float32 here, (400,) float32 on rank 0"),
    "another shape of as many elements": (
        Worker([1, 2]),
        Worker([2, (1, zeros((20, 20)))]),
        "key 1 is (20, 20) float32 here, (400,) float32 on rank 0",
    ),
    "another type": (Worker([1, 2]), Worker([1, (2, zeros((400,), "float16"))]), "key 2 is (400,) float16 here, (400,) float32 on rank 0"),
    "sparse on one worker": (
        Worker([1, (2, zeros((20, 20)))]),
        Worker([1, (2, zeros((20, 20)).tostype("row_sparse"))]),
        "key 2 is sparse here, (20, 20) float32 on rank 0",
    ),
    "one less in between, made before the store was wrapped on rank 0": (
        Worker("abc", early=1),
        Worker("bc"),
        "text key -1 is 'b' here, none on rank 0",
    ),
    "ints, wrapped later than rank 0": (
        Worker([5, 3, 9]),
        Worker([9, 5, 3], early=1),
        "key 9 was initialised on rank 0, but not here after the store was wrapped",
    ),
    "an int less": (Worker([1, 2, 3]), Worker([1, 2]), "key 3 was initialised on rank 0, but not here after the store was wrapped"),
    "an int that rank 0 has not": (Worker([1, 2]), Worker([1, 2, 3]), "key 3 was initialised here, but not on rank 0"),
}


@pytest.mark.parametrize("calls", [False, True], ids=["one call", "a call for each"])
@pytest.mark.parametrize("rank_0, other, difference", DIFFERENT.values(), ids=DIFFERENT)
def test_an_error_names_the_first_difference(rank_0, other, difference, calls):
    """On all workers if they can still follow the same steps; else the one that cannot ends with it at once."""
    if "but not here after" in difference and not calls:
        assert all(isinstance(found, dict) for found in meet(rank_0, other, calls=calls))  # an int that this worker may do without
        return
    errors = meet(rank_0, rank_0, other, other, calls=calls)
    told = [f"has initialised other keys than rank 0: {difference}. All workers have to" in str(error) for error in errors]
    names = [f"worker {rank} has" in str(error) for rank, error in enumerate(errors)]
    texts, numbered = isinstance(rank_0.keys[0][0], str), len(rank_0.keys) == len(other.keys) and rank_0.early == other.early
    if numbered or not (texts or calls):
        assert all(told) and names == [False, False, True, True] and {type(error) for error in errors} == {KVStoreError}, errors
    else:
        assert any(one and type(error) is KVStoreError for one, error in zip(told[2:], errors[2:])), errors
    assert not any("ends the servers" in str(error) for error in errors)


def test_a_policy_that_one_worker_lacks_is_an_error_on_all(monkeypatch):
    """Workers that have it agree, also if it is in another place of their tables."""
    monkeypatch.setitem(POLICIES, "toy", POLICIES["fifo"]._replace(name="toy"))
    toy = Config.read(policy="toy", bandwidth=1e8, message_cost=1e-4)[0]
    fine, lacking = Worker([1, 2], settings=toy), Worker([2, 1])

    lacks = threading.local()
    monkeypatch.setattr("prophet_mx.mxnet.meeting.settings", lambda: getattr(lacks, "known", ("prophet", "toy", "off")))

    def work(store):
        if store.rank == 1:
            lacks.known = ("prophet", "off")
        return [fine, lacking][store.rank].meet(store)

    told, error = run_workers(2, work)
    assert type(error) is ConfigError and "policy='toy', which rank 0 uses, is not known to this worker; it knows: prophet, off" in str(
        error
    )
    assert type(told) is KVStoreError and "told by worker 1: policy='toy'" in str(told)


def test_a_bound_of_large_arrays_that_one_worker_has_alone_is_an_error_on_all():
    """Units depend on it. One server holds everything, whatever the bound."""
    few = Worker([1, 2], bound=300)
    errors = meet(few, Worker([2, 1]), servers=2)
    words = "MXNET_KVSTORE_BIGARRAY_BOUND is 1000000 on worker 1 and 300 on rank 0: set the same on all workers"
    assert [str(error) for error in errors] == [f"told by worker 1: {words}", words] and {type(error) for error in errors} == {KVStoreError}
    found = meet(few, Worker([2, 1]), servers=1)
    assert isinstance(found[0], dict) and found[0] == found[1]


def test_if_rank_0_schedules_nothing_no_keys_are_compared():
    off = Config.read(policy="off")[0]
    assert meet(Worker("abc", settings=off), Worker("acb")) == [None, None]


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("texts", [True, False])
def test_units_are_on_the_servers_where_the_simulator_has_them(servers, texts):
    """The numbers of the weights would put all of them on the first of two servers."""
    sizes = [120_000, 400] * 8 + [4_000_000, 80, 1_000_000, 120_000]
    profile = make_profile(sizes, [0.0] * len(sizes), [0.0] * len(sizes))
    book = KeyBook(servers, 10**6)
    names = [gradient.name if texts else index for index, gradient in enumerate(profile.gradients)]
    for name, size in zip(names, sizes):
        book.add(name, Shape((size // 4,), np.float32, size // 4, size))
    store = Store(Servers(1), 0)
    store.init(names, [mx.nd.zeros((size // 4,)) for size in sizes])
    config = Config.read(bandwidth=1e8, unit=100_000, message_cost=2e-5)[0]
    layout = negotiate(store, book, config, None, False, True, lambda config, alike: Side(book))

    numbers = store.numbers
    units = []
    for name, _ in layout.units():
        members = layout.group_of[name].members if name in layout.group_of else ()
        shares = tuple((names.index(member), sizes[names.index(member)]) for member in members)
        key = layout.keys_of(name)[sum(names[unit.gradient] == name for unit in units)]
        words = len(members)
        units.append(Unit(names.index(name), 4 * (store.servers.values[numbers[key]].size - words), numbers[key] * 9973 % servers, shares))
    assert units == make_units(profile, servers, 100_000, grouped=True, message=2_000 * servers)
    load = [sum(unit.bytes for unit in units if unit.server == server) for server in range(servers)]
    assert max(load) - min(load) <= 120_000  # the largest unit
    # Behind them come the key of the orders and, on each server one, those that tell of failures.
    told = [numbers[key] for key in layout.told_keys]
    assert sorted(number * 9973 % servers for number in told) == list(range(servers)) and layout.wrapping.told == told
    assert numbers[layout.order_key] == max(set(numbers.values()) - set(MEETING_INTS) - set(told)) < min(told)
    assert not texts or layout.wrapping.last == max(told)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"unit": 4}, ["unit=4 makes 2400 messages per iteration", "'auto' would make 6, of up to 4000 bytes"]),
        ({"window": 2, "lead": 700}, ["window=2 is less than a unit of 800 bytes", "lead=700 is less than a unit of 800 bytes"]),
        ({"window": 800}, []),
    ],
)
def test_settings_that_are_allowed_and_surely_not_meant_are_named_with_what_they_do(changed, words, caplog):
    settings = dataclasses.replace(SETTINGS, **changed)
    meet(*[Worker("abcdef", settings=settings)] * 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(any(word in warning for warning in warnings) for word in words) and bool(warnings) == bool(words)
    assert len(warnings) == (1 if "unit" in changed else 2 * len(words))  # limits are each worker's own
