"""The job of benchmarks/accuracy.py: trains a small convnet on few handwritten digits, and tells after each epoch how well.

usage: accuracy.py SEED COMPRESS EPOCHS FACTOR FILE     COMPRESS is 'off' or 'fp16'; the loss is multiplied by FACTOR; rank 0 writes FILE

Two workers take turns in the images of an order that follows from the seed, and the servers update the weights.
"""

import json
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

from prophet_mx import ScheduledKVStore

TRAINING, BATCH, NOISE = 600, 20, 4.0  # images; of each worker and iteration; standard deviation of what is added to pixels of 0 to 16
RATE = 0.03


def images(seed):
    """(training, validation) images and labels, the same for all seeds but for their noise."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    noise = np.random.RandomState(1000 + seed).normal(0, NOISE, digits.images.shape)
    values = ((digits.images + noise) / 16).astype("float32")[:, None]
    parts = order[:TRAINING], order[TRAINING:]
    return [(values[part], digits.target[part].astype("float32")) for part in parts]


def network(seed):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    for filters in (32, 64):
        net.add(gluon.nn.Conv2D(filters, 3, padding=1, use_bias=False), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
    net.add(gluon.nn.MaxPool2D(2), gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


def main():
    seed, compress, epochs, factor, file = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
    store = ScheduledKVStore(mx.kv.create("dist_sync"), compress=compress)
    training, validation = images(seed)
    net = network(seed)
    net(mx.nd.array(training[0][:2]))
    steps = TRAINING // (BATCH * store.num_workers)
    schedule = mx.lr_scheduler.CosineScheduler(epochs * steps, base_lr=RATE)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": RATE, "momentum": 0.9, "wd": 1e-4, "lr_scheduler": schedule}, kvstore=store
    )
    measure = gluon.loss.SoftmaxCrossEntropyLoss()
    order = np.random.RandomState(seed)
    accuracies, losses = [], []
    for _ in range(epochs):
        shuffled, total = order.permutation(TRAINING), 0.0
        for step in range(steps):
            first = (step * store.num_workers + store.rank) * BATCH
            mine = shuffled[first : first + BATCH]
            with autograd.record():
                loss = measure(net(mx.nd.array(training[0][mine])), mx.nd.array(training[1][mine]))
                scaled = loss * factor
            scaled.backward()
            trainer.step(BATCH * store.num_workers * factor)
            total += float(loss.mean().asscalar())
        found = net(mx.nd.array(validation[0])).asnumpy().argmax(1)
        accuracies.append(float((found == validation[1]).mean()))
        losses.append(total / steps)
    if store.rank == 0:
        weights = np.concatenate([each.data().asnumpy().ravel() for each in net.collect_params().values() if each.grad_req != "null"])
        np.save(file + ".npy", weights)
        with open(file, "w") as output:
            json.dump({"accuracies": accuracies, "losses": losses, "saturated": store.stats()["saturated"]}, output)


main()
