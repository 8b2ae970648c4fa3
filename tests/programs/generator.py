"""Draws whole programs of dist_sync: from a seed a description of what each worker does, call by call. Knows nothing of MXNet.

Every program is one that plain dist_sync runs to its end and always with the same result:

- A key is pushed at most once per iteration, by all workers or by none, and in the same way: in one round MXNet does not answer a push
  where another worker sends a pushpull.
- Where a worker waits for a value, all others get to the push of this value without it: :func:`without_locks` plays the program, and takes
  out what would wait for ever.
- Two workers may send any numbers, because the sum of two does not depend on their order; three send small whole numbers.
- Text keys are made in one order, int keys in one of each worker's own.

Each *dimension* of :data:`DIMENSIONS` is drawn from random numbers of its own. So a program without a dimension is otherwise the same.
"""

import math
import random
from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

POLICIES = ("prophet", "prophet", "prophet", "priority", "fifo", "credit", "prophet-icpp21", "off")
ELEMENTWISE = ("sgd", "momentum", "nag", "signum", "adam", "adagrad", "rmsprop", "adadelta", "ftrl", "adamax", "test")
IN_ORDER = ("nadam", "lars", "lbsgd")
FLOATS = ("float32", "float64", "float16")
SHAPES = ((1,), (1, 1), (2,), (3, 1, 2), (7,), (40,), (11, 13), (300,), (25, 40), (1000,), (64, 3, 3, 3), (5000,), (150, 200))
ONE_BY_ONE = {"push": ("push", "pull", "look"), "unpulled": ("push", "pull", "look")}  # calls for a way of pushing
LARGE = ((70000,), (300, 400))

DIMENSIONS = {
    "texts": "keys are texts, not ints",
    "init_orders": "each worker makes int keys in an order of its own",
    "late": "keys that are made, and first pushed, in the middle",
    "early": "keys are made before the store is wrapped",
    "frozen": "keys that nobody pushes in some iterations",
    "push_orders": "each worker pushes in an order of its own",
    "waits": "workers read values in the middle of an iteration, each after calls of its own choice",
    "old_values": "workers pull a value before they push the next",
    "unpulled": "pushes whose values nobody pulls",
    "lists": "calls of several keys",
    "duplicates": "one key twice in a call",
    "in_place": "pushpull without out",
    "types": "other types than float32",
    "devices": "values of two devices",
    "optimizers": "an optimizer on the servers",
    "changes": "other optimizers in the middle",
    "overlap": "where prophet_mx allows it, iterations overlap without a wait",
    "schedule": "a learning rate that falls with the number of updates",
    "multi_precision": "optimizers that keep float32 of float16",
    "ordered": "optimizers for which the order of updates matters",
    "whole": "LAMB, which takes whole arrays",
    "compression": "gradients of two bits",
    "three": "three workers",
    "servers": "two servers",
    "spread": "small arrays are spread over all servers",
    "device_sync": "a store dist_device_sync",
    "numpy": "MXNet's NumPy interface",
    "policies": "another policy than the default",
    "limits": "the smallest window and lead limit",
    "units": "the size of slices is chosen by measurement",
    "copies": "gradients are copied slice by slice, as those of a GPU",
    "profile": "the job runs again with the profile it has saved",
    "drain": "another source of the drain",
    "timeline": "a timeline is written",
    "signal_stats": "a signal handler reads the statistics",
    "signal_pulls": "a signal handler pulls",
    "threads": "other threads read statistics and values",
    "forks": "children are forked, and end by themselves",
}
OWN = (100_000, 100_003)  # where prophet_mx's own int keys begin: a key that is made early or late cannot have such a name
SHARES = {"texts": 0.5, "frozen": 0.4, "push_orders": 0.6, "waits": 0.5, "optimizers": 0.6, "lists": 0.5, "types": 0.5, "servers": 0.4}
SHARE = 0.25  # of programs that have a dimension, where SHARES does not say another


class Key(NamedTuple):
    name: Union[str, int]
    shape: Tuple[int, ...]
    dtype: str
    devices: int
    late: int  # the iteration before which it is made; 0: at the start


class Call(NamedTuple):
    """``keys`` are indices of the program's keys. ``what``: push, pull, pushpull, in_place (a pushpull without out), look (at the value
    that was pulled last, which waits for it) or fork."""

    what: str
    keys: Tuple[int, ...]
    priority: int = 0


class Optimizer(NamedTuple):
    name: str
    multi_precision: bool
    by_all: bool  # every worker sets it, not rank 0 alone


class Making(NamedTuple):
    """Calls that make keys. ``calls``: of each worker."""

    what: str  # init or broadcast
    calls: Tuple[Tuple[Tuple[int, ...], ...], ...]


class Iteration(NamedTuple):
    makings: Tuple[Making, ...]
    optimizer: Optional[Optimizer]  # set before it
    calls: Tuple[Tuple[Call, ...], ...]  # of each worker
    settled: bool  # workers wait for all values at its end


class Program(NamedTuple):
    seed: int
    dimensions: Tuple[str, ...]
    workers: int
    servers: int
    store: str
    whole_numbers: bool
    keys: Tuple[Key, ...]
    iterations: Tuple[Iteration, ...]
    env: Tuple[Tuple[str, str], ...]  # of all its jobs
    settings: Tuple[Tuple[str, str], ...]  # of prophet_mx

    def has(self, dimension: str) -> bool:
        return dimension in self.dimensions

    @property
    def scheduled(self) -> bool:
        """Whether prophet_mx has something to schedule in it."""
        passed = dict(self.settings)["PROPHET_POLICY"] == "off" or self.has("ordered")
        return not passed and any(call.keys for iteration in self.iterations for call in iteration.calls[0])

    @property
    def made(self) -> List[int]:
        """The keys in the order in which rank 0 makes them."""
        return [place for iteration in self.iterations for making in iteration.makings for call in making.calls[0] for place in call]

    def text(self) -> str:
        """All of it, for people."""
        lines = [
            f"seed {self.seed}: {self.workers} workers, {self.servers} servers, {self.store}, "
            + ("whole numbers" if self.whole_numbers else "any numbers"),
            "  dimensions: " + (" ".join(self.dimensions) or "none"),
            "  environment: " + " ".join(f"{name}={value}" for name, value in (*self.env, *self.settings)),
        ]
        lines += [f"  key {place}: {key}" for place, key in enumerate(self.keys)]
        for number, iteration in enumerate(self.iterations):
            lines.append(f"  iteration {number}{'' if iteration.settled else ', not settled'}: optimizer {iteration.optimizer}")
            lines += [
                f"    {making.what}, worker {rank}: {calls}" for making in iteration.makings for rank, calls in enumerate(making.calls)
            ]
            for rank, calls in enumerate(iteration.calls):
                lines.append(f"    worker {rank}: " + " ".join(f"{call.what}{list(call.keys)}" for call in calls))
        return "\n".join(lines)


def drawn(
    seed: int,
    without: Iterable[str] = (),
    only: Optional[Iterable[str]] = None,
    always: Iterable[str] = (),
    iterations: Optional[int] = None,
) -> Program:
    """The program of a seed.

    Parameters
    ----------
    without : dimensions that it must not have.
    only : the only ones that it may have.
    always : those that it must have, unless they exclude each other.
    iterations : only so many of its iterations.
    """
    wanted = {name for name in DIMENSIONS if random.Random(f"{seed} has {name}").random() < SHARES.get(name, SHARE)}
    wanted = wanted & set(DIMENSIONS if only is None else only) | set(always)
    return _Draw(seed, possible(wanted - set(without)), iterations).program()


class _Draw:
    """One program while it is drawn."""

    def __init__(self, seed: int, dimensions: Set[str], most: Optional[int]) -> None:
        self.seed = seed
        self.dimensions = dimensions
        base = self.rng("base")
        self.count, self.most = base.randint(4, 14), most
        self.workers = 3 if self.has("three") else 2
        self.keys = self.draw_keys(base.randint(1, 9))
        self.pushed = [self.draw_pushed(number) for number in range(self.count)]
        self.settings = self.draw_settings()

    def rng(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def has(self, dimension: str) -> bool:
        return dimension in self.dimensions

    def program(self) -> Program:
        iterations = tuple(self.draw_iteration(number) for number in range(self.count))[: self.most]
        return Program(
            self.seed,
            tuple(name for name in DIMENSIONS if name in self.dimensions),
            self.workers,
            2 if self.has("servers") else 1,
            "dist_device_sync" if self.has("device_sync") else "dist_sync",
            self.has("three") or self.has("duplicates"),
            self.keys,
            iterations,
            (("MXNET_KVSTORE_BIGARRAY_BOUND", "1000"),) if self.has("spread") else (),
            tuple(self.settings.items()),
        )

    # -- keys ------------------------------------------------------------------------------------------------------------------

    def draw_keys(self, count: int) -> Tuple[Key, ...]:
        numbers = self.rng("numbers").sample([*range(60), 99_999, *(() if self.has("early") else OWN)], count)
        keys = []
        for place in range(count):
            shapes, late = self.rng(f"shape {place}"), self.rng(f"late {place}")
            shape = shapes.choice(LARGE if shapes.random() < 0.1 else SHAPES)
            if self.has("numpy"):
                shape = self.rng(f"empty {place}").choice(((), (0,), *[shape] * 4))
            name = f"k{numbers[place]}" if self.has("texts") else numbers[place]
            made = late.randint(1, self.count) if late.random() < 0.4 and place and name not in OWN else 0
            keys.append(
                Key(
                    name,
                    shape,
                    self.rng(f"type {place}").choice(FLOATS) if self.has("types") else "float32",  # MXNet's servers add up no others
                    2 if self.has("devices") and self.rng(f"devices {place}").random() < 0.7 else 1,
                    made if self.has("late") and made < self.count else 0,
                )
            )
        return tuple(keys)

    def makings(self, number: int) -> Tuple[Making, ...]:
        """Calls that make the keys that come before an iteration: in groups, as init or broadcast takes them."""
        rng = self.rng(f"made {number}")
        new = [place for place, key in enumerate(self.keys) if key.late == number]
        made = []
        for group in groups(rng, new, 4):
            what = rng.choice(("init", "init", "broadcast"))
            one_by_one = what == "init" and rng.random() < 0.5
            calls = []
            for rank in range(self.workers):
                order = list(group)
                if self.has("init_orders") and not self.has("texts"):
                    self.rng(f"made {number} by {rank} {group}").shuffle(order)
                calls.append(tuple((place,) for place in order) if one_by_one else (tuple(order),))
            made.append(Making(what, tuple(calls)))
        return tuple(made)

    # -- iterations ------------------------------------------------------------------------------------------------------------

    def draw_iteration(self, number: int) -> Iteration:
        pushed = self.pushed[number]
        modes = {place: self.mode(number, place) for place in pushed}
        if self.has("ordered"):
            one_by_one = [Call(what, (place,)) for place in pushed for what in ONE_BY_ONE.get(modes[place], (modes[place], "look"))]
            calls = [list(one_by_one) for _ in range(self.workers)]
        else:
            calls = [self.worker(number, rank, pushed, modes) for rank in range(self.workers)]
        for rank, mine in enumerate(calls):
            forks = self.rng(f"forks {number} {rank}")
            if self.has("forks") and forks.random() < 0.3:
                mine.insert(forks.randint(0, len(mine)) if self.has("waits") else 0, Call("fork", ()))
        calls = without_locks(calls)
        first = any(self.first(place) == number for place in pushed)  # MXNet wants its value to be there before the next push
        scheduled = self.settings["PROPHET_POLICY"] != "off" and not self.has("ordered") and not self.has("compression")
        passed = any(0 in key.shape for key in self.keys)  # empty values are passed through, and so not ordered
        overlaps = self.has("overlap") and scheduled and not first and not passed
        optimizer = self.optimizer(number)
        settled = not overlaps or self.rng(f"overlap {number}").random() < 0.4 or number == self.count - 1
        return Iteration(self.makings(number), optimizer, tuple(map(tuple, calls)), settled)

    def draw_pushed(self, number: int) -> List[int]:
        """The keys that are pushed in an iteration."""
        rng = self.rng(f"frozen {number}")
        ready = [place for place, key in enumerate(self.keys) if key.late <= number]
        return [place for place in ready if not (self.has("frozen") and rng.random() < 0.3)]

    def first(self, place: int) -> int:
        """The iteration in which a key is pushed for the first time."""
        return next((number for number in range(self.keys[place].late, self.count) if place in self.pushed[number]), self.count)

    def mode(self, number: int, place: int) -> str:
        """How all workers push a key."""
        rng = self.rng(f"mode {number} {place}")
        if self.has("compression") or rng.random() < 0.4:
            return "unpulled" if rng.random() < 0.2 and self.has("unpulled") else "push"
        return "in_place" if rng.random() < 0.3 and self.has("in_place") else "pushpull"

    def worker(self, number: int, rank: int, pushed: Sequence[int], modes: Dict[int, str]) -> List[Call]:
        """The calls of one worker, with waits that may lock."""
        rng = self.rng(f"calls {number} {rank}")
        order = list(reversed(pushed))
        if self.has("push_orders"):
            rng.shuffle(order)
        calls: List[Call] = []
        pulls: List[int] = []  # for later
        for group in self.transfers(number, rank, order, modes):
            if self.has("old_values") and rng.random() < 0.3 and number > self.first(group[0]):
                calls += [Call("pull", group[:1]), Call("look", group[:1])]
            mode = modes[group[0]]
            calls.append(Call("push" if mode == "unpulled" else mode, group, rng.randint(-9, 9)))
            if mode == "push":
                if rng.random() < 0.5:
                    calls.append(Call("pull", tuple(dict.fromkeys(group))))
                else:
                    pulls += dict.fromkeys(group)
            if self.has("waits") and rng.random() < 0.5:
                calls += [Call("look", (place,)) for place in dict.fromkeys(group) if mode != "unpulled" and place not in pulls]
        rng.shuffle(pulls)
        return calls + [Call("pull", group, rng.randint(-9, 9)) for group in groups(rng, pulls, 4 if self.has("lists") else 1)]

    def transfers(self, number: int, rank: int, order: Sequence[int], modes: Dict[int, str]) -> List[Tuple[int, ...]]:
        """Groups of keys that are pushed by one call each; some keys twice.

        MXNet makes room for as many arrays of a key as its first sum has, and ends if more come: so only keys of one device come twice.
        """
        rng = self.rng(f"groups {number} {rank}")
        found: List[Tuple[int, ...]] = []
        for mode in dict.fromkeys(modes[place] for place in order):
            same = [place for place in order if modes[place] == mode]
            for group in groups(rng, same, 4 if self.has("lists") else 1):
                again = self.has("duplicates") and rng.random() < 0.5 and self.keys[group[0]].devices == 1
                found.append(group + group[:1] if again else group)
        found.sort(key=lambda group: order.index(group[0]))
        return found

    # -- the rest --------------------------------------------------------------------------------------------------------------

    def optimizer(self, number: int) -> Optional[Optimizer]:
        rng = self.rng(f"optimizer {number}")
        names: Sequence[str] = ELEMENTWISE
        if number == 0 and self.has("ordered"):
            names = IN_ORDER
        elif number == 0 and self.has("whole"):
            names = ("lamb",)
        starts = self.has("optimizers") and (number == 0 and (not self.has("changes") or rng.random() < 0.7) or names is not ELEMENTWISE)
        if not starts and not (number and self.has("optimizers") and self.has("changes") and rng.random() < 0.25):
            return None
        return Optimizer(rng.choice(names), self.has("multi_precision"), rng.random() < 0.7)

    def draw_settings(self) -> Dict[str, str]:
        rng = self.rng("settings")
        unit = sum(8 * math.prod(key.shape) for key in self.keys) // rng.choice((10, 40, 150))
        found = {"PROPHET_WARMUP": str(rng.randint(1, 3)), "PROPHET_UNIT": str(max(4, unit))}
        if self.has("units"):
            del found["PROPHET_UNIT"]
        found["PROPHET_POLICY"] = self.rng("policies").choice(POLICIES) if self.has("policies") else "prophet"
        if self.has("limits"):
            found.update(PROPHET_WINDOW="1", PROPHET_LEAD="1")
        if self.has("drain"):
            found["PROPHET_DRAIN"] = self.rng("drain").choice(("predicted", "nic"))
        return found


def possible(wanted: Set[str]) -> Set[str]:
    """The same, without what does not go with one another: the later of two goes."""
    excluded: Dict[str, FrozenSet[str]] = {
        "late": frozenset(("schedule",)),  # MXNet's schedules go by the key that was updated most often
        "frozen": frozenset(("schedule",)),
        "overlap": frozenset(("schedule",)),
        "early": frozenset(("late", "signal_pulls")),  # text keys that come after others are refused
        "compression": frozenset(("types", "devices", "in_place", "multi_precision", "ordered", "whole", "numpy", "duplicates")),
        "ordered": frozenset(("whole", "duplicates")),
        "three": frozenset(("compression",)),
    }
    for name in DIMENSIONS:
        if name in wanted:
            wanted = wanted - excluded.get(name, frozenset())
    if "optimizers" not in wanted:
        wanted = wanted - {"changes", "schedule", "multi_precision", "ordered", "whole"}
    return wanted


def groups(rng: random.Random, places: Sequence[int], most: int) -> List[Tuple[int, ...]]:
    """The same in order, in groups of up to ``most``."""
    found, begin = [], 0
    while begin < len(places):
        size = rng.randint(1, most)
        found.append(tuple(places[begin : begin + size]))
        begin += size
    return found


def without_locks(workers: Sequence[Sequence[Call]]) -> List[List[Call]]:
    """The calls of an iteration without the looks and forks that would wait for ever.

    A look at a value that the worker has pushed in this iteration waits until all workers have pushed it. MXNet lets a fork wait for all.
    """
    kept: List[List[Call]] = [[] for _ in workers]
    left = [list(calls) for calls in workers]
    pushed: List[Set[int]] = [set() for _ in workers]
    while any(left):
        moved = False
        for rank, calls in enumerate(left):
            while calls:
                call = calls[0]
                awaited = {"look": pushed[rank].intersection(call.keys), "fork": pushed[rank]}.get(call.what, set())
                if not all(awaited <= other for other in pushed):
                    break
                if call.what in ("push", "pushpull", "in_place"):
                    pushed[rank].update(call.keys)
                kept[rank].append(calls.pop(0))
                moved = True
        if not moved:  # each one waits for a value that another has not pushed
            next(calls for calls in left if calls).pop(0)  # of the first worker that waits
    return kept
