# One scheduled parameter: the engine ops of its data path, pushed by the caller's thread.
#
#   pack    the caller's gradient -> buffer           MXNet's whole-array copy, so any device and any internal layout is safe
#   gate    per unit: told to the scheduler, completes on release
#   send    per unit: the wrapped store's own request
#   done    per unit: the request was answered
#   unpack  buffer -> the caller's array              again MXNet's copy
#
# Nothing here waits: every call returns once its ops are on the engine, which orders them by the arrays they name.

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
        bint str_keys, sliced
        list key_bytes              # keeps the C strings alive

    def __cinit__(self, Driver driver, size_t store, size_t buffer, list parts):
        self.driver = driver
        self.store = <void*>store
        self.buffer = <void*>buffer
        self.n_parts = len(parts)
        self.key_bytes = []
        self.parts = <Part*>calloc(self.n_parts, sizeof(Part))
        if self.parts == NULL:
            raise MemoryError()
        for i, (unit, array, key) in enumerate(parts):
            self.parts[i].unit = unit
            self.parts[i].array = <void*><size_t>array
            self.str_keys = isinstance(key, str)
            if self.str_keys:
                self.key_bytes.append(key.encode("utf-8"))
                self.parts[i].str_key = <const char*>self.key_bytes[i]
            else:
                self.parts[i].int_key = key
        self.sliced = self.n_parts > 1

    def __dealloc__(self):
        free(self.parts)

    def pushpull(self, size_t source, size_t target, int64_t iteration, int priority) -> None:
        """pack, send, unpack for one gradient array and one array to receive the value."""
        mx_check(copy_array(<void*>source, self.buffer))
        self.send(iteration, priority, True)
        mx_check(copy_array(self.buffer, <void*>target))

    def pack(self, size_t source) -> None:
        """Copy a gradient into the buffer."""
        mx_check(copy_array(<void*>source, self.buffer))

    def unpack(self, size_t target) -> None:
        """Copy the buffer into a caller's array."""
        mx_check(copy_array(self.buffer, <void*>target))

    cpdef int send(self, int64_t iteration, int priority, bint pull) except -1:
        """Gate, request and done of every unit; with `pull` the reply brings the value."""
        cdef int i, code
        cdef void* value
        for i in range(self.n_parts):
            value = self.parts[i].array
            self.push_gate(&self.parts[i], iteration)
            if self.str_keys and pull:
                code = MX.kv_pushpull_ex(self.store, 1, &self.parts[i].str_key, 1, &self.parts[i].str_key, &value, &value,
                                         priority)
            elif self.str_keys:
                code = MX.kv_push_ex(self.store, 1, &self.parts[i].str_key, &value, priority)
            elif pull:
                code = MX.kv_pushpull(self.store, 1, &self.parts[i].int_key, 1, &self.parts[i].int_key, &value, &value,
                                      priority)
            else:
                code = MX.kv_push(self.store, 1, &self.parts[i].int_key, &value, priority)
            self.push_done(&self.parts[i], pull)    # also after a refused request: the gate is on the engine already
            mx_check(code)
        self.join()
        return 0

    def join(self) -> None:
        """Make the buffer wait for all its slices; nothing to do for a whole parameter."""
        if self.sliced:
            self.push_join()

    cdef int push_gate(self, Part* part, int64_t iteration) except -1:
        cdef Gate* gate = new_gate(self.driver, part.unit, iteration)
        # The gate writes the unit, so that the request waits for it; it reads the buffer that a slice is part of. wait=True: it runs
        # even if the gradient's producer failed, or the unit would be held for ever.
        return mx_check(MX.engine_push_async_nd(gate_op, gate, NULL, &CPU_CONTEXT, &self.buffer, 1 if self.sliced else 0,
                                                &part.array, 1, &ASYNC, 0, b"prophet_gate", True))

    cdef int push_done(self, Part* part, bint pull) except -1:
        cdef Gate* done = new_gate(self.driver, part.unit, 0)
        # A push only reads the array, so that `done` must write it to come after; a pushpull writes it, and `done` then need not.
        cdef int reads = 1 if pull else 0
        return mx_check(MX.engine_push_async_nd(done_op, done, NULL, &CPU_CONTEXT, &part.array, reads, &part.array, 1 - reads,
                                                &ASYNC, 0, b"prophet_done", True))

    cdef int push_join(self) except -1:
        """The buffer has its value only when every slice has: an op that reads the slices and writes the buffer says so."""
        cdef int i
        cdef void** arrays = <void**>malloc(self.n_parts * sizeof(void*))
        if arrays == NULL:
            raise MemoryError()
        for i in range(self.n_parts):
            arrays[i] = self.parts[i].array
        i = MX.engine_push_async_nd(join_op, NULL, NULL, &CPU_CONTEXT, arrays, self.n_parts, &self.buffer, 1, &ASYNC, 0,
                                    b"prophet_join", True)
        free(arrays)
        return mx_check(i)


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
