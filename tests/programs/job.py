"""One process of a program's job: does what the generator has drawn for its rank, and writes down every value that it sees.

usage: job.py VARIANT FOLDER SEED ITERATIONS DIMENSION,...       VARIANT is 'plain' or 'scheduled'

Each worker writes FOLDER/RANK.pickle: [(what, key, arrays)]. In a plain job nothing disturbs: no signals, threads and forks; and workers
wait at the end of every iteration, which plain MXNet needs.
"""

import faulthandler
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
from pathlib import Path

import mxnet as mx
import numpy as np

from generator import drawn

VARIANT, FOLDER, SEED, ITERATIONS, DIMENSIONS = sys.argv[1:]
STACKS = 25  # seconds after which a worker shows where it is
MULTIPLIERS = {f"p{place}_weight": 0.5 + 0.25 * place for place in range(12)}


class Worker:
    """Carries out a program, and keeps what it saw."""

    def __init__(self, program):
        self.program = program
        self.scheduled = VARIANT == "scheduled"
        self.seen = []
        self.outs = {}  # the arrays of each key's newest value
        self.nd = mx.np if program.has("numpy") else mx.nd
        self.store = mx.kv.create(program.store)
        if not program.has("early"):
            self.wrap()
        self.disturbances = Disturbances(self) if self.scheduled else None

    def wrap(self):
        if self.scheduled:
            from prophet_mx import ScheduledKVStore

            self.store = ScheduledKVStore(self.store)

    # -- values ----------------------------------------------------------------------------------------------------------------

    def array(self, place, salt, device=0):
        """Numbers that are the same in every run."""
        key = self.program.keys[place]
        rng = np.random.RandomState([self.program.seed % 2**32, place, *salt, device])
        numbers = rng.randint(-2, 3, key.shape) if self.program.whole_numbers else rng.normal(size=key.shape)
        return self.nd.array(np.asarray(numbers, key.dtype), ctx=mx.cpu(device), dtype=key.dtype)

    def empty(self, place):
        """Arrays to pull into, with what no pull gives."""
        key = self.program.keys[place]
        return [self.nd.full(key.shape, 77, ctx=mx.cpu(device), dtype=key.dtype) for device in range(key.devices)]

    def gradients(self, place, number, turn):
        salt = (number + 1, self.store.rank + 1, turn)
        return [self.array(place, salt, device) for device in range(self.program.keys[place].devices)]

    def see(self, what, place):
        self.seen.append((what, place, [array.asnumpy() for array in self.outs[place]]))

    # -- calls -----------------------------------------------------------------------------------------------------------------

    def call(self, call, number):
        if call.what == "look":
            for place in call.keys:
                self.see(f"iteration {number}", place)
            return
        if call.what == "fork":
            if self.scheduled:
                fork(number)
            return
        keys = [self.program.keys[place].name for place in call.keys]
        values = [self.gradients(place, number, turn) for turn, place in enumerate(call.keys)] if call.what != "pull" else None
        outs = [self.empty(place) for place in call.keys] if call.what in ("pull", "pushpull") else None
        as_given = (lambda things: things and things[0]) if len(keys) == 1 else (lambda things: things)
        if call.what == "push":
            self.store.push(as_given(keys), as_given(values), call.priority)
        elif call.what == "pull":
            self.store.pull(as_given(keys), as_given(outs), call.priority)
        else:
            self.store.pushpull(as_given(keys), as_given(values), out=as_given(outs), priority=call.priority)
        if call.what != "push":
            new = {}
            for place, arrays in zip(call.keys, outs or values):
                new.setdefault(place, []).extend(arrays)
            self.outs.update(new)

    def make(self, making):
        for places in making.calls[self.store.rank]:
            keys = [self.program.keys[place].name for place in places]
            values = [self.array(place, (0, 0)) for place in places]
            if making.what == "init":
                self.store.init(keys, values)
                continue
            outs = [self.empty(place) for place in places]
            self.store.broadcast(keys, values, outs)
            for place, arrays in zip(places, outs):
                self.outs[place] = arrays
                self.see("broadcast", place)

    def set_optimizer(self, drawn_one):
        mx.nd.waitall()
        self.store._barrier()
        if drawn_one.by_all or self.store.rank == 0:
            self.store.set_optimizer(self.optimizer(drawn_one))
        self.store._barrier()

    def optimizer(self, drawn_one):
        """With multipliers of each key's own."""
        texts = self.program.has("texts")
        numbers = {place: number if texts else self.program.keys[place].name for number, place in enumerate(self.program.made)}
        names = {number: f"p{place}_weight" for place, number in numbers.items()}
        name = "sgd" if drawn_one.name == "momentum" else drawn_one.name
        settings = {"momentum": 0.9} if drawn_one.name in ("momentum", "nag", "signum", "lbsgd") else {}
        if name not in ("test", "adadelta"):
            settings["learning_rate"] = 0.05
        if self.program.has("schedule") and "learning_rate" in settings:
            settings["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=2, factor=0.7, base_lr=0.05)
        optimizer = mx.optimizer.create(
            name, wd=0.01, rescale_grad=0.5, clip_gradient=2.0, multi_precision=drawn_one.multi_precision, param_idx2name=names, **settings
        )
        optimizer.set_lr_mult(MULTIPLIERS)
        optimizer.set_wd_mult({name: 2 - value / 3 for name, value in MULTIPLIERS.items()})
        return optimizer

    def run(self):
        if self.program.has("compression"):
            self.store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        for number, iteration in enumerate(self.program.iterations):
            if number == 0 and iteration.optimizer and self.program.seed % 2:
                self.set_optimizer(iteration.optimizer)  # an early one also before the store is wrapped
            for making in iteration.makings:
                self.make(making)
            if number == 0:
                if self.program.has("early"):
                    self.wrap()
                if self.disturbances:
                    self.disturbances.start()
            if iteration.optimizer and (number or not self.program.seed % 2):
                self.set_optimizer(iteration.optimizer)
            for call in iteration.calls[self.store.rank]:
                self.call(call, number)
            if iteration.settled or not self.scheduled:
                mx.nd.waitall()
            if iteration.settled:
                for place in sorted(self.outs):
                    self.see(f"end of iteration {number}", place)
        self.end()

    def end(self):
        """What the servers have when all have done everything."""
        mx.nd.waitall()
        self.store._barrier()
        for place in self.program.made:
            key = self.program.keys[place]
            self.outs[place] = self.empty(place)
            self.store.pull(key.name, self.outs[place])
            self.see("end", place)
        if self.disturbances:
            self.disturbances.stop()
        self.store._barrier()  # nobody has pulled yet where somebody pushes no more: all see the same


class Disturbances:
    """What happens beside the program: signals, and threads."""

    def __init__(self, worker):
        self.worker = worker
        self.random = random.Random(f"{SEED} {worker.store.rank}")
        self.over = threading.Event()
        self.threads = []
        self.failed = []

    def start(self):
        program = self.worker.program
        # Made here: a handler that calls an operator of MXNet changes the result of the one that it interrupts.
        self.pulled = {place: self.worker.empty(place) for place, key in enumerate(program.keys) if key.late == 0}
        if program.has("signal_pulls"):
            for place, arrays in self.pulled.items():  # MXNet wants a key's first pull to be over before the key is pushed
                self.worker.store.pull(program.keys[place].name, arrays)
            mx.nd.waitall()
        if program.has("signal_pulls") or program.has("signal_stats"):
            signal.signal(signal.SIGALRM, self.handle)
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.003)
        if program.has("threads"):
            self.threads = [threading.Thread(target=self.read) for _ in range(2)]
            for thread in self.threads:
                thread.start()

    def stop(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.over.set()
        for thread in self.threads:
            thread.join()
        mx.nd.waitall()
        if self.failed:
            raise self.failed[0]

    def handle(self, *_):
        worker = self.worker
        if worker.program.has("signal_stats"):
            worker.store.stats()
        if worker.program.has("signal_pulls"):
            place = self.random.choice(list(self.pulled))
            worker.store.pull(worker.program.keys[place].name, self.pulled[place])

    def read(self):
        worker = self.worker
        try:
            while not self.over.is_set():
                worker.store.stats()
                for arrays in list(worker.outs.values()):
                    for array in arrays:
                        array.asnumpy()
                time.sleep(0.001)
        except Exception as error:
            self.failed.append(error)


def fork(number):
    """A child that does not use the store, and ends by itself: at once, or as those of multiprocessing do. With MXNet's own end in a child,
    by sys.exit, a child of plain MXNet hangs."""
    if number % 2:
        child = multiprocessing.get_context("fork").Process(target=sum, args=(range(10000),))
        child.start()
        child.join()
        code = child.exitcode
    else:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        code = os.waitpid(pid, 0)[1]
    if code != 0:
        raise AssertionError(f"a child ended with {code}")


def main():
    faulthandler.dump_traceback_later(STACKS)
    program = drawn(int(SEED), only=(), always=filter(None, DIMENSIONS.split(",")), iterations=int(ITERATIONS))
    if program.has("numpy"):
        mx.npx.set_np()
    if VARIANT == "scheduled" and program.has("copies"):
        from prophet_mx import _core
        from prophet_mx.mxnet import parameters

        parameters.COPY_BYTES = 150
        _core.cpu_arrays_are_plain(True)
    worker = Worker(program)
    worker.run()
    Path(FOLDER, f"{worker.store.rank}.pickle").write_bytes(pickle.dumps(worker.seen))
    stats = worker.store.stats() if worker.scheduled else {}
    print(f"rank {worker.store.rank} saw {len(worker.seen)} values, {stats.get('units', 0)} units were sent", flush=True)
    if stats.get("failure"):
        raise AssertionError(f"scheduling has ended: {stats['failure']}")
    known = not (program.has("early") and program.has("ordered"))  # an optimizer from before wrapping is not, nor that it needs an order
    if worker.scheduled and known and program.scheduled != (stats.get("units", 0) > 0):
        raise AssertionError("this compares plain dist_sync with itself, or what is passed through is scheduled")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
