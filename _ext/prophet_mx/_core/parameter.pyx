"""One scheduled parameter: the engine ops of its data path, pushed by the caller's thread.

  pack    the caller's gradient -> buffer           MXNet's whole-array copy, so any device and any internal layout is safe
  gate    per unit: told to the scheduler, completes on release
  send    per unit: the wrapped store's own request
  done    per unit: the request was answered
  unpack  buffer -> the caller's array              again MXNet's copy

Nothing here waits: every call returns once its ops are on the engine, which orders them by the arrays they name.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from .driver cimport Driver
from .mxapi cimport DEFAULT_STORAGE, MX, EngineContext, copy_array, mx_check, need_mxnet
from .ops cimport OWN_CONTEXT, SHARED_CONTEXT, push_done, push_gate, push_join, push_landed

ctypedef const char* cstr

cpdef enum:
    MAX_OUTS = 64                   # devices of one worker
    SMALL_UNIT = 16384              # bytes: the ops of a smaller unit stay in cpu(0)'s thread

cdef struct Part:
    int unit
    void* array                     # NDArray handle of the unit's bytes: the buffer itself for a whole parameter
    int int_key
    const char* str_key


cdef class Parameter:
    """The data path of one parameter.

    Parameters
    ----------
    driver : the engine driver
    store : handle of the wrapped KVStore
    buffer : handle of the worker's own array for this parameter
    parts : a list of (unit index, array handle, key); keys are all str or all int
    """
    cdef:
        Driver driver
        void* store
        void* buffer
        Part* parts
        int n_parts
        int dimensions, type        # of the buffer: what an array of this parameter must have
        int64_t* shape
        bint str_keys, sliced
        EngineContext* context      # of the ops of its units
        list key_bytes              # keeps the C strings alive

    def __cinit__(self, Driver driver not None, size_t store, size_t buffer, list parts not None):
        need_mxnet()
        self.driver = driver
        self.store = <void*>store
        self.buffer = <void*>buffer
        self.n_parts = len(parts)
        self.key_bytes = []
        self.parts = <Part*>calloc(self.n_parts, sizeof(Part))
        if self.parts == NULL:
            raise MemoryError()
        for i, (unit, array, key) in enumerate(parts):
            driver.scheduler.need_unit(unit)
            self.parts[i].unit = unit
            self.parts[i].array = <void*><size_t>array
            self.str_keys = isinstance(key, str)
            if self.str_keys:
                self.key_bytes.append(key.encode("utf-8"))
                self.parts[i].str_key = <const char*>self.key_bytes[i]
            else:
                self.parts[i].int_key = key
        self.sliced = self.n_parts > 1
        self.context = &SHARED_CONTEXT
        if self.n_parts > 0 and driver.scheduler.units[self.parts[0].unit].bytes >= SMALL_UNIT:
            self.context = &OWN_CONTEXT
        self.read_buffer()

    cdef int read_buffer(self) except -1:
        cdef const int64_t* shape
        mx_check(MX.array_type(self.buffer, &self.type))
        mx_check(MX.array_shape(self.buffer, &self.dimensions, &shape))
        self.shape = <int64_t*>malloc(max(1, self.dimensions) * sizeof(int64_t))
        if self.shape == NULL:
            raise MemoryError()
        memcpy(self.shape, shape, self.dimensions * sizeof(int64_t))
        return 0

    def __dealloc__(self):
        free(self.parts)
        free(self.shape)

    def fits(self, size_t array) -> bool:
        """Whether an array is dense and of the buffer's shape and type. Asked for every array of every call: nothing can be remembered of
        an array by its handle, which the next one may get when it is freed."""
        cdef:
            int storage, type, dimensions
            const int64_t* shape
        mx_check(MX.array_storage(<void*>array, &storage))
        mx_check(MX.array_type(<void*>array, &type))
        mx_check(MX.array_shape(<void*>array, &dimensions, &shape))
        return (storage == DEFAULT_STORAGE and type == self.type and dimensions == self.dimensions
                and memcmp(shape, self.shape, dimensions * sizeof(int64_t)) == 0)

    def pushpull(self, size_t source, size_t target, int64_t iteration, int priority) -> None:
        """pack, send, unpack for one gradient array and one array to receive the value."""
        cdef void* out = <void*>target
        mx_check(copy_array(<void*>source, self.buffer))
        self.send_and_receive(iteration, priority, &out, 1)

    def pack(self, size_t source) -> None:
        """Copy a gradient into the buffer."""
        mx_check(copy_array(<void*>source, self.buffer))

    def push(self, int64_t iteration, int priority) -> None:
        """Send the packed buffer; nothing is received."""
        self.send(iteration, priority, NULL, 0)

    def pushpull_packed(self, list targets, int64_t iteration, int priority) -> None:
        """Send the packed buffer and receive the value in several arrays."""
        if len(targets) > MAX_OUTS:         # now: the gates of what is not sent would be held for ever
            raise ValueError(f"{len(targets)} devices: at most {MAX_OUTS} are handled")
        cdef void** outs = <void**>malloc(len(targets) * sizeof(void*))
        if outs == NULL:
            raise MemoryError()
        try:
            for i, target in enumerate(targets):
                outs[i] = <void*><size_t>target
            self.send_and_receive(iteration, priority, outs, len(targets))
        finally:
            free(outs)

    def unpack(self, size_t target) -> None:
        """Copy the buffer, once all its slices are here, into a caller's array."""
        mx_check(copy_array(self.buffer, <void*>target))

    cdef int send_and_receive(self, int64_t iteration, int priority, void** outs, int n_outs) except -1:
        cdef int i
        if not self.sliced:
            # The store itself copies what it received to the arrays that are to have it.
            self.send(iteration, priority, outs, n_outs)
        else:
            self.send(iteration, priority, &self.buffer, 1)
            for i in range(n_outs):
                mx_check(copy_array(self.buffer, outs[i]))
        if self.driver.recorder is not None:
            self.landed(iteration, outs, n_outs)
        return 0

    cdef int send(self, int64_t iteration, int priority, void** outs, int n_outs) except -1:
        """Gate, request and done of every unit. With `outs` the reply brings the value: to these arrays, or to the slices of a
        sliced parameter."""
        cdef Part* part
        cdef int i, code
        for i in range(self.n_parts):
            part = &self.parts[i]
            push_gate(self.context, self.driver, part.unit, iteration, part.array, &self.buffer, 1 if self.sliced else 0)
            code = self.request(part, priority, &part.array if self.sliced and n_outs else outs,
                                1 if self.sliced and n_outs else n_outs)
            # Also after a refused request: the gate is on the engine already.
            push_done(self.context, self.driver, part.unit, part.array, n_outs > 0)
            mx_check(code)
        self.join()
        return 0

    cdef int request(self, Part* part, int priority, void** outs, int n_outs) noexcept:
        """The wrapped store's own push, or pushpull to n_outs arrays; its code."""
        cdef int[MAX_OUTS] int_keys
        cdef cstr[MAX_OUTS] str_keys
        cdef int i
        for i in range(n_outs):
            int_keys[i] = part.int_key
            str_keys[i] = part.str_key
        if self.str_keys and n_outs:
            return MX.kv_pushpull_ex(self.store, 1, &part.str_key, n_outs, str_keys, &part.array, outs, priority)
        if self.str_keys:
            return MX.kv_push_ex(self.store, 1, &part.str_key, &part.array, priority)
        if n_outs:
            return MX.kv_pushpull(self.store, 1, &part.int_key, n_outs, int_keys, &part.array, outs, priority)
        return MX.kv_push(self.store, 1, &part.int_key, &part.array, priority)

    def join(self) -> None:
        """Make the buffer wait for all its slices; nothing to do for a whole parameter."""
        cdef void** arrays
        cdef int i
        if not self.sliced:
            return
        arrays = <void**>malloc(self.n_parts * sizeof(void*))
        if arrays == NULL:
            raise MemoryError()
        try:
            for i in range(self.n_parts):
                arrays[i] = self.parts[i].array
            push_join(self.context, arrays, self.n_parts, self.buffer)
        finally:
            free(arrays)

    def note_landed(self, size_t target, int64_t iteration) -> None:
        """For the timeline: tell when what was pulled into this array is there."""
        cdef void* out = <void*>target
        self.landed(iteration, &out, 1)

    cdef int landed(self, int64_t iteration, void** outs, int n_outs) except -1:
        return push_landed(self.driver, self.parts[0].unit, self.n_parts, iteration, outs, n_outs)   # its units follow one another
