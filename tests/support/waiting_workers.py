"""Workers that wait for different answers before they go on: random programs that plain ``dist_sync`` finishes, run with schedulers."""

import math
from typing import List, NamedTuple, Tuple

from prophet_mx._core import Scheduler
from support.scheduler_model import POLICIES, WIDE

RATE = 1e6  # bytes/s of each link
STEPS = 20000  # of one program; a program needs a few hundred


class Program(NamedTuple):
    """What each worker does, one thing after the other: ``(unit, waits)`` waits until the unit of each of ``waits`` is answered as often as
    this worker has pushed it so far, then pushes the unit."""

    job: Tuple  # policy, links, window, lead, units: (bytes, link, position)
    workers: Tuple[Tuple[Tuple[int, Tuple[int, ...]], ...], ...]


def random_program(rng):
    """A program that plain finishes: it is written down while plain runs it, so that each wait is for an answer that had come."""
    links, count, rounds, workers = rng.randint(1, 2), rng.randint(2, 8), rng.randint(1, 2), rng.choice((2, 2, 3))
    positions = rng.sample(range(count), count)
    units = tuple((rng.choice((0, 40, 1000, 100000)), rng.randint(WIDE, links - 1), position) for position in positions)
    job = (rng.choice(POLICIES), links, rng.choice((0, 1, 2000)), rng.choice((0, 1, 50, 5000)), units)
    pushed = [[0] * count for _ in range(workers)]
    todo: List[List[Tuple[int, Tuple[int, ...]]]] = [[] for _ in range(workers)]
    places = [w for w in range(workers) for _ in range(count * rounds)]
    rng.shuffle(places)
    while places:
        w = places.pop()
        answered = [min(counts[unit] for counts in pushed) for unit in range(count)]
        free = [unit for unit in range(count) if pushed[w][unit] < rounds and pushed[w][unit] == answered[unit]]
        if not free:  # the others have to push first
            places.insert(rng.randint(0, len(places)), w)
            continue
        known = [unit for unit in range(count) if 0 < pushed[w][unit] == answered[unit]]
        unit = rng.choice(free)
        todo[w].append((unit, tuple(rng.sample(known, rng.randint(0, min(2, len(known)))))))
        pushed[w][unit] += 1
    return Program(job, tuple(map(tuple, todo)))


class Worker:
    """One worker with its scheduler."""

    def __init__(self, job, todo):
        policy, links, window, lead, units = job
        self.scheduler = Scheduler(policy, links, window, lead, RATE)
        for gradient, (size, link, position) in enumerate(units):
            self.scheduler.add_unit(size, link, gradient, position=position)
        self.links = range(links)
        self.todo = list(reversed(todo))
        self.pushed, self.answered = [0] * len(units), [0] * len(units)

    def push(self, t):
        """Push what the program may push now."""
        while self.todo:
            unit, waits = self.todo[-1]
            if any(self.answered[other] < self.pushed[other] for other in (unit, *waits)):
                break
            self.todo.pop()
            self.scheduler.ready(unit, self.pushed[unit], t)
            self.pushed[unit] += 1

    def drain(self, t, rng):
        """Some or all of what is in flight leaves."""
        for link in self.links:
            state = self.scheduler.link_state(link)
            if state["drained"] < state["released"] and rng.random() < 0.7:
                self.scheduler.drained(link, rng.choice((state["released"], state["drained"] + 30000)), t)


def run(program, rng):
    """Run the program to its end; AssertionError if it stands still. The number of yields, over all workers."""
    workers = [Worker(program.job, todo) for todo in program.workers]
    sent = [[0] * len(program.job[-1]) for _ in workers]
    t = 0.0
    for _ in range(STEPS):
        wakes = []
        for worker, counts in zip(workers, sent):
            worker.push(t)
            worker.drain(t, rng)
            released, wake = worker.scheduler.decide(t)
            wakes.append(wake)
            for unit in released:
                counts[unit] += 1
        moved = False
        for unit, arrived in enumerate(map(min, zip(*sent))):
            for worker in workers:
                if worker.answered[unit] < arrived and rng.random() < 0.7:
                    worker.scheduler.done(unit, t)
                    worker.answered[unit] += 1
                    moved = True
        if not any(worker.todo or worker.answered != worker.pushed for worker in workers):
            return sum(worker.scheduler.counters()["yields"] for worker in workers)
        wake = min(wakes)
        t += 1e-4 if moved or wake == math.inf else max(1e-4, min(wake - t, 0.05))
    left = [([unit for unit, _ in reversed(worker.todo)], worker.scheduler.link_state(0)) for worker in workers]
    raise AssertionError(f"stands still: {program}; to be pushed, and first link, by worker: {left}")
