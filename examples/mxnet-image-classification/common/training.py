"""The parts of a training run that Module and Trainer share: the store, the learning rate, metrics and evaluation."""

import logging
import os

import mxnet as mx

from prophet_mx import ScheduledKVStore

from .options import WITH_MOMENTUM

NEVER = 1 << 60  # an update that no job reaches


def create_store(args):
    """Make the store that --kv-store, --policy and --gc-type ask for, and set up the log, which needs its rank."""
    kv = mx.kv.create(args.kv_store)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)-15s Node[{kv.rank}] %(message)s", force=True)
    if kv.type.startswith("dist"):
        kv = ScheduledKVStore(kv, **({"policy": args.policy} if args.policy else {}))
    if args.gc_type != "none":
        _push_then_pull(kv)
    if kv.rank == 0:
        logging.info("start with arguments %s", dict(sorted(vars(args).items())))
    return kv


def _push_then_pull(kv):
    """Module and Trainer of MXNet 1.9 call pushpull, which refuses compressed gradients. push and pull accept them."""

    def pushpull(key, value, out=None, priority=0):
        kv.push(key, value, priority)
        kv.pull(key, value if out is None else out, priority)

    kv.pushpull = pushpull


def update_on_workers():
    """Make Module run the optimizer on every worker; the servers then only add up gradients. Trainer has an argument for it."""
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = "0"


def compression(args):
    """The compression_params for Module and Trainer."""
    return None if args.gc_type == "none" else {"type": args.gc_type, "threshold": args.gc_threshold}


def optimizer_params(args, batches):
    """Settings of the optimizer, which counts its updates from the checkpoint on."""
    params = {
        "learning_rate": args.lr,
        "wd": args.wd,
        "lr_scheduler": lr_scheduler(args, batches),
        "begin_num_update": args.first_epoch * batches,
        "multi_precision": args.dtype == "float16",
    }
    if args.optimizer in WITH_MOMENTUM:
        params["momentum"] = args.mom
    return params


def lr_scheduler(args, batches):
    """The learning rate by the number of updates, ``batches`` of them per epoch."""
    return mx.lr_scheduler.MultiFactorScheduler(
        step=[epoch * batches for epoch in args.lr_step_epochs] or [NEVER],
        factor=args.lr_factor,
        base_lr=args.lr,
        warmup_steps=args.warmup_epochs * batches,
        warmup_mode=args.warmup_strategy,
    )


def initializer():
    """The distribution of new weights, suitable for networks with ReLU."""
    return mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)


def metrics(args):
    """Top-1 accuracy, and top-k if asked for."""
    metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy()])
    if args.top_k:
        metric.add(mx.metric.TopKAccuracy(top_k=args.top_k))
    return metric


def evaluate(predict, images, metric, epoch):
    """Log the metric over all ``images``, each counted once.

    Parameters
    ----------
    predict : from a batch to its scores, an array of (images, classes).
    images : batches whose ``pad`` last images do not count.
    """
    metric.reset()
    for batch in images:
        scores = predict(batch)
        count = scores.shape[0] - batch.pad
        metric.update([batch.label[0][:count]], [scores[:count]])
    for name, value in metric.get_name_value():
        logging.info("Epoch[%d] Validation-%s=%f", epoch, name, value)


def finish(kv):
    """Wait for all operations, and log what was scheduled."""
    mx.nd.waitall()
    stats = kv.stats() if hasattr(kv, "stats") else {"policy": "off"}
    if stats["policy"] == "off":
        logging.info("gradient traffic was not scheduled")
    else:
        logging.info(
            "policy %s scheduled %.1f MB in %d units over %d iterations",
            stats["policy"],
            stats["bytes"] / 1e6,
            stats["units"],
            stats["iterations"],
        )
