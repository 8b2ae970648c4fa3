"""Trains a small convnet on handwritten digits, data-parallel on several workers, through ScheduledKVStore.

    prophet-mx launch -n 2 -s 1 -- python train_digits.py

An ordinary MXNet 1.9 script. The lines that prophet_mx adds to it are marked with (1), (2) and (3); the first two are enough.
"""

# Servers and the scheduler also run this script, but never get past `import mxnet`. So it comes before any work.
import mxnet as mx
from prophet_mx import ScheduledKVStore  # (1)
from prophet_mx.config import Config
from prophet_mx.policies import settings as policies
from prophet_mx.quantities import format_rate

import argparse
import io
import logging
import os
import statistics
import sys
import tempfile
import time

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

TRAINING, VALIDATION = 1437, 360  # images
IMAGE = (1, 8, 8)  # channels, height, width


def parse_args():
    parser = argparse.ArgumentParser(
        description="Train a small convnet on handwritten digits with MXNet and prophet_mx.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and iteration")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--scale", type=int, default=1, help="enlarge the images so many times: more to compute for as many gradients")
    parser.add_argument("--data-dir", default=".demo", help="folder for the images; created if missing")
    parser.add_argument("--kv-store", default="dist_sync", help="'local' trains in this process alone, without a launcher")
    parser.add_argument("--policy", choices=policies(), default=Config.from_env().policy, help="which gradient goes first")
    parser.add_argument("--save", metavar="FILE", help="where rank 0 writes the weights at the end")
    parser.add_argument("--require-accuracy", type=float, default=0.95, help="exit with an error if the validation accuracy is lower")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error(f"--epochs {args.epochs}: at least 1")
    if args.batch_size < 1:
        parser.error(f"--batch-size {args.batch_size}: at least 1")
    if args.scale < 1:
        parser.error(f"--scale {args.scale}: at least 1")
    if args.kv_store.startswith("dist") and "DMLC_ROLE" not in os.environ:
        parser.error(
            f"--kv-store {args.kv_store} needs servers and workers: start them with 'prophet-mx launch -n 2 -s 1 -- python train_digits.py'"
        )
    return args


def write_digits(directory):
    """Write scikit-learn's digits as RecordIO files of PNG images, as im2rec.py does for ImageNet, unless they are there."""
    if os.path.exists(os.path.join(directory, "validation.idx")):
        return
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * (255 / 16)).astype("uint8")
    parts = train_test_split(images, digits.target, train_size=TRAINING, test_size=VALIDATION, stratify=digits.target, random_state=0)
    os.makedirs(directory, exist_ok=True)
    # Workers may come here at the same time. Each writes its own files and then renames them, so no name ever belongs to an incomplete
    # file. It does not matter which worker's file wins, because all are the same. The file that the check above looks for comes last.
    with tempfile.TemporaryDirectory(dir=directory) as own:
        for name, part_images, labels in (("train", parts[0], parts[2]), ("validation", parts[1], parts[3])):
            rec, idx = name + ".rec", name + ".idx"
            record = mx.recordio.MXIndexedRecordIO(os.path.join(own, idx), os.path.join(own, rec), "w")
            for i, (image, label) in enumerate(zip(part_images, labels)):
                png = io.BytesIO()
                Image.fromarray(image).save(png, "PNG")
                record.write_idx(i, mx.recordio.pack(mx.recordio.IRHeader(0, float(label), i, 0), png.getvalue()))
            size = record.tell()
            record.close()
            if os.path.getsize(os.path.join(own, rec)) != size:  # MXNet does not look whether its last bytes were written
                sys.exit(f"{os.path.join(directory, rec)} cannot be written; is the disk full?")
            for file in (rec, idx):
                os.replace(os.path.join(own, file), os.path.join(directory, file))


def load_digits_iters(args, kv):
    """The iterators of this worker: its own part of the training images, and all validation images."""

    def record_iter(name, **options):
        path = os.path.join(args.data_dir, name)
        return mx.io.ImageRecordIter(
            path_imgrec=path + ".rec",
            path_imgidx=path + ".idx",
            data_shape=IMAGE,
            scale=1 / 255,
            preprocess_threads=1,
            verbose=False,
            **options,
        )

    train = record_iter("train", batch_size=args.batch_size, shuffle=True, part_index=kv.rank, num_parts=kv.num_workers)
    # Parts may differ by an image. In dist_sync all workers must do the same number of batches, or they wait for each other.
    batches = TRAINING // (args.batch_size * kv.num_workers)
    if batches == 0:
        sys.exit(f"--batch-size {args.batch_size} on {kv.num_workers} workers is more than the {TRAINING} training images")
    return mx.io.ResizeIter(train, batches), record_iter("validation", batch_size=VALIDATION // 4)


def convnet(scale):
    """Six convolutions with batch norm in three stages, and a dense layer, for images that are enlarged ``scale`` times first."""
    net = mx.sym.Variable("data")
    if scale > 1:
        net = mx.sym.UpSampling(net, scale=scale, sample_type="nearest")
    for stage, filters in enumerate((32, 64, 128), 1):
        for i in (1, 2):
            net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, no_bias=True, name=f"conv{stage}_{i}")
            net = mx.sym.BatchNorm(net, fix_gamma=False, name=f"bn{stage}_{i}")
            net = mx.sym.Activation(net, act_type="relu")
        net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.FullyConnected(mx.sym.flatten(net), num_hidden=10, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


class Progress:
    """Callbacks for Module.fit: a progress bar per epoch on rank 0, and the training speed after the first epoch, if there are more."""

    def __init__(self, kv, args, batches):
        self.kv, self.args, self.batches = kv, args, batches
        self.bar = None
        self.seconds = []  # of each iteration that counts

    def batch_end(self, param):
        now = time.time()
        if param.nbatch == 0:
            self.bar = tqdm(
                total=self.batches, desc=f"epoch {param.epoch + 1:2}/{self.args.epochs}", unit="batch", disable=self.kv.rank != 0
            )
        elif param.epoch > 0 or self.args.epochs == 1:  # in the first, the scheduler learns
            self.seconds.append(now - self.last)
        self.last = now
        self.bar.update()
        if param.nbatch + 1 == self.batches:
            self.training = accuracy_of(param.eval_metric)

    def validation_end(self, param):
        self.bar.set_postfix_str(f"accuracy: training {self.training:.3f}, validation {accuracy_of(param.eval_metric):.3f}")
        self.bar.close()

    def samples_per_second(self):
        """By the median iteration, so that a short disturbance of the machine does not count."""
        return self.args.batch_size * self.kv.num_workers / statistics.median(self.seconds) if self.seconds else 0.0


def accuracy_of(metric):
    return dict(metric.get_name_value())["accuracy"]


def print_learned(stats):
    """What the scheduler learned, from kv.stats()."""
    print(f"policy             {stats['policy']}")
    if stats["policy"] == "off":
        return
    rates = ", ".join(map(format_rate, stats["rates"]))
    print(f"drain read from    {stats['drain']}")
    print(f"measured rate      {rates} (to each server)")
    print(
        f"scheduled          {readable(stats['bytes'])} in {stats['units']:,} units, {stats['blocks']:,} blocks, "
        f"{stats['iterations']:,} iterations"
    )
    print(f"steps              {len(stats['steps'])} per iteration: gradients that backward makes ready together")
    last = 0.0
    for i, (names, ready) in enumerate(zip(stats["steps"], stats["step_times"]), 1):
        first_and_last = names[0] if len(names) == 1 else f"{names[-1]} ... {names[0]}"
        print(f"  step {i:<2} after {1000 * (ready - last):6.2f} ms  {len(names)} gradient(s): {first_and_last}")
        last = ready


def readable(size):
    """A number of bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


def main():
    args = parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("prophet_mx").setLevel(logging.INFO)

    kv = mx.kv.create(args.kv_store)
    kv = ScheduledKVStore(kv, policy=args.policy)  # (2)

    write_digits(args.data_dir)
    train, validation = load_digits_iters(args, kv)
    module = mx.mod.Module(convnet(args.scale), context=mx.cpu())
    progress = Progress(kv, args, train.size)
    with logging_redirect_tqdm():  # log lines above the bar, not in the middle of it
        module.fit(
            train,
            eval_data=validation,
            num_epoch=args.epochs,
            eval_metric="acc",
            kvstore=kv,
            optimizer="sgd",
            optimizer_params={"learning_rate": args.lr, "momentum": 0.9, "wd": 1e-4},
            initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
            batch_end_callback=progress.batch_end,
            eval_end_callback=progress.validation_end,
        )

    if args.save and kv.rank == 0:
        mx.nd.save(args.save, module.get_params()[0])
        mx.nd.load(args.save)  # an error if the disk is full, for which save does not look
    accuracy = dict(module.score(validation, "acc"))["accuracy"]
    print(f"rank {kv.rank}: validation accuracy {accuracy:.4f}")
    if kv.rank == 0:
        print(f"samples/s          {progress.samples_per_second():,.0f} over {kv.num_workers} worker(s)")
        print_learned(kv.stats())  # (3)
    if accuracy < args.require_accuracy:
        sys.exit(f"rank {kv.rank}: validation accuracy {accuracy:.4f} is lower than the required {args.require_accuracy}")


if __name__ == "__main__":
    main()
