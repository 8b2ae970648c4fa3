"""A job of test_bad_input.py: calls a store wrongly in every way, in between trains, and checks that it is as if nothing had been.

usage: bad_input.py KIND WAY FILE       KIND of keys: 'text' or 'number'; WAY: 'wrong', or 'right' for the same without the wrong calls,
                                        or 'plain' for the wrong calls alone, of plain stores. FILE takes what each wrong call raised
"""

import json
import sys
import threading

import mxnet as mx
import numpy as np

from prophet_mx import ConfigError, KVStoreError, ProfileError, ScheduledKVStore

SHAPES = [(40, 30), (7,), (2000,), (3, 5, 4)]
STEPS = 3


class Unpicklable(mx.optimizer.SGD):
    def __reduce__(self):
        raise RuntimeError("not this one")


class Foreign:
    """Has the name of an array's method, and is none."""

    shape, dtype, stype, size = (40, 30), np.float32, "default", 1200


def settings(base):
    """Wrong ways to wrap: the store must be as it was."""
    for settings in (
        {"policy": "fastest"},
        {"window": -1},
        {"bandwidth": float("nan")},
        {"bandwidth": float("inf")},
        {"unit": 0.5},
        {"colour": 1},
        {"warmup": None},
        {"profile": "a\0b"},
        {"profile": 7},
        {"lead": []},
        {"timeline": "/proc/trace.json"},
    ):
        refused(ConfigError, lambda: ScheduledKVStore(base, **settings), settings)
    refused(ProfileError, lambda: ScheduledKVStore(base, profile=__file__), "a foreign profile")
    for store in (None, 5, "dist_sync", mx.nd.zeros(3), object()):
        refused(KVStoreError, lambda: ScheduledKVStore(store), store)
    assert base.handle and base.rank in (0, 1)


def refused(kind, call, what):
    """One wrong call: the error is of this kind, and its message one line. All that the error is an instance of."""
    try:
        call()
    except kind as error:
        assert "\n" not in str(error) and len(str(error)) < 400, (what, error)
        refused.count += 1
        return [f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__]
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: accepted")


refused.count = 0


def transfers(keys):
    """Wrong calls of push, pull and pushpull."""
    good = [mx.nd.ones(shape) for shape in SHAPES]
    first, array = keys[0], good[0]
    foreign = 9 if isinstance(first, str) else "nine"
    bad_keys = [None, True, -1, 2**31, 1.5, "", b"key", {}, object(), foreign, "unknown" if isinstance(first, str) else 999, [], [[first]]]
    bad_values = [
        None,
        5,
        "x",
        np.ones((40, 30)),
        [],
        [None],
        [np.ones((40, 30))],
        mx.nd.ones((40, 31)),
        mx.nd.ones((1200,)),
        mx.nd.ones((30, 40)),
        mx.nd.ones((40, 30), dtype="float64"),
        [array, mx.nd.ones((3,))],
        [array] * 65,
        Foreign(),
        mx.sym.Variable("symbol"),
        [Foreign()],
        [mx.sym.Variable("symbol")],
        mx.nd.ones((40, 30)).tostype("row_sparse"),
    ]
    bad_priorities = [None, "high", 1.5, 2**40, []]
    cases = []
    for key in bad_keys:
        cases += [("key", key, lambda f, key=key: f(key, array))]
    for value in bad_values:
        cases += [
            ("value", value, lambda f, value=value: f(first, value)),
            ("value in a list", value, lambda f, value=value: f(keys, [value, *good[1:]])),
            ("value last in a list", value, lambda f, value=value: f(keys[::-1], [*good[:0:-1], value])),
        ]
    for wrong in (array, good[:2], good + good, None, {}):
        cases += [("lists of different lengths", wrong, lambda f, wrong=wrong: f(keys, wrong))]
    cases += [("keys of both types", foreign, lambda f: f([first, foreign], good[:2]))]
    for priority in bad_priorities:
        cases += [("priority", priority, lambda f, priority=priority: f(first, array, priority=priority))]
    for name in ("push", "pushpull"):
        for what, wrong, make in cases:
            yield (name, what, wrong), lambda store: make(getattr(store, name))
    for value in bad_values[1:]:
        yield ("out", value), lambda store: store.pushpull(first, array, value)
        yield ("out last in a list", value), lambda store: store.pushpull(keys, good, [*good[:-1], value])
    for key in bad_keys:
        yield ("pull", "key", key), lambda store: store.pull(key, array)
    for value in bad_values:
        if isinstance(value, mx.nd.NDArray) and (value.dtype == np.float64 or value.stype != "default"):
            continue  # MXNet converts what it pulls, and pulls nothing into sparse arrays
        yield ("pull", value), lambda store: store.pull(first, value)
    yield ("pull into too few",), lambda store: store.pull(keys, good[:2])
    yield ("priority of a pull",), lambda store: store.pull(first, array, priority="high")


def recycled(store, keys, weights, wrong):
    """Arrays that do not fit, at the addresses of ones that did and are gone."""
    at_known = 0
    for _ in range(50):
        good = mx.nd.zeros(SHAPES[0])
        known = good.handle.value
        store.pushpull(keys[0], good, out=weights[0])
        mx.nd.waitall()
        del good
        if wrong:
            bad = mx.nd.zeros((5, 3), dtype="float64")
            at_known += bad.handle.value == known
            refused(KVStoreError, lambda: store.pushpull(keys[0], bad, out=weights[0]), "an array at a known address")
    assert at_known or not wrong, "no address was used again"


def others(keys):
    """Wrong calls of init, broadcast, set_optimizer, set_gradient_compression."""
    new, foreign = ("new", 9) if isinstance(keys[0], str) else (77, "nine")
    one = mx.nd.ones((3,))
    for key, value in [
        (keys[0], one),
        ([new, new], [one, one]),
        ([new, keys[1]], [one, one]),
        (new, None),
        (new, 3.0),
        (new, np.ones(3)),
        ([new], one),
        ([new], [one, one]),
        ([new, foreign], [one, one]),
        (None, one),
        (b"new", one),
        (2**31, one),
        (-3, one),
        ([], []),
        (foreign, one),
        (new, mx.nd.ones((3,), dtype="int32")),
        (new, mx.nd.amp_cast(one, dtype=np.dtype([("bfloat16", np.uint16)]))),
    ]:
        yield ("init", key, value), lambda store: store.init(key, value)
        yield ("broadcast", key, value), lambda store: store.broadcast(key, value, value)
    yield ("broadcast to another shape",), lambda store: store.broadcast(new, one, mx.nd.ones((4,)))
    for optimizer in (None, "sgd", mx.optimizer.SGD, 5, Unpicklable()):
        yield ("set_optimizer", optimizer), lambda store: store.set_optimizer(optimizer)
    for parts in (threading.Lock(), lambda: None, type("Local", (), {})()):
        optimizer = mx.optimizer.SGD()
        optimizer.parts = parts
        yield ("set_optimizer", "pickle", parts), lambda store: store.set_optimizer(optimizer)
    for compression in (
        None,
        "2bit",
        {},
        {"type": "3bit"},
        {"type": "2bit", "threshold": 0},
        {"type": "2bit", "threshold": float("nan")},
        {"type": "2bit", "threshold": "x"},
        {"type": "2bit", "colour": 1},
    ):
        yield ("compression", compression), lambda store: store.set_gradient_compression(compression)


def wrong_calls(keys):
    """What is wrong, and the call to make on a store; the same ones in the same order for every store."""
    yield from transfers(keys)
    yield from others(keys)


def raised(store, call):
    """What a plain store raises for a call, at once or when it is carried out; '' if nothing."""
    try:
        call(store)
        mx.nd.waitall()
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}"
    return ""


def unsafe(keys, what):
    """Whether a plain dist_sync store would be no more after this call."""
    if what[0] == "set_optimizer":
        return what[1] != "pickle"  # the servers end
    array = what[2] if len(what) == 3 and isinstance(what[2], mx.nd.NDArray) else None
    if array is not None and (
        what[0] == "push" and array.stype != "default" or what[0] in ("init", "broadcast") and array.dtype != np.float32
    ):
        return True  # the servers end
    if isinstance(keys[0], int) and len(what) == 3 and what[1] == "key":
        return what[2] in (True, -1, 999)  # it is sent, and a server that does not know the key ends
    return any(isinstance(wrong, list) and len(wrong) == 65 for wrong in what) or what == ("compression", {"type": "2bit", "colour": 1})


def plain(keys, good):
    """What plain stores raise for each wrong call, a local one and one of dist_sync."""
    dist = mx.kv.create("dist_sync")
    dist.init(keys, good)
    found = []
    for what, call in wrong_calls(keys):
        local = mx.kv.create("local")
        local.init(keys, good)
        kinds = {"" if any(isinstance(wrong, list) and len(wrong) == 65 for wrong in what) else raised(local, call)}
        if not unsafe(keys, what):
            dist.push(keys, good)  # as if no wrong call had been before: MXNet keeps the array of a push that it refused
            kinds.add(raised(dist, call))
        found.append((repr(what), sorted(kinds - {""})))
    return found


def train(store, keys, weights, rng):
    for _ in range(STEPS):
        for i in reversed(range(len(keys))):
            store.pushpull(keys[i], mx.nd.array(rng.normal(size=SHAPES[i])), out=weights[i], priority=-i)
        mx.nd.waitall()


def main():
    kind, way, path = sys.argv[1:]
    keys = [f"w{i}" if kind == "text" else 10 + i for i in range(len(SHAPES))]
    weights = [mx.nd.array(np.random.RandomState(i).normal(size=shape)) for i, shape in enumerate(SHAPES)]
    if way == "plain":
        with open(path, "w") as file:
            json.dump(plain(keys, weights), file)
        return
    wrong = way == "wrong"
    base = mx.kv.create("dist_sync")
    if wrong:
        settings(base)
    store = ScheduledKVStore(base, unit=1000)
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
    store.init(keys, weights)
    rng = np.random.RandomState(1 + store.rank)
    kinds = []
    for _ in range(2):  # before the layout is fixed, and with slices
        if wrong:
            kinds.append([refused(KVStoreError, lambda: call(store), what) for what, call in wrong_calls(keys)])
        train(store, keys, weights, rng)
    recycled(store, keys, weights, wrong)
    digest = [float(np.frombuffer(weight.asnumpy().tobytes(), dtype=np.uint32).astype(np.uint64).sum()) for weight in weights]
    state = store.stats()
    with open(f"{path}{store.rank}", "w") as file:
        json.dump(kinds, file)
    print("refused", refused.count, flush=True)
    print("result", digest, state["units"], state["bytes"], flush=True)


if __name__ == "__main__":
    main()
