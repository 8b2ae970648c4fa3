"""What MXNet fails to compute: it is never sent, as in plain dist_sync, and a program that goes on gets the values that plain has."""

from support.cluster import run_cluster

# Worker 1 fails to compute the gradients of a sliced parameter and of a member of a group, while the limits hold everything back behind
# key 0, which worker 0 sends a second later. It learns of that, and pushes others.
FAILED = """
import time
import mxnet as mx
from prophet_mx import ScheduledKVStore, _core

kv = ScheduledKVStore(mx.kv.create("dist_sync"), window=1, lead=1)
sizes = [30000, 30000, 64, 64, 64]
outs = [mx.nd.zeros((size,)) for size in sizes]
kv.init(list(range(5)), outs)

def push(key, gradient):
    kv.pushpull(key, gradient, out=outs[key], priority=-key)

def good(step, key):
    return mx.nd.full((sizes[key],), 100 * step + 10 * key + kv.rank)

for step in range(4):
    failed = {}
    if step == 2 and kv.rank == 1:
        failed = {key: mx.nd.random.normal(0, -1, (sizes[key],)) for key in (1, 3)}
    if step == 2 and kv.rank == 0:
        time.sleep(1)
    for key in range(5):
        push(key, failed[key] if key in failed else good(step, key))
    over = [_core.Arrival(outs[key].handle.value) for key in failed]
    while not all(over):
        time.sleep(0.001)
    for key, gradient in failed.items():
        try:
            gradient.wait_to_read()
        except mx.MXNetError:
            print("failed", key, flush=True)
    for key in failed:
        push(key, good(step, key))
    for key, out in enumerate(outs):
        wanted, got = 200 * step + 20 * key + 1, out.asnumpy()
        assert (got == wanted).all(), (step, key, wanted, got[:4])
stats = kv.stats()
print("right:", stats["units"], "units", stats["failure"], flush=True)
"""


def test_what_failed_is_not_sent_late_nor_in_the_message_of_a_group():
    """The scheduler never has it: else it could leave once the program has caught the error, with what the buffer has from before."""
    env = {"PROPHET_UNIT": "16000", "PROPHET_BANDWIDTH": "1Gbit", "PROPHET_LOG_LEVEL": "info"}
    job = run_cluster(FAILED, 2, 1, env=env, timeout=40)
    said = [[line for line in worker.output.splitlines() if line.startswith(("right", "failed"))] for worker in job.workers]
    assert said[0][-1] == said[1][-1] and "failed 1" in job.logs(), job.logs()
    assert all("3 small ones share 1 messages" in worker.output for worker in job.workers), job.logs()


EARLY = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv, out = ScheduledKVStore(mx.kv.create("dist_sync")), mx.nd.zeros((10,))
kv.init(0, out)
failed = mx.nd.random.normal(0, -1, (10,)) if kv.rank == 1 else out
try:
    kv.pushpull(0, mx.nd.ones((10,)), out=out)
    assert kv.rank == 0
except mx.MXNetError as error:
    assert "scale" in str(error), error
    kv.pushpull(0, mx.nd.ones((10,)), out=out)
assert (out == 2).asnumpy().all()
print("right", flush=True)
"""


def test_an_error_before_the_first_push_is_raised_when_the_workers_have_agreed_and_the_program_can_push_again():
    job = run_cluster(EARLY, 2, 1, timeout=30)
    assert all("right" in worker.output for worker in job.workers), job.logs()


INTERRUPTED = """
import signal
import time
import mxnet as mx
from prophet_mx import ScheduledKVStore

class StopError(Exception):
    pass

def stop(*_):
    raise StopError

kv, out = ScheduledKVStore(mx.kv.create("dist_sync")), mx.nd.zeros((10,))
kv.init(0, out)
signal.signal(signal.SIGALRM, stop)
failed = mx.nd.random.normal(0, -1, (10,)) if kv.rank == 1 else out
try:
    if kv.rank == 0:
        time.sleep(1)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    kv.pushpull(0, mx.nd.ones((10,)), out=out)
    assert kv.rank == 0
except StopError:
    kv.pushpull(0, mx.nd.ones((10,)), out=out)
assert (out == 2).asnumpy().all()
print("right", flush=True)
"""


def test_an_error_before_the_first_push_is_logged_if_a_signal_handler_raises_another_one_there():
    job = run_cluster(INTERRUPTED, 2, 1, timeout=30)
    assert all("right" in worker.output for worker in job.workers), job.logs()
    assert sum("error before the first push: " in worker.output and "scale" in worker.output for worker in job.workers) == 1, job.logs()


UNSEEN = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

def main():
    kv, out = ScheduledKVStore(mx.kv.create("dist_sync")), mx.nd.zeros((10,))
    kv.init(0, out)
    for _ in range(3):
        kv.pushpull(0, mx.nd.ones((10,)), out=out)
        out.wait_to_read()
    if kv.rank == 1:
        mx.nd.random.normal(0, -1, (10,))
    print("trained", flush=True)

main()
"""


def test_a_store_that_ends_after_an_error_that_nobody_has_seen_lets_the_others_end():
    """MXNet itself ends the process there."""
    job = run_cluster(UNSEEN, 2, 1, timeout=30)
    assert "error at the end of the store" in job.logs() and not any(process.ended_by_launcher for process in job.processes), job.logs()
