"""The scheduler under many random events, with every invariant verified after each, and the norms of gradients in parts: to be run on a
build with sanitizers.

usage: stress.py ROUNDS [SEED]

MXNet is not loaded. The events and what is checked are those of tests/support/scheduler_model.py; the driver's thread runs beside Python's.
"""

import random
import sys
import threading
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prophet_mx import _core
from support.scheduler_model import POLICIES, WIDE, Cluster, Model, install_steps, random_event


def job(rng):
    """Policy, number of links, window, lead, units; sometimes more units than the scheduler first has room for."""
    links, count = rng.randint(1, 3), rng.choice([1, 5, 12, 12, 150])
    positions = rng.sample(range(count), count)
    units = [(rng.choice([0, 1, 7, 40, 1000, 100000]), rng.randint(WIDE, links - 1), position) for position in positions]
    return rng.choice(POLICIES), links, rng.choice([0, 1, 50, 2000]), rng.choice([0, 1, 50, 5000]), units


def events(rng):
    """One scheduler for 200 random events."""
    model = Model(*job(rng))
    iteration = 0
    for _ in range(200):
        iteration, event = random_event(model, rng, iteration, ("steps", "wrong"))
        if event == "steps" and rng.random() < 0.2:
            install_steps(model, rng)
        elif event == "wrong":
            wrong_use(model, rng)


def wrong_use(model, rng):
    """Numbers of units and links that do not exist are refused and change nothing."""
    scheduler, bad = model.scheduler, rng.choice([-2, -1, len(model.units), 10**6, 2**31 - 1])
    link = rng.choice([-1, model.links, 10**6])
    for call in (
        lambda: scheduler.ready(bad, 0, 0.0),
        lambda: scheduler.done(bad, 0.0),
        lambda: scheduler.unit_state(bad),
        lambda: scheduler.drained(link, 5, 0.0),
        lambda: scheduler.link_state(link),
        lambda: scheduler.set_link(link, rate=1.0),
        lambda: scheduler.set_steps([0, 7], [0.0]),
        lambda: scheduler.add_unit(-1, 0, 0),
    ):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError(f"unit {bad}, link {link}: accepted")
    scheduler.check()


def driver(rng):
    """A driver's native thread, while Python threads do what a job's do."""
    made = _core.Driver(rng.choice(POLICIES), 2, 0, 0, 1e6)
    made.start()
    rng.choice([made.use_fed, made.use_predicted])()

    def work(seed):
        own = random.Random(seed)
        for place in range(60):
            made.add_unit(own.randint(1, 10**6), own.randint(-1, 1), place, place, place)
            made.feed_drained(own.randint(0, 1), own.randint(0, 1000))
            made.set_steps([own.randrange(3) for _ in range(own.randint(1, 40))], [0.0, 0.1, 0.2])
            made.set_rate(own.uniform(1e5, 1e9))
            made.set_sizes(own.randint(0, 10**6))
            own.choice([made.use_fed, made.use_predicted])()
            made.record(bool(place % 2))
            made.take_events()
            made.snapshot()

    threads = [threading.Thread(target=work, args=(rng.random(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.check()
    assert made.unit_facts(179)["bytes"] > 0 and made.unit_facts(180)["bytes"] == 0
    made.stop()
    if rng.random() < 0.5:
        made.start()  # and once more; the second end is by the destructor


def norms(rng):
    """Parts of gradients that begin and end anywhere, each in memory of just its size."""
    for size in [rng.randint(0, 40) for _ in range(8)]:
        values, sums = array("f", [rng.randint(-9, 9) for _ in range(size)]), array("f", [0.0] * _core.SUMS)
        ends = [0, *sorted(rng.randint(0, size) for _ in range(3)), size]
        for first, end in zip(ends, ends[1:]):
            _core.add_squares(array("f", values[first:end]), first, size, sums)
        assert sum(sums) == sum(value * value for value in values)
        try:
            _core.add_squares(values, 1, size, sums)
        except ValueError:
            continue
        raise AssertionError(f"{size} elements from the second on: accepted")


def main():
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for number in range(rounds):
        rng = random.Random(seed * 1000003 + number)
        events(rng)
        if number % 4 == 0:
            policy, links, window, lead, units = job(rng)
            Cluster((policy, links, window, lead, units[:12]), 2, 3, rng, barrier=bool(number % 8)).run()
        if number % 4 == 1:
            driver(rng)
        norms(rng)
    print(f"stress: {rounds} rounds with {_core.__file__}", flush=True)


if __name__ == "__main__":
    main()
