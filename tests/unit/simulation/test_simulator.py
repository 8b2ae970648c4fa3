"""The simulator: against times worked out by hand, against the lower bound, and against itself without its shortcuts."""

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.errors import ConfigError, ProfileError, SimulationError
from prophet_mx.planning.bound import lower_bound, scaled_to_rho, worker_rate
from prophet_mx.planning.unit_sizes import unit_bytes
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation import event_loop, simulator
from prophet_mx.simulation.cluster import (
    MAX_CLASSES,
    SPREAD,
    Unit,
    connection_rate,
    default_units,
    in_total_order,
    make_units,
    message_time,
    worker_classes,
)
from prophet_mx.simulation.fluid import EqualShares, MaxMinShares
from prophet_mx.simulation.simulator import POLICIES, Cluster, simulate
from prophet_mx.simulation.worker import TO_DEVICE, TO_HOST, CopyEngines
from prophet_mx.sizes import MAX_UNIT, Traffic
from support.profiles import make_profile, network_like

SCHEDULED = [policy for policy in POLICIES if policy != "plain"]
RATE = 1e8


CLASSIC = Cluster(118e6, workers=2, servers=1)


@pytest.fixture
def checked(monkeypatch):
    """Every scheduler verifies its invariants after every decision."""
    decide = event_loop.Simulation._decide

    def checking(self, worker, t):
        decide(self, worker, t)
        if worker.scheduler is not None:
            worker.scheduler.check()

    monkeypatch.setattr(event_loop.Simulation, "_decide", checking)


# -- by hand ---------------------------------------------------------------------------------------------------------------

ONE = make_profile([10**6], [0.01], [0.02])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "cluster, seconds",
    [
        (Cluster(RATE, 1, 1), 0.05),  # 0.03 of compute, 0.01 up, 0.01 down
        (Cluster(RATE, 4, 1), 0.11),  # four times as long each way
        (Cluster(RATE, 1, 4), 0.05),  # the other servers hold nothing
        (Cluster(RATE, 1, 1, rtt=0.004), 0.054),
        (Cluster(RATE, 2, 1, message_bytes=1e5), 0.03 + 2 * 2 * 0.011),
        (Cluster(RATE, 1, 1, message_seconds=0.003), 0.056),  # sent once, received once
        (Cluster(RATE, 2, 1, server_message_seconds=0.005), 0.08),  # one message after the other
        (Cluster(RATE, 1, 1, server_byte_seconds=2e-9), 0.052),
        (Cluster(RATE, 1, 1, straggler=3), 0.11),
        (Cluster(RATE, 2, 1, straggler=3), 0.12),  # up alone, down together
        (Cluster(RATE, 1, 1, copy_rate=1e9), 0.052),  # to the host and back
    ],
)
def test_one_gradient(policy, cluster, seconds):
    result = simulate(ONE, cluster, policy, [Unit(0, 10**6, 0)])
    assert result.seconds == pytest.approx(seconds, rel=1e-9)
    assert [worker.seconds for worker in result.workers] == pytest.approx([seconds] * len(result.workers), rel=1e-9)


def test_plain_sends_the_urgent_gradient_behind_the_large_one():
    # 1: ready 10, up 60, down 110. 0: ready 20, up 70 behind it, down 120. Forward: 120 to 130, 130 to 140 (ms).
    profile = make_profile([10**6, 5 * 10**6], [0.01, 0.01], [0.01, 0.01])
    units = [Unit(1, 5 * 10**6, 0), Unit(0, 10**6, 0)]
    result = simulate(profile, Cluster(RATE, 1, 1), "plain", units)
    assert result.seconds == pytest.approx(0.14)
    timeline = result.workers[0].last
    assert timeline.backward == pytest.approx(0.02)
    assert timeline.units[0] == pytest.approx((0.01, 0.01, 0.06, 0.11))
    assert timeline.units[1] == pytest.approx((0.02, 0.02, 0.07, 0.12))
    assert timeline.forward == (pytest.approx((0.12, 0.13)), pytest.approx((0.13, 0.14)))


@pytest.mark.parametrize("policy", ["priority", "prophet"])
def test_slices_let_the_urgent_gradient_pass(policy):
    # Bound: 0 goes first, 20 to 30; 1 before and after, until 70; forward 30 to 40 and 70 to 80 (ms).
    profile = make_profile([10**6, 5 * 10**6], [0.01, 0.01], [0.01, 0.01])
    result = simulate(profile, Cluster(RATE, 1, 1), policy)
    assert result.bound == pytest.approx(0.08)
    assert result.seconds < 0.09
    assert result.seconds < 0.7 * simulate(profile, Cluster(RATE, 1, 1), "plain").seconds
    first = [times for unit, times in zip(result.units, result.workers[0].last.units) if unit.gradient == 0]
    assert max(times.answered for times in first) < 0.05


def test_a_spread_gradient_uses_all_links():
    profile = make_profile([4 * 10**6], [0.0], [0.0])
    for workers in (1, 4):
        result = simulate(profile, Cluster(RATE, workers, 4), "plain")
        assert result.units == (Unit(0, 4 * 10**6, SPREAD),)
        assert result.seconds == pytest.approx(2 * 4e6 / RATE)
    assert simulate(profile, Cluster(RATE, 8, 4), "plain").seconds == pytest.approx(2 * 2 * 4e6 / RATE)


@pytest.mark.parametrize("policy", POLICIES)
def test_compute_hides_little_communication(policy):
    profile = make_profile([4000] * 10, [0.01] * 10, [0.02] * 10)
    result = simulate(profile, Cluster(RATE, 2, 2), policy)
    assert 0.3 < result.seconds < 0.301


def test_communication_alone_is_a_pipeline():
    # Ten units of 10 ms: up one after the other, each down while the next goes up.
    units = [Unit(0, 10**6, 0)] * 10
    result = simulate(make_profile([10**7], [0.0], [0.0]), Cluster(RATE, 1, 1), "plain", units)
    assert result.seconds == pytest.approx(0.11)
    for policy in SCHEDULED:
        bounded = simulate(make_profile([10**7], [0.0], [0.0]), Cluster(RATE, 1, 1), policy, units, window=2 * 10**6, lead=4 * 10**6)
        assert bounded.seconds == pytest.approx(0.11, rel=0.02)


@pytest.mark.parametrize("policy", POLICIES)
def test_copies_of_slices_overlap_with_the_wire(policy):
    """Ten units of 10 ms on the wire, of 1 ms to copy: together 10 ms each way before and after all, in pieces of two units 2 ms."""
    units = [Unit(0, 10**6, 0)] * 10
    seconds = {}
    for chunk in (0, 10**6, 2 * 10**6):
        cluster = Cluster(RATE, 1, 1, copy_rate=1e9, copy_chunk=chunk)
        profile = make_profile([10**7], [0.0], [0.0])
        seconds[chunk] = simulate(profile, cluster, policy, units, window=2 * 10**6, lead=4 * 10**6).seconds
    assert seconds == {0: pytest.approx(0.13), 10**6: pytest.approx(0.112), 2 * 10**6: pytest.approx(0.114)}


def test_copies_go_by_priority_and_two_one_way_hold_up_one_the_other():
    engines, ended = CopyEngines(1e9), []
    for name, way, size, priority in (("a", TO_HOST, 1e6, -5), ("b", TO_HOST, 2e6, -5), ("c", TO_DEVICE, 1e6, -5), ("d", TO_HOST, 1e6, -1)):
        engines.push(way, size, priority, ended.append, (name,))
    events = [(end, arguments[0]) for end, _, arguments in engines.begin(0.0)]
    assert events == [(pytest.approx(0.001), "d"), (pytest.approx(0.002), "a")] and engines.begin(0.0005) == []
    for now in (0.001, 0.002):
        engines.ended()
        events += [(end, arguments[0]) for end, _, arguments in engines.begin(now)]
    assert events[2:] == [(pytest.approx(0.004), "b"), (pytest.approx(0.003), "c")]


def test_a_straggler_determines_the_time():
    profile = make_profile([40000] * 10, [0.01] * 10, [0.02] * 10)
    for policy in POLICIES:
        result = simulate(profile, Cluster(RATE, 16, 4, straggler=1.5), policy)
        assert [worker.count for worker in result.workers] == [1, 15]
        assert result.bound == pytest.approx(0.45, rel=0.01)
        assert 0.45 <= result.seconds < 0.48
        assert result.workers[1].seconds == pytest.approx(result.seconds, rel=0.01)


# -- against the bound -----------------------------------------------------------------------------------------------------


def test_prophet_in_the_classic_cell():
    profile = network_like()
    times = {policy: simulate(profile, CLASSIC, policy).seconds for policy in POLICIES}
    assert times["prophet"] <= times["fifo"]
    assert times["prophet"] < 0.85 * times["plain"]
    assert times["prophet"] < 1.05 * lower_bound(profile, 59e6)


def test_prophet_stays_near_the_bound_with_a_straggler_and_with_jitter():
    for change in ({"straggler": 1.3}, {"jitter": 0.1}):
        result = simulate(network_like(), replace(CLASSIC, **change), "prophet")
        assert result.ratio < 1.1, change


def test_large_whole_gradients_are_spread_over_servers():
    """Their own keys would all be on the first of two: every other one, and those are nearly all bytes."""
    profile = make_profile([5_000, 50] * 10, [0.0001] * 20, [0.0001] * 20)
    units = make_units(profile, 2, 4_000, grouped=True)
    loads = [sum(unit.bytes for unit in units if unit.server == server) for server in range(2)]
    assert sum(loads) == profile.total_bytes and abs(loads[0] - loads[1]) <= 5_000
    assert {unit.server for unit in make_units(profile, 2, 0) if unit.bytes == 5_000} == {0}  # whole as in plain dist_sync
    assert 1 <= simulate(profile, Cluster(5e6, 2, 2), "prophet").ratio < 1.5  # with one server for all, over 1.8


milliseconds = st.integers(0, 20).map(lambda value: value / 1e3)


@st.composite
def jobs(draw):
    """(profile, cluster, policy, units)."""
    count = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count))
    times = [draw(st.lists(milliseconds, min_size=count, max_size=count)) for _ in range(2)]
    cuts = sorted(draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    edges = [0, *cuts, count]
    profile = make_profile(sizes, *times, [list(range(a, b)) for a, b in reversed(list(zip(edges, edges[1:])))])
    cost = st.sampled_from([0.0, 1e-5, 1e-3])
    cluster = Cluster(
        draw(st.sampled_from([1e6, 1e8, 1e10])),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        rtt=draw(cost),
        message_bytes=draw(st.sampled_from([0, 300])),
        message_seconds=draw(cost),
        server_message_seconds=draw(cost),
        server_byte_seconds=draw(st.sampled_from([0.0, 1e-9])),
        jitter=draw(st.sampled_from([0.0, 0.0, 0.3])),
        straggler=draw(st.sampled_from([1.0, 1.0, 1.5])),
        copy_rate=draw(st.sampled_from([0.0, 1e8])),
        copy_chunk=draw(st.sampled_from([0, 100000, 1e12])),
    )
    units = [
        unit._replace(server=draw(st.integers(SPREAD if cluster.servers > 1 else 0, cluster.servers - 1)))
        for unit in make_units(profile, cluster.servers, draw(st.sampled_from([0, 50000, 300000])))
    ]
    return profile, cluster, draw(st.sampled_from(POLICIES)), draw(st.permutations(units))


@settings(max_examples=100)
@given(jobs(), st.integers(0, 3))
def test_nothing_beats_the_bound(job, seed):
    """Also: any order that all workers share ends without a standstill."""
    profile, cluster, policy, units = job
    result = simulate(profile, cluster, policy, units, iterations=3, warmup=1, seed=seed)
    assert result.ratio >= 1 - 1e-9
    for worker in result.workers:
        for unit, times in zip(units, worker.last.units):
            assert list(times) == sorted(times)
            assert times.answered <= worker.last.forward[unit.gradient][0] + 1e-12


def test_schedulers_stay_consistent(checked):
    profile = network_like()
    for policy in SCHEDULED:
        for cluster in (CLASSIC, Cluster(118e6, 3, 2, straggler=1.2), Cluster(118e6, 2, 3, jitter=0.3)):
            assert simulate(profile, cluster, policy, iterations=2, warmup=1).ratio >= 1


class _Wrapped:
    """The scheduler of a worker that does something else."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def __getattr__(self, name):
        return getattr(self._scheduler, name)


class _Reversed(_Wrapped):
    """Calls unit 0 what the others call unit 1."""

    def ready(self, unit, iteration, t):
        self._scheduler.ready(1 - unit, iteration, t)

    def done(self, unit, t):
        self._scheduler.done(1 - unit, t)

    def decide(self, t):
        released, wake = self._scheduler.decide(t)
        return [1 - unit for unit in released], wake


class _Stuck(_Wrapped):
    """Lets nothing go, and tells nobody when to ask again."""

    def decide(self, t):
        return [], math.inf


def job_with(wrapper):
    """A job whose second worker has another scheduler: two gradients, three iterations, a lead limit of one unit."""
    profile = make_profile([10**6] * 2, [0.0] * 2, [0.01, 0.01], [[0, 1]])

    class Disagreeing(event_loop.Simulation):
        def _scheduler(self, *arguments):
            scheduler = super()._scheduler(*arguments)
            self.made = getattr(self, "made", 0) + 1
            return wrapper(scheduler) if self.made == 2 else scheduler

    cluster = Cluster(RATE, 2, 1)
    return Disagreeing(profile, cluster, "priority", make_units(profile, 1), worker_classes(cluster, collapse=False), 3, 0, 0, 1, RATE)


def test_workers_whose_orders_differ_wait_for_yields_and_not_forever():
    """What the total order is for: with opposite ones and a lead limit of one unit, each waits for the other until a limit yields."""
    job = job_with(_Reversed)
    job.run()
    assert all(len(worker.starts) == 4 for worker in job.workers)
    assert sum(worker.scheduler.counters()["yields"] for worker in job.workers) >= 3


def test_a_standstill_is_reported():
    with pytest.raises(SimulationError, match="standstill.*worker 0.*worker 1"):
        job_with(_Stuck).run()


# -- long round trips ---------------------------------------------------------------------------------------------------------


def far_away(model, rtt):
    """A model at rho 1, and two workers and a server on links of 1 Gbit/s."""
    cluster = Cluster(125e6, 2, 1, rtt=rtt, message_bytes=100, message_seconds=5e-5, server_message_seconds=5e-5)
    return scaled_to_rho(model_profile(model).scaled(compute=0.15), worker_rate(cluster.bandwidth, 2, 1), 1), cluster


@pytest.mark.parametrize("rtt", [0.001, 0.005, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("model", ["vgg16", "resnet50_v1"])
def test_a_round_trip_costs_an_iteration_itself_and_little_more(model, rtt):
    """The window follows from the estimate of the rate, and what a window lets through must not make the estimate smaller."""
    profile, near = far_away(model, 0)
    sizes = [gradient.bytes for gradient in profile.gradients]
    unit = unit_bytes("prophet", Traffic(sizes, connection_rate(near), message_time(near), 2, 1))
    alone = in_total_order(make_units(profile, 1, unit), profile, connection_rate(near))  # groups gain more without a round trip
    far = simulate(*far_away(model, rtt), "prophet", iterations=4, warmup=4)
    assert far.seconds <= 1.02 * simulate(profile, near, "prophet", alone, iterations=4, warmup=4).seconds + rtt


@pytest.mark.parametrize("rtt", [0.001, 0.005, 0.02])
@pytest.mark.parametrize("factor", [0.25, 2])
@pytest.mark.parametrize("unit", [None, 50_000])
def test_a_rate_that_is_wrong_at_first_is_soon_right(monkeypatch, factor, rtt, unit):
    """Also with small units, which let a window that is too small grow by little at a time."""
    profile, cluster = far_away("resnet50_v1", rtt)
    units = default_units(profile, cluster, "prophet") if unit is None else make_units(profile, 1, unit, grouped=True)
    right = simulate(profile, cluster, "prophet", units, iterations=2, warmup=2)
    monkeypatch.setattr(simulator, "connection_rate", lambda cluster: factor * connection_rate(cluster))
    assert simulate(profile, cluster, "prophet", units, iterations=2, warmup=10).seconds <= 1.01 * right.seconds


# -- the shortcuts change nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "cluster",
    [
        CLASSIC,
        Cluster(118e6, 5, 1),
        Cluster(59e6, 4, 2, rtt=2e-4),
        Cluster(59e6, 3, 4, message_seconds=2e-5),
        Cluster(118e6, 4, 2, straggler=1.3),
        Cluster(118e6, 3, 1, message_bytes=200, server_message_seconds=1e-4),
    ],
)
def test_symmetry_changes_no_result(policy, cluster):
    profile = network_like()
    short = simulate(profile, cluster, policy, iterations=3, warmup=2)
    full = simulate(profile, cluster, policy, iterations=3, warmup=2, collapse=False)
    assert len(short.workers) == (2 if cluster.straggler > 1 else 1) and len(full.workers) == cluster.workers
    assert short.seconds == pytest.approx(full.seconds, rel=1e-6)
    for times, others in zip(short.workers[-1].last.units, full.workers[-1].last.units):
        # Rounding may move a rate sample by one poll: what follows then leaves up to a unit earlier or later.
        assert times == pytest.approx(others, abs=0.005)


def test_servers_of_one_kind_are_simulated_once():
    """A spread gradient on 3 servers is one on each."""
    profile = make_profile([4 * 10**6, 400], [0.01, 0.01], [0.01, 0.01])
    cluster = Cluster(RATE, 2, 3)
    spread = simulate(profile, cluster, "plain", [Unit(1, 400, 0), Unit(0, 3999999, SPREAD), Unit(0, 1, 0)])
    each = simulate(profile, cluster, "plain", [Unit(1, 400, 0)] + [Unit(0, 1333333, server) for server in range(3)] + [Unit(0, 1, 0)])
    assert spread.seconds == pytest.approx(each.seconds, rel=1e-6)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 1000), st.floats(0, 3)), min_size=1, max_size=12))
def test_equal_shares_are_max_min_shares_of_one_class(flows):
    counts = [1, 1, 1, 3, 5]
    runs = []
    for shares in (EqualShares(100 / 7, 100, counts), MaxMinShares(100, [7], counts)):
        ends, waiting, busy, t = [], sorted(flows, key=lambda flow: flow[2]), set(), 0.0
        while waiting or busy:
            if waiting and waiting[0][2] <= shares.next:
                key, size, start = waiting.pop(0)
                t = max(t, start)
                if key not in busy:
                    busy.add(key)
                    shares.start(key, size, t)
            else:
                t = shares.next
                for key in shares.ended(t):
                    busy.remove(key)
                    ends.append((round(t, 6), key))
        runs.append(sorted(ends))
    assert [key for _, key in runs[0]] == [key for _, key in runs[1]]
    assert [t for t, _ in runs[0]] == pytest.approx([t for t, _ in runs[1]], abs=1e-5)


def test_max_min_shares_give_what_others_cannot_use():
    # Workers 0, 1, 2 to server 0: a third each. Worker 2 to server 1 gets the rest of worker 2's link.
    shares = MaxMinShares(90.0, [1, 1, 1], [1, 1])
    for key in (0, 2, 4, 5):
        shares.start(key, 60.0, 0.0)
    assert shares.next == pytest.approx(1.0) and shares.ended(shares.next) == [5]
    assert shares.left(0, 1.5) == pytest.approx(15.0)
    assert shares.next == pytest.approx(2.0) and shares.ended(shares.next) == [0, 2, 4]
    assert shares.next == math.inf


# -- jitter ----------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_again_and_another_does_not():
    cluster = replace(CLASSIC, jitter=0.2)
    first, again, other = (simulate(network_like(), cluster, "prophet", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.seconds != other.seconds


def test_many_workers_with_jitter_are_as_slow_as_the_slowest_of_them():
    profile = make_profile([4], [0.1], [0.2])
    few = simulate(profile, Cluster(1e12, 4, 1, jitter=0.2), "plain", iterations=100)
    many = simulate(profile, Cluster(1e12, 1000, 1, jitter=0.2), "plain", iterations=100)
    assert sum(worker.count for worker in many.workers) == 1000 and len(many.workers) == MAX_CLASSES
    # The largest of n factors drawn evenly from 0.8 to 1.2 is 1.2 - 0.4 / (n + 1) in the mean.
    assert few.seconds == pytest.approx(0.3 * (1.2 - 0.4 / 5), rel=0.02)
    assert many.seconds == pytest.approx(0.3 * 1.2, rel=0.002)


# -- units and arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_what_is_sliced_at_all_is_on_one_server_each(element_bytes):
    """A unit of 4 MB has as many elements as MXNet spreads, or twice as many in half precision."""
    profile = make_profile([6 * 10**6, 4 * 10**6], [0.0] * 2, [0.0] * 2)
    units = make_units(profile, 2, MAX_UNIT, element_bytes=element_bytes)
    assert {unit.server for unit in units} == {0, 1} and max(unit.bytes for unit in units) < element_bytes * 10**6
    assert {unit.server for unit in make_units(profile, 2)} == {SPREAD}


def test_default_units_are_those_of_the_policy_in_the_agreed_order():
    profile = network_like()
    units = {policy: default_units(profile, CLASSIC, policy) for policy in POLICIES}
    assert len(units["plain"]) == len(units["fifo"]) == len(profile.gradients)
    sizes = [gradient.bytes for gradient in profile.gradients]
    size = unit_bytes("prophet", Traffic(sizes, 59e6, 0.0, CLASSIC.workers, CLASSIC.servers))
    assert max(unit.bytes for unit in units["prophet"]) <= 1.5 * size + 4
    grouped = make_units(profile, 1, size, grouped=True)
    assert units["prophet"] == in_total_order(grouped, profile, 59e6)
    assert units["prophet"][0].gradient in profile.steps[0] and units["prophet"] != grouped


def test_odd_bytes_are_not_lost():
    for size in (1, 2, 7, 100003):
        assert sum(unit.bytes for unit in make_units(make_profile([size], [0.0], [0.0]), 1, 30000)) == size


@pytest.mark.parametrize(
    "field, value",
    [
        ("bandwidth", 0),
        ("bandwidth", math.nan),
        ("bandwidth", "10Gbit"),
        ("workers", 0),
        ("workers", 1.5),
        ("workers", True),
        ("servers", 10**9),
        ("rtt", -1e-3),
        ("message_bytes", math.inf),
        ("jitter", 1.0),
        ("straggler", 0.5),
        ("copy_rate", -1),
        ("copy_chunk", math.nan),
    ],
)
def test_a_wrong_cluster_is_named(field, value):
    with pytest.raises(ConfigError, match=f"^{field}=.* is not allowed; allowed: "):
        Cluster(**{"bandwidth": 1e9, field: value})


def test_wrong_arguments_are_named():
    cluster = Cluster(RATE, 2, 2)
    for wrong in ({"policy": "magic"}, {"iterations": 0}, {"warmup": -1}, {"window": 0.5}):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}=.* is not allowed; allowed: "):
            simulate(ONE, cluster, **wrong)
    for units in ([], [Unit(0, 999, 0)], [Unit(0, 10**6, 2)], [Unit(1, 10**6, 0)], [Unit(0, 10**6, 0), Unit(0, 0, 0)]):
        with pytest.raises(ConfigError, match="allowed: "):
            simulate(ONE, cluster, "plain", units)
    with pytest.raises(ProfileError, match="no compute times"):
        simulate(GradientProfile("no times", [Gradient("a", 4, ready=0.0)], [[0]]), cluster)


def test_a_job_without_compute_or_costs():
    assert simulate(make_profile([4, 4], [0.0] * 2, [0.0] * 2), Cluster(1e13, 1, 1), "prophet").seconds < 1e-9


def test_a_thousand_workers_take_seconds():
    steps = [list(range(190 - 10 * step, 200 - 10 * step)) for step in range(20)]
    profile = make_profile([4 * 40000] * 200, [0.5e-3] * 200, [1e-3] * 200, steps)
    begin = time.process_time()
    for policy in POLICIES:
        assert simulate(profile, Cluster(1.25e9, 1000, 1000, rtt=1e-4), policy).ratio >= 1
    assert time.process_time() - begin < 30


# -- a recorded profile ----------------------------------------------------------------------------------------------------


# -- the command -----------------------------------------------------------------------------------------------------------


def test_a_message_costs_what_the_slower_side_takes():
    """A worker sends one after the other; a server handles those of all its workers."""
    assert message_time(Cluster(1e9, 4, 2, message_seconds=0.001, server_message_seconds=0.002)) == 0.004
    assert message_time(Cluster(1e9, 4, 2, message_seconds=0.005, server_message_seconds=0.002)) == 0.005
