"""Gates, requests and answers on MXNet's own engine with its own threads, in one process: to be run on a build with sanitizers.

usage: engine.py ITERATIONS

The driver and the parameters' data path are those that ship. The store is MXNet's 'local' one, which needs no other process; what comes
back is checked.
"""

import sys

import mxnet as mx

from prophet_mx import _core
from prophet_mx.mxnet.api import bind
from prophet_mx.mxnet.parameters import alias

SHAPES = [(1,), (300,), (7,), (2500,), (64,), (1000,)]


class Layer:
    """One parameter, whole or in slices, with its own keys; three slices are copied in two chunks."""

    def __init__(self, driver, store, index, shape, slices):
        self.gradient, self.value = mx.nd.zeros(shape), mx.nd.zeros(shape)
        self.buffer = mx.nd.zeros(shape)
        self.steps = mx.nd.arange(shape[0])
        self.buffer.wait_to_read()
        size = shape[0]
        cuts = [(size * i // slices, size * (i + 1) // slices) for i in range(slices)]
        arrays = [self.buffer] if slices == 1 else [alias(self.buffer[start:stop]) for start, stop in cuts]
        keys = [100 * index + part for part in range(slices)]
        for key, array in zip(keys, arrays):
            store.init(key, mx.nd.zeros(array.shape))
        units = [
            driver.add_unit(4 * array.size, part % 2, index, 100 * index + part, 100 * index + part) for part, array in enumerate(arrays)
        ]
        self.arrays = arrays
        self.chunk = alias(self.buffer[: cuts[1][1]]) if slices == 3 else None
        chunks = [(self.chunk, 2, 0, cuts[1][1]), (arrays[2], 1, *cuts[2])] if slices == 3 else []
        self.native = _core.Parameter(
            driver,
            store.handle.value,
            self.buffer.handle.value,
            [(unit, array.handle.value, key) for unit, array, key in zip(units, arrays, keys)],
            [(array.handle.value, *where) for array, *where in chunks],
        )


def main():
    iterations = int(sys.argv[1])
    bind()
    for policy, window, lead in (("prophet", 0, 0), ("priority", 1, 1), ("fifo", 500, 2000)):
        driver = _core.Driver(policy, 2, window, lead, 1e8)
        driver.start()
        driver.use_predicted()
        store = mx.kv.create("local")
        layers = [Layer(driver, store, index, shape, 1 + index % 3 if shape[0] > 2 else 1) for index, shape in enumerate(SHAPES)]
        for iteration in range(iterations):
            _core.cpu_arrays_are_plain(iteration % 4 < 2)
            for place, layer in reversed(list(enumerate(layers))):
                layer.gradient[:] = iteration + place + layer.steps
                layer.native.pushpull(layer.gradient.handle.value, layer.value.handle.value, iteration, -place)
            if iteration % 5 == 4:
                driver.snapshot()
                driver.take_events()
                driver.set_steps([1, 1, 1, 0, 0, 0], [0.0, 0.001])
                for place, layer in enumerate(layers):
                    values = layer.value.asnumpy()
                    assert (values == iteration + place + layer.steps.asnumpy()).all(), (policy, iteration, place, values)
        if iterations % 2:
            mx.nd.waitall()
        driver.stop()  # with an even number, in the middle of things
        mx.nd.waitall()
        assert driver.snapshot()["units"] == iterations * sum(len(layer.arrays) for layer in layers), driver.snapshot()
    print(f"engine: {iterations} iterations of 3 policies with {_core.__file__}", flush=True)


if __name__ == "__main__":
    main()
