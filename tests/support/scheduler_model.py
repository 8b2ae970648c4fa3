"""The compiled scheduler, and an account of what it was told and what it did that is kept beside it."""

import math

from prophet_mx import policies
from prophet_mx._core import Scheduler
from prophet_mx.policies import Window
from prophet_mx.sizes import MAX_UNIT, MIN_UNIT, UNIT_SECONDS

POLICIES = tuple(policies.POLICIES)
WIDE = -1
IDLE = 16384  # in flight up to here counts as an idle link


class Model:
    """One scheduler, and its own account of what it was told and what it did."""

    def __init__(self, policy, links, window, lead, units, rate=1e6):
        self.policy = policies.POLICIES[policy]
        self.links = links
        self.scheduler = Scheduler(policy, links, window, lead, rate)
        self.units = units  # (bytes, link, position)
        for i, (size, link, position) in enumerate(units):
            assert self.scheduler.add_unit(size, link, i, position=position) == i
        self.state = ["idle"] * len(units)
        self.rounds = [-1] * len(units)
        self.urgency = [None] * len(units)
        self.released = [0] * links  # payload bytes
        self.drained = [0] * links
        self.moved = [0.0] * links  # when a unit was last released on the link or answered, or bytes drained
        self.patience = [0.0] * links
        self.hurry = [0] * links  # how often the patience is halved
        self.yielded_now = [False] * links  # whether it was, in the newest iteration
        self.yields = 0
        self.sequence = 0
        self.sent = []  # every unit ever sent, in order
        self.iteration = 0
        self.t = 0.0
        self.fixed_window = window
        self.literal = self.policy.window is Window.INTERVAL and window == 0
        self.step_of, self.due = [], []
        self.newest, self.began, self.arrived = -1, 0.0, -1  # the paper's rule: iteration, its start, the latest step
        self.blocks, self.in_blocks = set(), []  # gradient blocks: (link, iteration, step), and the units in them

    def set_steps(self, step_of, due):
        self.scheduler.set_steps(step_of, due)
        self.step_of, self.due = step_of, due

    def share(self, unit):
        size, link, _ = self.units[unit]
        return size // self.links if link == WIDE else size

    def uses(self, unit, link):
        return self.units[unit][1] in (WIDE, link)

    def order(self, unit):
        return self.rounds[unit], self.units[unit][2]

    def of_state(self, state, link=None):
        return [u for u in range(len(self.units)) if self.state[u] == state and (link is None or self.uses(u, link))]

    def unanswered(self, link, before=None):
        return sum(self.share(u) for u in self.of_state("sent", link) if before is None or self.order(u) < before)

    def unanswered_urgent(self, link, unit):
        return sum(self.share(u) for u in self.of_state("sent", link) if self.urgency[u] < self.urgency[unit])

    def limit(self, link, name):
        return self.scheduler.link_state(link)[name]

    def window_open(self, unit, link):
        in_flight = self.released[link] - self.drained[link]
        if self.literal:
            interval = self.interval()
            return (in_flight + self.share(unit) <= self.limit(link, "rate") * interval) if interval > 0 else in_flight <= IDLE
        unlimited = self.policy.window is Window.NONE and self.fixed_window == 0
        return unlimited or in_flight < self.limit(link, "window")

    def interval(self):
        """Seconds until the next step of the newest iteration is due; 0 if none is."""
        if self.arrived + 1 >= len(self.due):
            return 0
        return max(0, self.began + self.due[self.arrived + 1] - self.t)

    def limited(self, unit, link):
        """Whether so much is unanswered that only the head may go."""
        lead = self.limit(link, "lead")
        return self.unanswered(link) >= lead and (not self.policy.urgent_passes or self.unanswered_urgent(link, unit) >= lead / 8)

    def lead_allows(self, unit, link):
        if not self.limited(unit, link):
            return True
        lead = self.limit(link, "lead")
        return self.is_head(unit, link) and (self.unanswered(link, self.order(unit)) < lead or self.quiet(link))

    def is_head(self, unit, link):
        return unit == min(self.of_state("ready", link), key=self.order)

    def quiet(self, link):
        in_flight = self.released[link] - self.drained[link]
        return in_flight <= IDLE and self.t >= self.moved[link] + self.patience[link]

    def needs_yield(self, unit):
        """Whether the lead limit holds a head on one of its links, and lets it go only because the link is quiet."""
        return any(
            self.limited(unit, link) and self.unanswered(link, self.order(unit)) >= self.limit(link, "lead") for link in self.links_of(unit)
        )

    def links_of(self, unit):
        return [link for link in range(self.links) if self.uses(unit, link)]

    # -- events --------------------------------------------------------------------------------------------------------------------

    def ready(self, unit, iteration):
        self.scheduler.ready(unit, iteration, self.t)
        self.state[unit] = "ready"
        self.rounds[unit] += 1
        order = self.policy.order
        self.urgency[unit] = (self.sequence, 0) if order is None else (iteration, order(unit, self.units[unit][0]))
        self.sequence += 1
        if iteration > self.newest:
            self.newest, self.began, self.arrived = iteration, self.t, -1
            self.hurry = [hurry if yielded else max(0, hurry - 1) for hurry, yielded in zip(self.hurry, self.yielded_now)]
            self.yielded_now = [False] * self.links
        if iteration == self.newest and self.step_of:
            self.arrived = max(self.arrived, self.step_of[unit])
        self.scheduler.check()

    def use(self, positions):
        """Another total order, and no lead limit until ``scheduler.set_unlimited(False)``."""
        self.units = [(size, link, position) for (size, link, _), position in zip(self.units, positions)]
        self.scheduler.set_places([(unit, unit, position) for unit, position in enumerate(positions)])
        self.scheduler.check()

    def drain(self, link, amount):
        before = self.drained[link]
        self.drained[link] = min(self.released[link], before + amount)
        if self.drained[link] > before:
            self.moved[link] = self.t
        self.scheduler.drained(link, self.drained[link], self.t)
        self.scheduler.check()

    def done(self, unit):
        self.scheduler.done(unit, self.t)
        self.state[unit] = "idle"
        for link in self.links_of(unit):  # an answer proves drain; the account here follows
            self.drained[link] = max(self.drained[link], self.scheduler.link_state(link)["drained"])
            self.moved[link] = self.t
        self.scheduler.check()

    def decide(self):
        """Ask, verify each unit let go against the account, then what is still held; when to ask again."""
        self.patience = [self.limit(link, "patience") for link in range(self.links)]
        out, wake = self.scheduler.decide(self.t)
        self.scheduler.check()
        for unit in out:
            assert self.state[unit] == "ready", f"unit {unit} was released though it is {self.state[unit]}"
            self.verify_release(unit)
            self.count_yield(unit)
            self.assemble(unit)
            self.state[unit] = "sent"
            self.sent.append(unit)
            for link in self.links_of(unit):
                self.released[link] += self.share(unit)
                self.moved[link] = self.t
        assert self.patience == [self.limit(link, "patience") for link in range(self.links)]
        for unit, state in enumerate(self.state):
            assert self.scheduler.unit_state(unit) == state
        counters = self.scheduler.counters()
        assert counters["units"] == len(self.sent) and counters["yields"] == self.yields
        assert (counters["blocks"], counters["block_units"]) == (len(self.blocks), len(self.in_blocks))
        assert counters["block_bytes"] == sum(self.units[u][0] for u in self.in_blocks)
        assert counters["bytes"] == sum(self.units[u][0] for u in self.sent)
        self.verify_held(wake)
        return wake

    def count_yield(self, unit):
        """Each yield halves the patience for the next one, up to ten times."""
        if self.needs_yield(unit):
            self.yields += 1
            for link in self.links_of(unit):
                self.patience[link] /= 2 if self.hurry[link] < 10 else 1
                self.hurry[link] = min(10, self.hurry[link] + 1)
                self.yielded_now[link] = True
        assert self.scheduler.counters()["yields"] >= self.yields

    def verify_release(self, unit):
        for link in self.links_of(unit):
            state = self.scheduler.link_state(link)
            assert self.lead_allows(unit, link), f"unit {unit} passed the lead limit of link {link}: {state}"
            in_flight = self.released[link] - self.drained[link]
            assert self.window_open(unit, link) or in_flight + self.share(unit) <= self.most_of_block(state, 0), (
                f"unit {unit} passed the window: {state}"
            )
        for other in self.of_state("ready"):
            if self.urgency[other] < self.urgency[unit] and self.units[other][1] == self.units[unit][1]:
                assert not all(self.lead_allows(other, link) for link in self.links_of(other)), (
                    f"unit {unit} went before unit {other}, which is more urgent and free to go"
                )

    def most_of_block(self, state, otherwise):
        """Bytes in flight up to which a predicted block may widen the window: eight units; ``otherwise`` where the policy does not say."""
        if self.policy.window is not Window.BLOCK:
            return otherwise
        return 8 * int(max(MIN_UNIT, min(MAX_UNIT, state["rate"] * UNIT_SECONDS)))

    def assemble(self, unit):
        """A unit leaves with the interval's block if it is predicted to drain within the interval."""
        for link in self.links_of(unit):
            state, interval = self.scheduler.link_state(link), self.interval()
            most = self.most_of_block(state, math.inf)
            if (
                self.policy.window not in (Window.BLOCK, Window.INTERVAL)
                or self.fixed_window
                or interval <= 0
                or self.released[link] - self.drained[link] + self.share(unit) > min(state["rate"] * interval, most)
            ):
                return
        self.blocks |= {(link, self.newest, self.arrived) for link in self.links_of(unit)}
        self.in_blocks.append(unit)

    def verify_held(self, wake):
        """Whatever waits, waits for a limit, and somebody is told when to look again."""
        for link in range(self.links):
            ready = [u for u in self.of_state("ready", link) if self.units[u][1] == link]
            if not ready:
                continue
            free = sorted((u for u in ready if self.lead_allows(u, link)), key=lambda u: self.urgency[u])
            if free and self.window_open(free[0], link):
                # Only a more urgent unit for all servers, which waits for another link's window, keeps it back.
                blockers = [
                    u for u in self.of_state("ready") if self.units[u][1] == WIDE and all(self.lead_allows(u, k) for k in range(self.links))
                ]
                assert any(self.urgency[u] < self.urgency[f] for u in blockers for f in free), (
                    f"link {link} idles though units {free} may go: {self.scheduler.link_state(link)}"
                )
        wide = [
            u for u in self.of_state("ready") if self.units[u][1] == WIDE and all(self.lead_allows(u, link) for link in range(self.links))
        ]
        if wide:  # the most urgent of them goes first, also where a smaller one would fit
            unit = min(wide, key=lambda u: self.urgency[u])
            assert not all(self.window_open(unit, link) for link in range(self.links)), f"unit {unit} may go and does not"
        assert not self.of_state("ready") or self.t <= wake < math.inf, f"something waits, and nobody wakes: {wake}"


def install_steps(model, rng):
    count = len(model.units)
    steps = rng.randint(1, 4)
    members = sorted((rng.randrange(-1, steps) for _ in range(count)), reverse=True)  # -1: in none
    model.set_steps(members, sorted(rng.random() * 0.1 for _ in range(steps)))


def random_event(model, rng, iteration, more=()):
    """Something happens to a scheduler, later than what happened before: the iteration that goes on then, and the kind, which may also be
    one of ``more``, left to the caller."""
    model.t += rng.choice([0, 1e-5, 1e-3, 0.1])
    event = rng.choice(["ready", "ready", "drain", "done", "decide", "iteration", *more])
    idle, sent = model.of_state("idle"), model.of_state("sent")
    if event == "ready" and idle:
        model.ready(rng.choice(idle), iteration)
    elif event == "drain":
        model.drain(rng.randrange(model.links), rng.choice([1, 40, 3000, 10**9]))
    elif event == "done" and sent:
        model.done(rng.choice(sent))
    elif event == "decide":
        model.decide()
    return iteration + (event == "iteration"), event


class Cluster:
    """Several workers: a unit is answered everywhere once all workers have sent it. So little time passes that no limit yields."""

    def __init__(self, job, workers, iterations, rng, barrier, positions=None):
        self.positions = positions  # of another total order, which the workers change to one after the other
        self.using, self.limited = set(), set(range(workers))
        self.workers = [Model(*job) for _ in range(workers)]
        self.rng = rng
        self.barrier = barrier
        self.units = range(len(job[-1]))
        # What each iteration pushes is the same on all workers; the order in which it becomes ready is not.
        pushed = [rng.sample(self.units, rng.randint(1, len(self.units))) for _ in range(iterations)]
        self.todo = [[(i, unit) for i, units in enumerate(pushed) for unit in self.shuffled(units, w)] for w in range(workers)]
        self.total = sum(map(len, pushed))
        self.answers = []  # (worker, unit) on their way

    def shuffled(self, units, worker):
        units = sorted(units)
        if self.rng.random() < 0.5:
            self.rng.shuffle(units)
        return units if worker % 2 else units[::-1]

    def may_become_ready(self, w):
        """Places in its list of the gradients that worker w could make now, each after the last answer of its own."""
        model, found, seen = self.workers[w], [], set()
        for place, (iteration, unit) in enumerate(self.todo[w]):
            if self.barrier and iteration != self.todo[w][0][0]:
                break
            if self.barrier and iteration != model.iteration and any(state != "idle" for state in model.state):
                break  # the forward pass needs all values of the iteration before
            if unit not in seen and model.state[unit] == "idle":
                found.append(place)
            seen.add(unit)
        return [("ready", (w, place)) for place in (found[:1] if self.barrier else found)]

    def events(self):
        found = [("answer", i) for i in range(len(self.answers))]
        for w, model in enumerate(self.workers):
            found += self.may_become_ready(w)
            found += [("drain", (w, link)) for link in range(model.links) if model.released[link] > model.drained[link]]
            if self.positions and w not in self.using:
                found.append(("use", (w, None)))
            if len(self.using) == len(self.workers) and w not in self.limited:
                found.append(("limit", (w, None)))
        return found

    def run(self):
        counts = [[0] * len(self.units) for _ in self.workers]
        answered = [0] * len(self.units)
        while True:
            events = self.events()
            if not events:
                break
            kind, what = self.rng.choice(events)
            if kind == "answer":
                w, unit = self.answers.pop(what)
                self.workers[w].done(unit)
            elif kind == "ready":
                w, place = what
                iteration, unit = self.todo[w].pop(place)
                self.workers[w].iteration = iteration
                self.workers[w].ready(unit, iteration)
            elif kind == "use":
                w, _ = what
                self.workers[w].use(self.positions)
                self.using.add(w)
                self.limited.remove(w)
            elif kind == "limit":
                w, _ = what
                self.workers[w].scheduler.set_unlimited(False)
                self.limited.add(w)
            else:
                w, link = what
                self.workers[w].drain(link, self.rng.choice([10, 10**9]))
            model = self.workers[w]
            model.t += 1e-9
            before = len(model.sent)
            model.decide()
            for unit in model.sent[before:]:
                counts[w][unit] += 1
                if min(count[unit] for count in counts) > answered[unit]:
                    answered[unit] += 1
                    self.answers += [(k, unit) for k in range(len(self.workers))]
        for w, model in enumerate(self.workers):
            assert not self.todo[w] and not model.of_state("ready") and not model.of_state("sent"), (
                f"deadlock: worker {w} is left with {model.of_state('ready')} ready, {model.of_state('sent')} unanswered, "
                f"{len(self.todo[w])} to come"
            )
            assert len(model.sent) == self.total and not model.scheduler.counters()["yields"]
