"""The lower bound against every schedule there is, on instances small enough to try them all."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.errors import ConfigError, ProfileError
from prophet_mx.planning.bound import (
    Sending,
    communication_seconds,
    finishing_order,
    job_bound,
    lower_bound,
    rho,
    ring_rate,
    scaled_to_rho,
    sendings,
    worker_rate,
)
from prophet_mx.profiling.gradient_profile import GradientProfile
from support.profiles import make_profile


def durations(profile, rate):
    return [gradient.bytes / rate for gradient in profile.gradients]


def replay(profile, rate):
    return sendings(profile.ready_times(), durations(profile, rate))


REAL = st.floats(1e-3, 10)


@st.composite
def profiles(draw):
    count = draw(st.integers(1, 12))
    column = st.lists(REAL, min_size=count, max_size=count)
    sizes = draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count))
    borders = sorted(draw(st.sets(st.integers(1, count - 1))) if count > 1 else ())
    edges = [0] + borders + [count]
    steps = [list(range(low, high)) for low, high in zip(edges, edges[1:])][::-1]
    return make_profile(sizes, draw(column), draw(column), steps)


RATES = st.floats(1e2, 1e8)


class Machine:
    """One worker in slots of one time unit: a device that computes in order, a link that sends one byte per slot.

    A state is (iterations finished, operators finished in this one, time left of the running one, bytes left per gradient);
    operators are backward of the last layer to the first, then forward of the first to the last.
    """

    def __init__(self, profile):
        self.sizes = tuple(g.bytes for g in profile.gradients)
        self.count = len(self.sizes)
        self.times = [int(g.backward) for g in reversed(profile.gradients)] + [int(g.forward) for g in profile.gradients]
        self.step_of = {index: step for step in profile.steps for index in step}
        self.start = self.settle((0, 0, self.times[0], self.sizes))

    def ready(self, state, index):
        """Whether the backward operators of all gradients in the step of ``index`` have finished."""
        return state[1] >= self.count - min(self.step_of[index])

    def can_run(self, state):
        operator = state[1] - self.count
        return operator < 0 or state[3][operator] == 0

    def settle(self, state):
        """Operators that have no time left, and may run, finish."""
        iterations, finished, left, unsent = state
        while left == 0 and self.can_run((iterations, finished, left, unsent)):
            finished += 1
            if finished == len(self.times):
                iterations, finished, unsent = iterations + 1, 0, self.sizes
            left = self.times[finished]
            if sum(self.times) == 0 and finished == 0:
                break
        return iterations, finished, left, unsent

    def after(self, state, sent):
        """The state one slot later, in which a byte of gradient ``sent`` (None: nothing) was sent and the device worked."""
        iterations, finished, left, unsent = state
        if left and self.can_run(state):
            left -= 1
        if sent is not None:
            unsent = unsent[:sent] + (unsent[sent] - 1,) + unsent[sent + 1 :]
        return self.settle((iterations, finished, left, unsent))

    def choices(self, state):
        """The gradients of which the link may send a byte."""
        return [index for index in range(self.count) if state[3][index] and self.ready(state, index)]

    def fastest(self, iterations):
        """Slots that the best of all schedules needs; idling is a choice in every slot."""
        states, slots = {self.start}, 0
        while not any(state[0] >= iterations for state in states):
            states = {self.after(state, sent) for state in states for sent in self.choices(state) + [None]}
            slots += 1
        return slots

    def run(self, iterations, choose):
        """Slots that one schedule needs; ``choose`` picks from the gradients that may be sent."""
        state, slots = self.start, 0
        while state[0] < iterations:
            choices = self.choices(state)
            state = self.after(state, choose(choices) if choices else None)
            slots += 1
        return slots


@st.composite
def tiny(draw, most=4):
    count = draw(st.integers(1, most))
    short = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    sizes = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    cuts = draw(st.lists(st.booleans(), min_size=count - 1, max_size=count - 1))
    steps = [[count - 1]]
    for index, cut in zip(reversed(range(count - 1)), cuts):
        if cut:
            steps.append([index])
        else:
            steps[-1].append(index)
    backward = draw(short.filter(any))
    return make_profile(sizes, draw(short), backward, steps)


@settings(max_examples=150, deadline=None)
@given(tiny(), st.integers(1, 3))
def test_no_schedule_beats_the_bound_and_strict_priority_reaches_it(profile, iterations):
    machine = Machine(profile)
    bound = lower_bound(profile, 1.0) * iterations
    assert machine.fastest(iterations) == bound
    assert machine.run(iterations, min) == bound


@settings(max_examples=40, deadline=None)
@given(tiny(most=3))
def test_no_schedule_beats_the_bound_by_switching_within_a_slot(profile):
    halves = make_profile(
        [2 * g.bytes for g in profile.gradients],
        [2 * g.forward for g in profile.gradients],
        [2 * g.backward for g in profile.gradients],
        profile.steps,
    )
    assert Machine(halves).fastest(2) == 2 * 2 * lower_bound(profile, 1.0)


def test_a_schedule_that_is_not_urgent_first_can_miss_the_bound():
    profile = make_profile([2, 4], [3, 1], [2, 1])
    machine = Machine(profile)
    assert lower_bound(profile, 1.0) == 9
    assert machine.run(5, min) == 5 * 9
    assert machine.run(5, max) == 5 * 11


class Cluster:
    """Two workers of which the second computes ``slow`` times as long, in slots of one time unit. One server's link carries a byte per
    slot, of either worker, as does each worker's own. A value is there when both have sent its bytes; the answer takes no time.

    A state has for each worker what a state of :class:`Machine` has.
    """

    def __init__(self, profile, slow):
        self.machines = [Machine(profile), Machine(profile)]
        self.machines[1].times = [slow * seconds for seconds in self.machines[1].times]
        self.start = self.settle([(0, 0, machine.times[0], machine.sizes) for machine in self.machines])

    def can_run(self, states, worker):
        iterations, finished, _, _ = states[worker]
        operator = finished - self.machines[worker].count
        return operator < 0 or all(state[0] > iterations or (state[0] == iterations and not state[3][operator]) for state in states)

    def settle(self, states):
        """Operators that have no time left, and may run, finish; which may let one of the other worker run."""
        moved = True
        while moved:
            moved = False
            for worker, machine in enumerate(self.machines):
                iterations, finished, left, unsent = states[worker]
                if left or not self.can_run(states, worker):
                    continue
                moved, finished = True, finished + 1
                if finished == len(machine.times):
                    iterations, finished, unsent = iterations + 1, 0, machine.sizes
                states = [*states[:worker], (iterations, finished, machine.times[finished], unsent), *states[worker + 1 :]]
        return tuple(states)

    def after(self, states, sent):
        found = []
        for worker, (iterations, finished, left, unsent) in enumerate(states):
            computed = left > 0 and self.can_run(states, worker)
            carried = tuple(size - (sent == (worker, index)) for index, size in enumerate(unsent))
            found.append((iterations, finished, left - computed, carried))
        return self.settle(found)

    def fastest(self, iterations):
        """Slots that the best of all schedules needs until both workers have done so many iterations."""
        reached, slots = {self.start}, 0
        while not any(all(state[0] >= iterations for state in states) for states in reached):
            reached = {
                self.after(states, sent)
                for states in reached
                for sent in [
                    None,
                    *((worker, one) for worker, machine in enumerate(self.machines) for one in machine.choices(states[worker])),
                ]
            }
            slots += 1
        return slots


@settings(max_examples=40, deadline=None)
@given(tiny(most=2), st.integers(1, 3), st.integers(1, 2))
def test_no_schedule_of_unequal_workers_beats_their_bound(profile, slow, iterations):
    bound = job_bound(profile, 1.0, 0.5, [[1.0] * iterations, [slow] * iterations])
    assert Cluster(profile, slow).fastest(iterations) >= iterations * bound * (1 - 1e-12)


def test_a_slow_worker_has_the_servers_link_for_itself_while_the_others_have_nothing_to_send():
    """With an equal share of it, its bytes alone would take longer than a schedule that there is."""
    profile = make_profile([2], [0], [1])
    slowest = make_profile([2], [0], [3])
    assert Cluster(profile, 3).fastest(1) == 5 < lower_bound(slowest, 0.5) == 7
    assert job_bound(profile, 1.0, 0.5, [[1.0], [3.0]]) == 5


@given(profiles(), RATES, st.floats(0.01, 1), st.integers(1, 5), st.integers(1, 5))
def test_workers_that_are_alike_have_the_bound_of_one_with_its_share(profile, own, share, workers, iterations):
    assert job_bound(profile, own, own * share, [[1.0] * iterations] * workers) == pytest.approx(
        lower_bound(profile, own * share), rel=1e-12
    )
    assert job_bound(profile, own, own * share, [[1.0]] * workers) == lower_bound(profile, own * share)


def test_a_bound_worked_out_by_hand():
    # Backward ends at 3. Gradient 1 (4 bytes) is sent from 1, interrupted at 3 by gradient 0 (2 bytes, until 5), and sent
    # from 5 to 7; forward 0 runs from 5 to 8, forward 1 from 8 to 9. Compute alone is 7, the bytes alone 6.
    profile = make_profile([2, 4], [3, 1], [2, 1])
    late = make_profile([2, 4], [3, 1], [2, 1], [[0, 1]])
    assert replay(profile, 1.0) == [Sending(1, 0, 2), Sending(0, 2, 4), Sending(1, 4, 6)]
    assert lower_bound(profile, 1.0) == 9
    assert replay(late, 1.0) == [Sending(0, 0, 2), Sending(1, 2, 6)]
    assert lower_bound(late, 1.0) == 10
    assert communication_seconds(profile, 1.0) == 6 and rho(profile, 1.0) == pytest.approx(6 / 7)


@given(profiles(), RATES)
def test_the_bound_is_at_least_the_compute_and_the_communication_time(profile, rate):
    bound = lower_bound(profile, rate) * (1 + 1e-9)
    first_ready = min(profile.backward_ready_times())
    assert bound >= profile.compute_seconds
    assert bound >= first_ready + communication_seconds(profile, rate) >= communication_seconds(profile, rate)
    assert bound <= (profile.compute_seconds + communication_seconds(profile, rate)) * (1 + 2e-9)


@given(profiles(), RATES, st.floats(1, 100))
def test_a_faster_link_never_raises_the_bound(profile, rate, factor):
    assert lower_bound(profile, rate * factor) <= lower_bound(profile, rate) * (1 + 1e-9)


@given(profiles(), RATES, st.integers(0, 11), st.integers(1, 10**6))
def test_a_larger_gradient_never_lowers_the_bound(profile, rate, which, more):
    sizes = [g.bytes for g in profile.gradients]
    sizes[which % len(sizes)] += more
    larger = make_profile(sizes, [g.forward for g in profile.gradients], [g.backward for g in profile.gradients], profile.steps)
    assert lower_bound(larger, rate) >= lower_bound(profile, rate) * (1 - 1e-9)


@given(profiles())
def test_an_endless_link_leaves_the_compute_time(profile):
    assert lower_bound(profile, 1e15) == pytest.approx(profile.compute_seconds, rel=1e-6)


@given(profiles(), RATES)
def test_the_replay_sends_every_byte_once_after_it_is_ready_and_most_urgent_first(profile, rate):
    replayed, ready = replay(profile, rate), profile.ready_times()
    sent = [math.fsum(s.end - s.start for s in replayed if s.gradient == index) for index in range(len(ready))]
    total = communication_seconds(profile, rate)
    assert sent == pytest.approx([g.bytes / rate for g in profile.gradients], rel=1e-6, abs=1e-9 * total)
    for sending, following in zip(replayed, replayed[1:]):
        assert sending.end <= following.start
    ends = {sending.gradient: sending.end for sending in replayed}
    for sending in replayed:
        assert sending.start >= ready[sending.gradient]
        for urgent in range(sending.gradient):
            assert ready[urgent] >= sending.end or ends[urgent] <= sending.start


@given(profiles(), RATES)
def test_the_finishing_order_is_that_of_the_last_bytes(profile, rate):
    order = finishing_order(profile.ready_times(), durations(profile, rate))
    ends = {sending.gradient: sending.end for sending in replay(profile, rate)}
    assert sorted(order) == list(range(len(profile.gradients)))
    assert [ends[index] for index in order] == sorted(ends.values())


def test_the_replay_of_observed_ready_times_needs_no_compute_times():
    profile = GradientProfile.from_samples("job", ["a", "b", "c"], [10, 10, 10], [[3.0, 2.0, 0.0]])
    assert replay(profile, 5.0) == [Sending(2, 0, 2), Sending(1, 2, 3), Sending(0, 3, 5), Sending(1, 5, 6)]
    assert finishing_order(profile.ready_times(), durations(profile, 5.0)) == [2, 0, 1]
    with pytest.raises(ProfileError, match="compute"):
        lower_bound(profile, 5.0)


def test_what_becomes_ready_later_and_is_less_urgent_does_not_divide_a_sending():
    profile = GradientProfile.from_samples("job", ["a", "b"], [10, 10], [[0.0, 1.0]])
    assert replay(profile, 5.0) == [Sending(0, 0, 2), Sending(1, 2, 4)]


def test_scaling_to_a_ratio_changes_sizes_and_not_times():
    profile = make_profile([10**6, 3 * 10**6], [0.2, 0.2], [0.3, 0.3])
    scaled = scaled_to_rho(profile, 1e6, 2.0)
    assert rho(scaled, 1e6) == pytest.approx(2.0, rel=1e-5)
    assert scaled.compute_seconds == profile.compute_seconds
    with pytest.raises(ProfileError):
        scaled_to_rho(profile, 1e6, 0)


def test_a_workers_share_of_the_busiest_link():
    assert worker_rate(100.0, 2, 1) == 50.0
    assert worker_rate(100.0, 4, 2) == 50.0
    assert worker_rate(100.0, 1, 4) == 100.0
    for workers, servers in ((0, 1), (1, 0), (1.5, 1), (True, 1)):
        with pytest.raises(ConfigError):
            worker_rate(100.0, workers, servers)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "fast", None])
def test_a_rate_that_is_none_is_rejected(rate):
    profile = make_profile([1], [1], [1])
    for use in (lower_bound, communication_seconds, rho):
        with pytest.raises(ConfigError, match="rate"):
            use(profile, rate)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(0.001, 0.1)), min_size=1, max_size=9), st.floats(1e6, 1e9))
def test_the_bound_of_a_ring_is_that_of_a_link_that_carries_each_byte_as_often_as_a_ring_does(layers, link):
    sizes, seconds = zip(*layers)
    profile = make_profile(sizes, seconds, seconds)
    assert lower_bound(profile, ring_rate(link, 2)) == lower_bound(profile, link)
    assert lower_bound(profile, ring_rate(link, 4)) == pytest.approx(lower_bound(profile, link / 1.5))
    assert ring_rate(link, 1000) == pytest.approx(link / 2, rel=0.002)


@pytest.mark.parametrize("wrong", [(1e6, 1), (0, 2), (math.nan, 2)])
def test_rings_that_there_are_not(wrong):
    with pytest.raises(ConfigError, match="allowed: "):
        ring_rate(*wrong)
