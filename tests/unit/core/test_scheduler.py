"""The compiled scheduler against random events: what it lets go, what it may hold back, and that workers never lock each other."""

import math
import os
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx._core import Scheduler
from support.scheduler_model import POLICIES, WIDE, Cluster, Model, install_steps, random_event
from support.waiting_workers import random_program, run


@st.composite
def jobs(draw, max_links=3, wide=True):
    """Policy, number of links, window, lead, units."""
    links = draw(st.integers(1, max_links))
    count = draw(st.integers(1, 12))
    positions = draw(st.permutations(range(count)))
    units = [
        (draw(st.sampled_from([0, 1, 7, 40, 1000, 100000])), draw(st.integers(WIDE if wide else 0, links - 1)), position)
        for position in positions
    ]
    return (draw(st.sampled_from(POLICIES)), links, draw(st.sampled_from([0, 1, 50, 2000])), draw(st.sampled_from([0, 1, 50, 5000])), units)


@settings(max_examples=300)
@given(jobs(), st.randoms(use_true_random=False))
def test_one_scheduler_under_random_events(job, rng):
    model = Model(*job)
    iteration = 0
    if rng.random() < 0.5:
        install_steps(model, rng)
    for _ in range(60):
        iteration, _ = random_event(model, rng, iteration)


@settings(max_examples=200)
@given(jobs(), st.randoms(use_true_random=False))
def test_every_unit_is_sent_exactly_once_per_ready(job, rng):
    """With an obliging network, everything that became ready has been sent, once, when all is answered."""
    model = Model(*job)
    expected = [0] * len(model.units)
    for iteration in range(5):
        for unit in rng.sample(range(len(model.units)), rng.randint(1, len(model.units))):
            model.ready(unit, iteration)
            expected[unit] += 1
            if rng.random() < 0.3:
                model.decide()
        for _ in range(1000):
            model.decide()
            if not model.of_state("ready") and not model.of_state("sent"):
                break
            model.t += 0.001
            for link in range(model.links):
                model.drain(link, 10**9)
            for unit in model.of_state("sent"):
                if rng.random() < 0.5:
                    model.done(unit)
        assert [model.sent.count(u) for u in range(len(model.units))] == expected


@pytest.mark.parametrize("barrier", [True, False], ids=["forward waits for all", "each waits for its own"])
@settings(max_examples=150)
@given(jobs(), st.integers(2, 4), st.randoms(use_true_random=False))
def test_workers_never_lock_each_other(barrier, job, workers, rng):
    Cluster(job, workers, 6, rng, barrier).run()


@settings(max_examples=150)
@given(jobs(), st.integers(2, 4), st.data(), st.randoms(use_true_random=False))
def test_workers_that_change_the_total_order_one_by_one_never_lock_each_other(job, workers, data, rng):
    positions = data.draw(st.permutations(range(len(job[-1]))))
    Cluster(job, workers, 6, rng, False, positions).run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("links", [1, 2])
def test_opposite_orders_and_the_smallest_limits(policy, links):
    """The case that locks a credit window: one worker from first to last, the other from last to first, one byte of window and lead."""
    units = [(100, WIDE if i % 4 == 3 else i % links, -i) for i in range(30)]
    for seed in range(4):
        Cluster((policy, links, 1, 1, units), 2, 10, random.Random(seed), True).run()


def test_most_urgent_first_and_fifo_does_not():
    """A backlog of later layers waits behind a small window when the first layer's gradient comes."""
    for policy, place in (("priority", 1), ("prophet", 1), ("fifo", 9)):
        model = Model(policy, 1, 50, 10**6, [(100, 0, -i) for i in range(10)])
        for unit in reversed(range(10)):
            model.ready(unit, 0)
            if unit == 9:
                model.decide()  # the wire takes the last layer at once
        while model.of_state("ready"):
            model.t += 1
            model.drain(0, 100)
            model.decide()
        assert model.sent.index(0) == place


def test_time_counts_as_sending_while_any_link_has_bytes_in_flight():
    scheduler = Scheduler("fifo", 2)
    for link in (0, 1):
        scheduler.add_unit(10**5, link, link)
        scheduler.ready(link, 0, 1.0 + link)
        scheduler.decide(1.0 + link)
    assert scheduler.sending(2.5) == 1.5
    scheduler.drained(0, 10**5, 3.0)
    scheduler.drained(1, 10**5, 4.0)
    scheduler.check()
    assert scheduler.sending(4.0) == scheduler.sending(9.0) == 3.0
    scheduler.done(1, 9.0)
    scheduler.ready(1, 1, 10.0)
    scheduler.decide(10.0)
    scheduler.done(1, 12.0)  # an answer proves drain
    scheduler.check()
    assert scheduler.sending(20.0) == 5.0


def test_the_older_iteration_is_more_urgent():
    model = Model("priority", 1, 1, 10**6, [(100, 0, 0), (100, 0, -1), (100, 0, -2)])
    model.ready(2, 0)
    model.decide()
    model.ready(0, 1)
    model.ready(1, 0)
    while model.of_state("ready"):
        model.t += 1
        model.drain(0, 100)
        model.decide()
    assert model.sent == [2, 1, 0]


def test_what_is_in_front_of_the_most_urgent_unit_is_counted():
    """On its own link: the bytes of sent units without an answer, and its share of what is spread."""
    scheduler = Scheduler("fifo", 2)
    sizes = [(100, 0), (3000, 0), (5000, 1), (8000, WIDE)]
    for gradient, (size, link) in enumerate(sizes):
        scheduler.add_unit(size, link, gradient)
    for unit in (1, 2, 3):
        scheduler.ready(unit, 0, 0.0)
    assert sorted(scheduler.decide(0.0)[0]) == [1, 2, 3]
    scheduler.ready(0, 0, 1.0)
    assert scheduler.counters()["first_ahead"] == 3000 + 8000 // 2


def test_what_is_in_front_of_a_unit_for_all_servers_is_what_all_links_carry():
    scheduler = Scheduler("fifo", 2)
    for gradient, (size, link) in enumerate([(100, WIDE), (3000, 0), (5000, 1), (8000, WIDE)]):
        scheduler.add_unit(size, link, gradient)
    for unit in (1, 2, 3):
        scheduler.ready(unit, 0, 0.0)
    assert sorted(scheduler.decide(0.0)[0]) == [1, 2, 3]
    scheduler.ready(0, 0, 1.0)
    assert scheduler.counters()["first_ahead"] == 3000 + 5000 + 8000


def test_an_unanswered_message_counts_for_the_time_that_it_takes_the_server():
    """Until it is answered, and then no more: 100 bytes, and 400 that the link could carry meanwhile."""
    scheduler = Scheduler("priority", 1, 10**6, 1000)
    scheduler.set_sizes(100, 400)
    for unit in range(6):
        scheduler.add_unit(100, 0, unit, position=unit)
    for unit in reversed(range(6)):
        scheduler.ready(unit, 0, 0.0)
    released = []
    for done in range(7):
        released.append(scheduler.decide(0.001 * done)[0])
        scheduler.check()
        assert scheduler.link_state(0)["unanswered"] == 500 * min(2, 6 - done)
        if done < 6:
            scheduler.done(done, 0.001 * done)
    assert released == [[0, 1], [2], [3], [4], [5], [], []]


def test_many_tiny_messages_that_are_more_urgent_hold_a_unit_back():
    """The lead limit lets a unit pass only while next to nothing that is more urgent is unanswered: the servers would be busy with that."""

    def passes(more_urgent):
        scheduler = Scheduler("priority", 1, 10**6, 8000)
        scheduler.set_sizes(100, 400)
        for unit in range(40):
            scheduler.add_unit(10, 0, unit, position=1000 if unit == 19 else unit)  # the last in the order that all share
        for unit in [*range(more_urgent), *range(20, 40 - more_urgent)]:  # at 410 bytes each, 20 of them are the limit
            scheduler.ready(unit, 0, 0.0)
        assert len(scheduler.decide(0.0)[0]) == 20
        scheduler.ready(19, 0, 0.0)
        return scheduler.decide(0.0)[0] == [19]

    assert [passes(more_urgent) for more_urgent in (0, 2, 3, 10)] == [True, True, False, False]


def test_prophet_widens_the_window_before_the_next_step_and_not_when_it_is_due():
    """1 MB/s and a step due in 200 ms: several windows may be out at once. At the moment it is due, one."""

    def sent_at(t):
        units = [(4000, 0, -i) for i in range(40)]
        model = Scheduler("prophet", 1, 0, 10**9, 1e6)
        for i, (size, link, position) in enumerate(units):
            model.add_unit(size, link, i, position=position)
        model.set_steps([1] * 20 + [0] * 20, [0.0, 0.2])
        for unit in range(20, 40):
            model.ready(unit, 0, 0.0)
        sent = 4000 * len(model.decide(t)[0])
        counters = model.counters()
        blocks.append((counters["blocks"], counters["block_bytes"]))
        return sent, model.link_state(0)["window"]

    blocks = []
    far, window = sent_at(0.0)
    near, _ = sent_at(0.2)
    assert blocks == [(1, far), (0, 0)]  # what fits the interval is a block; when it is over, units leave one by one
    assert window < 10000 and far >= 6 * window and window <= near < window + 4000


@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_that_is_set_holds_with_every_policy(policy):
    scheduler = Scheduler(policy, 1, 1000, 10**9, 1e6)
    for unit in range(10):
        scheduler.add_unit(600, 0, unit)
        scheduler.ready(unit, 0, 0.0)
    released, wake = scheduler.decide(0.0)
    assert len(released) == 2 and wake == pytest.approx(0.0002)  # 200 bytes more than the window
    scheduler.drained(0, 600, 0.0006)
    assert len(scheduler.decide(0.0006)[0]) == 1


def rate_after(seconds, units, estimate, link_rate=60e6, rtt=0.02, answered=True):
    """The estimate of a link's rate (bytes/s) after so many seconds. ``units`` has when each becomes ready, and its bytes. ``answered``:
    answers come at once, so that no lead limit holds anything back."""
    scheduler = Scheduler("priority", 1, 0, 0, estimate)
    scheduler.set_link(0, estimate, rtt)
    waiting = [(t, scheduler.add_unit(size, 0, number, number), size) for number, (t, size) in enumerate(units)]
    departed = []  # of each released unit: when it begins and ends to leave, its bytes
    sent = []
    step = 0.0005
    for tick in range(round(seconds / step)):
        t = tick * step
        while waiting and waiting[0][0] <= t:
            scheduler.ready(waiting.pop(0)[1], 0, t)
        total = sum(size * min(1.0, max(0.0, (t - rtt - begin) / (end - begin))) for begin, end, size in departed)
        scheduler.drained(0, int(total), t)
        for unit, (_, end, _) in list(zip(sent, departed)):
            if answered and end + rtt <= t and scheduler.unit_state(unit) == "sent":
                scheduler.done(unit, t)
        for unit in scheduler.decide(t)[0]:
            begin = max(t, departed[-1][1] if departed else 0.0)
            size = scheduler.unit_facts(unit)["bytes"]
            departed.append((begin, begin + size / link_rate, size))
            sent.append(unit)
        scheduler.check()
    return scheduler.link_state(0)["rate"]


@pytest.mark.parametrize("rtt", [0.001, 0.005, 0.02, 0.05])
def test_gradients_that_become_ready_one_by_one_do_not_lower_the_rate(rtt):
    """A sixth of what the link carries: in a round trip of 20 ms something is always in flight, and the link rests most of the time."""
    assert rate_after(1.0, [(0.01 * number, 100_000) for number in range(100)], 60e6, rtt=rtt) == pytest.approx(60e6, rel=1e-6)


@pytest.mark.parametrize("rtt", [0.001, 0.005, 0.02, 0.05])
def test_what_the_lead_limit_holds_back_does_not_lower_the_rate(rtt):
    assert rate_after(1.0, [(0, 100_000)] * 600, 60e6, rtt=rtt, answered=False) == pytest.approx(60e6, rel=1e-6)


@pytest.mark.parametrize("rtt", [0.001, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("estimate", [30e6, 120e6])
def test_a_link_that_always_has_something_to_carry_shows_its_rate(rtt, estimate):
    assert rate_after(2 + 80 * rtt, [(0, 500_000)] * 800, estimate, rtt=rtt) == pytest.approx(60e6, rel=0.05)


@pytest.mark.parametrize("rtt", [0.02, 0.05])
def test_the_time_until_a_far_server_can_have_acknowledged_anything_does_not_count_for_the_rate(rtt):
    """So an estimate that is too low begins to rise with the first sample of a job, and the window with it."""
    first = rate_after(3.2 * rtt, [(0, 100_000)] * 200, 30e6, rtt=rtt)
    assert first > 31.5e6


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.ready(0, 0, 0.0) or s.ready(0, 0, 0.0),
        lambda s: s.done(0, 0.0),
        lambda s: s.add_unit(5, 1, 0),
        lambda s: s.add_unit(-1, 0, 0),
        lambda s: Scheduler("best", 1),
        lambda s: Scheduler("fifo", 0),
        lambda s: s.set_steps([3], [0.0]),
        lambda s: s.set_steps([-2], [0.0]),
    ],
)
def test_wrong_use_is_refused(wrong):
    scheduler = Scheduler("fifo", 1)
    scheduler.add_unit(10, 0, 0)
    with pytest.raises(ValueError):
        wrong(scheduler)
    scheduler.check()


def test_workers_that_wait_for_different_answers_finish():
    """Whatever is ready leaves in the end, under every policy: without yields of the lead limit, a third of these would stand still.
    LIVENESS_PROGRAMS is how many there are, LIVENESS_SEED which ones."""
    rng = random.Random(int(os.environ.get("LIVENESS_SEED", "0")))
    yields = Counter()
    for _ in range(int(os.environ.get("LIVENESS_PROGRAMS", "3000"))):
        program = random_program(rng)
        yields[program.job[0]] += run(program, rng) > 0
    assert all(yields[policy] for policy in POLICIES), yields


def test_many_held_units_do_not_take_as_many_patiences():
    """One worker has pushed 200 units; the other pushes the last of the total order and waits for its answer."""
    scheduler = Scheduler("prophet", 1, 0, 1, 1e9)
    for unit in range(200):
        scheduler.add_unit(1000, 0, unit, position=unit)
        scheduler.ready(unit, 0, 0.0)
    t = wake = 0.0
    while wake < math.inf:
        t = wake
        _, wake = scheduler.decide(t)
        scheduler.drained(0, 1000 * scheduler.counters()["units"], t)
    counters = scheduler.counters()
    assert counters["units"] == 200 and counters["yields"] > 190 and t < 0.2, t
    scheduler.check()


def test_a_link_that_had_to_yield_is_patient_again_an_iteration_after_the_last_one_in_which_it_had_to():
    scheduler = Scheduler("prophet", 1, 0, 1, 1e9)
    for unit in range(2):
        scheduler.add_unit(1000, 0, unit, position=unit)
    patience, t = [], 0.0
    for iteration, units in enumerate([(0, 1), (0, 1), (0,), (0,), (0,)]):  # unit 1 has to wait for the answer to 0, or for a yield
        for unit in units:
            t += 0.001
            scheduler.ready(unit, iteration, t)
        while scheduler.counters()["units"] < 2 * min(2, iteration + 1) + max(0, iteration - 1):
            t += 0.001
            scheduler.decide(t)
            scheduler.drained(0, 1000 * scheduler.counters()["units"], t)
        patience.append(scheduler.link_state(0)["patience"])
        for unit in units:
            scheduler.done(unit, t)
    assert scheduler.counters()["yields"] == 2
    assert [round(each / patience[-1], 6) for each in patience] == [0.5, 0.25, 0.25, 0.5, 1]


def test_no_limit_yields_while_answers_come():
    """Slowly, but they come: a straggler is no reason to send what is less urgent."""
    scheduler = Scheduler("priority", 1, 0, 4000, 1e9)
    for unit in range(60):
        scheduler.add_unit(1000, 0, unit, position=unit)
        scheduler.ready(unit, 0, 0.0)
    sent = []
    for step in range(1000):
        t = step * 0.002
        sent += scheduler.decide(t)[0]
        scheduler.drained(0, 1000 * scheduler.counters()["units"], t)
        if step % 7 == 6 and sent:
            scheduler.done(sent.pop(0), t)
    counters = scheduler.counters()
    assert counters["units"] == 60 and not counters["yields"]


def test_workers_that_wait_for_each_other_in_every_iteration_are_soon_quick_though_answers_are_slow():
    """An answer that comes late, because another worker waited, must not make this one wait longer: each would learn it from the other.
    Two workers in turn push a large array first and a small one last, or wait for the small one's answer first."""

    def seconds(slow):
        units = 40
        workers = [Scheduler("prophet", 1, 0, 4000, 1e9) for _ in range(2)]
        for worker in workers:
            for unit in range(units + 1):
                worker.add_unit(1000, 0, unit, position=unit)
        t, took = 0.0, []
        for iteration in range(20):
            began = t
            first, second = workers if iteration % 2 else workers[::-1]
            for unit in range(units + 1):
                first.ready(unit, iteration, t)
            second.ready(units, iteration, t)
            waiting, left = [set(range(units + 1)), {units}], True
            while any(waiting):
                wakes = []
                for number, worker in enumerate((first, second)):
                    released, wake = worker.decide(t)
                    wakes.append(wake)
                    waiting[number] -= set(released)
                    worker.drained(0, 1000 * worker.counters()["units"], t)
                if left and not waiting[1] and units not in waiting[0]:
                    left = False
                    t += slow
                    for worker in (first, second):
                        worker.done(units, t)
                    for unit in range(units):
                        second.ready(unit, iteration, t)
                    waiting[1] = set(range(units))
                elif any(waiting):
                    t = min(wake for wake in wakes if wake < math.inf)
            t += slow
            for unit in range(units):
                for worker in (first, second):
                    worker.done(unit, t)
            took.append(t - began - 2 * slow)
        return took

    for slow in (0.001, 0.5):
        took = seconds(slow)
        assert sum(took) < 1 and max(took[10:]) < 0.01, took


def test_a_link_is_quiet_only_after_its_newest_release():
    """The other workers get their time to send the same."""
    scheduler = Scheduler("priority", 1, 10**6, 1500)
    for unit, t in enumerate((0.0, 0.015, 0.016)):
        scheduler.add_unit(1000, 0, unit, position=unit)
        scheduler.ready(unit, 0, t)
        assert scheduler.decide(t)[0] == [unit][: 2 - unit]
    patience = scheduler.link_state(0)["patience"]
    assert scheduler.decide(patience + 0.001) == ([], pytest.approx(0.015 + patience))
    assert scheduler.decide(0.016 + patience)[0] == [2]


def test_each_iteration_begins_with_the_first_step():
    """1 MB/s and a step due in 20 ms: five units fit. After the last step eight may be out, as their order is final."""
    scheduler = Scheduler("prophet", 1, 0, 10**9, 1e6)
    scheduler.set_sizes(4000)
    for unit in range(40):
        scheduler.add_unit(4000, 0, unit)
    scheduler.set_steps([1] * 20 + [0] * 20, [0.0, 0.02])
    for iteration in range(3):
        t, sent = 1.0 * iteration, []
        for step in (range(20, 40), range(20)):
            for unit in step:
                scheduler.ready(unit, iteration, t)
            sent.append(len(scheduler.decide(t)[0]))
            while any(scheduler.unit_state(unit) != "idle" for unit in step):
                for unit in step:
                    if scheduler.unit_state(unit) == "sent":
                        scheduler.done(unit, t)
                scheduler.decide(t)
            t += 0.02
        assert sent == [5, 8]


def test_what_is_spread_over_all_links_holds_back_what_comes_after_it_on_each():
    for link in (0, 1):
        scheduler = Scheduler("priority", 2, 10**6, 1000)
        scheduler.add_unit(2000, WIDE, 0, position=0)
        scheduler.add_unit(10, link, 1, position=1)
        scheduler.ready(0, 0, 0.0)
        assert scheduler.decide(0.0)[0] == [0]
        scheduler.ready(1, 0, 0.0)
        assert scheduler.decide(0.0)[0] == []
        scheduler.done(0, 0.001)
        assert scheduler.decide(0.001)[0] == [1]


def test_two_messages_fit_the_lead_limit_beside_the_bytes():
    """What one costs is known from its measurement. Without room for them, tiny units would leave one by one."""
    leads = []
    for message in (0, 400, 5000):
        scheduler = Scheduler("priority", 1, 0, 0, 1e6)
        scheduler.add_unit(100, 0, 0)
        scheduler.set_sizes(4000, message)
        leads.append(scheduler.link_state(0)["lead"])
    assert [lead - leads[0] for lead in leads] == [0, 800, 10_000]


def test_a_whole_gradient_leaves_while_the_one_before_it_is_answered():
    """However large both are: the link would rest otherwise."""
    scheduler = Scheduler("priority", 1, 0, 0, 1e6)
    for unit in range(3):
        scheduler.add_unit(4_000_000, 0, unit, position=unit)
        scheduler.ready(unit, 0, 0.0)
    assert scheduler.decide(0.0)[0] == [0]
    scheduler.drained(0, 4_000_000, 4.0)
    assert scheduler.decide(4.0)[0] == [1]
    scheduler.drained(0, 8_000_000, 8.0)
    assert scheduler.decide(8.0)[0] == []
    scheduler.done(0, 8.0)
    assert scheduler.decide(8.0)[0] == [2]


def test_new_places_lift_the_lead_limit_until_all_workers_have_them():
    """Two workers with different total orders and lead limits could wait for each other for ever."""
    scheduler = Scheduler("priority", 1, 10**9, 100)
    for unit in range(4):
        scheduler.add_unit(100, 0, unit, position=unit)
        scheduler.ready(unit, 0, 0.0)
    assert scheduler.decide(0.0)[0] == [0]
    scheduler.set_places([(unit, unit, 3 - unit) for unit in range(4)])
    assert scheduler.decide(0.0)[0] == [1, 2, 3]
    scheduler.set_unlimited(False)
    for unit in range(3):
        scheduler.done(unit, 0.001)
        scheduler.ready(unit, 1, 0.001)
    assert scheduler.decide(0.001)[0] == []
