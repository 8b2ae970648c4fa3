"""An optimizer whose updates fail in the end, for test_failing_optimizers.py: in a module that the servers can import."""

import mxnet as mx


@mx.optimizer.Optimizer.register
class Failing(mx.optimizer.SGD):
    """Fails after so many updates."""

    def __init__(self, after=0, **settings):
        super().__init__(**settings)
        self.after = after

    def update(self, index, weight, grad, state):
        self.after -= 1
        if self.after < 0:
            raise ZeroDivisionError("no more of these")
        super().update(index, weight, grad, state)

    update_multi_precision = update
