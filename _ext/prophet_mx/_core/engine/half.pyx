"""A unit that travels in 16 bits: what its ops do beside those of any other.

Before its gate is told to the scheduler, the unit's gradient is squeezed onto the *wire* array, which is what the store sends; what 16 bits
do not hold of it is *lost* for now, and added to the next gradient. When the answer is there, it is widened into the unit's own array. With
an optimizer on the servers, an answer is the change since the last one: all workers add it to what they *held*, and so have the same bits
as the server's copy. Without one, it is the sum of all workers' gradients.

The wire array's variable on the engine guards all of this: gate, request and done follow one another by it.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from .halves cimport prophet_follow, prophet_squeeze, prophet_widen


cdef class Half:
    """The native side of one such unit.

    Contract: the driver keeps all that were made, so that ops may refer to them. Nothing on the engine uses the arrays when one is made.
    Whoever makes one keeps the arrays alive.

    Parameters
    ----------
    driver : the engine driver
    wire : handle of an array of 16 bits in host memory
    own : handle of the unit's array of 32 bits, of as many elements, in host memory
    changes : whether answers are changes of what is in ``own`` now; else they are sums
    limit : the largest number that is sent (65504 at most)
    """
    cdef:
        void* array                 # NDArray handle of the wire
        uint16_t* wire
        float* own
        float* lost
        float* held                 # NULL: answers are sums
        int64_t elements
        float limit
        bint sent                   # the gate was not skipped, and nor was the request

    def __cinit__(self, Driver driver not None, size_t wire, size_t own, int64_t elements, bint changes, float limit):
        cdef void* data
        need_mxnet()
        self.elements = elements
        self.limit = limit
        self.array = <void*>wire
        mx_check(MX.array_data(<void*>wire, &data))
        self.wire = <uint16_t*>data
        mx_check(MX.array_data(<void*>own, &data))
        self.own = <float*>data
        self.lost = <float*>calloc(max(1, elements), sizeof(float))
        if self.lost == NULL:
            raise MemoryError()
        if changes:
            self.held = <float*>malloc(max(1, elements) * sizeof(float))
            if self.held == NULL:
                raise MemoryError()
            memcpy(self.held, self.own, elements * sizeof(float))
        driver.halves.append(self)

    def __dealloc__(self):
        free(self.lost)
        free(self.held)

    cdef int64_t squeeze(self) noexcept nogil:
        """The unit's gradient onto the wire. Returns how many numbers were beyond the limit."""
        self.sent = True
        return prophet_squeeze(self.own, self.lost, self.wire, self.elements, self.limit)

    cdef void widen(self) noexcept nogil:
        """The answer into the unit's array."""
        if not self.sent:
            return
        self.sent = False
        if self.held == NULL:
            prophet_widen(self.wire, self.own, self.elements)
        else:
            prophet_follow(self.wire, self.held, self.own, self.elements)

    cdef void show(self) noexcept nogil:
        """The value of the last answer into the unit's array once more."""
        if self.held == NULL:
            prophet_widen(self.wire, self.own, self.elements)
        else:
            memcpy(self.own, self.held, self.elements * sizeof(float))


cdef int push_half_gate(EngineContext* context, Driver driver, int unit, int64_t iteration, Half half, void* gradient) except -1:
    """As push_gate(): it reads the array that has the gradient, and writes the wire."""
    cdef Request* request = new_request(driver, unit, 1, iteration)
    request.half = <void*>half
    return push_skippable(half_gate_op, request, free, context, &gradient, 1, &half.array, 1, b"prophet_gate")


cdef void half_gate_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Request* request = <Request*>param
    cdef int64_t beyond = (<Half>request.half).squeeze()
    if beyond:
        (<Driver>request.driver).note_saturated(beyond)
    (<Driver>request.driver).on_gate(request.first, request.iteration, <OnComplete*>on_complete)


cdef int push_half_done(EngineContext* context, Driver driver, int unit, Half half, void* own) except -1:
    """As push_done(), and the answer is widened into the unit's array."""
    cdef Request* request = new_request(driver, unit, 1, 0)
    request.half = <void*>half
    return push(half_done_op, request, context, &half.array, 1, &own, 1, b"prophet_done")


cdef void half_done_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Request* request = <Request*>param
    (<Driver>request.driver).on_answer(request.first)
    (<Half>request.half).widen()
    free(request)
    complete(on_complete)


cdef int push_show(Half half, void* own) except -1:
    """The value of the last answer is in the unit's array, whatever was done to that since."""
    return push(show_op, <void*>half, &OWN_CONTEXT, &half.array, 1, &own, 1, b"prophet_show")


cdef void show_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    (<Half>param).show()
    complete(on_complete)
