"""Queues that can be full, one TCP connection over them, and jobs on a switch whose ports have such queues."""

import heapq
import math
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.errors import ConfigError
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.cluster import DROP, HOLD, SPREAD, Cluster, Unit
from prophet_mx.simulation.fluid import Message
from prophet_mx.simulation.queues import Queue
from prophet_mx.simulation.simulator import simulate
from prophet_mx.simulation.tcp import SEGMENT, TIMEOUT, Connection, Path
from support.profiles import make_profile

RATE = 1e8


# -- a queue -----------------------------------------------------------------------------------------------------------------


def test_bytes_wait_for_those_before_them():
    queue = Queue(RATE)
    assert [queue.push(10**6, t) for t in (0.0, 0.0, 0.05)] == pytest.approx([0.01, 0.02, 0.06])
    assert queue.delay(0.055) == pytest.approx(0.005) and queue.delay(1.0) == 0


def test_a_full_queue_takes_nothing_until_it_has_drained():
    queue = Queue(RATE, room=64_000)
    queue.push(60_000, 0.0)
    assert not queue.fits(8_000, 0.0)
    assert queue.fits(8_000, 0.00005)
    assert queue.fits(10**6, 1.0)  # what is larger than the queue passes an empty one


def test_a_token_bucket_lets_a_burst_through_at_once():
    queue = Queue(RATE, room=64_000, burst=32_000)
    assert queue.push(32_000, 0.0) == 0
    assert queue.push(32_000, 0.0) == pytest.approx(32_000 / RATE)
    assert queue.fits(32_000, 0.0) and not queue.fits(32_001, 0.0)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 0.01), st.integers(1, 16_000)), max_size=40), st.floats(16_000, 100_000), st.floats(0, 50_000))
def test_a_queue_keeps_order_rate_and_room(arrivals, room, burst):
    queue, t, left, taken = Queue(RATE, room, burst), 0.0, 0.0, 0
    for wait, size in arrivals:
        t += wait
        if queue.fits(size, t):
            leaves = queue.push(size, t)
            taken += size
            assert leaves >= max(t, left) - 1e-12
            assert leaves - t <= max(room, size) / RATE + 1e-9
            assert taken <= burst + RATE * leaves + 1e-3
            left = leaves


# -- a connection ------------------------------------------------------------------------------------------------------------


class Clock:
    """Makes the calls of connections in the order of their times."""

    def __init__(self):
        self.calls, self.order, self.t = [], count(), 0.0

    def at(self, time, call, *arguments):
        assert time >= self.t
        heapq.heappush(self.calls, (time, next(self.order), call, arguments))

    def run(self):
        while self.calls:
            self.t, _, call, arguments = heapq.heappop(self.calls)
            call(*arguments, self.t)


class Lossy(Queue):
    """A port that drops the chunks of these places in the order of their arrival."""

    def __init__(self, lost):
        super().__init__(RATE)
        self.lost, self.seen = lost, count()

    def fits(self, size, t):
        return next(self.seen) not in self.lost


def carried(sizes, port, host=None, rtt=0.001):
    """When each message arrives over a connection, and the connection."""
    clock, arrived = Clock(), []
    path = Path(host or Queue(RATE), port, (Queue(RATE), Queue(RATE)), 4000, rtt)
    connection = Connection(path, clock.at, lambda message, t: arrived.append((message.unit, t)))
    for unit, size in enumerate(sizes):
        connection.send(Message(unit, size, size), 0.0)
    clock.run()
    assert [unit for unit, _ in arrived] == list(range(len(sizes)))
    assert connection.drained() == sum(sizes)
    return [t for _, t in arrived], connection


def test_without_loss_a_small_message_takes_the_wire_and_half_a_round_trip():
    [t], connection = carried([4000], Queue(RATE))
    assert t == pytest.approx(2 * 4000 / RATE + 0.0005)  # host and port each pass it on whole
    assert connection.dropped == connection.timeouts == 0


def test_a_window_grows_until_the_link_is_full():
    [t], connection = carried([10**7], Queue(RATE))
    assert 0.1 < t < 0.12 and connection.window > RATE * 0.001


def test_a_lost_chunk_that_others_follow_costs_milliseconds():
    [whole], _ = carried([12_000], Queue(RATE))
    [late], connection = carried([12_000], Lossy({0}))
    assert connection.dropped == 1 and connection.timeouts == 0
    assert whole + 0.001 < late < whole + 0.02


def test_a_lost_end_is_found_by_a_probe():
    [late], connection = carried([12_000], Lossy({2}))
    assert connection.timeouts == 0 and 0.004 < late < 0.02


def test_a_probe_that_is_lost_too_costs_a_timeout():
    [late], connection = carried([4_000], Lossy({0, 1}))
    assert connection.timeouts == 1 and TIMEOUT < late < 1.2 * TIMEOUT


def test_a_host_that_refuses_all_makes_the_connection_wait_for_a_timeout():
    host = Queue(RATE, room=64_000)
    host.push(64_000, 0.0)
    [late], connection = carried([12_000], Queue(RATE), host)
    assert connection.timeouts == 1 and TIMEOUT < late < 1.1 * TIMEOUT


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=6), st.sets(st.integers(0, 60), max_size=30))
def test_whatever_is_lost_all_messages_arrive_in_order(sizes, lost):
    times, connection = carried(sizes, Lossy(lost))
    assert times == sorted(times)
    assert connection.window >= SEGMENT


# -- jobs --------------------------------------------------------------------------------------------------------------------

SMALL = model_profile("resnet50_v1").scaled(size=0.03, compute=0.1)  # 3 MB


def job(policy="prophet", workers=2, servers=1, profile=SMALL, rate=60e6, **network):
    return simulate(profile, Cluster(rate, workers, servers, rtt=1e-4, **network), policy, iterations=2, warmup=2)


def test_one_worker_and_one_server_lose_nothing():
    ideal, switched = job(workers=1), job(workers=1, port_bytes=64e3)
    assert switched.seconds == pytest.approx(ideal.seconds, rel=0.05)


def test_deep_ports_are_as_good_as_ideal_links():
    assert job(port_bytes=1e8).seconds == pytest.approx(job().seconds, rel=0.05)


def test_shallow_ports_cost_plain_more_than_scheduled_messages():
    plain, scheduled = ({size: job(policy, 4, port_bytes=size).seconds for size in (32e3, 1e8)} for policy in ("plain", "prophet"))
    assert plain[32e3] > 1.01 * plain[1e8]
    assert scheduled[32e3] > 1.01 * scheduled[1e8]
    assert scheduled[32e3] < plain[32e3]


@pytest.mark.parametrize("hosts", [HOLD, DROP])
@pytest.mark.parametrize("policy", ["plain", "prophet"])
def test_every_policy_ends_on_several_servers(policy, hosts):
    result = job(policy, 3, 2, port_bytes=16e3, hosts=hosts)
    assert result.seconds >= result.bound * (1 - 1e-9)
    assert [worker.count for worker in result.workers] == [1, 1, 1]


def test_a_spread_gradient_uses_the_ports_of_all_servers():
    profile = make_profile([4 * 10**6], [0.0], [0.0])
    cluster = Cluster(RATE, 1, 4, port_bytes=1e7)
    seconds = simulate(profile, cluster, "plain", [Unit(0, 4 * 10**6, SPREAD)], iterations=2, warmup=6).seconds
    assert seconds == pytest.approx(2 * 4e6 / RATE, rel=0.1)


def test_a_simulation_with_ports_repeats_itself():
    assert job(port_bytes=64e3, jitter=0.01) == job(port_bytes=64e3, jitter=0.01)


@pytest.mark.parametrize("wrong", [{"port_bytes": -1}, {"hosts": "keep"}, {"burst_bytes": math.nan}])
def test_what_is_no_network_is_refused(wrong):
    with pytest.raises(ConfigError, match="is not allowed"):
        Cluster(RATE, **wrong)
