"""A job of test_timeline.py: pushes the same gradients again and again.

usage: timeline.py FOLDER LAYERS ELEMENTS ITERATIONS [ENDING]

ENDING is 'plain'; 'kill' (rank 0 kills itself a second later, while gradients are on their way); 'interrupt' (rank 0 sends Ctrl-C's
signal to the launcher then); 'switch' (start and stop at run time, twice); 'waiting' (start on rank 0 while its units wait for the other
worker); 'steps' (the second half of the gradients comes 60 ms after the first); 'numbers' (keys are numbers, whose names an optimizer
tells); 'full' (no file may grow over 64 kB). Prints what the test looks at.
"""

import os
import resource
import signal
import sys
import threading
import time

import mxnet as mx

from prophet_mx import ScheduledKVStore


def threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name == "prophet_mx-timeline")


def main():
    folder, layers, elements, iterations = sys.argv[1], *map(int, sys.argv[2:5])
    ending = sys.argv[5] if len(sys.argv) > 5 else "plain"
    if ending == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    store = ScheduledKVStore(mx.kv.create("dist_sync"))
    names = list(range(layers)) if ending == "numbers" else [f"layer{key}" for key in range(layers)]
    for key in names:
        store.init(key, mx.nd.zeros((elements,)))
    if ending == "numbers":
        store.set_optimizer(mx.optimizer.create("sgd", param_idx2name={key: f"conv{key}_weight" for key in names}))
    grads = [mx.nd.ones((elements,)) * (key + 1) for key in range(layers)]
    outs = [mx.nd.zeros((elements,)) for _ in range(layers)]

    def iterate(count):
        for _ in range(count):
            for key in reversed(range(layers)):
                if ending == "steps" and key == layers // 2 - 1:
                    time.sleep(0.06)
                store.pushpull(names[key], grads[key], out=outs[key], priority=-key)
            mx.nd.waitall()

    def state(word):
        files = [name for name in os.listdir(folder) if name.endswith(f"{store.rank}.json")]
        print(word, "threads", threads(), "files", files, flush=True)

    iterate(iterations)
    state("before")
    if ending == "switch":
        for number in range(2):
            path = store.timeline_start(os.path.join(folder, f"part{number}.{{rank}}.json"))
            state("on")
            iterate(3)
            # Also as older callers do it: the value comes with a pull of its own.
            for key in reversed(range(layers)):
                store.push(f"layer{key}", grads[key], priority=-key)
                store.pull(f"layer{key}", outs[key], priority=-key)
            mx.nd.waitall()
            assert store.timeline_stop() == path
            state("off")
            iterate(2)
    if ending == "waiting":
        if store.rank:
            time.sleep(0.8)
        for key in reversed(range(layers)):
            store.pushpull(names[key], grads[key], out=outs[key], priority=-key)
        if store.rank == 0:
            time.sleep(0.005)  # before the scheduler's patience ends
            store.timeline_start(os.path.join(folder, "waiting.{rank}.json"))
        mx.nd.waitall()
        iterate(2)
        if store.rank == 0:
            store.timeline_stop()
    if ending in ("kill", "interrupt"):
        if store.rank == 0:
            target = (os.getpid(), signal.SIGKILL) if ending == "kill" else (os.getppid(), signal.SIGINT)
            threading.Timer(1, os.kill, target).start()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            iterate(1)
    stats = store.stats()
    counted = [stats.get(name) for name in ("blocks", "block_units", "block_bytes")]
    print("blocks of rank", store.rank, *counted, flush=True)
    # With 'numbers' the servers update weights, so that values are no sums.
    assert ending == "numbers" or all((out.asnumpy() == 2 * (key + 1)).all() for key, out in enumerate(outs)), "wrong values"
    print("the last line was reached", flush=True)


if __name__ == "__main__":
    main()
