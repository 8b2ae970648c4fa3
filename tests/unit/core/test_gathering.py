"""The rounds of a group: several workers, each with its own program, share its messages as they would in plain dist_sync."""

import heapq
import math
from itertools import count
from typing import Dict, List, NamedTuple, Tuple

from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import _core

MEMBERS = 4
LATENCY = 0.001
END = 3600.0  # simulated seconds after which a job counts as hung


class Step(NamedTuple):
    """A worker pushes a member whose gradient is ready after some seconds. Before it goes on, it may wait for the value of a member."""

    member: int
    delay: float
    waits_for: int  # -1: nothing


class Worker:
    def __init__(self, job: "Job", program: List[Step]) -> None:
        self.job, self.program = job, program
        self.rounds = _core.Gathering(MEMBERS)
        self.queues: List[List[Tuple[int, float, int]]] = [
            [] for _ in range(MEMBERS)
        ]  # calls whose hold has not run: request, delay, iteration
        self.done = [0] * MEMBERS
        self.called = [0] * MEMBERS
        self.on_engine = 0  # requests that wait for the wire array
        self.under_way = False
        self.place = self.iteration = 0
        self.asked = math.inf

    def step(self) -> None:
        """Go on with the program, until it waits or ends."""
        while self.place < len(self.program):
            step = self.program[self.place]
            if self.called[step.member] == self.iteration + 1:
                self.iteration += 1
            self.called[step.member] = self.iteration + 1
            request, new = self.rounds.member_called(step.member, self.iteration, self.job.now)
            self.on_engine += new
            self.queues[step.member].append((request, step.delay, self.iteration))
            if len(self.queues[step.member]) == 1:
                self.job.after(step.delay, self.ready, step.member)
            self.place += 1
            self.open()
            if step.waits_for >= 0 and self.queues[step.waits_for]:
                self.waiting = step.waits_for
                return
        self.look()

    waiting = -1

    def ready(self, member: int) -> None:
        request, _, iteration = self.queues[member][0]
        self.rounds.member_ready(member, request, iteration, self.job.now)
        self.look()

    def open(self) -> None:
        if self.on_engine and not self.under_way:
            self.on_engine -= 1
            self.under_way = True
            self.rounds.request_opened()
        self.look()

    def look(self) -> None:
        carried, _, wake = self.rounds.try_close(False, self.job.now)
        if carried is not None:
            assert carried, "a message with nothing in it"
            self.job.sent(self, carried)
        again, resumes = self.rounds.try_again(self.job.now)
        if again:
            self.on_engine += 1
            self.open()
        wake = min(wake, resumes)
        if wake < math.inf:
            self.job.after(max(1e-6, wake - self.job.now), self.look)
        self.rounds.check()

    def answered(self, done: List[bool]) -> None:
        self.rounds.request_answered(done, self.job.now)
        self.under_way = False
        for member in (member for member in range(MEMBERS) if done[member]):
            self.done[member] += 1
            self.queues[member].pop(0)
            if self.queues[member]:
                self.job.after(self.queues[member][0][1], self.ready, member)
        self.open()
        if self.waiting >= 0 and not self.queues[self.waiting]:
            self.waiting = -1
            self.step()


class Job:
    """Workers and a server that answers a message when each has sent one."""

    def __init__(self, programs: List[List[Step]]) -> None:
        self.now = 0.0
        self.events: List[Tuple[float, int, object, tuple]] = []
        self.order = count()
        self.messages = 0
        self.workers = [Worker(self, program) for program in programs]
        self.here: Dict[Worker, List[int]] = {}

    def after(self, seconds: float, what, *arguments) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), what, arguments))

    def sent(self, worker: Worker, carried: List[int]) -> None:
        assert worker not in self.here
        self.here[worker] = carried
        if len(self.here) == len(self.workers):
            done = [all(member in carried for carried in self.here.values()) for member in range(MEMBERS)]
            own = [[done[member] and member in self.here[worker] for member in range(MEMBERS)] for worker in self.workers]
            self.here = {}
            self.messages += 1
            for worker, mine in zip(self.workers, own):
                self.after(LATENCY, worker.answered, mine)

    def run(self) -> None:
        for worker in self.workers:
            self.after(0.0, worker.step)
        while self.events and self.now < END:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)


def calls(iterations: List[List[int]], shuffles: List[List[int]], delays: List[float], waits: List[bool]) -> List[Step]:
    """A worker's program: in each iteration it pushes these members, in an order of its own, and may wait for each before the next."""
    steps = []
    for number, members in enumerate(iterations):
        order = [member for member in shuffles[number % len(shuffles)] if member in members]
        for place, member in enumerate(order):
            own = waits[(number + place) % len(waits)]
            steps.append(Step(member, delays[(number * MEMBERS + member) % len(delays)], member if own else -1))
        if order:
            steps[-1] = steps[-1]._replace(waits_for=order[-1])
    return steps


MEMBER_SETS = st.lists(st.lists(st.integers(0, MEMBERS - 1), unique=True), min_size=1, max_size=12)
ORDERS = st.lists(st.permutations(range(MEMBERS)), min_size=1, max_size=3)
DELAYS = st.lists(st.sampled_from([0.0, 0.0001, 0.01, 0.3, 2.0]), min_size=1, max_size=6)


@given(MEMBER_SETS, st.integers(1, 4), ORDERS, st.data())
def test_whatever_members_are_missing_late_or_waited_for_each_arrives_once_per_push(iterations, workers, orders, data):
    """All workers push the same members in the same iterations, in one order, but each at its own pace, and it waits where it likes."""
    programs = [
        calls(iterations, orders, data.draw(DELAYS), data.draw(st.lists(st.booleans(), min_size=1, max_size=5))) for _ in range(workers)
    ]
    job = Job(programs)
    job.run()
    for worker, program in zip(job.workers, programs):
        assert worker.place == len(program), f"stuck at {worker.place} of {len(program)} after {job.now} s"
        assert worker.done == [sum(member in members for members in iterations) for member in range(MEMBERS)]


@given(MEMBER_SETS, st.integers(2, 4), st.data())
def test_orders_that_differ_between_workers_lock_nobody_who_only_waits_at_the_end_of_an_iteration(iterations, workers, data):
    programs = [calls(iterations, data.draw(ORDERS), data.draw(DELAYS), [False]) for _ in range(workers)]
    for program in programs:  # wait for all that was pushed, as a forward pass does
        program[:] = [step._replace(waits_for=-1) for step in program]
    job = Job(programs)
    job.run()
    assert all(sum(worker.done) == len(program) for worker, program in zip(job.workers, programs))


def test_a_message_is_of_the_iteration_of_its_gradients_however_far_ahead_the_caller_is():
    """So it is as urgent as what became ready at the same time, and not less urgent than all of that."""
    rounds = _core.Gathering(2)
    requests = [rounds.member_called(member, 7, 0.0)[0] for member in (0, 1)]
    rounds.request_opened()
    for member in (0, 1):
        rounds.member_called(member, 8, 0.0)
    for member in (0, 1):
        rounds.member_ready(member, requests[member], 7, 0.1)
    assert rounds.try_close(False, 0.1)[:2] == ([0, 1], 7)


def test_a_member_that_was_not_pushed_in_time_is_no_reason_to_send_each_alone():
    """The caller is an iteration ahead when a message leaves without it."""
    rounds = _core.Gathering(2)
    request = rounds.member_called(0, 0, 0.0)[0]
    rounds.request_opened()
    rounds.member_called(0, 1, 0.0)
    rounds.member_ready(0, request, 0, 0.0)
    assert rounds.try_close(True, 0.0)[:2] == ([0], 0)
    rounds.member_called(1, 1, 0.0)
    rounds.request_answered([True, False], 0.001)
    rounds.request_opened()
    rounds.member_ready(0, 2, 1, 0.002)
    assert rounds.try_close(False, 0.003)[0] is None  # it waits for the other


def test_a_request_for_a_gradient_that_failed_goes_with_nothing_so_that_nothing_waits_for_ever():
    rounds = _core.Gathering(2)
    request, new = rounds.member_called(0, 0, 0.0)
    assert new
    rounds.request_opened()
    rounds.member_cancelled(0, request, 0.0)
    carried, _, wake = rounds.try_close(False, 0.0)
    assert carried is None and wake < 1.0  # a member may come in time
    assert rounds.try_close(False, wake)[:2] == ([], 0)
    request, new = rounds.member_called(0, 0, wake)  # the program pushes another
    assert new and request == 2
    rounds.request_answered([False, False], wake)
    rounds.request_opened()
    rounds.member_ready(0, request, 0, wake)
    rounds.check()
    assert rounds.try_close(True, wake)[0] == [0]
    assert rounds.try_close(True, wake + 10)[0] is None


def test_a_message_waits_several_times_as_long_as_members_lay_apart_before():
    """Iterations differ: 80 ms in one may be 250 in the next."""
    rounds = _core.Gathering(2)

    def iteration(number, begin, apart):
        requests = [rounds.member_called(member, number, begin)[0] for member in (0, 1)]
        rounds.request_opened()
        rounds.member_ready(0, requests[0], number, begin)
        assert rounds.try_close(False, begin + 0.9 * apart)[0] is None
        rounds.member_ready(1, requests[1], number, begin + apart)
        assert rounds.try_close(False, begin + apart)[0] == [0, 1]
        rounds.request_answered([True, True], begin + apart + 0.01)

    iteration(0, 0.0, 0.08)
    iteration(1, 1.0, 0.25)


def test_nothing_waits_for_a_gradient_that_failed():
    """In a hurry a message waits only for what was called."""
    rounds = _core.Gathering(2)
    requests = [rounds.member_called(member, 0, 0.0)[0] for member in (0, 1)]
    rounds.request_opened()
    rounds.member_ready(1, requests[1], 0, 0.0)
    assert rounds.try_close(True, 0.0)[0] is None
    rounds.member_cancelled(0, requests[0], 0.0)
    assert rounds.try_close(True, 0.0)[0] == [1]


def test_each_call_of_a_member_has_a_request_after_that_of_its_call_before():
    """Its gradient of the next iteration cannot be in the message that carries this one."""
    rounds = _core.Gathering(2)
    assert [rounds.member_called(member, iteration, 0.0) for iteration in (0, 1) for member in (0, 1)] == [
        (1, True),
        (1, False),
        (2, True),
        (2, False),
    ]
    rounds.request_opened()
    for member in (0, 1):
        rounds.member_ready(member, 1, 0, 0.0)
    assert rounds.try_close(False, 0.0)[0] == [0, 1]
    assert rounds.member_called(0, 2, 0.0) == (3, True)
    rounds.check()


def test_a_message_of_which_nothing_is_done_is_repeated_after_longer_and_longer_pauses():
    """Another worker has not pushed what it carries, and may not for long."""
    rounds, now, pauses = _core.Gathering(2), 0.0, []
    rounds.member_called(0, 0, now)
    rounds.member_ready(0, 1, 0, now)
    for _ in range(10):
        rounds.request_opened()
        assert rounds.try_close(True, now)[0] == [0]
        rounds.request_answered([False, False], now)
        again, resumes = rounds.try_again(now)
        assert not again
        pauses.append(resumes - now)
        now = resumes
        assert rounds.try_again(now)[0]
    assert [round(pause, 6) for pause in pauses] == [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]
    rounds.request_opened()
    assert rounds.try_close(True, now)[0] == [0]
    rounds.request_answered([True, False], now)
    rounds.check()


def test_a_job_that_pushes_all_members_sends_one_message_per_iteration():
    program = calls([list(range(MEMBERS))] * 50, [list(range(MEMBERS))], [0.0, 0.004], [False])
    job = Job([program, program])
    job.run()
    assert job.messages == 50


def test_a_frozen_member_costs_a_patience_once():
    program = calls([[0, 1, 2]] * 50, [list(range(MEMBERS))], [0.0], [False])
    job = Job([program, program])
    job.run()
    assert job.messages == 50
    assert job.now < 50 * 0.003 + 0.2


def test_a_worker_that_waits_for_each_value_soon_needs_no_patience():
    everything = [list(range(MEMBERS))] * 100
    waits = calls(everything, [list(range(MEMBERS))], [0.0], [True])
    job = Job([waits, calls(everything, [list(range(MEMBERS))], [0.0], [False])])
    job.run()
    assert job.now < 100 * MEMBERS * 4 * LATENCY + 1.5
    assert all(worker.done == [100] * MEMBERS for worker in job.workers)


def test_members_that_become_ready_far_apart_share_a_message_once_that_is_known():
    program = calls([list(range(MEMBERS))] * 20, [list(range(MEMBERS))], [0.0, 0.15, 0.15, 0.3], [False])
    job = Job([program, program])
    job.run()
    assert job.messages < 24


def test_buckets_that_use_different_members_wait_for_each_other_only_briefly():
    buckets = [[0, 1, 2], [0, 3]] * 50
    program = calls(buckets, [list(range(MEMBERS))], [0.0], [False])
    job = Job([program, program])
    job.run()
    assert all(worker.done == [100, 50, 50, 50] for worker in job.workers)
    assert job.now < 100 * 0.005 + 0.5
