"""Jobs in which drained bytes are counted without TCP_INFO: by the interface's counters or by prediction."""

import re

from support.cluster import run_cluster

ITERATIONS = 40

# Two devices per worker, whose gradients the wrapper has to sum up as the store would; the keys of some parameters were there before.
JOB = """
import logging, os
import mxnet as mx
import numpy as np
from prophet_mx import KVStoreError, ScheduledKVStore

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
plain = mx.kv.create(os.environ["STORE"])
plain.init("early", mx.nd.zeros((5,)))
kv = ScheduledKVStore(plain)
shapes = {"a": (3,), "b": (100, 30), "c": (7,), "d": (700,)}
for key, shape in shapes.items():
    kv.init(key, mx.nd.zeros(shape))
for step in range(ITERATIONS):
    outs = {key: [mx.nd.zeros(shape, ctx=mx.cpu(device)) for device in range(2)] for key, shape in shapes.items()}
    for i, (key, shape) in reversed(list(enumerate(shapes.items()))):
        grads = [mx.nd.full(shape, (step + i + device) * (kv.rank + 1), ctx=mx.cpu(device)) for device in range(2)]
        kv.pushpull(key, grads, out=outs[key], priority=-i)
    for i, (key, pair) in enumerate(outs.items()):
        for out in pair:
            assert (out.asnumpy() == 3 * (2 * (step + i) + 1)).all(), (step, key, out)
    if step == 20:
        try:
            kv.pushpull("early", mx.nd.ones((5,)), out=mx.nd.zeros((5,)))
        except KVStoreError as error:
            print("refused:", error)
stats = kv.stats()
print(f"{kv.type} {stats['drain']} {stats['units']} failure '{stats['failure']}'")
""".replace("ITERATIONS", str(ITERATIONS))


def test_a_job_is_scheduled_to_its_end_by_the_interfaces_counters_and_by_prediction():
    """Also: both names of MXNet's store that sums up on devices are scheduled, and a key from before the store was wrapped is refused
    where others came after, without harm to the job."""
    result = run_cluster(
        JOB,
        2,
        1,
        env={"PROPHET_UNIT": "2000", "PROPHET_GROUPS": "off"},
        role_env={
            "worker 0": {"PROPHET_DRAIN": "nic", "STORE": "dist_sync_device"},
            "worker 1": {"PROPHET_DRAIN": "predicted", "STORE": "dist_device_sync"},
        },
    )
    slices = ITERATIONS * (1 + 6 + 1 + 1)  # 12 kB in units of 2 kB, and three that are whole
    for worker, store, source, said in zip(
        result.workers,
        ("dist_sync_device", "dist_device_sync"),
        ("nic", "predicted"),
        ("drain is read from the counters of interface ", "drain is predicted from the measured rate"),
    ):
        assert f"{store} {source} {slices} failure ''" in worker.output, result.logs()
        assert len(re.findall(f"^WARNING {said}", worker.output, re.MULTILINE)) == 1, result.logs()
        assert len(re.findall("^refused: key 'early' was not initialised through this store", worker.output, re.MULTILINE)) == 1
