"""A worker of a job that is recorded: that of the testbed, which also tells when values come back.

Run as ``python -m benchmarks.pictures.watched TASK RESULT``, see benchmarks/testbed/emulated.py. The result has one more entry,
``arrivals``: each an iteration, a gradient, and when its values were in the worker's array, on the monotonic clock.

An arrival is an operation on MXNet's engine that only reads the weight. MXNet runs it when the request that writes the weight has ended.
"""

import json
import sys
from typing import Any, Dict, List, Mapping, Tuple, Union

from ..testbed import emulated

TAGS = 4096  # for the gradients of one iteration


class Watch:
    """Takes the place of the worker's updates, and watches them."""

    def __init__(self) -> None:
        self._iteration = 0
        self._probe: Any = None
        self._places: List[Any] = []
        self._update = emulated._update

    def update(self, kv: Any, pushpull: bool, keys: Mapping[int, Union[int, str]], model: Any) -> None:
        """As the worker's own."""
        if self._probe is None:
            self._begin(len(model.weights))
        self._update(kv, pushpull, keys, model)
        for index in keys:
            self._probe.op([model.weights[index]], [self._places[index]], 0.0, tag=self._iteration * TAGS + index)
        self._iteration += 1

    def _begin(self, gradients: int) -> None:
        import mxnet as mx

        from ..testbed.accelerator import Accelerator

        self._probe = Accelerator()
        self._places = [self._probe.keep(mx.nd.zeros((1,))) for _ in range(gradients)]

    def arrivals(self) -> List[Tuple[int, int, float]]:
        """What was seen. Nothing is, from now on."""
        found = [(tag // TAGS, tag % TAGS, end) for tag, _, end in self._probe.take_trace()]
        self._probe.close()
        return found


def train(task: emulated.Task) -> Dict[str, Any]:
    """Run this worker and return its result."""
    watch = Watch()
    emulated._update = watch.update  # which the worker calls once per iteration
    result = emulated.train(task)
    return {**result, "arrivals": watch.arrivals()}


if __name__ == "__main__":
    RESULT = train(emulated.Task.load(sys.argv[1]))
    with open(sys.argv[2], "w") as output:
        json.dump(RESULT, output)
