"""Signal handlers that pull, as one that saves a checkpoint at SIGTERM does: they change nothing for the program that they interrupt."""

from support.cluster import run_cluster

READS_SHAPES = """
import signal
import time
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
weights = [mx.nd.zeros((10,)), mx.nd.zeros((30, 40))]     # the second one is sliced
kv.init([0, 1], weights)
kv.pushpull([0, 1], [mx.nd.ones((10,)), mx.nd.ones((30, 40))], out=weights)
mx.nd.waitall()
saved = [mx.nd.zeros((10,)), mx.nd.zeros((30, 40))]
pulls = 0

def save(*_):
    global pulls
    pulls += 1
    for key in range(2):
        kv.pull(key, out=saved[key])

mine = mx.nd.zeros((2, 3, 5))
signal.signal(signal.SIGALRM, save)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 2
shapes = set()
while time.monotonic() < end:
    shapes.update(mine.shape for _ in range(1000))
signal.setitimer(signal.ITIMER_REAL, 0)
assert shapes == {(2, 3, 5)}, shapes
assert all((array == 2).asnumpy().all() for array in saved)
assert pulls > 20, pulls
print("shapes were right", flush=True)
"""


def test_a_handler_that_pulls_leaves_the_shape_alone_that_the_program_is_reading():
    """MXNet returns a shape in memory of the thread, and reads none in a pull."""
    result = run_cluster(READS_SHAPES, 2, 1, env={"PROPHET_UNIT": "1000"})
    assert all("shapes were right" in worker.output for worker in result.workers), result.logs()
