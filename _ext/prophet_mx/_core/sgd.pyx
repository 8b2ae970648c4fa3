"""SGD on a server, in one pass over an array, with the bits of MXNet's operator (optimizer_op-inl.h, MultiSGDKernel)."""
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    // The order of these operations decides the bits, and none may be joined to another (-ffp-contract=off).
    __attribute__((optimize("O3")))
    static void prophet_sgd(float* restrict weight, float* restrict velocity, const float* restrict gradient, int64_t count, float decay,
                            float rate, float momentum) {
        if (velocity == NULL) {
            for (int64_t i = 0; i < count; i++)
                weight[i] = weight[i] + (momentum * 0.0f - decay * weight[i] - rate * gradient[i]);
            return;
        }
        for (int64_t i = 0; i < count; i++) {
            velocity[i] = momentum * velocity[i] - decay * weight[i] - rate * gradient[i];
            weight[i] = weight[i] + velocity[i];
        }
    }
    """
    void prophet_sgd(float* weight, float* velocity, const float* gradient, int64_t count, float decay, float rate, float momentum) nogil


def sgd(size_t weight, size_t velocity, size_t gradient, int64_t count, float decay, float rate, float momentum) -> None:
    """One update of ``count`` float32 at these addresses, which do not overlap.

    velocity = momentum * velocity - decay * weight - rate * gradient, and weight += velocity. Without a ``velocity`` (0) none is kept.
    """
    with nogil:
        prophet_sgd(<float*>weight, <float*>velocity, <const float*>gradient, count, decay, rate, momentum)
