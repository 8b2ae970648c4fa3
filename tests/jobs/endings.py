"""A job of tests/test_exit.py: trains a small convnet on synthetic data, as train_imagenet.py --benchmark 1 does, and ends.

usage: endings.py ENDING     how it ends: 'plain' (the last line is fit), 'push' (right after pushes that nothing waits for), 'raise'
or 'exit' (in the middle of an epoch)
"""
import logging
import sys

import mxnet as mx
import numpy as np

from prophet_mx import ScheduledKVStore

BATCHES = 6


class SyntheticIter(mx.io.DataIter):
    """The same random batch again and again."""

    def __init__(self, shape, classes):
        super().__init__(shape[0])
        rng = np.random.RandomState(0)
        self.data = mx.nd.array(rng.uniform(-1, 1, shape))
        self.label = mx.nd.array(rng.randint(0, classes, shape[0]))
        self.provide_data = [mx.io.DataDesc("data", shape)]
        self.provide_label = [mx.io.DataDesc("softmax_label", (shape[0],))]
        self.count = 0

    def next(self):
        self.count += 1
        if self.count > BATCHES:
            raise StopIteration
        return mx.io.DataBatch([self.data], [self.label], pad=0, provide_data=self.provide_data, provide_label=self.provide_label)

    def reset(self):
        self.count = 0


def symbol():
    net = mx.sym.Variable("data")
    for i, filters in enumerate((8, 16, 16)):
        net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"conv{i}")
        net = mx.sym.Activation(mx.sym.BatchNorm(net, name=f"bn{i}"), act_type="relu")
    net = mx.sym.Flatten(mx.sym.Pooling(net, global_pool=True, kernel=(2, 2), pool_type="avg"))
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10, name="fc"), name="softmax")


def main():
    ending = sys.argv[1]
    logging.basicConfig(level=logging.INFO)
    store = ScheduledKVStore(mx.kv.create("dist_sync"))

    def batch_end(params):
        if params.epoch == 1 and params.nbatch == BATCHES // 2:
            if ending == "raise":
                raise RuntimeError("something went wrong in the middle of an epoch")
            if ending == "exit":
                sys.exit(3)

    module = mx.mod.Module(symbol(), context=mx.cpu())
    module.fit(SyntheticIter((8, 3, 12, 12), 10), kvstore=store, num_epoch=2, optimizer="sgd",
               optimizer_params={"learning_rate": 0.1, "momentum": 0.9}, initializer=mx.init.Xavier(),
               batch_end_callback=batch_end)
    if ending == "push":
        for i in range(20):
            store.init(f"last{i}", mx.nd.zeros((5000,)))
        for i in range(20):
            store.push(f"last{i}", mx.nd.ones((5000,)), priority=-i)
    print("the last line was reached", flush=True)


if __name__ == "__main__":
    main()
