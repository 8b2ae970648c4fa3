"""Trains an LSTM that predicts the next character of a line, by BucketingModule, data-parallel on several workers.

    prophet-mx launch -n 2 -s 1 -- python train_lstm.py --kv-store dist_sync

Lines of about the same length are a bucket, with a network unrolled for it. All buckets share their weights, so every iteration sends the
same gradients. The lines that prophet_mx adds are marked with (1), (2) and (3).
"""

import mxnet as mx
from prophet_mx import ScheduledKVStore  # (1)

import logging

import numpy as np

from options import log_as, make_parser, parse
from text import load, numbered

BUCKETS = (20, 40, 60, 80)  # characters; longer lines are cut


class Lines(mx.io.DataIter):
    """Batches of lines of one bucket each. In an iteration all workers have the same bucket, so that none waits for longer lines."""

    def __init__(self, lines, batch_size, rank, workers):
        super().__init__(batch_size)
        self.random = np.random.RandomState(0)  # the same order on all workers
        self.batches = []
        for low, bucket in zip((1, *BUCKETS), BUCKETS):
            fitting = [line[:bucket] for line in lines if low < len(line) <= bucket or bucket == BUCKETS[-1] < len(line)]
            rows = np.zeros((len(fitting), bucket), dtype="float32")
            for row, line in zip(rows, fitting):
                row[: len(line)] = line
            together = batch_size * workers
            self.batches += [rows[first + rank : first + together : workers] for first in range(0, len(rows) - together + 1, together)]
        self.default_bucket_key = BUCKETS[-1]
        self.provide_data, self.provide_label = self.shapes(BUCKETS[-1])
        self.reset()

    def shapes(self, bucket):
        return [mx.io.DataDesc("data", (self.batch_size, bucket))], [mx.io.DataDesc("label", (self.batch_size, bucket))]

    def reset(self):
        self.coming = list(self.random.permutation(len(self.batches)))

    def next(self):
        if not self.coming:
            raise StopIteration
        rows = self.batches[self.coming.pop()]
        follows = np.concatenate([rows[:, 1:], np.zeros((len(rows), 1), dtype="float32")], axis=1)
        data, label = self.shapes(rows.shape[1])
        return mx.io.DataBatch(
            [mx.nd.array(rows)], [mx.nd.array(follows)], bucket_key=rows.shape[1], provide_data=data, provide_label=label
        )


def network(characters, units, layers):
    """What makes the network of a bucket."""
    cell = mx.rnn.SequentialRNNCell()
    for layer in range(layers):
        cell.add(mx.rnn.LSTMCell(units, prefix=f"lstm{layer}_"))

    def unrolled(length):
        embedded = mx.sym.Embedding(mx.sym.var("data"), input_dim=characters, output_dim=units, name="embedding")
        cell.reset()
        outputs, _ = cell.unroll(length, embedded, merge_outputs=True)
        scores = mx.sym.FullyConnected(mx.sym.reshape(outputs, shape=(-1, units)), num_hidden=characters, name="scores")
        label = mx.sym.reshape(mx.sym.var("label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0, name="softmax"), ("data",), ("label",)

    return unrolled


def parse_args():
    parser = make_parser(__doc__, "file to learn from, line by line")
    parser.add_argument("--layers", type=int, default=1, help="layers of LSTM")
    parser.add_argument("--units", type=int, default=64, help="units of a layer")
    parser.add_argument("--batch-size", type=int, default=32, help="lines per worker and iteration")
    parser.add_argument("--lines", type=int, default=4000, help="lines to learn from, of all workers together")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the lines")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of Adam")
    return parse(parser)


def main():
    args = parse_args()
    kv = mx.kv.create(args.kv_store)
    if kv.type.startswith("dist"):
        kv = ScheduledKVStore(kv)  # (2)
    log_as(kv.rank)
    text = load(args.text)
    numbers, characters = numbered(text)
    ends = np.cumsum([len(line) + 1 for line in text.split("\n")])
    lines = [line for line in np.split(numbers, ends[:-1]) if len(line) > 2][: args.lines]
    batches = Lines(lines, args.batch_size, kv.rank, kv.num_workers)
    device = mx.cpu() if args.gpus is None else mx.gpu(args.gpus)
    module = mx.mod.BucketingModule(network(characters, args.units, args.layers), BUCKETS[-1], context=device)
    mx.random.seed(0)  # all workers draw the same first weights
    module.fit(
        batches,
        eval_metric=mx.metric.Perplexity(ignore_label=0),
        kvstore=kv,  # (3): the store, not its name
        optimizer="adam",
        optimizer_params={"learning_rate": args.lr, "rescale_grad": 1 / (args.batch_size * kv.num_workers)},
        initializer=mx.init.Xavier(),
        num_epoch=args.epochs,
    )
    mx.nd.waitall()
    if hasattr(kv, "stats"):
        logging.info("policy %s, %d units", kv.stats()["policy"], kv.stats()["units"])


main()
