"""Programs with many small parameters, of which some are missing, waited for, read or unfrozen; the same with and without prophet_mx.

    groups.py plain|scheduled KINDS OPTIMIZER DTYPE FILE

runs one program after the other, each with parameters of its own in the same store. It writes the digests of all values after every
iteration, and with prophet_mx what the scheduler did, to FILE, in which {rank} is replaced. What is pushed is the same on all workers;
when, and in some programs in what order, is not.
"""

import hashlib
import json
import random
import sys
import time

import mxnet as mx
import numpy as np

from prophet_mx import ScheduledKVStore

mode, kinds, optimizer, dtype, path = sys.argv[1:]
ITERATIONS = 12
SIZES = [8, 64, 64, 3, 500, 64, 1, 40_000, 64, 64, 256, 64, 7, 64, 64, 900]
EVERYTHING = range(len(SIZES))

kv = mx.kv.create("dist_sync")
if mode == "scheduled":
    kv = ScheduledKVStore(kv, unit=16_000)


def made(seed, size):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, size), dtype=dtype)


def made_optimizer(names):
    """A schedule goes by the updates of the parameter that has most: where others have fewer, plain's result depends on who comes first."""
    found = mx.optimizer.create(
        optimizer,
        learning_rate=0.05,
        wd=0.01,
        multi_precision=dtype == "float16",
        param_idx2name=dict(enumerate(names)),
        lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.05) if kinds == "usual" else None,
        **({"momentum": 0.9} if optimizer == "sgd" else {}),
    )
    found.set_lr_mult({name: 0.5 + index % 3 for index, name in enumerate(names) if index % 8 == 1})
    found.set_wd_mult({name: index % 2 * 3.0 for index, name in enumerate(names) if index % 8 == 2})
    return found


class Program:
    def __init__(self, kind):
        self.kind = kind
        self.shared, self.own = random.Random(1), random.Random(100 + kv.rank)
        self.devices = [mx.cpu(0), mx.cpu(1)] if kind == "devices" else [mx.cpu(0)]
        self.names = [f"{kind}{index}" for index in EVERYTHING]
        self.values = [[made(index, size).as_in_context(device) for device in self.devices] for index, size in enumerate(SIZES)]

    def pull(self, indices):
        for index in indices:
            kv.pull(self.names[index], out=self.values[index])

    def pushed(self, iteration):
        if self.kind in ("missing", "waits"):
            return [index for index in EVERYTHING if self.shared.random() < 0.6]
        if self.kind == "frozen":
            return [index for index in EVERYTHING if index % 3 or 4 <= iteration < 8]
        return list(EVERYTHING)

    def run(self):
        """Yields a digest of all values after each iteration."""
        for iteration in range(ITERATIONS):
            pushed = self.pushed(iteration)
            self.iterate(iteration, pushed)
            if self.kind == "pushes":
                self.pull(pushed)
            if self.kind == "reads":
                self.pull([self.own.randrange(len(SIZES)) for _ in range(5)])
            yield hashlib.sha256(b"".join(value.asnumpy().tobytes() for copies in self.values for value in copies)).hexdigest()

    def iterate(self, iteration, pushed):
        order = list(reversed(pushed))
        if self.kind in ("orders", "missing"):
            self.own.shuffle(order)
        before = made(7, 1)
        for index in order:
            seed = 1000 * iteration + 50 * kv.rank + index
            gradients = [made(seed + 7 * number, SIZES[index]) for number, _ in enumerate(self.devices)]
            if self.kind == "chained":  # each gradient needs the value of the one before, for which nobody waits in Python
                gradients = [gradient + before for gradient in gradients]
            gradients = [gradient.as_in_context(device) for gradient, device in zip(gradients, self.devices)]
            if self.kind == "pushes":
                kv.push(self.names[index], gradients, priority=-index)
            else:
                kv.pushpull(self.names[index], gradients, out=self.values[index], priority=-index)
            if self.kind == "waits" and kv.rank == 1:
                self.values[index][0].wait_to_read()
            if self.kind == "chained":
                before = self.values[index][0][:1] * 0.5
            if self.kind == "slow" and self.own.random() < 0.1:
                time.sleep(0.05)


programs = [Program(kind) for kind in kinds.split(",")]
if optimizer != "none":
    kv.set_optimizer(made_optimizer([name for program in programs for name in program.names]))
for program in programs:
    for name, first in zip(program.names, program.values):
        kv.init(name, first[0])
    if program.kind == "reads":
        program.pull(EVERYTHING)
digests = {program.kind: list(program.run()) for program in programs}
with open(path.replace("{rank}", str(kv.rank)), "w") as file:
    json.dump({"digests": digests, "stats": kv.stats() if mode == "scheduled" else None}, file)
for index in EVERYTHING:  # nothing waits for these
    kv.push(programs[0].names[index], made(index, SIZES[index]))
