"""Calls that MXNet takes in ways of its own: the result is that of plain dist_sync, or the call is refused."""

import pytest

from support.cluster import run_cluster

START = """
import sys
import mxnet as mx
import numpy as np
from prophet_mx import KVStoreError, ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)

def ones(factor, size=3000):
    return mx.nd.ones((size,)) * factor

def values(*arrays):
    return [sorted(set(array.asnumpy().tolist())) for array in arrays]
"""

TWICE = (
    START
    + """
if "sgd" in sys.argv:
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5))
    kv._barrier()
kv.init(["a", "b"], [ones(0), ones(0)])
a, b, again = ones(0), ones(0), ones(0)
for step in range(3):
    kv.push(["a", "b", "a"], [ones(1), ones(10), [ones(100), ones(1000)]])
    kv.pull(["a", "b", "a"], out=[a, b, again])
    print("pushed", values(a, b, again))
for step in range(2):
    kv.pushpull(["a", "a", "b"], [ones(1), ones(100), ones(7)], out=[a, again, b])
    print("both", values(a, b, again))
try:
    kv.push(["a", ["b"], "a"], [a, b, a])
except KVStoreError as error:
    print("refused", error)
"""
)


@pytest.mark.parametrize("optimizer", ["", "sgd"])
def test_a_key_that_is_in_a_call_twice_counts_once_with_the_sum_of_its_arrays(optimizer):
    """Of two workers. Plain dist_sync gives these values."""
    expected = {
        "": ["pushed [[2202.0], [20.0], [2202.0]]"] * 3 + ["both [[202.0], [14.0], [202.0]]"] * 2,
        "sgd": [f"pushed [[{a}], [{b}], [{a}]]" for a, b in ((-1101.0, -10.0), (-2752.5, -25.0), (-4679.25, -42.5))]
        + [f"both [[{a}], [{b}], [{a}]]" for a, b in ((-5743.625, -58.25), (-6376.8125, -73.125))],
    }[optimizer]
    job = run_cluster(TWICE, 2, 1, args=[optimizer])
    for worker in job.workers:
        assert [line for line in worker.output.splitlines() if line.startswith(("pushed", "both"))] == expected, job.logs()
        assert "refused key ['b'] is not allowed" in worker.output, job.logs()


WITHOUT = """
import os, sys
if os.environ["DMLC_ROLE"] == "server":
    sys.modules["prophet_mx"] = None                # what the servers' Python would say if it had none
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
sgd = mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.5)
if "early" in sys.argv:
    kv.set_optimizer(sgd)
    kv._barrier()
kv.init(0, mx.nd.ones((3000,)))
value = mx.nd.zeros((3000,))
if "late" in sys.argv:
    kv.pushpull(0, mx.nd.ones((3000,)), out=value)
    assert (value == 2).asnumpy().all(), value
    kv.set_optimizer(sgd)
    kv._barrier()
for step in range(3):
    kv.pushpull(0, mx.nd.ones((3000,)), out=value)
print("values", sorted(set(value.asnumpy().tolist())), kv.stats()["units"])
"""


@pytest.mark.parametrize("when, value, units", [("early", -3.25, 9), ("late", -2.25, 12)])
def test_servers_need_no_prophet_mx_to_run_an_optimizer_on_slices(when, value, units):
    job = run_cluster(WITHOUT, 2, 1, args=[when])
    assert all(f"values [{value}] {units}" in worker.output for worker in job.workers), job.logs()


KEPT = """
import mxnet as mx
from mxnet import autograd, gluon
from prophet_mx import KVStoreError, ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
weight = gluon.Parameter("weight", shape=(3000,), init=mx.init.Zero(), grad_req="add")
weight.initialize()
trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.5}, kvstore=kv)
for step in range(3):
    with autograd.record():
        loss = (weight.data() * 2).sum()
    loss.backward()
    trainer.step(1)
    mx.nd.waitall()
    print("gradient", weight.grad()[0].asscalar(), "weight", weight.data()[0].asscalar())

embedding = gluon.nn.Embedding(500, 8, sparse_grad=True)
embedding.initialize()
with autograd.record():
    loss = embedding(mx.nd.array([1, 2])).sum()
loss.backward()
kv.init(1, embedding.weight.data())
try:
    kv.push(1, embedding.weight.grad())
except KVStoreError as error:
    print("refused", isinstance(error, mx.MXNetError), error)
"""


def test_an_accumulated_gradient_is_kept_and_a_sparse_one_of_a_dense_parameter_refused():
    """Plain dist_sync overwrites the first with the weight, and the second ends a server."""
    job = run_cluster(KEPT, 2, 1)
    for worker in job.workers:
        lines = [line for line in worker.output.splitlines() if line.startswith("gradient")]
        assert "ignore_stale_grad" not in worker.output, job.logs()
        assert lines == ["gradient 2.0 weight -2.0", "gradient 4.0 weight -6.0", "gradient 6.0 weight -12.0"], job.logs()
        assert "refused True" in worker.output and "is row_sparse, the parameter is dense" in worker.output, job.logs()


HEADS = """
import logging
import mxnet as mx
from mxnet import autograd, gluon
from prophet_mx import ScheduledKVStore

logging.basicConfig(level=logging.INFO)
kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
heads = [gluon.Parameter(name, shape=(shape,), init=mx.init.Zero()) for name, shape in (("a", 3000), ("b", 3))]
for head in heads:
    head.initialize()
trainer = gluon.Trainer(heads, "sgd", {"learning_rate": 0.5}, kvstore=kv)
for step in range(4):
    with autograd.record():
        loss = (heads[step % 2].data() * (1 + step)).sum()
    loss.backward()
    trainer.step(1, ignore_stale_grad=True)
mx.nd.waitall()
print("heads", [sorted(set(head.data().asnumpy().tolist())) for head in heads])
"""


def test_a_parameter_that_an_iteration_does_not_use_gets_its_last_gradient_again_and_the_log_says_so_once():
    """Of two workers: a has 1 + 1 + 3 + 3, b has 0 + 2 + 2 + 4. Plain dist_sync on one CPU device pushes the weight itself."""
    job = run_cluster(HEADS, 2, 1)
    assert all("heads [[-8.0], [-8.0]]" in worker.output for worker in job.workers), job.logs()
    assert job.logs().count("Trainer.step(ignore_stale_grad=True): a parameter that an iteration does not use") == 1, job.logs()


CHANGED_MIND = (
    START
    + """
sizes = {"small": 20, "other": 30, "whole": 800, "sliced": 3000}
kv.init(list(sizes), [ones(0, size) for size in sizes.values()])

def refused(call):
    try:
        call()
    except KVStoreError as error:
        print("refused", isinstance(error, mx.MXNetError), error)

half = {key: mx.nd.ones((size,), dtype="float16") for key, size in sizes.items()}
rows = mx.nd.array([1, 2], dtype="int64")

def wrong():
    for key, size in sizes.items():
        refused(lambda: kv.push(key, half[key]))
        refused(lambda: kv.row_sparse_pull(key, out=mx.nd.sparse.zeros("row_sparse", (size,)), row_ids=rows))
    refused(lambda: kv.push(list(sizes), [*(ones(1, size) for size in [20, 30, 800]), half["sliced"]]))

wrong()
outs = [ones(0, size) for size in sizes.values()]
for step in range(3):
    kv.pushpull(list(sizes), [ones(step, size) for size in sizes.values()], out=outs)
    wrong()
    if step == 1 and "whole" in sys.argv:
        refused(lambda: kv.set_optimizer(mx.optimizer.create("nadam")))
print("right", values(*outs), kv.stats()["failure"])
"""
)


@pytest.mark.parametrize("unit", ["", "whole"])
def test_other_types_rows_of_dense_keys_and_an_order_that_comes_too_late_are_refused(unit):
    """Of all keys, whether they are sliced, share messages or neither. Plain dist_sync refuses the first two as well, on rank 0. Where no
    gradient is sliced, nothing else would refuse an optimizer that needs the order of updates."""
    script = CHANGED_MIND.replace("unit=4000", "policy='priority', unit=100_000") if unit else CHANGED_MIND
    job = run_cluster(script, 2, 1, args=[unit], env={"PROPHET_BANDWIDTH": "1Gbit"}, timeout=30)
    for worker in job.workers:
        assert "right [[4.0], [4.0], [4.0], [4.0]] \n" in worker.output, job.logs()
        assert worker.output.count("refused True key '") == 4 * (4 + 4 + 1), job.logs()
        assert worker.output.count("refused False the result of Nadam depends on the order") == bool(unit), job.logs()


NUMPY = """
import mxnet as mx
import numpy as np
from mxnet import npx
from prophet_mx import KVStoreError, ScheduledKVStore

npx.set_np()
kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
shapes = {"scalar": (), "none": (0, 3), "matrix": (30, 100), "half": (3000,)}
dtypes = {"half": "float16"}

def array(key, value, device=0):
    return mx.np.full(shapes[key], value, dtype=dtypes.get(key, "float32"), ctx=mx.cpu(device))

kv.init(list(shapes), [array(key, 0) for key in shapes])
outs = {key: array(key, 0) for key in shapes}
for step in range(1, 9):
    for key in shapes:
        if step % 2:
            kv.pushpull(key, array(key, step), out=outs[key])
        else:
            kv.push(key, [array(key, step), array(key, 1, 1)])
            kv.pull(key, out=outs[key])
    for key, out in outs.items():
        expected = 2 * step if step % 2 else 2 * (step + 1)
        assert out.shape == shapes[key] and (out.asnumpy() == expected).all(), (key, step, out)
print("right", kv.stats()["units"])

try:
    kv.init("bfloat16", mx.nd.zeros((3,)).astype(np.dtype([("bfloat16", np.uint16)])))
except KVStoreError as error:
    print("refused", error)
"""


def test_arrays_of_mxnets_numpy_interface():
    """Of any shape: also without dimensions, and without elements, which are not scheduled. A type that ends MXNet's servers is refused."""
    job = run_cluster(NUMPY, 2, 1)
    assert all(f"right {8 * 5}" in worker.output for worker in job.workers), job.logs()
    assert all("refused key 'bfloat16': MXNet's servers cannot hold bfloat16" in worker.output for worker in job.workers), job.logs()


CHANGED = (
    START
    + """
sizes = {"sliced": 3000, "small": 20, "other": 30, "statistics": 10}
arrays = {key: ones(1, size) for key, size in sizes.items()}
for key, array in arrays.items():
    kv.broadcast(key, array, array)
for array in arrays.values():
    array *= 7
    array += kv.rank
gradient, total = ones(1, 30), ones(0, 30)
kv.pushpull("other", gradient, out=total)
print("kept", kv.rank, values(*arrays.values()), values(total))
"""
)


@pytest.mark.parametrize("groups", ["auto", "off"])
def test_what_the_first_push_reads_from_servers_changes_no_array_that_a_key_was_initialised_from(groups):
    """Batch normalisation writes into such arrays before the first push, and nobody pulls them later."""
    job = run_cluster(CHANGED, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit", "PROPHET_GROUPS": groups})
    kept = sorted(line for worker in job.workers for line in worker.output.splitlines() if line.startswith("kept"))
    assert kept == [f"kept {rank} {[[7.0 + rank]] * 4} [[2.0]]" for rank in range(2)], job.logs()


TYPES = """
import sys
import mxnet as mx
import numpy as np
from prophet_mx import KVStoreError, ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
sizes = {"small": 20, "other": 30, "sliced": 3000}
sparse = mx.nd.sparse.row_sparse_array(mx.nd.ones((50, 4)))
ones = [mx.nd.ones((size,)) for size in sizes.values()]

def refused(*calls):
    for call in calls:
        try:
            call()
            print("taken")
        except KVStoreError as error:
            print("refused", isinstance(error, mx.MXNetError), error)

def other(kind, shape=(50, 4)):
    return mx.nd.sparse.zeros("row_sparse", shape, dtype=kind)

half, wide = ([mx.nd.zeros((size,), dtype=kind) for size in sizes.values()] for kind in ("float16", "float64"))
kv.init("rows", sparse)
kv.init(list(sizes)[:2], ones[:2])
refused(lambda: kv.broadcast("sliced", ones[2], out=half[2]), lambda: kv.broadcast("sliced", ones[2], out=[ones[2], half[2]]))
kv.init("sliced", ones[2])
rows = mx.nd.array([1, 2], dtype="int64")
out = other("float32")
for step in range(3):
    for key, array in zip(sizes, half):
        kv.pull(key, out=array)
    kv.pull(list(sizes), out=[[a, b] for a, b in zip(half, wide)])
    print("pulled", [sorted({*a.asnumpy().tolist(), *b.asnumpy().tolist()}) for a, b in zip(half, wide)])
    refused(
        lambda: kv.pull("small", out=mx.nd.zeros((21,), dtype="float16")),
        lambda: kv.pull("sliced", out=mx.nd.zeros((300, 10))),
        lambda: kv.pushpull("small", ones[0], out=half[0]),
        lambda: kv.pushpull("sliced", half[2], out=half[2]),
        lambda: kv.row_sparse_pull("rows", out=other("float16"), row_ids=rows),
        lambda: kv.row_sparse_pull("rows", out=other("float32", (51, 4)), row_ids=rows),
        lambda: kv.row_sparse_pull(["rows"], out=[mx.nd.zeros((50, 4))], row_ids=[rows]),
        lambda: kv.push("rows", other("float32", (51, 4))),
        lambda: kv.push("rows", other("float16")),
    )
    kv.row_sparse_pull("rows", out=out, row_ids=rows)
    print("rows", out.data.asnumpy().sum())
    kv.pushpull(list(sizes), [array * (step + 2) for array in ones], out=[mx.nd.zeros((size,)) for size in sizes.values()])
    kv.push("rows", sparse)
mx.nd.waitall()
"""


def test_a_pull_converts_to_another_type_and_what_would_end_the_process_is_refused():
    """Before the first push and after it: MXNet takes what a server sends for values of the array's type, and the process ends. Afterwards
    plain dist_sync converts."""
    job = run_cluster(TYPES, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit"})
    for worker in job.workers:
        lines = worker.output.splitlines()
        assert [line for line in lines if line.startswith("pulled")] == [f"pulled [[{v}], [{v}], [{v}]]" for v in (1.0, 4.0, 6.0)], (
            job.logs()
        )
        assert [line for line in lines if line.startswith("rows")] == ["rows 8.0", "rows 16.0", "rows 16.0"], job.logs()
        assert sum(line.startswith("refused True key") for line in lines) == 2 + 3 * 9 and "taken" not in lines, job.logs()
