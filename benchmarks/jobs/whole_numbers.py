"""Training whose result is known exactly: gradients are small whole numbers, and SGD halves, so that float32 holds every value on the way.

Used by starts.py beside it, which trains so, and by benchmarks/starts.py, which knows what must come out.
"""

import numpy as np

SHAPES = [(64, 3, 3, 3), (64,), (128, 300), (128,), (300, 200), (17,), (5, 7, 3), (20000,), (1,), (100, 10)]
ITERATIONS = 12


def gradient(iteration, rank, index):
    """Whole numbers from -4 to 3, of another pattern in each iteration, on each worker and for each array."""
    elements = np.arange(np.prod(SHAPES[index]))
    return ((elements * (1 + iteration % 3) + 3 * iteration + 5 * rank + index) % 8 - 4).astype(np.float32).reshape(SHAPES[index])


def initial():
    """The weights before the first iteration."""
    return [np.full(shape, index, np.float32) for index, shape in enumerate(SHAPES)]


def expected(iterations, workers):
    """The weights and the momentum after so many iterations of SGD with learning rate and momentum 0.5, for each array.

    All are multiples of 2**-iterations below 256: nothing is rounded up to 15 iterations, in whatever order it is added up.
    """
    weights, momenta = initial(), [np.zeros(shape, np.float32) for shape in SHAPES]
    for iteration in range(iterations):
        for index, momentum in enumerate(momenta):
            total = sum(gradient(iteration, rank, index) for rank in range(workers))
            momentum[:] = (momentum - total) / 2
            weights[index] += momentum
    return weights, momenta
