"""One worker: trains the same parameters with one optimizer after another, and saves the weights that each leaves.

Arguments: the optimizers' names, separated by commas; ``plain`` or ``scheduled``; the folder for ``VARIANT-RANK.npz``; ``ordered`` if
no key is sent before the one before it is updated.
"""

import os
import sys

import mxnet as mx
import numpy as np

SHAPES = [(40, 30), (7,), (25, 9), (300,), (3, 5, 4)]
STEPS = 4

SETTINGS = {
    "sgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "signum": {"momentum": 0.9, "wd_lh": 0.01},
    "dcasgd": {"momentum": 0.0},
    "lbsgd": {"momentum": 0.9},
    "sgld": {},
    "test": {},
}


def optimizer(name):
    """With everything that depends on a parameter's number or on how often it was updated."""
    settings = dict(SETTINGS.get(name, {}))
    if name not in ("test", "adadelta"):
        settings["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.05)
    made = mx.optimizer.create(
        name,
        wd=0.01,
        clip_gradient=2.0,
        rescale_grad=0.5,
        multi_precision=False,
        param_idx2name={i: f"p{i}_weight" for i in range(len(SHAPES))},
        **settings,
    )
    made.set_lr_mult({f"p{i}_weight": 1.0 + 0.5 * i for i in range(len(SHAPES))})
    made.set_wd_mult({f"p{i}_weight": 2.0 - 0.25 * i for i in range(len(SHAPES))})
    return made


def main():
    names, variant, folder, *ordered = sys.argv[1:]
    store = mx.kv.create("dist_sync")
    if variant == "scheduled":
        from prophet_mx import ScheduledKVStore

        store = ScheduledKVStore(store)
    rng = np.random.RandomState(store.rank + 1)
    weights = [mx.nd.array(np.random.RandomState(7 + i).normal(size=shape)) for i, shape in enumerate(SHAPES)]
    results = {}
    for turn, name in enumerate(names.split(",")):
        store.set_optimizer(optimizer(name))
        store._barrier()
        if turn == 0:
            for i, weight in enumerate(weights):
                store.init(f"p{i}", weight)
        for _ in range(STEPS):
            for i in reversed(range(len(SHAPES))):
                store.pushpull(f"p{i}", mx.nd.array(rng.normal(size=SHAPES[i])), out=weights[i], priority=-i)
                if ordered:
                    mx.nd.waitall()
                    store._barrier()
            mx.nd.waitall()
        store._barrier()
        results.update({f"{name} {i}": weight.asnumpy() for i, weight in enumerate(weights)})
    results["units"] = np.array(store.stats().get("units", 0) if variant == "scheduled" else 0)
    np.savez(os.path.join(folder, f"{variant}-{store.rank}.npz"), **results)


if __name__ == "__main__":
    main()
