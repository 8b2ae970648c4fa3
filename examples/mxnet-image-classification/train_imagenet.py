"""Trains an image classifier with MXNet's Module, data-parallel, through ScheduledKVStore.

prophet-mx launch -n 2 -s 1 -- python train_imagenet.py --network resnet --num-layers 50 --kv-store dist_sync --benchmark 1
"""

# Servers and the scheduler also run this script, but never get past `import mxnet`. So it comes before any work.
from common import engine  # noqa: F401 - before MXNet, which reads its settings
import mxnet as mx

import logging
import warnings

from common import networks, options, training
from common.checkpoint import Checkpoints, resume, states_file
from common.data import training_iter, validation_images


def make_module(args, checkpoints):
    """A Module for the network, with the weights and optimizer states of the checkpoint, if the options name one."""
    symbol = networks.symbol(args)
    settings = {"context": args.devices, "compression_params": training.compression(args)}
    if args.load_epoch is None:
        return mx.mod.Module(symbol, **settings)
    prefix = checkpoints.find(args.load_epoch)
    states = states_file(prefix, args.load_epoch, args.on_workers) if args.on_workers else None
    module = mx.mod.Module.load(prefix, args.load_epoch, load_optimizer_states=states is not None, **settings)
    data = {"data": (args.batch_size,) + args.image_shape}
    if parameters(module.symbol, data) != parameters(symbol, data):
        raise options.OptionError(
            f"{prefix}-{args.load_epoch:04d}.params is of another network than --network {args.network} with "
            f"--num-classes {args.num_classes}"
        )
    warnings.filterwarnings("ignore", "Parameters already initialized")  # a checkpoint has initialised them
    logging.info("Loaded checkpoint %s-%04d.params%s", prefix, args.load_epoch, " and optimizer states" if states else "")
    return module


def save(module, prefix, epochs, states):
    """Write what Module.load reads."""
    module.symbol.save(f"{prefix}-symbol.json")
    module.save_params(f"{prefix}-{epochs:04d}.params")
    if states:
        module.save_optimizer_states(f"{prefix}-{epochs:04d}.states")


def parameters(symbol, data):
    """Shapes of a symbol's parameters by name."""
    return dict(zip(symbol.list_arguments(), symbol.infer_shape(**data)[0]))


def main():
    parser = options.make_parser(__doc__)
    parser.add_argument(
        "--monitor", type=options.number(int, 0), default=0, help="batches between two logs of all arrays of the network; 0: none"
    )
    args = options.parse(parser)
    if args.on_workers:
        training.update_on_workers()
    kv = training.create_store(args)
    checkpoints = Checkpoints(args.model_prefix, kv.rank, kv.num_workers, args.save_period, args.keep)
    resume(args, checkpoints, kv, "load_epoch")
    train, validation = training_iter(args, kv.rank, kv.num_workers), validation_images(args, kv.rank, kv.num_workers)
    module = make_module(args, checkpoints)

    def predict(batch):
        module.forward(batch, is_train=False)
        return module.get_outputs()[0]

    def epoch_end(epoch, symbol, arg_params, aux_params):
        if checkpoints.due(epoch + 1):
            with checkpoints.writing(epoch + 1) as prefix:
                save(module, prefix, epoch + 1, args.on_workers)
        if validation is not None:
            training.evaluate(predict, validation, training.metrics(args), epoch)

    mx.random.seed(args.seed)  # all workers draw the same first weights
    module.fit(
        train,
        begin_epoch=args.first_epoch,
        num_epoch=args.num_epochs,
        eval_metric=training.metrics(args),
        kvstore=kv,
        optimizer=args.optimizer,
        optimizer_params=training.optimizer_params(args, train.batches),
        initializer=training.initializer(),
        monitor=mx.mon.Monitor(args.monitor) if args.monitor else None,
        batch_end_callback=mx.callback.Speedometer(args.batch_size, args.disp_batches),
        epoch_end_callback=epoch_end,
    )
    training.finish(kv)


if __name__ == "__main__":
    options.run(main)
