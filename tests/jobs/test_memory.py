"""Long jobs stay small: memory, threads, file descriptors and references do not grow with the iterations."""

import re

import numpy as np

from support.cluster import run_cluster
from support.paths import ROOT

JOB = ROOT / "benchmarks" / "jobs" / "soak.py"
ITERATIONS = 300  # the soak runs longer ones
GROWTH = 0.02

REFERENCES = """
import gc, sys, time, weakref
import mxnet as mx, psutil
from prophet_mx import ScheduledKVStore

def references(*things):
    gc.collect()
    return [arrays()] + [sys.getrefcount(thing) for thing in (kv, *things)]

def all_answered(name, value, out):
    mx.nd.waitall()
    kv.pushpull(name, value, out=out)           # answers to messages of our own are looked at with a push
    mx.nd.waitall()

def arrays():
    return sum(isinstance(thing, mx.nd.NDArray) for thing in gc.get_objects())

me, before_all = psutil.Process(), arrays()
kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=1000)
kv.init(["a", "b", "c"], [mx.nd.zeros((2000,)), mx.nd.zeros((7,)), mx.nd.zeros((10,))])
for name in ("a", "b", "c"):
    size = {"a": 2000, "b": 7, "c": 10}[name]
    value, out = mx.nd.ones(size), mx.nd.zeros(size)
    all_answered(name, value, out)              # MXNet itself can crash where a key's first pushpull is still under way in a push
    for turn in range(60):
        if turn == 20:
            all_answered(name, value, out)
            before, none = references(value, out), sys.getrefcount(None)
        kv.pushpull(name, value, out=out)
        kv.push(name, value)
        kv.pull(name, out=out)
        kv.stats()
    all_answered(name, value, out)
    after = references(value, out)
    assert before == after, (name, before, after)
    assert abs(sys.getrefcount(None) - none) < 40, (name, none, sys.getrefcount(None))      # the interpreter itself takes a few
assert (out.asnumpy() == 2).all()
threads = me.num_threads()
kv.close()
kv.close()
until = time.monotonic() + 5                    # a thread that was joined may take a moment more to leave
while me.num_threads() != threads - 2 and time.monotonic() < until:      # the driver's and the watchdog's
    time.sleep(0.01)
assert me.num_threads() == threads - 2, (threads, me.num_threads())
kv.pushpull("c", value, out=out)                # not held any more, but sent
assert (out.asnumpy() == 2).all()
gc.collect()
gc.disable()
store, path = weakref.ref(kv), weakref.ref(kv._path)
del kv                                          # the last reference: freed at once, as a plain store, with all buffers
assert store() is None and path() is None
assert arrays() == before_all + 2, arrays() - before_all        # value and out
print("references: all right")
"""

COPIES = """
import mxnet as mx, psutil
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=100_000)
values, outs = ([mx.nd.ones((1_000_000,)) for _ in range(15)] for _ in range(2))
for key, out in enumerate(outs):
    kv.broadcast(key, out, out=out)
mx.nd.waitall()
before = psutil.Process().memory_info().rss
for _ in range(4):
    for key, (value, out) in enumerate(zip(values, outs)):
        kv.pushpull(key, value, out=out)
    mx.nd.waitall()
assert kv.stats()["units"] > 60 * len(values)
print("copies: %.3f" % ((psutil.Process().memory_info().rss - before) / 60e6))
"""


def test_memory_threads_and_descriptors_stay_flat_and_the_weights_those_of_plain_dist_sync(tmp_path):
    (tmp_path / "stop").write_text(str(ITERATIONS))
    job = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "16KiB"}, args=["scheduled", tmp_path, 0], timeout=100)
    for worker in job.workers:
        samples = [tuple(map(int, found)) for found in re.findall(r"at (\d+) rank \d rss (\d+) threads (\d+) fds (\d+)", worker.output)]
        assert len(samples) == ITERATIONS // 50 + 1
        _, memory, threads, descriptors = zip(*samples[len(samples) // 5 :])
        assert memory[-1] / memory[0] < 1 + GROWTH, memory
        assert len(set(threads)) == 1 and len(set(descriptors)) == 1, (threads, descriptors)
    (tmp_path / "checkpoint.npz").unlink()
    run_cluster(JOB, 2, 1, args=["plain", tmp_path, 0], timeout=100)
    with np.load(str(tmp_path / "final-plain.npz")) as plain, np.load(str(tmp_path / "final-scheduled.npz")) as ours:
        assert int(plain["iteration"]) == int(ours["iteration"]) == ITERATIONS
        assert [name for name in plain.files if plain[name].tobytes() != ours[name].tobytes()] == []


def test_references_do_not_grow_and_close_ends_the_threads():
    output = run_cluster(REFERENCES, 2, 1).workers
    assert all("references: all right" in worker.output for worker in output)


def test_a_worker_needs_memory_for_one_more_copy_of_the_gradients():
    """On rank 0 as well, which gives the slices their first values.

    A message's buffer goes back to the system when it is freed: else what was under way at the worst moment counts as held.
    """
    for worker in run_cluster(COPIES, 2, 1, env={"MALLOC_MMAP_THRESHOLD_": "65536"}).workers:
        copies = float(re.search(r"copies: (\S+)", worker.output).group(1))
        assert copies < 1.1, worker.output
