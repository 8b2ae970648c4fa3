"""Trains a transformer that predicts the next character of a text, by gluon's Trainer, data-parallel on several workers.

    prophet-mx launch -n 2 -s 1 -- python train_transformer.py --kv-store dist_sync

The lines that prophet_mx adds are marked with (1), (2) and (3).
"""

import mxnet as mx
from prophet_mx import ScheduledKVStore  # (1)

import logging
import math

import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from options import log_as, make_parser, parse
from text import load, numbered


class Layer(gluon.HybridBlock):
    """Attention to the characters before, and a feed-forward network, each with its norm and sum."""

    def __init__(self, units, heads):
        super().__init__()
        self.heads, self.scale = heads, math.sqrt(units // heads)
        with self.name_scope():
            self.norms = nn.HybridSequential()
            self.norms.add(nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units))
            self.query, self.key, self.value, self.out = (nn.Dense(units, flatten=False, in_units=units) for _ in range(4))
            self.wide = nn.Dense(4 * units, flatten=False, in_units=units, activation="relu")
            self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)

    def split(self, x):  # (batch, length, units) to (batch * heads, length, units / heads)
        return x.reshape((0, 0, self.heads, -1)).transpose((0, 2, 1, 3)).reshape((-1, 0, 0), reverse=True)

    def hybrid_forward(self, ops, x, mask):
        normed = self.norms[0](x)
        query, key, value = (self.split(dense(normed)) for dense in (self.query, self.key, self.value))
        weights = ops.softmax(ops.broadcast_add(ops.batch_dot(query, key, transpose_b=True) / self.scale, mask))
        seen = ops.batch_dot(weights, value).reshape((-1, self.heads, 0, 0), reverse=True).transpose((0, 2, 1, 3)).reshape((0, 0, -1))
        x = x + self.out(seen)
        return x + self.narrow(self.wide(self.norms[1](x)))


class Transformer(gluon.HybridBlock):
    """Characters to scores of the characters that follow them."""

    def __init__(self, characters, layers, units, heads, length):
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(characters, units)
            self.places = self.params.get("places", shape=(1, length, units))
            self.mask = self.params.get_constant("mask", np.triu(np.full((1, length, length), -1e9, dtype="float32"), 1))
            self.layers = nn.HybridSequential()
            for _ in range(layers):
                self.layers.add(Layer(units, heads))
            self.norm = nn.LayerNorm(in_channels=units)
            self.scores = nn.Dense(characters, flatten=False, in_units=units)

    def hybrid_forward(self, ops, x, places, mask):
        x = ops.broadcast_add(self.words(x), places)
        for layer in self.layers:
            x = layer(x, mask)
        return self.scores(self.norm(x))


def parse_args():
    parser = make_parser(__doc__, "file to learn from")
    parser.add_argument("--layers", type=int, default=2, help="layers")
    parser.add_argument("--units", type=int, default=64, help="units of a layer")
    parser.add_argument("--heads", type=int, default=4, help="heads of attention")
    parser.add_argument("--length", type=int, default=64, help="characters that are seen at a time")
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text per worker and iteration")
    parser.add_argument("--iterations", type=int, default=300, help="iterations in all")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of Adam")
    args = parse(parser)
    if args.units % args.heads:
        parser.error(f"--units {args.units} cannot be divided by --heads {args.heads}")
    return args


def main():
    args = parse_args()
    kv = mx.kv.create(args.kv_store)
    if kv.type.startswith("dist"):
        kv = ScheduledKVStore(kv)  # (2)
    log_as(kv.rank)
    device = mx.cpu() if args.gpus is None else mx.gpu(args.gpus)
    text, characters = numbered(load(args.text))
    text = np.array_split(text, kv.num_workers)[kv.rank]
    net = Transformer(characters, args.layers, args.units, args.heads, args.length)
    mx.random.seed(0)  # all workers draw the same first weights
    net.initialize(mx.init.Normal(0.02), ctx=device)
    net.hybridize()  # with static_alloc and static_shape, gradients could all become ready at once
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": args.lr}, kvstore=kv)  # (3): the store, not its name
    loss, random, total = gluon.loss.SoftmaxCrossEntropyLoss(), np.random.RandomState(kv.rank), []
    for iteration in range(1, args.iterations + 1):
        starts = random.randint(0, len(text) - args.length - 1, args.batch_size)
        pieces = mx.nd.array(np.stack([text[start : start + args.length + 1] for start in starts]), ctx=device)
        with autograd.record():
            value = loss(net(pieces[:, :-1]), pieces[:, 1:])
        value.backward()
        trainer.step(args.batch_size * kv.num_workers)
        total.append(value.mean())
        if iteration % 50 == 0 or iteration == args.iterations:
            logging.info("iteration %d: perplexity %.1f", iteration, math.exp(sum(each.asscalar() for each in total) / len(total)))
            total = []
    mx.nd.waitall()
    if hasattr(kv, "stats"):
        logging.info("policy %s, %d units", kv.stats()["policy"], kv.stats()["units"])


main()
