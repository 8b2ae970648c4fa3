"""Trains an encoder of text, data-parallel, by gluon's Trainer: a worker of benchmarks.devices with ``script=transformer``.

    prophet-mx launch -n 2 -s 1 -- python benchmarks/jobs/transformer.py --kv-store dist_sync

The network is BERT's encoder with as many layers and units as its name says, a vocabulary of 30,522 words, and two classes of sentences
of 128 words. There is no dropout, which needs random numbers that emulated GPUs do not have. All batches are the same random words. The log
is that of the scripts in examples/mxnet-image-classification.
"""

import argparse
import logging
from typing import Any, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from prophet_mx import ScheduledKVStore
from prophet_mx.errors import not_allowed

WORDS, LENGTH, CLASSES, HEAD = 30522, 128, 2, 64  # HEAD: units of a head of attention


class Layer(gluon.HybridBlock):  # type: ignore[misc]
    """Attention and a feed-forward network, each with its sum and norm."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self._heads = units // HEAD
        with self.name_scope():
            self.query, self.key, self.value, self.out = (nn.Dense(units, flatten=False, in_units=units) for _ in range(4))
            self.wide = nn.Dense(4 * units, flatten=False, in_units=units)
            self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)
            self.activation = nn.GELU()
            self.norms = nn.HybridSequential()
            self.norms.add(nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units))

    def _split(self, x: Any) -> Any:  # (batch, length, units) to (batch * heads, length, HEAD)
        return x.reshape((0, 0, self._heads, -1)).transpose((0, 2, 1, 3)).reshape((-1, 0, 0), reverse=True)

    def hybrid_forward(self, ops: Any, x: Any) -> Any:
        query, key, value = (self._split(dense(x)) for dense in (self.query, self.key, self.value))
        weights = ops.softmax(ops.batch_dot(query, key, transpose_b=True) / HEAD**0.5)
        seen = ops.batch_dot(weights, value).reshape((-1, self._heads, 0, 0), reverse=True).transpose((0, 2, 1, 3)).reshape((0, 0, -1))
        x = self.norms[0](x + self.out(seen))
        return self.norms[1](x + self.narrow(self.activation(self.wide(x))))


class Encoder(gluon.HybridBlock):  # type: ignore[misc]
    """Words to scores of the classes, by the first word's output."""

    def __init__(self, layers: int, units: int) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.words = nn.Embedding(WORDS, units)
            self.places = self.params.get("places", shape=(1, LENGTH, units))
            self.norm = nn.LayerNorm(in_channels=units)
            self.layers = nn.HybridSequential()
            for _ in range(layers):
                self.layers.add(Layer(units))
            self.pool = nn.Dense(units, activation="tanh", in_units=units)
            self.scores = nn.Dense(CLASSES, in_units=units)

    def hybrid_forward(self, ops: Any, x: Any, places: Any) -> Any:
        x = self.layers(self.norm(ops.broadcast_add(self.words(x), places)))
        return self.scores(self.pool(ops.slice_axis(x, axis=1, begin=0, end=1)))


def size(text: str) -> Tuple[int, int]:
    """Layers and units of ``bert_6_384``."""
    name, *numbers = text.split("_")
    if name != "bert" or len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or int(numbers[1]) % HEAD:
        raise argparse.ArgumentTypeError(not_allowed(repr(text), f"bert_LAYERS_UNITS, with a multiple of {HEAD} as UNITS"))
    return int(numbers[0]), int(numbers[1])


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(prog="transformer.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", type=size, default="bert_6_384", metavar="bert_LAYERS_UNITS")
    parser.add_argument("--gpus", type=int, default=0, help="number of the GPU")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-examples", type=int, default=1280, help="of all workers together")
    parser.add_argument("--kv-store", default="local")
    parser.add_argument("--policy")
    parser.add_argument("--update-on", choices=("servers", "workers"), default="servers")
    train(parser.parse_args(arguments))


def train(options: argparse.Namespace) -> None:
    """Train on all batches, and log each."""
    kv = mx.kv.create(options.kv_store)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)-15s Node[{kv.rank}] %(message)s", force=True)
    if kv.type.startswith("dist"):
        kv = ScheduledKVStore(kv, **({"policy": options.policy} if options.policy else {}))
    device = mx.gpu(options.gpus)
    net = Encoder(*options.network)
    mx.random.seed(0)
    net.initialize(mx.init.Normal(0.02), ctx=device)
    net.hybridize()
    settings = {"learning_rate": 1e-3, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=kv, update_on_kvstore=options.update_on == "servers")
    loss, metric = gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.CompositeEvalMetric([mx.metric.Accuracy()])
    told = mx.callback.Speedometer(options.batch_size, 1)
    random = np.random.RandomState(kv.rank)
    words = mx.nd.array(random.randint(0, WORDS, (options.batch_size, LENGTH)))
    labels = mx.nd.array(random.randint(0, CLASSES, options.batch_size))
    for number in range(options.num_examples // (options.batch_size * kv.num_workers)):
        data, label = words.as_in_context(device), labels.as_in_context(device)
        with autograd.record():
            scores = net(data)
            value = loss(scores, label)
        value.backward()
        trainer.step(options.batch_size * kv.num_workers)
        metric.update([label], [scores])
        told(mx.model.BatchEndParam(0, number, metric, locals()))
    mx.nd.waitall()
    stats = kv.stats() if hasattr(kv, "stats") else {"policy": "off"}
    if stats["policy"] != "off":
        found = (stats["policy"], stats["bytes"] / 1e6, stats["units"], stats["iterations"])
        logging.getLogger("transformer").info("policy %s scheduled %.1f MB in %d units over %d iterations", *found)


if __name__ == "__main__":
    main()
