"""A job of test_exactness.py: trains the models of one group, one after another on one store, and saves what came out.

usage: exactness.py GROUP VARIANT DIRECTORY SEED      VARIANT is 'plain' or 'scheduled'; NUMPY in the environment: with MXNet's NumPy
                                                      interface, for groups of gluon and of loops

Each worker writes DIRECTORY/VARIANT-RANK.pickle: {case: {"weights": {name: array}, "bytes": scheduled, "expected": bytes pushed}}.
Every case has its own keys. The store has only one optimizer at a time, sent anew by each case, and numbers its string keys on: the
optimizers of all cases but the first get the number of their first key.
"""

import logging
import os
import pickle
import signal
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

NUMPY = "NUMPY" in os.environ  # use MXNet's NumPy interface, where there are also arrays without a dimension
array, zeros, ones = (mx.np.array, mx.np.zeros, mx.np.ones) if NUMPY else (mx.nd.array, mx.nd.zeros, mx.nd.ones)
BATCH = 8
CLASSES = 5
EPOCHS = 2
BATCHES = 4


class Job:
    """The store and the data of one worker, and what the cases leave."""

    def __init__(self, store, scheduled, seed):
        self.store = store
        self.scheduled = scheduled
        self.seed = seed
        self.results = {}
        self.keys = 0  # string keys made so far: the store's number of the next one

    def rows(self, *shape, salt=0):
        """Numbers that differ from worker to worker, and are the same in every run."""
        return np.asarray(np.random.RandomState(1000 * self.seed + 10 * salt + self.store.rank).normal(size=shape), dtype="float32")

    def labels(self, count):
        return np.random.RandomState(77 * self.seed + self.store.rank).randint(0, CLASSES, count).astype("float32")

    def batches(self, *shape, salt=0):
        data = self.rows(BATCH * BATCHES, *shape, salt=salt)
        return mx.io.NDArrayIter(data, self.labels(len(data)), batch_size=BATCH, label_name="softmax_label")

    def optimizer(self, name, symbol, names, devices=1, on_store=True, **settings):
        """An optimizer for parameters that are not the store's first keys."""
        numbers = (
            {self.keys + i: n for i, n in enumerate(names)}
            if on_store
            else {i * devices + k: n for i, n in enumerate(names) for k in range(devices)}
        )
        return mx.optimizer.create(name, sym=symbol, param_idx2name=numbers, rescale_grad=1.0 / BATCH / self.store.num_workers, **settings)

    def bytes_scheduled(self):
        return self.store.stats().get("bytes", 0) if self.scheduled else 0

    def copies(self, step):
        """With COPY_BYTES slices are copied in chunks of that, as on GPUs; in every third step arrays may not be plain."""
        if self.scheduled and "COPY_BYTES" in os.environ:
            from prophet_mx import _core
            from prophet_mx.mxnet import parameters

            parameters.COPY_BYTES = int(os.environ["COPY_BYTES"])
            _core.cpu_arrays_are_plain(step % 3 < 2)

    def settle(self):
        """Plain MXNet lets a push overtake an earlier one of another array, and then adds up the wrong ones; not so the wrapper."""
        if not self.scheduled:
            mx.nd.waitall()

    def case(self, name, train):
        """Run ``train() -> (weights, bytes that have to be scheduled)`` and keep what it gives."""
        before = self.bytes_scheduled()
        weights, expected = train()
        mx.nd.waitall()
        self.results[name] = {
            "weights": {key: value.asnumpy() for key, value in weights.items()},
            "bytes": self.bytes_scheduled() - before,
            "expected": expected,
        }


def payload(arrays):
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


# -- symbols -------------------------------------------------------------------------------------------------------------------


def variable(prefix, layer, kind, number):
    """A parameter with multipliers of its own: a store that hands the optimizer another number trains something else."""
    return mx.sym.Variable(f"{prefix}{layer}_{kind}", lr_mult=0.5 + 0.25 * number, wd_mult=3.0 - 0.5 * number)


def mlp(prefix, widths=(24, 16, 12)):
    net = mx.sym.Variable("data")
    for i, width in enumerate(widths + (CLASSES,)):
        net = mx.sym.FullyConnected(
            net,
            num_hidden=width,
            name=f"{prefix}fc{i}",
            weight=variable(prefix, f"fc{i}", "weight", i),
            bias=variable(prefix, f"fc{i}", "bias", i + 1),
        )
        if i < len(widths):
            net = mx.sym.Activation(net, act_type="relu")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def half_mlp(prefix, widths=(12, CLASSES)):
    """Parameters in fp16, with the operators that the CPU has for them."""
    net = mx.sym.Cast(mx.sym.Variable("data"), dtype="float16")
    before = 10
    for i, width in enumerate(widths):
        weight = mx.sym.Variable(f"{prefix}{i}_weight", shape=(1, before, width), dtype="float16")
        bias = mx.sym.Variable(f"{prefix}{i}_bias", shape=(1, width), dtype="float16", init=mx.init.Zero())
        net = mx.sym.broadcast_mul(mx.sym.expand_dims(net, 2), weight)
        net = mx.sym.tanh(mx.sym.broadcast_add(mx.sym.sum(net, axis=1), bias))
        before = width
    return mx.sym.SoftmaxOutput(mx.sym.Cast(net, dtype="float32"), name="softmax")


def convnet(prefix):
    """Convolutions as wide as MKLDNN wants them to keep weights in a layout of its own."""
    net = mx.sym.Variable("data")
    for i, filters in enumerate((16, 32)):
        net = mx.sym.Convolution(
            net,
            kernel=(3, 3),
            pad=(1, 1),
            num_filter=filters,
            name=f"{prefix}conv{i}",
            weight=variable(prefix, f"conv{i}", "weight", i),
            no_bias=True,
        )
        net = mx.sym.BatchNorm(net, fix_gamma=False, name=f"{prefix}bn{i}")
        net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=CLASSES, name=f"{prefix}fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def fit(job, symbol, shape, optimizer, settings=(), context=None, evaluate=True):
    """Module.fit; the trained values."""
    module = mx.mod.Module(symbol, context=context or mx.cpu())
    mx.random.seed(job.seed)
    module.fit(
        job.batches(*shape),
        eval_data=job.batches(*shape, salt=1) if evaluate else None,
        kvstore=job.store,
        optimizer=optimizer,
        optimizer_params=settings,
        initializer=mx.init.Xavier(),
        num_epoch=EPOCHS,
    )
    arguments, states = module.get_params()
    job.keys += len(arguments)
    return {**arguments, **states}, EPOCHS * BATCHES * payload(arguments.values())


def parameters(symbol):
    return [name for name in symbol.list_arguments() if name not in ("data", "softmax_label")]


# -- groups: Module ------------------------------------------------------------------------------------------------------------


def module_on_store(job):
    """The optimizer runs on the servers."""

    def first():
        return first_model(job)

    def batch_norm():
        net = convnet("bn_")
        return fit(job, net, (3, 8, 8), job.optimizer("sgd", net, parameters(net), learning_rate=0.1, momentum=0.9, wd=0.01))

    def adam():
        net = convnet("adam_")
        return fit(job, net, (3, 8, 8), job.optimizer("adam", net, parameters(net), learning_rate=0.01, wd=0.01))

    def buckets():
        return bucketing(job)

    def old_model():
        return feed_forward(job)

    def half():
        net = half_mlp("half_")
        return fit(
            job, net, (10,), job.optimizer("sgd", net, parameters(net), learning_rate=0.1, momentum=0.9, wd=0.01, multi_precision=True)
        )

    for train in (first, batch_norm, adam, buckets, old_model, half):
        job.case(train.__name__, train)


def first_model(job):
    return fit(
        job,
        mlp("first_"),
        (10,),
        "sgd",
        {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01, "lr_scheduler": mx.lr_scheduler.FactorScheduler(step=3, factor=0.7)},
    )


def bucketing(job):
    """Two buckets that share some parameters; each iteration pushes those of its own bucket only."""

    def symbol(length):
        net = mx.sym.Variable("data")
        for i in range(length):
            net = mx.sym.FullyConnected(net, num_hidden=10, name=f"bucket_fc{i}")
            net = mx.sym.Activation(net, act_type="tanh")
        net = mx.sym.FullyConnected(net, num_hidden=CLASSES, name="bucket_out")
        return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    module = mx.mod.BucketingModule(symbol, default_bucket_key=4, context=mx.cpu())
    data = [("data", (BATCH, 10))]
    label = [("softmax_label", (BATCH,))]
    names = parameters(symbol(4)[0])
    mx.random.seed(job.seed)
    module.bind(data, label)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(job.store, job.optimizer("sgd", symbol(4)[0], names, learning_rate=0.1, momentum=0.9, wd=0.01))
    expected = 0
    for i, length in enumerate((4, 2, 4, 4, 2, 3, 2, 4)):
        batch = mx.io.DataBatch(
            [mx.nd.array(job.rows(BATCH, 10, salt=i))],
            [mx.nd.array(job.labels(BATCH))],
            bucket_key=length,
            provide_data=data,
            provide_label=label,
        )
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        sizes = module.get_params()[0]
        expected += payload(sizes[name] for name in parameters(symbol(length)[0]))
    job.keys += len(names)
    return module.get_params()[0], expected


def feed_forward(job):
    net = mlp("old_", widths=(8,))
    names = parameters(net)
    mx.random.seed(job.seed)
    model = mx.model.FeedForward(
        net,
        ctx=mx.cpu(),
        num_epoch=EPOCHS,
        initializer=mx.init.Xavier(),
        allow_extra_params=True,
        optimizer=job.optimizer("sgd", net, names, learning_rate=0.1, wd=0.01),
    )
    model.fit(job.batches(10), eval_data=job.batches(10, salt=1), kvstore=job.store)
    job.keys += len(names)
    return model.arg_params, EPOCHS * BATCHES * payload(model.arg_params[name] for name in names)


def module_on_worker(job):
    """Each worker updates its own copy; two devices per worker. Afterwards two devices with the optimizer on the servers."""
    devices = [mx.cpu(0), mx.cpu(1)]
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = "0"

    def one_device():
        return fit(job, mlp("one_"), (10,), "sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01})

    def two_devices():
        return fit(job, convnet("two_"), (3, 8, 8), "adam", {"learning_rate": 0.01, "wd": 0.01}, context=devices)

    def two_devices_on_store():
        os.environ["MXNET_UPDATE_ON_KVSTORE"] = "1"
        net = convnet("both_")
        return fit(
            job, net, (3, 8, 8), job.optimizer("sgd", net, parameters(net), learning_rate=0.1, momentum=0.9, wd=0.01), context=devices
        )

    for train in (one_device, two_devices, two_devices_on_store):
        job.case(train.__name__, train)


# -- groups: gluon -------------------------------------------------------------------------------------------------------------


def gluon_net(prefix):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        for filters in (16, 32):
            net.add(gluon.nn.Conv2D(filters, 3, padding=1, use_bias=False), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
        net.add(gluon.nn.MaxPool2D(2), gluon.nn.Flatten(), gluon.nn.Dense(12, activation="relu"), gluon.nn.Dense(CLASSES))
    return net


def train_gluon(job, net, trainer, shape, devices):
    """Training with evaluation in between; the trained values by name, without the net's own prefix."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(EPOCHS * BATCHES):
        data = gluon.utils.split_and_load(job.rows(BATCH, *shape, salt=step), devices)
        label = gluon.utils.split_and_load(job.labels(BATCH), devices)
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(data, label)]
        autograd.backward(losses)
        trainer.step(BATCH * job.store.num_workers)
        if step % BATCHES == BATCHES - 1:
            net(data[0]).wait_to_read()
    return {name: value.data(devices[0]) for name, value in net.collect_params().items()}


def trained(net):
    return EPOCHS * BATCHES * payload(p.data(p.list_ctx()[0]) for p in net.collect_params().values() if p.grad_req != "null")


def trainer_on_store(job):
    def trainer():
        mx.random.seed(job.seed)
        net = gluon_net("on_store_")
        net.initialize(mx.init.Xavier())
        net.hybridize()
        # Multipliers of gluon's parameters do not reach MXNet's servers; those of the optimizer do.
        optimizer = mx.optimizer.create(
            "sgd", learning_rate=0.1, momentum=0.9, wd=0.01, lr_scheduler=mx.lr_scheduler.FactorScheduler(step=3, factor=0.7)
        )
        optimizer.set_lr_mult({i: 0.5 + 0.1 * i for i in range(20)})
        optimizer.set_wd_mult({i: 2.0 - 0.1 * i for i in range(20)})
        made = gluon.Trainer(net.collect_params(), optimizer, kvstore=job.store)
        return train_gluon(job, net, made, (3, 8, 8), [mx.cpu()]), trained(net)

    def int_keys():
        return loop(job, list(range(1000, 1012)))

    job.case("trainer", trainer)
    job.case("int_keys", int_keys)


def trainer_on_worker(job):
    same, read = initialised(job, 2000, 2001, 2002), initialised(job, 2010, 2011)

    def trainer_two_devices():
        devices = [mx.cpu(0), mx.cpu(1)]
        mx.random.seed(job.seed)
        net = gluon_net("on_worker_")
        net.initialize(mx.init.Xavier(), ctx=devices)
        made = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01, "wd": 0.01}, kvstore=job.store, update_on_kvstore=False)
        return train_gluon(job, net, made, (3, 8, 8), devices), trained(net)

    def sums():
        """Without an optimizer the store hands out the sums."""
        return loop(job, list(range(1000, 1012)))

    job.case("trainer_two_devices", trainer_two_devices)
    job.case("sums", sums)
    job.case("same_keys", lambda: repeated(job, same))
    job.case("signals", lambda: interrupted(job, read))


def trainer_adding_up(job):
    def accumulated():
        """Gradients of two batches are added up by grad_req="add", as docs/recipes.md has it."""
        mx.random.seed(job.seed)
        net = gluon_net("adding_")
        net.initialize(mx.init.Xavier())
        params = net.collect_params()
        params.setattr("grad_req", "add")
        made = gluon.Trainer(params, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=job.store)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        for step in range(EPOCHS * BATCHES):
            for part in range(2):
                with autograd.record():
                    value = loss(net(mx.nd.array(job.rows(BATCH, 3, 8, 8, salt=2 * step + part))), mx.nd.array(job.labels(BATCH)))
                value.backward()
            before = {name: value.grad().asnumpy() for name, value in params.items() if value.grad_req != "null"}
            made.step(2 * BATCH * job.store.num_workers)
            # On one CPU device plain MXNet sends from the caller's gradient, and receives the value there.
            kept = {name: (params[name].grad().asnumpy() == gradient).all() for name, gradient in before.items()}
            assert all(kept.values()) if job.scheduled else not any(kept.values()), kept
            params.zero_grad()
        return {name: value.data() for name, value in params.items()}, trained(net)

    job.case("accumulated", accumulated)


def trainer_sparse(job):
    """Parameters with sparse values next to dense ones."""

    class Net(gluon.Block):
        def __init__(self):
            super().__init__(prefix="sparse_")
            with self.name_scope():
                self.embedding = gluon.contrib.nn.SparseEmbedding(40, 6)
                self.out = gluon.nn.Dense(CLASSES, in_units=6)

        def forward(self, x):
            return self.out(self.embedding(x).mean(axis=1))

    def sparse_embedding():
        mx.random.seed(job.seed)
        net = Net()
        net.initialize(mx.init.Xavier())
        made = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=job.store)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        for step in range(EPOCHS * BATCHES):
            rows = np.abs(job.rows(BATCH, 3, salt=step) * 10).astype(int) % 40
            with autograd.record():
                value = loss(net(mx.nd.array(rows)), mx.nd.array(job.labels(BATCH)))
            value.backward()
            made.step(1)
        every = mx.nd.arange(40)
        return (
            {
                name: p.data() if p._stype == "default" else p.row_sparse_data(every).tostype("default")
                for name, p in net.collect_params().items()
            },
            EPOCHS * BATCHES * payload(p.data() for p in net.out.collect_params().values()),
        )

    def sparse_weights():
        store = job.store
        store.init(500, mx.nd.ones((20, 4)).tostype("row_sparse"))
        store.init(501, mx.nd.ones((7, 3)))
        dense = mx.nd.zeros((7, 3))
        for step in range(4):
            values = job.rows(20, 4, salt=step)
            values[step::2] = 0
            store.push(500, mx.nd.array(values).tostype("row_sparse"))
            store.push(501, mx.nd.array(job.rows(7, 3, salt=step)))
            store.pull(501, out=dense)
            mx.nd.waitall()  # sparse pushes are MXNet's own: nothing keeps them in order
        rows = mx.nd.sparse.zeros("row_sparse", (20, 4))
        store.row_sparse_pull(500, out=rows, row_ids=mx.nd.arange(20))
        return {"rows": rows.tostype("default"), "dense": dense}, 4 * payload([dense])

    def sparse_first():
        """The servers' momentum of a sparse key that is pushed before any dense one."""
        store = job.store
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
        store._barrier()
        store.init([700, 701], [mx.nd.ones((20, 4)).tostype("row_sparse"), mx.nd.ones((7, 3))])
        rows, dense = mx.nd.sparse.zeros("row_sparse", (20, 4)), mx.nd.zeros((7, 3))
        for step in range(3):
            store.push(700, mx.nd.array(job.rows(20, 4, salt=step)).tostype("row_sparse"))
            store.row_sparse_pull(700, out=rows, row_ids=mx.nd.arange(20))
            rows.wait_to_read()
            store.push(701, mx.nd.array(job.rows(7, 3, salt=step)))
            store.pull(701, out=dense)
            mx.nd.waitall()
        return {"rows": rows.tostype("default"), "dense": dense}, 3 * payload([dense])

    job.case("sparse_first", sparse_first)
    job.case("sparse_embedding", sparse_embedding)
    job.case("sparse_weights", sparse_weights)


# -- groups: loops over init, push and pull ------------------------------------------------------------------------------------

SHAPES = [(3,), (40, 30), (1,), (17, 2), (2000,), (8, 3, 3, 3)] + ([()] if NUMPY else [])


def loop(job, keys, compressed=False):
    """All the ways to call a store by hand; the bytes exclude what MXNet compresses away."""
    store = job.store
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(keys))]
    for key, shape in zip(keys, shapes):
        store.init(key, array(np.full(shape, 0.5, "float32")))
    outs = [zeros(shape) for shape in shapes]
    second = [zeros(shape) for shape in shapes]
    pushed = 0

    for step in range(6):
        job.copies(step)
        grads = [array(job.rows(*shape, salt=100 * step + i)) for i, shape in enumerate(shapes)]
        if step == 3:  # lists of keys, one call for all
            store.push(keys, grads)
            store.pull(keys, out=outs)
        elif step == 4 and not compressed:
            store.pushpull(keys, grads, out=outs)
        else:
            for i, key in reversed(list(enumerate(keys))):
                store.push(key, grads[i], priority=-i)
                if i % 3 != 2:  # every third is never pulled
                    store.pull(key, out=outs[i], priority=-i)
        pushed += payload(grads)
        job.settle()
        if step in (1, 5):  # a second push before a pull: both count
            more = [array(job.rows(*shape, salt=100 * step + 50 + i)) for i, shape in enumerate(shapes)]
            for i, key in enumerate(keys):
                store.push(key, more[i])
            pushed += payload(more)
            job.settle()
        if step == 2 and not compressed:  # the same array for the gradient and the value
            # Fresh arrays: with one device, plain MXNet's pull has overwritten the gradients.
            second = [array(job.rows(*shape, salt=100 * step + 50 + i)) for i, shape in enumerate(shapes)]
            for i, key in enumerate(keys):
                store.pushpull(key, second[i])
            pushed += payload(second)
            job.settle()
    store.pull(keys, out=outs)
    values = {f"key {key}": out for key, out in zip(keys, outs)}
    values.update({f"in place {key}": out for key, out in zip(keys, second)})
    return values, pushed // 16 if compressed else pushed


def initialised(job, *keys):
    """Keys with a shape each."""
    shapes = dict(zip(keys, [(40, 30), (3,), (500,)]))
    for key, shape in shapes.items():
        job.store.init(key, ones(shape))
    return shapes


def repeated(job, shapes):
    """Keys that occur several times in a list: MXNet adds up what is pushed, and hands the value to all."""
    store = job.store
    first, second, third = shapes
    results, pushed = {}, 0
    for step, names in enumerate([(second, first, third, first, second, first), (third, third), (first, second, first)]):
        for call in ("push", "pushpull", "in place"):
            job.copies(step)
            grads = [array(job.rows(*shapes[name], salt=10 * step + i)) for i, name in enumerate(names)]
            if step == 0:  # and of several devices; first, as MXNet counts on never getting more arrays for a key than the first time
                grads = [[grad, array(grad.asnumpy() / 3, ctx=mx.cpu(1))] for grad in grads]
            outs = [zeros(shapes[name]) for name in names]
            if call == "push":
                store.push(list(names), grads)
                store.pull(list(names), out=outs)
            elif call == "pushpull":
                store.pushpull(list(names), grads, out=outs)
            else:
                store.pushpull(list(names), grads)
                outs = [grad[1] if step == 0 else grad for grad in grads]
            mx.nd.waitall()
            results.update({f"{step} {call} {i}": out.copy() for i, out in enumerate(outs)})
            pushed += sum(payload([zeros(shapes[name])]) for name in set(names))
    return results, pushed


def interrupted(job, shapes):
    """Signal handlers that read all values, at every line of a push or a pull: as a checkpoint on SIGALRM does, at some of them."""
    store = job.store
    scratch = {key: zeros(shape) for key, shape in shapes.items()}
    outs = {key: zeros(shape) for key, shape in shapes.items()}
    reads = []

    def read(*_):
        reads.append(1)
        for key, array in scratch.items():
            store.pull(key, out=array)

    def trace(frame, event, _):
        if os.sep + "prophet_mx" + os.sep not in frame.f_code.co_filename:
            return None
        if event == "line":
            signal.raise_signal(signal.SIGUSR1)
        return trace

    results, pushed = {}, 0
    for key, shape in shapes.items():
        store.pushpull(key, array(job.rows(*shape)), out=outs[key])
        pushed += payload([outs[key]])
    mx.nd.waitall()
    before = signal.signal(signal.SIGUSR1, read)
    for step in range(4):
        for key, shape in shapes.items():
            job.copies(step)
            grads = [array(job.rows(*shape, salt=10 * step + k), ctx=mx.cpu(k)) for k in range(1 + step % 2)]
            mx.nd.waitall()
            sys.settrace(trace)
            if step < 2:
                store.push(key, grads)
                store.pull(key, out=outs[key])
            else:
                store.pushpull(key, grads, out=outs[key])
            sys.settrace(None)
            mx.nd.waitall()
            results[f"{step} {key}"] = outs[key].copy()
            pushed += payload([outs[key]])
    signal.signal(signal.SIGUSR1, before)
    assert len(reads) > 100 or not job.scheduled, len(reads)
    return results, pushed


def loops(job):
    job.store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=0.01))
    same, read = initialised(job, "same1", "same2", "same3"), initialised(job, "read1", "read2")

    def string_keys():
        return loop(job, [f"key{i}" for i in range(18)])

    def two_values():
        """Lists of values, as from two devices."""
        store, total = job.store, 0
        store.init("double", ones((50, 7)))
        outs = [zeros((50, 7), ctx=mx.cpu(k)) for k in range(2)]
        for step in range(4):
            job.copies(step)
            grads = [array(job.rows(50, 7, salt=7 * step + k), ctx=mx.cpu(k)) for k in range(2)]
            if step % 2:
                store.pushpull("double", grads, out=outs)
            else:
                store.push("double", grads)
                store.pull("double", out=outs)
            total += payload(grads[:1])
            job.settle()
        return {"first": outs[0], "second": outs[1]}, total

    job.case("string_keys", string_keys)
    job.case("two_values", two_values)
    job.case("same_keys", lambda: repeated(job, same))
    job.case("signals", lambda: interrupted(job, read))


def compression(job):
    job.store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    job.store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))

    def two_bit():
        values, _ = loop(job, list(range(12)), compressed=True)
        return values, None

    job.case("two_bit", two_bit)


# -- groups: what passes through, and what must be seen ---------------------------------------------------------------------------


def passing(job):
    def late_key():
        """A key that comes after the first push, and whose multipliers the optimizer on the servers has known from the start."""
        store, names = job.store, ["a_weight", "b_weight", "late_weight"]
        optimizer = mx.optimizer.create("sgd", learning_rate=0.1, wd=0.01, param_idx2name=dict(enumerate(names)))
        optimizer.set_lr_mult({"late_weight": 0.25})
        optimizer.set_wd_mult({"late_weight": 8.0})
        store.set_optimizer(optimizer)
        store._barrier()
        weights = {name: mx.nd.ones((30, 7)) for name in names}
        for step in range(4):
            for i, name in enumerate(names[: 2 if step < 2 else 3]):
                if step == (0 if i < 2 else 2):
                    store.init(name, weights[name])
                store.push(name, mx.nd.array(job.rows(30, 7, salt=10 * step + i)))
                store.pull(name, out=weights[name])
            mx.nd.waitall()
        job.keys += len(names)
        return weights, None

    def epochs():
        """The optimizer is set after the first push, and so are all of its keys made."""
        net = mlp("passing_")
        return fit(job, net, (10,), job.optimizer("sgd", net, parameters(net), learning_rate=0.2, momentum=0.9, wd=0.01))

    job.case("late_key", late_key)
    job.case("epochs", epochs)


def shifted(job):
    """What a wrapper with a key of its own before the parameters' would make of ``module_on_store``: the first of its cases."""
    job.store.init("extra", mx.nd.zeros((1,)))
    job.case("first", lambda: first_model(job))


GROUPS = {
    group.__name__: group
    for group in (
        module_on_store,
        module_on_worker,
        trainer_on_store,
        trainer_on_worker,
        trainer_adding_up,
        trainer_sparse,
        loops,
        compression,
        passing,
        shifted,
    )
}


def main():
    group, variant, directory, seed = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    if NUMPY:
        mx.npx.set_np()
    store = mx.kv.create("dist_sync")
    if variant == "scheduled":
        from prophet_mx import ScheduledKVStore

        store = ScheduledKVStore(store)
    job = Job(store, variant == "scheduled", int(seed))
    GROUPS[group](job)
    with open(os.path.join(directory, f"{variant}-{store.rank}.pickle"), "wb") as file:
        pickle.dump(job.results, file)


if __name__ == "__main__":
    main()
