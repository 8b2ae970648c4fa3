"""A job of test_exactness.py: trains on emulated GPUs, and saves what came out.

usage: training.py GROUP VARIANT DIRECTORY      VARIANT is 'plain' or 'scheduled'

Each worker writes DIRECTORY/VARIANT-RANK.pickle: {case: {name: array}}. With COPY_BYTES slices are copied in chunks of that.
The cases of a group share a store; those that update weights on the workers come first, because an optimizer on the servers stays there.
"""

import os
import pickle
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

BATCH = 8
CLASSES = 5
EPOCHS = 2
BATCHES = 4
SGD = {"learning_rate": 0.2, "momentum": 0.9}


def gpus(count):
    return [mx.gpu(number) for number in range(count)]


class Job:
    """The store of one worker, and what the cases leave."""

    def __init__(self, store, directory):
        self.store = store
        self.directory = directory
        self.results = {}

    def rows(self, *shape, salt=0):
        """Numbers that differ from worker to worker, and are the same in every run."""
        return np.random.RandomState(10 * salt + self.store.rank).normal(size=shape).astype("float32")

    def batches(self, salt=0):
        labels = np.random.RandomState(77 + self.store.rank).randint(0, CLASSES, BATCH * BATCHES).astype("float32")
        return mx.io.NDArrayIter(self.rows(BATCH * BATCHES, 10, salt=salt), labels, batch_size=BATCH, label_name="softmax_label")

    def keep(self, case, arrays):
        self.results[case] = {name: array.asnumpy() for name, array in arrays.items()}


# -- Module --------------------------------------------------------------------------------------------------------------------


def mlp(prefix):
    net = mx.sym.Variable("data")
    for number, width in enumerate((40, 16, CLASSES)):
        net = mx.sym.FullyConnected(net, num_hidden=width, name=f"{prefix}fc{number}")
        if width != CLASSES:
            net = mx.sym.Activation(net, act_type="relu")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def fit(job, prefix, devices, on_servers, symbol=None, **settings):
    """Module.fit with evaluation; the module and its weights."""
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = str(int(on_servers))
    module = mx.mod.Module(symbol or mlp(prefix), context=gpus(devices))
    mx.random.seed(1)
    settings = {"num_epoch": EPOCHS, "optimizer": "sgd", "optimizer_params": SGD, "initializer": mx.init.Xavier(), **settings}
    module.fit(job.batches(), eval_data=job.batches(salt=1), kvstore=job.store, **settings)
    return module, module.get_params()[0]


def module(job):
    job.keep("one device, updates on the worker", fit(job, "a_", 1, False)[1])
    job.keep("two devices, updates on the worker", fit(job, "b_", 2, False)[1])
    job.keep("one device, updates on the servers", fit(job, "c_", 1, True)[1])
    trained, weights = fit(job, "d_", 2, True)
    job.keep("two devices, updates on the servers", weights)
    prefix = os.path.join(job.directory, f"{sys.argv[2]}-{job.store.rank}")
    trained.save_checkpoint(prefix, EPOCHS)
    _, loaded, _ = mx.model.load_checkpoint(prefix, EPOCHS)
    job.keep("a checkpoint", loaded)
    inputs = mx.io.NDArrayIter(job.rows(BATCH, 10, salt=2), batch_size=BATCH)
    job.keep("predictions", {"scores": trained.predict(inputs)})
    job.keep("evaluation", {name: mx.nd.array([value]) for name, value in trained.score(job.batches(), "acc")})


# -- gluon ---------------------------------------------------------------------------------------------------------------------


def trainer(job, on_servers, optimizer, settings):
    """Two devices, with the gradient of half the squared error given to backward: a loss of gluon's has kernels that are not computed."""
    devices = gpus(2)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(40, activation="tanh", in_units=10), gluon.nn.Dense(16, activation="relu", in_units=40))
    net.add(gluon.nn.Dense(CLASSES, in_units=16))
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), ctx=devices)
    net.hybridize()
    made = gluon.Trainer(net.collect_params(), optimizer, settings, kvstore=job.store, update_on_kvstore=on_servers)
    for step in range(EPOCHS * BATCHES):
        data = gluon.utils.split_and_load(job.rows(BATCH, 10, salt=step), devices)
        wanted = gluon.utils.split_and_load(job.rows(BATCH, CLASSES, salt=100 + step), devices)
        with autograd.record():
            outputs = [net(part) for part in data]
        autograd.backward(outputs, [output.detach() - target for output, target in zip(outputs, wanted)])
        made.step(BATCH * job.store.num_workers)
        if step % BATCHES == BATCHES - 1:
            net(data[0]).wait_to_read()
    for device in devices:
        job.keep(f"weights of {device}", {name: value.data(device) for name, value in net.collect_params().items()})


def trainer_on_workers(job):
    trainer(job, False, "adam", {"learning_rate": 0.01})


def trainer_on_servers(job):
    trainer(job, True, "sgd", SGD)


# -- arrays in half and single precision ---------------------------------------------------------------------------------------


def arrays(job):
    job.keep("sums", loop(job, 0))
    job.store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, multi_precision=True, rescale_grad=0.25))
    job.keep("updates", loop(job, 100))


def loop(job, first):
    """Gradients of two devices, of which MXNet makes new ones in every step; the values as each device has them."""
    kinds = [("float32", (30, 41)), ("float16", (30, 41)), ("float16", (7,)), ("float32", (3, 5, 7))]
    keys = range(first, first + len(kinds))
    outs = []
    for key, (dtype, shape) in zip(keys, kinds):
        job.store.init(key, mx.nd.array(job.rows(*shape, salt=key) * 0, dtype=dtype, ctx=mx.gpu(0)))
        outs.append([mx.nd.zeros(shape, dtype=dtype, ctx=device) for device in gpus(2)])
    for step in range(EPOCHS * BATCHES):
        for number in reversed(range(len(kinds))):
            dtype, shape = kinds[number]
            made = [mx.nd.array(job.rows(*shape, salt=step + 7 * number + 50 * k), dtype=dtype, ctx=d) * 0.5 for k, d in enumerate(gpus(2))]
            job.store.pushpull(keys[number], made, out=outs[number], priority=-number)
        for out in outs:
            for array in out:
                array.wait_to_read()
    return {f"{key} on {array.context}": array for key, out in zip(keys, outs) for array in out}


def main():
    group, variant, directory = sys.argv[1:]
    store = mx.kv.create(os.environ["STORE"])
    if variant == "scheduled":
        from prophet_mx import ScheduledKVStore
        from prophet_mx.mxnet import parameters

        parameters.COPY_BYTES = int(os.environ.get("COPY_BYTES", parameters.COPY_BYTES))
        store = ScheduledKVStore(store)
    job = Job(store, directory)
    globals()[group](job)
    mx.nd.waitall()
    if variant == "scheduled":
        assert store.stats()["bytes"] > 0, store.stats()
    with open(os.path.join(directory, f"{variant}-{store.rank}.pickle"), "wb") as file:
        pickle.dump(job.results, file)


if __name__ == "__main__":
    main()
