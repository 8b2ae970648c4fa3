# One scheduled parameter: the engine ops of its data path, pushed by the caller's thread.
#
#   pack    the caller's gradient -> buffer           MXNet's whole-array copy, so any device and any internal layout is safe
#   gate    per unit: told to the scheduler, completes on release
#   send    per unit: the wrapped store's own request
#   done    per unit: the request was answered
#   unpack  buffer -> the caller's array              again MXNet's copy
#
# Nothing here waits: every call returns once its ops are on the engine, which orders them by the arrays they name.

ctypedef const char* cstr

cpdef enum:
    MAX_OUTS = 64                   # devices of one worker

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
            driver.need_unit(unit)
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
        if self.n_parts > 0 and driver.units[self.parts[0].unit].bytes >= SMALL_UNIT:
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
            self.push_landed(iteration, outs, n_outs)
        return 0

    cdef int send(self, int64_t iteration, int priority, void** outs, int n_outs) except -1:
        """Gate, request and done of every unit. With `outs` the reply brings the value: to these arrays, or to the slices of a
        sliced parameter."""
        cdef int i, code
        for i in range(self.n_parts):
            self.push_gate(&self.parts[i], iteration)
            code = self.request(&self.parts[i], priority, &self.parts[i].array if self.sliced and n_outs else outs,
                                1 if self.sliced and n_outs else n_outs)
            self.push_done(&self.parts[i], n_outs > 0)  # also after a refused request: the gate is on the engine already
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
        if self.sliced:
            self.push_join()

    cdef int push_gate(self, Part* part, int64_t iteration) except -1:
        cdef Gate* gate = new_gate(self.driver, part.unit, iteration)
        # The gate writes the unit, so that the request waits for it; it reads the buffer that a slice is part of. wait=True: it runs
        # even if the gradient's producer failed, or the unit would be held for ever.
        return mx_check(MX.engine_push_async_nd(gate_op, gate, NULL, self.context, &self.buffer, 1 if self.sliced else 0,
                                                &part.array, 1, &ASYNC, 0, b"prophet_gate", True))

    cdef int push_done(self, Part* part, bint pull) except -1:
        cdef Gate* done = new_gate(self.driver, part.unit, 0)
        # A push only reads the array, so that `done` must write it to come after; a pushpull writes it, and `done` then need not.
        cdef int reads = 1 if pull else 0
        return mx_check(MX.engine_push_async_nd(done_op, done, NULL, self.context, &part.array, reads, &part.array, 1 - reads,
                                                &ASYNC, 0, b"prophet_done", True))

    def note_landed(self, size_t target, int64_t iteration) -> None:
        """For the timeline: tell when what was pulled into this array is there."""
        cdef void* out = <void*>target
        self.push_landed(iteration, &out, 1)

    cdef int push_landed(self, int64_t iteration, void** outs, int n_outs) except -1:
        """An op that runs when the value is in all of these arrays, as it reads them."""
        cdef Landing* landing = <Landing*>malloc(sizeof(Landing))
        if landing == NULL:
            raise MemoryError()
        landing.driver = <void*>self.driver
        landing.first = self.parts[0].unit              # a parameter's units follow one another
        landing.count = self.n_parts
        landing.iteration = iteration
        return mx_check(MX.engine_push_async_nd(landed_op, landing, NULL, &OWN_CONTEXT, outs, n_outs, NULL, 0, &ASYNC, 0,
                                                b"prophet_landed", True))

    cdef int push_join(self) except -1:
        """The buffer has its value only when every slice has: an op that reads the slices and writes the buffer says so."""
        cdef int i
        cdef void** arrays = <void**>malloc(self.n_parts * sizeof(void*))
        if arrays == NULL:
            raise MemoryError()
        for i in range(self.n_parts):
            arrays[i] = self.parts[i].array
        i = MX.engine_push_async_nd(join_op, NULL, NULL, self.context, arrays, self.n_parts, &self.buffer, 1, &ASYNC, 0,
                                    b"prophet_join", True)
        free(arrays)
        return mx_check(i)


cdef extern from *:
    """
    static int prophet_mark(int* state, int mark) { return __atomic_exchange_n(state, mark, __ATOMIC_ACQ_REL); }
    static int prophet_marked(int* state) { return __atomic_load_n(state, __ATOMIC_ACQUIRE); }
    """
    int prophet_mark(int* state, int mark) nogil
    int prophet_marked(int* state) nogil

cdef enum:
    WAITING = 0
    ARRIVED = 1                     # the op has run
    FORGOTTEN = 2                   # the object is gone


cdef class Arrival:
    """Tells, without ever waiting, whether everything that was to write an array when this was made has been done.

    ``array`` is the handle of an array in the host's memory. Its op and the object share the state; the later of the two frees it.
    """
    cdef int* state

    def __cinit__(self, size_t array):
        need_mxnet()
        cdef void* read = <void*>array
        cdef int* state = <int*>malloc(sizeof(int))
        if state == NULL:
            raise MemoryError()
        state[0] = WAITING
        if MX.engine_push_async_nd(arrival_op, state, NULL, &OWN_CONTEXT, &read, 1, NULL, 0, &ASYNC, 0, b"prophet_arrival", True) != 0:
            free(state)
            mx_check(-1)
        self.state = state

    def __dealloc__(self):
        if self.state != NULL and prophet_mark(self.state, FORGOTTEN) == ARRIVED:
            free(self.state)

    def __bool__(self) -> bool:
        return prophet_marked(self.state) == ARRIVED


cdef void arrival_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef OnComplete* complete = <OnComplete*>on_complete
    if prophet_mark(<int*>param, ARRIVED) == FORGOTTEN:
        free(param)
    complete.callback(complete.engine, complete.param, NULL)


cdef Gate* new_gate(Driver driver, int unit, int64_t iteration) except NULL:
    cdef Gate* gate = <Gate*>malloc(sizeof(Gate))
    if gate == NULL:
        raise MemoryError()
    gate.driver = <void*>driver
    gate.unit = unit
    gate.iteration = iteration
    return gate


cdef void join_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef OnComplete* complete = <OnComplete*>on_complete
    complete.callback(complete.engine, complete.param, NULL)
