"""A program with many small parameters, of which some are missing, waited for, read or unfrozen; the same with and without prophet_mx.

    groups.py plain|scheduled KIND OPTIMIZER DTYPE FILE

writes each rank's digest of all values after every iteration, and with prophet_mx what the scheduler did, to FILE, in which {rank} is
replaced. All random choices that decide what is pushed are the same on all workers; those that decide when, and in what order, are not.
"""

import hashlib
import json
import random
import sys
import time

import mxnet as mx
import numpy as np

from prophet_mx import ScheduledKVStore

mode, kind, optimizer, dtype, path = sys.argv[1:]
ITERATIONS = 12
SIZES = [8, 64, 64, 3, 500, 64, 1, 40_000, 64, 64, 256, 64, 7, 64, 64, 900]

kv = mx.kv.create("dist_sync")
if mode == "scheduled":
    kv = ScheduledKVStore(kv, unit=16_000)
shared, own = random.Random(1), random.Random(100 + kv.rank)
devices = [mx.cpu(0), mx.cpu(1)] if kind == "devices" else [mx.cpu(0)]
names = [f"p{index}" for index in range(len(SIZES))]


def made(seed, size):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, size), dtype=dtype)


if optimizer != "none":
    options = {"momentum": 0.9} if optimizer in ("sgd", "nag") else {}
    made_optimizer = mx.optimizer.create(
        optimizer,
        learning_rate=0.05,
        wd=0.01,
        multi_precision=dtype == "float16",
        param_idx2name=dict(enumerate(names)),
        # A schedule goes by the updates of the parameter that has most. If others have fewer, plain's result depends on who comes first.
        lr_scheduler=None if kind in ("missing", "waits", "frozen") else mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.05),
        **options,
    )
    made_optimizer.set_lr_mult({"p1": 0.5, "p9": 2.0})
    made_optimizer.set_wd_mult({"p2": 0.0, "p10": 3.0})
    kv.set_optimizer(made_optimizer)
values = [[made(index, size).as_in_context(device) for device in devices] for index, size in enumerate(SIZES)]
for name, first in zip(names, values):
    kv.init(name, first[0])
digests = []


def digest():
    text = b"".join(value.asnumpy().tobytes() for copies in values for value in copies)
    digests.append(hashlib.sha256(text).hexdigest())


def pull(indices):
    for index in indices:
        kv.pull(names[index], out=values[index])


if kind == "reads":
    pull(range(len(SIZES)))
for iteration in range(ITERATIONS):
    pushed = list(range(len(SIZES)))
    if kind in ("missing", "waits"):
        pushed = [index for index in pushed if shared.random() < 0.6]
    if kind == "frozen":
        pushed = [index for index in pushed if index % 3 or 4 <= iteration < 8]
    order = list(reversed(pushed))
    if kind in ("orders", "missing"):
        own.shuffle(order)
    waits = kind == "waits" and kv.rank == 1
    chained = made(7, 1)
    for index in order:
        gradients = [made(1000 * iteration + 50 * kv.rank + 7 * number + index, SIZES[index]) for number, _ in enumerate(devices)]
        if kind == "chained":  # each gradient needs the value of the one before, which nobody waits for in Python
            gradients = [gradient + chained for gradient in gradients]
        gradients = [gradient.as_in_context(device) for gradient, device in zip(gradients, devices)]
        if kind == "pushes":
            kv.push(names[index], gradients, priority=-index)
        else:
            kv.pushpull(names[index], gradients, out=values[index], priority=-index)
        if waits:
            values[index][0].wait_to_read()
        if kind == "chained":
            chained = values[index][0].reshape((-1,))[:1].as_in_context(mx.cpu(0)) * 0.5
        if kind == "slow" and own.random() < 0.2:
            time.sleep(0.05)
    if kind == "pushes":
        pull(pushed)
    if kind == "reads":
        pull([own.randrange(len(SIZES)) for _ in range(5)])
    if kind == "interrupted" and iteration % 4 == 1:
        mx.nd.waitall()
        continue
    digest()
result = {"digests": digests, "stats": kv.stats() if mode == "scheduled" else None}
with open(path.replace("{rank}", str(kv.rank)), "w") as file:
    json.dump(result, file)
if kind == "exits":  # nothing waits for these
    for index in range(len(SIZES)):
        kv.push(names[index], made(index, SIZES[index]))
