"""A signal handler's exception interrupts a worker's first push, at which all workers meet. The program catches it and pushes again."""

from support.cluster import run_cluster

JOB = """
import signal, time
import mxnet as mx
from prophet_mx import ScheduledKVStore

class Late(Exception):
    pass

def handler(*_):
    raise Late

plain = mx.kv.create("dist_sync")
rank = plain.rank
store = ScheduledKVStore(plain)
store.init([0, 1], [mx.nd.zeros((30000,))] * 2)
outs = [mx.nd.zeros((30000,)) for _ in range(2)]
signal.signal(signal.SIGALRM, handler)
if rank == 0:
    time.sleep(1)
else:
    signal.setitimer(signal.ITIMER_REAL, 0.3)  # while it waits for rank 0
try:
    store.pushpull(0, mx.nd.full((30000,), rank), out=outs[0])
    assert rank == 0, "the handler was not called"
except Late:
    store.pushpull(0, mx.nd.full((30000,), rank), out=outs[0])
    print("interrupted", flush=True)
assert (outs[0] == 1).asnumpy().all()
for step in range(3):
    for key in range(2):
        store.pushpull(key, mx.nd.full((30000,), key + step + rank), out=outs[key])
    for key, out in enumerate(outs):
        assert (out == 2 * (key + step) + 1).asnumpy().all(), (step, key, out)
print("right", signal.getsignal(signal.SIGALRM) is handler, store.stats()["failure"], flush=True)
"""


def test_a_first_push_that_was_interrupted_can_be_made_again():
    result = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "30000", "PROPHET_BANDWIDTH": "1Gbit"}, timeout=25)
    assert all("right True" in worker.output for worker in result.workers), result.logs()
    assert result.logs().count("interrupted") == 1
