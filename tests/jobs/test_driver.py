"""The compiled driver on MXNet's engine: it refuses wrong arguments, grows, asks the kernel no more than it must, knows what has left."""

import signal

from support.cluster import run_cluster
from support.commands import python, run

WRONG = [
    '_core.Driver("nonsense", 1)',
    "_core.Driver(None, 1)",
    '_core.Driver("prophet", 0)',
    '_core.Driver("prophet", 1, -1)',
    '_core.Driver("fifo", 1, 0, 0, float("nan"))',
    '_core.Driver("fifo", None)',
    '_core.Driver("fifo")',
    '_core.Driver("fifo", 2**31 - 1)',
    '_core.Scheduler("nonsense", 1)',
    "_core.Recorder(0, 0)",
    "_core.Recorder(1, 0, -1)",
    '_core.Driver("fifo", 1).unit_facts(None)',
    '_core.Driver("fifo", 1).drain_timeline(None, [])',
    '_core.Driver("fifo", 1).record_timeline(_core.Recorder(2, 0))',
    '_core.Driver("fifo", 1).add_unit(10, 1, 0, 0, 0)',
    '_core.Driver("fifo", 1).use_tcp([])',
    '_core.Driver("fifo", 1).use_tcp([0])',
    '_core.Driver("fifo", 1).set_places([(0, 0, 0)])',
    "_core.Parameter(None, 0, 0, [])",
    '_core.Parameter(_core.Driver("fifo", 1), 0, 0, [])',
    "_core.Arrival(0)",
]

REFUSED = """
import sys
from prophet_mx import _core
for wrong in sys.argv[1:]:
    try:
        eval(wrong)
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError) as error:
        print("refused", wrong, error, flush=True)
"""

DRIVEN = """
import sys, socket, time
import mxnet as mx
from prophet_mx import _core
from prophet_mx.mxnet.api import bind

def make(links, count):
    '''A driver with its units, each a key of a local store, in which nobody has to answer.'''
    bind()
    driver, store = _core.Driver("fifo", links, 10**9, 10**9, 1e9), mx.kv.create("local")
    layers = []
    for key in range(count):
        value, buffer = mx.nd.zeros((4,)), mx.nd.zeros((4,))
        store.init(key, value)
        unit = driver.add_unit(16, key % links, key, key, key)
        layers.append((value, buffer, _core.Parameter(driver, store.handle.value, buffer.handle.value,
                                                      [(unit, buffer.handle.value, key)])))
    mx.nd.waitall()
    return driver, store, layers

def push(layers, iteration):
    for key, (value, _, native) in enumerate(layers):
        gradient = mx.nd.full((4,), key + iteration)
        native.pushpull(gradient.handle.value, value.handle.value, iteration, 0)
    mx.nd.waitall()
    assert all((value.asnumpy() == key + iteration).all() for key, (value, _, _) in enumerate(layers))

driver, store, layers = make(int(sys.argv[1]), int(sys.argv[2]))
driver.start()
"""

GROWS = (
    DRIVEN
    + """
for iteration in range(3):
    push(layers, iteration)
assert driver.snapshot()["units"] == 3 * len(layers)
driver.stop()
mx.nd.waitall()
"""
)

# The connections carry nothing, so that a unit is in flight until it is answered. The engine begins with the units when all are pushed: all
# become ready before the first is sent, and every link then has something to ask for.
SAMPLES = (
    DRIVEN
    + """
listening = socket.create_server(("127.0.0.1", 0), backlog=64)
ends = [socket.create_connection(listening.getsockname()) for _ in range(int(sys.argv[1]))]
driver.use_tcp([end.fileno() for end in ends])
square = mx.nd.ones((2000, 2000))
mx.nd.waitall()
mx.nd.dot(square, square)
push(layers, 0)
driver.stop()
mx.nd.waitall()
"""
)

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
static long asked;
int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
    int (*real)(int, int, int, void*, socklen_t*) = dlsym(RTLD_NEXT, "getsockopt");
    if (level == 6 && name == TCP_INFO) __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
    return real(fd, level, name, value, length);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "TCP_INFO %ld\n", asked); }
"""


def test_wrong_arguments_are_refused():
    refused = python("-c", REFUSED, *WRONG, expect=0).stdout.splitlines()
    assert [line.split(maxsplit=1)[1].startswith(wrong) for line, wrong in zip(refused, WRONG)] == [True] * len(WRONG), refused


def test_a_driver_grows_with_its_units():
    python("-c", GROWS, 2, 1000, expect=0)


COLLECTED = """
import gc
from prophet_mx import _core

for policy in ("prophet", "fifo"):
    driver = _core.Driver(policy, 2)
    driver.start()
    driver.record_timeline(_core.Recorder(2, 0))
    holder = {"driver": driver}
    holder["holder"] = holder
    del driver, holder
    gc.collect()
"""


def test_the_garbage_collector_may_end_a_driver():
    """One that something in a cycle refers to, as a gluon Trainer is. Its destructor still needs the scheduler and the recorder."""
    python("-c", COLLECTED, expect=0)


def test_a_connection_is_asked_only_when_something_happens_on_it(tmp_path):
    """Each unit has two events, on one of 32 links; each could be asked at each of them."""
    source, library = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER)
    run("cc", "-shared", "-fPIC", "-o", library, source, "-ldl", expect=0)
    links, units = 32, 2000
    result = python("-c", SAMPLES, links, units, env={"LD_PRELOAD": str(library)}, expect=0)
    asked = [int(line.split()[1]) for line in result.stderr.splitlines() if line.startswith("TCP_INFO")]
    assert len(asked) == 1 and 0 < asked[0] <= 2 * units + 2 * links, result.stderr


BUSY = """
import time
import mxnet as mx
from prophet_mx import _core, ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), window=1, lead=10**9, unit=4000000, groups="off")
keys, shape = list(range(4)), (30000,)
outs = [mx.nd.zeros(shape) for _ in keys]
kv.init(keys, outs)
grads = [mx.nd.ones(shape) for _ in keys]

def push():
    for key in keys:
        kv.pushpull(key, grads[key], out=outs[key], priority=-key)

for _ in range(3):
    push()
    mx.nd.waitall()

def seconds():
    began = time.monotonic()
    mx.nd.dot(square, square).wait_to_read()
    return time.monotonic() - began

one, size = 1, 1600
while one > 0.06:                           # well below the 0.1 s after which a unit must have been released, behind the first product
    size = size * 9 // 10
    square = mx.nd.ones((size, size))
    one = min(seconds() for _ in range(3))  # the very first product takes longer
count = int(0.4 / one) + 2
for attempt in range(20):
    before, began = kv.stats()["units"], time.monotonic()
    # The engine runs the products one after another. While it is busy with the first, everything is pushed: so every send comes after them.
    first = mx.nd.dot(square, square)
    push()
    products = [mx.nd.dot(square, square) for _ in range(count)]
    first, last = _core.Arrival(first.handle.value), _core.Arrival(products[-1].handle.value)
    in_time = not first
    time.sleep(0.1)
    released = kv.stats()["units"] - before
    shown = in_time and released and not last and time.monotonic() - began < 0.4        # else the machine was too busy to show anything
    mx.nd.waitall()
    assert kv.stats()["units"] - before == len(keys)
    if shown:
        break
assert shown
assert all((out == 1).asnumpy().all() for out in outs)
print("released", released, flush=True)
"""


def test_a_send_that_waits_behind_the_programs_operators_has_not_left():
    """The window lets one unit out at a time. The first is released at once, whatever the engine does, but waits there to be sent."""
    result = run_cluster(BUSY, 1, 1, timeout=60)
    assert [line for line in result.workers[0].output.splitlines() if line.startswith("released")] == ["released 1"], result.logs()


# The op is run by MXNet, where it would catch the exception, but what completes it is a function of C++ that raises one.
RAISES = """
import ctypes
import mxnet as mx
from prophet_mx import _core
from prophet_mx.mxnet import api

api.bind()
library, raises = mx.base._LIB, ctypes.CDLL("libstdc++.so.6")._ZSt17__throw_bad_allocv
OP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
PUSH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                        ctypes.c_char_p, ctypes.c_bool)
complete = (ctypes.c_void_p * 3)(ctypes.cast(raises, ctypes.c_void_p).value)

@PUSH
def push(op, param, deleter, context, reads, n_reads, writes, n_writes, kind, priority, name, wait):
    run = OP(lambda run_context, on_complete, none: OP(op)(run_context, ctypes.addressof(complete), param))
    return library.MXEnginePushAsync(run, None, None, ctypes.c_void_p(context), None, 0, None, 0, ctypes.c_void_p(kind), 0, name, True)

addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _core.MXNET_FUNCTIONS}
addresses["MXEnginePushAsyncND"] = ctypes.cast(push, ctypes.c_void_p).value
_core.load_mxnet(addresses, mx.base.MXNetError, 0)
_core.Arrival(mx.nd.zeros((1,)).handle.value)
"""


def test_an_exception_of_mxnet_in_the_completion_of_an_operation_ends_the_process_with_a_word():
    """It would go past locks that are held, and the next thread that wants one would wait forever."""
    done = python("-c", RAISES, expect=-signal.SIGABRT)
    assert "prophet_mx: MXNet failed to complete an operation" in done.stderr, done.stderr
