"""The job of benchmarks/starts.py: trains for some iterations, compares the weights, and ends. See there for what is compared.

usage: starts.py SCRIPT ENDING FOLDER VARIANT

SCRIPT 'loop': a loop of pushpull over small and large arrays; 'module': Module.fit of a small convnet, as train_imagenet.py --benchmark 1
does it. ENDING: 'return', 'push' (pushes that nothing waits for are the last thing), 'raise' or 'exit' (while gradients are on their way).
VARIANT: 'plain', 'scheduled', or 'reference' (plain, and rank 0 keeps the weights of 'module' in FOLDER for the others).
"""

import logging
import os
import sys
import traceback
from pathlib import Path

import numpy as np

SCRIPT, ENDING, FOLDER, VARIANT = sys.argv[1:]


def keep_states(ended):
    """Write down what this server keeps for its optimizer, and of which parameters the keys are slices."""
    for frame, _ in traceback.walk_tb(ended.__traceback__):
        updater = getattr(frame.f_locals.get("kvstore"), "_updater", None)
        if updater is not None:
            arrays = {}
            groups, slices = (getattr(updater.optimizer, name, {}) for name in ("groups", "parameters"))
            for key, kept in updater.states.items():
                state = getattr(kept, "state", kept)  # prophet_mx keeps it in what updates the key
                start = 0
                for number, elements in groups.get(key, ()):
                    arrays[f"state{number}"] = state[start : start + elements].asnumpy()
                    start += elements
                if state is not None and key not in groups:
                    arrays[f"state{key}"] = state.asnumpy()
            np.savez(Path(FOLDER, f"server-{os.getpid()}.npz"), slices=np.array(sorted(slices.items())).reshape(-1, 2), **arrays)


try:
    import mxnet as mx
except SystemExit as end_of_job:  # what a server, and the scheduler, does is all done inside the import
    keep_states(end_of_job)
    raise

from whole_numbers import ITERATIONS, SHAPES, expected, gradient, initial  # noqa: E402

BATCHES = 6  # of each of the two epochs of 'module'
CHECKED = 3  # the batch of the second one after which weights are compared; 'raise' and 'exit' come after the next


# -- loop ----------------------------------------------------------------------------------------------------------------------


def loop(store):
    globals()["held"] = store  # it lives to the end of the interpreter, as in a script without functions
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5, wd=0))
    names = [f"w{index}" for index in range(len(SHAPES))]
    outs = [mx.nd.array(weight) for weight in initial()]
    store.init(names, outs)

    def gradients(iteration):
        return [mx.nd.array(gradient(iteration, store.rank, index)) for index in range(len(SHAPES))]

    def iterate(made):
        for index in reversed(range(len(SHAPES))):
            store.pushpull(names[index], made[index], out=outs[index], priority=-index)

    for iteration in range(ITERATIONS):
        iterate(gradients(iteration))
        if not hasattr(store, "stats"):
            mx.nd.waitall()  # plain MXNet mixes up two iterations that are on their way
    compare(store, names, outs, expected(ITERATIONS, store.num_workers)[0], ITERATIONS * len(SHAPES))
    if ENDING == "return":
        return
    zero = computed_zero()
    computed = [mx.nd.broadcast_add(value, zero.reshape((1,) * value.ndim)) for value in gradients(ITERATIONS)]
    if ENDING == "push":
        for index, value in enumerate(computed):
            store.push(names[index], value, priority=-index)
    else:
        iterate(computed)
        fail()


def computed_zero():
    """One that MXNet computes for a while after this has returned: what depends on it is not even ready when the program ends."""
    zeros = mx.nd.zeros((600, 600))
    for _ in range(20):
        zeros = mx.nd.dot(zeros, zeros)
    return zeros[0, :1]


# -- module --------------------------------------------------------------------------------------------------------------------


def symbol():
    net = mx.sym.Variable("data")
    for i, filters in enumerate((8, 16, 16)):
        net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"conv{i}")
        net = mx.sym.Activation(mx.sym.BatchNorm(net, name=f"bn{i}"), act_type="relu")
    net = mx.sym.Flatten(mx.sym.Pooling(net, global_pool=True, kernel=(2, 2), pool_type="avg"))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10, name="fc"), name="softmax")


def module(store):
    net = symbol()
    names = [name for name in net.list_arguments() if name not in ("data", "softmax_label")]
    made = mx.mod.Module(net, context=mx.cpu())

    def compare_with(kept):
        path, weights = Path(FOLDER, f"{kept}.npz"), made.get_params()[0]
        if VARIANT == "reference" and store.rank == 0:
            np.savez(path, **{name: value.asnumpy() for name, value in weights.items()})
        elif VARIANT != "reference":
            with np.load(path) as reference:
                done = CHECKED + 1 if kept == "middle" else BATCHES
                compare(store, names, [weights[name] for name in names], [reference[name] for name in names], (BATCHES + done) * len(names))

    def batch_end(params):
        if params.epoch == 1 and (ENDING in ("raise", "exit") or VARIANT == "reference"):
            if params.nbatch == CHECKED:
                compare_with("middle")
            elif params.nbatch == CHECKED + 1 and VARIANT != "reference":
                fail()

    rng = np.random.RandomState(store.rank)
    data = mx.io.NDArrayIter(rng.uniform(-1, 1, (BATCHES * 8, 3, 12, 12)), rng.randint(0, 10, BATCHES * 8), 8, label_name="softmax_label")
    mx.random.seed(1)
    made.fit(
        data,
        kvstore=store,
        num_epoch=2,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        batch_end_callback=batch_end,
    )
    compare_with("end")
    if ENDING == "push":
        for index, name in enumerate(names):
            store.push(name, made.get_params()[0][name] * (store.rank + 1), priority=-index)
    if VARIANT == "reference":
        mx.nd.waitall()


# -- both ----------------------------------------------------------------------------------------------------------------------


def compare(store, names, arrays, wanted, pushes):
    """Raise an error unless the arrays are the same, bit for bit; say so, and how many units were sent for so many pushes of a gradient."""
    values = [array.asnumpy() for array in arrays]
    different = [name for name, value, want in zip(names, values, wanted) if value.tobytes() != want.tobytes()]
    if different:
        raise AssertionError(f"other values than expected: {different}")
    stats = store.stats() if hasattr(store, "stats") else {"policy": "plain", "units": pushes, "failure": ""}
    how = stats.get("failure") or ("sliced" if stats["units"] > pushes else "whole" if stats["units"] == pushes else "lost")
    print(f"all weights are right, policy {stats['policy']}, {how}", flush=True)


def fail():
    if ENDING == "exit":
        sys.exit(3)
    raise RuntimeError("something went wrong in the middle of an epoch")


def main():
    logging.basicConfig(level=logging.INFO)
    store = mx.kv.create("dist_sync")
    if VARIANT == "scheduled":
        from prophet_mx import ScheduledKVStore

        store = ScheduledKVStore(store)
    {"loop": loop, "module": module}[SCRIPT](store)


if __name__ == "__main__":
    main()
