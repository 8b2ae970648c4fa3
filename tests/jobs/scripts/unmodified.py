"""A job of test_schedule.py: trains with Module or Trainer, and knows nothing of prophet_mx.

usage: unmodified.py module|trainer FILE        the weights of rank 0 go to FILE
       unmodified.py alone FILE                 both, on all data in this process

Both make their store themselves, from the string 'dist_sync'. The variable HALF (0 or 1) says which half of the data is this
worker's.
"""

import os
import pickle
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.kvstore import create

ROWS = np.random.RandomState(0).normal(size=(32, 10)).astype("float32")
LABELS = np.arange(32) % 4


def with_module(part, store="dist_sync"):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=200, name="first")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=4, name="last")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    module = mx.mod.Module(net, context=mx.cpu())
    data = mx.io.NDArrayIter(ROWS[part], LABELS[part].astype("float32"), batch_size=len(ROWS[part]) // 2)
    weights = np.random.RandomState(1)
    shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(8, 10))[0]))
    start = {
        name: mx.nd.array(weights.normal(scale=0.1, size=shapes[name])) for name in sorted(shapes) if name not in ("data", "softmax_label")
    }
    module.fit(
        data,
        num_epoch=2,
        kvstore=store,
        optimizer="sgd",
        arg_params=start,
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    )
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}, module._kvstore


def with_trainer(part, store="dist_sync"):
    net = gluon.nn.HybridSequential(prefix="g_")
    with net.name_scope():
        net.add(gluon.nn.Dense(100, activation="tanh", in_units=10), gluon.nn.Dense(4, in_units=100))
    net.initialize()
    weights = np.random.RandomState(2)
    for _, parameter in sorted(net.collect_params().items()):
        parameter.set_data(mx.nd.array(weights.normal(scale=0.1, size=parameter.shape)))
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore=store)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(4):
        with autograd.record():
            value = loss(net(mx.nd.array(ROWS[part])), mx.nd.array(LABELS[part]))
        value.backward()
        trainer.step(32)
    return {name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()}, trainer._kvstore


def main():
    kind, path = sys.argv[1:]
    local = create("local")
    if kind == "alone":
        everything = slice(None)
        weights = {**with_module(everything, "local")[0], **with_trainer(everything, "local")[0]}
        rank = 0
    else:
        part = slice(int(os.environ["HALF"]), None, 2)
        weights, store = {"module": with_module, "trainer": with_trainer}[kind](part)
        rank = store.rank
        units = store.stats()["units"] if hasattr(store, "stats") else 0
        print(f"rank {rank}: {type(store).__name__} sent {units} units; local: {type(local).__name__}", flush=True)
    if rank == 0:
        with open(path, "wb") as file:
            pickle.dump(weights, file)


if __name__ == "__main__":
    main()
