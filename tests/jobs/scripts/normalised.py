"""An optimizer that is not MXNet's own, for test_optimizers.py: in a module that the servers can import."""

import mxnet as mx


@mx.optimizer.Optimizer.register
class Normalised(mx.optimizer.Optimizer):
    """Subtracts the gradient divided by its norm: on a slice of the gradient, the norm would be another."""

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        weight[:] -= grad / grad.norm()
