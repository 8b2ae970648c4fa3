"""Trains an image classifier with gluon.Trainer, data-parallel, through ScheduledKVStore; mixed precision with --amp.

prophet-mx launch -n 2 -s 1 -- python train_gluon.py --network resnet --num-layers 50 --kv-store dist_sync --benchmark 1
"""

# Servers and the scheduler also run this script, but never get past `import mxnet`. So it comes before any work.
from common import engine  # noqa: F401 - before MXNet, which reads its settings
import mxnet as mx

import json
import logging
import os
import time

from mxnet import autograd, gluon
from mxnet.contrib import amp

from common import networks, options, training
from common.checkpoint import Checkpoints, resume, states_file
from common.data import training_iter, validation_images

LOAD_EPOCH_KEY = 50_000  # none of Trainer's, which are the parameters' numbers
SCALER_STATE = ("_loss_scale", "_next_loss_scale", "_unskipped")


class Training:
    """The network, its trainer, and what one worker does with them."""

    def __init__(self, args, kv, batches):
        self.args, self.kv = args, kv
        if args.amp:
            amp.init(args.amp)  # changes MXNet's operators, so before there is a network
            self._try_amp()
        self.net = networks.make(args)
        mx.random.seed(args.seed)  # all workers draw the same first weights
        self.net.initialize(training.initializer(), ctx=args.devices)
        if args.dtype != "float32":
            self.net.cast(args.dtype)
        self.net.hybridize()
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.optimizer_params = training.optimizer_params(args, batches)
        # Trainer numbers a list in its order, here that of the layers, which is the order of urgency. It sorts a dict by name.
        parameters = self.net.collect_params()
        self.trainer = gluon.Trainer(
            list(parameters.values()) if args.keys == "layers" else parameters,
            args.optimizer,
            dict(self.optimizer_params),
            kvstore=kv,
            update_on_kvstore=not args.on_workers,
            compression_params=training.compression(args),
        )
        if args.amp:
            amp.init_trainer(self.trainer)

    def _try_amp(self):
        """Fail at once, and in one line, on a processor without the operations that --amp needs."""
        data = mx.nd.zeros((1, 8, 8, 8), ctx=self.args.devices[0])
        trial = gluon.nn.Conv2D(8, 3, in_channels=8)
        trial.initialize(ctx=self.args.devices[0])
        try:
            trial(data).wait_to_read()
        except mx.base.MXNetError as error:
            raise options.OptionError(
                f"--amp {self.args.amp} does not work on this {self.args.devices[0].device_type} ({str(error).strip().splitlines()[-1]})"
            ) from None

    def load(self, checkpoints):
        """Take weights, optimizer states and loss scale of the checkpoint."""
        epochs = self.args.load_epoch
        prefix = checkpoints.find(epochs)
        try:
            self.net.load_parameters(f"{prefix}-{epochs:04d}.params", ctx=self.args.devices)
        except (AssertionError, ValueError) as error:
            raise options.OptionError(
                f"{prefix}-{epochs:04d}.params is of another network than --network {self.args.network} with "
                f"--num-classes {self.args.num_classes} ({str(error).splitlines()[0]})"
            ) from None
        states = states_file(prefix, epochs, self.args.on_workers) if self.args.on_workers else None
        if states:
            self.trainer.load_states(states)
            # The optimizer comes with its old settings; the current options override them.
            for name, value in self.optimizer_params.items():
                setattr(self.trainer.optimizer, "lr" if name == "learning_rate" else name, value)
        if self.args.amp and os.path.exists(f"{prefix}-{epochs:04d}.amp"):
            with open(f"{prefix}-{epochs:04d}.amp", encoding="utf-8") as file:
                vars(self.trainer._amp_loss_scaler).update(json.load(file))
        logging.info("Loaded checkpoint %s-%04d.params%s", prefix, epochs, " and optimizer states" if states else "")

    def save(self, prefix, epochs):
        """Write what :meth:`load` reads."""
        self.net.save_parameters(f"{prefix}-{epochs:04d}.params")
        if self.args.on_workers:
            self.trainer.save_states(f"{prefix}-{epochs:04d}.states")
        if self.args.amp:
            scaler = vars(self.trainer._amp_loss_scaler)
            with open(f"{prefix}-{epochs:04d}.amp", "w", encoding="utf-8") as file:
                json.dump({name: scaler[name] for name in SCALER_STATE}, file)

    def scores(self, batch):
        """A batch's scores and labels, a list each with an array per device."""
        devices = self.args.devices
        data = gluon.utils.split_and_load(batch.data[0], devices)
        labels = gluon.utils.split_and_load(batch.label[0], devices)
        return [self.net(part.astype(self.args.dtype, copy=False)).astype("float32", copy=False) for part in data], labels

    def step(self, batch):
        """One iteration; the scores and labels."""
        with autograd.record():
            outputs, labels = self.scores(batch)
            losses = [self.loss(output, label) for output, label in zip(outputs, labels)]
            if not self.args.amp:
                autograd.backward(losses)
            else:
                with amp.scale_loss(losses, self.trainer) as scaled:
                    autograd.backward(scaled)
        # The servers add up the gradients of all workers.
        self.trainer.step(self.args.batch_size * self.kv.num_workers)
        return outputs, labels

    def predict(self, batch):
        outputs, _ = self.scores(batch)
        return mx.nd.concat(*[output.as_in_context(mx.cpu()) for output in outputs], dim=0)

    def same_on_all_devices(self):
        """Give all devices the mean of their running statistics of batch norm, as Module does after each epoch."""
        for parameter in self.net.collect_params().values():
            if parameter.grad_req == "null" and len(self.args.devices) > 1:
                arrays = [array.as_in_context(mx.cpu()) for array in parameter.list_data()]
                parameter.set_data(mx.nd.add_n(*arrays) / len(arrays))

    def epoch(self, epoch, images, metric, callback):
        """Train on all images once."""
        metric.reset()
        started = time.time()
        for number, batch in enumerate(images):
            outputs, labels = self.step(batch)
            metric.update(labels, outputs)
            callback(mx.model.BatchEndParam(epoch, number, metric, locals()))
        for name, value in metric.get_global_name_value():
            logging.info("Epoch[%d] Train-%s=%f", epoch, name, value)
        logging.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - started)
        self.same_on_all_devices()


def parse_args():
    parser = options.make_parser(__doc__)
    parser.add_argument(
        "--amp",
        choices=("float16", "bfloat16"),
        help="MXNet's automatic mixed precision, with loss scaling: float16 needs a GPU, bfloat16 is for CPUs",
    )
    parser.add_argument(
        "--keys",
        choices=("layers", "names"),
        default="layers",
        help="how Trainer numbers the parameters: in the order of the layers, or by name as it does with collect_params()",
    )
    args = options.parse(parser)
    if args.amp == "float16" and not args.gpus:
        parser.error("--amp float16 needs --gpus; on CPUs use --amp bfloat16")
    if args.amp == "bfloat16" and args.gpus:
        parser.error("--amp bfloat16 is for CPUs; on GPUs use --amp float16")
    if args.amp and args.dtype != "float32":
        parser.error(f"--amp keeps float32 weights; leave out --dtype {args.dtype}")
    if args.amp and args.update_on == "servers":
        parser.error(
            "--amp needs the optimizer on the workers, which skip an update when a gradient overflows; leave out --update-on servers"
        )
    args.on_workers = args.on_workers or args.amp is not None
    return args


def main():
    args = parse_args()
    kv = training.create_store(args)
    checkpoints = Checkpoints(args.model_prefix, kv.rank, kv.num_workers, args.save_period, args.keep)
    resume(args, checkpoints, kv, LOAD_EPOCH_KEY)
    train, validation = training_iter(args, kv.rank, kv.num_workers), validation_images(args, kv.rank, kv.num_workers)
    job = Training(args, kv, train.batches)
    if args.load_epoch is not None:
        job.load(checkpoints)
    metric, callback = training.metrics(args), mx.callback.Speedometer(args.batch_size, args.disp_batches)
    for epoch in range(args.first_epoch, args.num_epochs):
        job.epoch(epoch, train, metric, callback)
        if checkpoints.due(epoch + 1):
            with checkpoints.writing(epoch + 1) as prefix:
                job.save(prefix, epoch + 1)
        if validation is not None:
            training.evaluate(job.predict, validation, training.metrics(args), epoch)
        train.reset()
    training.finish(kv)


if __name__ == "__main__":
    options.run(main)
