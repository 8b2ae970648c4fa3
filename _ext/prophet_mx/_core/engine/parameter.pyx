"""One scheduled parameter: the engine ops of its data path, pushed by the caller's thread.

  pack    the caller's gradient -> buffer           a copy by MXNet
  gate    per unit: told to the scheduler, completes on release
  send    per unit: the wrapped store's own request
  done    per unit: the request was answered
  unpack  buffer -> the caller's array              again MXNet's copy

A member of a group has no gate, send and done of its own: see group.pyx.

A large buffer is packed and unpacked in chunks, of one slice or several each: the first slice leaves when it is here, and what has come
back need not wait for the last. Where only the whole of the caller's array can be copied (copies.pyx), all chunks wait for that.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

ctypedef const char* cstr
ctypedef void* address

cpdef enum:
    MAX_OUTS = 64                   # devices of one worker
    SMALL_UNIT = 16384              # bytes: the ops of a smaller unit stay in cpu(0)'s thread

cdef struct Part:
    int unit
    void* array                     # NDArray handle of the unit's bytes: the buffer itself for a whole parameter
    int int_key
    const char* str_key
    void* half                      # a Half, which the driver keeps, or NULL

cdef struct Chunk:                  # neighbouring parts that are copied at once
    void* array                     # NDArray handle of their bytes: that of the part itself if it is one
    int count                       # parts
    int64_t start, stop             # elements of the buffer


cdef class Parameter:
    """The data path of one parameter.

    Contract:

    1. The caller's thread alone calls, with the GIL.
    2. No call waits. Each returns once its ops are on the engine, which orders them by the arrays that they name.
    3. Whoever makes a parameter keeps the store and all arrays alive: a parameter has their handles only.

    Parameters
    ----------
    driver : the engine driver
    store : handle of the wrapped KVStore
    buffer : handle of the worker's own array for this parameter
    parts : a list of (unit index, array handle, key); keys are all str or all int
    chunks : a list of (array handle, number of parts, first element, end), in the order of the parts; one of the whole buffer by default
    group, index, value : of a member: its group, whose key and unit are those of the only part, its index there, and the handle of the
        array that gets its value, which is another one than the buffer
    halves : of a parameter that travels in 16 bits: the Half of each part
    """
    cdef:
        Driver driver
        void* store
        void* buffer
        Part* parts
        Chunk* chunks
        void** part_arrays          # of all parts, and of all chunks, as ops take them
        void** chunk_arrays         # and behind the chunks the buffer
        int n_parts, n_chunks
        int dimensions, type        # of the buffer: what an array of this parameter must have
        int64_t* shape
        int64_t elements
        bint str_keys, sliced, narrow
        int64_t iteration           # in which it was last sent, -1 if it was not
        EngineContext* context      # of the ops of its units
        list key_bytes              # keeps the C strings alive
        Group group                 # None: it travels alone
        int index
        address[2] held               # buffer and value, as a hold takes them

    def __cinit__(self, Driver driver not None, size_t store, size_t buffer, list parts not None, chunks=(), Group group=None,
                  int index=0, size_t value=0, halves=()):
        need_mxnet()
        self.driver = driver
        self.store = <void*>store
        self.buffer = <void*>buffer
        self.n_parts = len(parts)
        self.iteration = -1
        self.group = group
        self.index = index
        self.held = [<void*>buffer, <void*>(value if group is not None else buffer)]
        if group is not None and not 0 <= index < group.count:
            raise ValueError(f"member {index} of {group.count}")
        self.key_bytes = []
        self.parts = <Part*>calloc(self.n_parts, sizeof(Part))
        self.part_arrays = <void**>calloc(self.n_parts, sizeof(void*))
        if self.parts == NULL or self.part_arrays == NULL:
            raise MemoryError()
        for i, (unit, array, key) in enumerate(parts):
            driver.need_unit(unit)
            self.parts[i].unit = unit
            self.parts[i].array = self.part_arrays[i] = <void*><size_t>array
            self.str_keys = isinstance(key, str)
            if self.str_keys:
                self.key_bytes.append(key.encode("utf-8"))
                self.parts[i].str_key = <const char*>self.key_bytes[i]
            else:
                self.parts[i].int_key = key
        self.sliced = self.n_parts > 1
        if halves and len(halves) != self.n_parts:
            raise ValueError(f"{len(halves)} halves for {self.n_parts} parts")
        for i, half in enumerate(halves):
            self.parts[i].half = <void*><Half?>half
            self.narrow = True
        self.context = &SHARED_CONTEXT
        if self.n_parts > 0 and driver.units[self.parts[0].unit].bytes >= SMALL_UNIT:
            self.context = &OWN_CONTEXT
        self.read_buffer()
        self.read_chunks(list(chunks) or [(buffer, self.n_parts, 0, self.elements)])

    cdef int read_buffer(self) except -1:
        cdef const int64_t* shape
        mx_check(MX.array_type(self.buffer, &self.type))
        mx_check(MX.array_shape(self.buffer, &self.dimensions, &shape))
        self.shape = <int64_t*>malloc(max(1, self.dimensions) * sizeof(int64_t))
        if self.shape == NULL:
            raise MemoryError()
        memcpy(self.shape, shape, self.dimensions * sizeof(int64_t))
        self.elements = 1
        for i in range(self.dimensions):
            self.elements *= shape[i]
        return 0

    cdef int read_chunks(self, list chunks) except -1:
        if sum(count for _, count, _, _ in chunks) != self.n_parts:
            raise ValueError(f"chunks of {self.n_parts} parts, not of these: {chunks}")
        self.chunks = <Chunk*>calloc(len(chunks), sizeof(Chunk))
        self.chunk_arrays = <void**>calloc(len(chunks) + 1, sizeof(void*))
        if self.chunks == NULL or self.chunk_arrays == NULL:
            raise MemoryError()
        self.n_chunks = len(chunks)
        for i, (array, count, start, stop) in enumerate(chunks):
            self.chunks[i] = Chunk(<void*><size_t>array, count, start, stop)
            self.chunk_arrays[i] = self.chunks[i].array
        self.chunk_arrays[self.n_chunks] = self.buffer
        return 0

    def __dealloc__(self):
        free(self.parts)
        free(self.chunks)
        free(self.part_arrays)
        free(self.chunk_arrays)
        free(self.shape)

    @property
    def sent(self) -> bool:
        """Whether it was ever sent."""
        return self.iteration >= 0

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
        self.pack(source, priority)
        self.send_and_receive(iteration, priority, &out, 1)

    cpdef pack(self, size_t source, int priority):
        """Copy a gradient into the buffer."""
        self.copy(<void*>source, True, priority)

    cdef int copy(self, void* array, bint pack, int priority) except -1:
        """Copy a caller's array into the buffer, or back: chunk by chunk where its parts may be copied."""
        cdef Chunk* chunk
        cdef int i
        if self.n_chunks > 1 and is_plain(array):
            for i in range(self.n_chunks):
                chunk = &self.chunks[i]
                copy_part(array, self.elements, chunk.start, chunk.stop, chunk.array, pack, priority)
            return 0
        self.fence()
        copy_array(array if pack else self.held[1], self.buffer if pack else array, priority)
        self.fence()
        return 0

    def push(self, int64_t iteration, int priority) -> None:
        """Send the packed buffer, unless it was sent in this iteration; nothing is received."""
        if iteration == self.iteration:     # it was packed once more, after it was sent
            self.tie(False)
        else:
            self.send(iteration, priority, NULL, 0)

    def pushpull_packed(self, list targets, int64_t iteration, int priority) -> None:
        """Send the packed buffer and receive the value in several arrays, unless it was sent in this iteration."""
        if iteration == self.iteration:
            self.tie(False)
            return
        if len(targets) > MAX_OUTS:         # now: the gates of what is not sent would be held forever
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

    cpdef unpack(self, size_t target, int priority):
        """Copy the buffer, as its slices come, into a caller's array."""
        self.copy(<void*>target, False, of_values(priority))

    cdef int send_and_receive(self, int64_t iteration, int priority, void** outs, int n_outs) except -1:
        cdef int i
        if not self.sliced and not self.narrow and self.group is None:
            # The store itself copies what it received to the arrays that are to have it.
            self.send(iteration, priority, outs, n_outs)
        else:
            self.send(iteration, priority, &self.buffer, 1)
            for i in range(n_outs):
                self.unpack(<size_t>outs[i], priority)
        if self.driver.recorder is not None:
            self.landed(iteration, outs, n_outs)
        return 0

    cdef int send(self, int64_t iteration, int priority, void** outs, int n_outs) except -1:
        """Gate, request and done of every unit. With `outs` the reply brings the value: to these arrays, or to the slices of a
        sliced parameter."""
        cdef Part* part
        cdef Chunk* chunk = self.chunks
        cdef int i, code, left = chunk.count
        self.iteration = iteration
        if self.group is not None:
            return self.group.send(self.index, self.held, iteration, priority)
        for i in range(self.n_parts):
            part = &self.parts[i]
            if left == 0:
                chunk += 1
                left = chunk.count
            left -= 1
            if part.half != NULL:
                self.send_half(part, iteration, priority, chunk.array if chunk.count > 1 else part.array)
                continue
            push_gate(self.context, self.driver, part.unit, iteration, part.array, &chunk.array, 1 if chunk.count > 1 else 0)
            code = self.request(part, part.array, priority, &part.array if self.sliced and n_outs else outs,
                                1 if self.sliced and n_outs else n_outs)
            # Also after a refused request: the gate is on the engine already.
            push_done(self.context, self.driver, part.unit, part.array, n_outs > 0)
            mx_check(code)
        self.join()
        return 0

    cdef int send_half(self, Part* part, int64_t iteration, int priority, void* gradient) except -1:
        """The same for a unit that travels in 16 bits. Its value always comes back: it is a change of what this worker holds."""
        cdef Half half = <Half>part.half
        cdef int code
        push_half_gate(self.context, self.driver, part.unit, iteration, half, gradient)
        code = self.request(part, half.array, priority, &half.array, 1)
        if code == 0:
            push_half_done(self.context, self.driver, part.unit, half, part.array)
        else:                               # nothing comes back
            push_done(self.context, self.driver, part.unit, half.array, False)
        return mx_check(code)

    cdef int request(self, Part* part, void* array, int priority, void** outs, int n_outs) noexcept:
        """The wrapped store's own push of an array, or pushpull to n_outs arrays, to which it copies the value; its code."""
        cdef int[MAX_OUTS] int_keys
        cdef cstr[MAX_OUTS] str_keys
        cdef int i
        cdef int code
        priority = of_values(priority)
        for i in range(n_outs):
            int_keys[i] = part.int_key
            str_keys[i] = part.str_key
        pthread_mutex_lock(&self.driver.store)
        if self.str_keys and n_outs:
            code = MX.kv_pushpull_ex(self.store, 1, &part.str_key, n_outs, str_keys, &array, outs, priority)
        elif self.str_keys:
            code = MX.kv_push_ex(self.store, 1, &part.str_key, &array, priority)
        elif n_outs:
            code = MX.kv_pushpull(self.store, 1, &part.int_key, n_outs, int_keys, &array, outs, priority)
        else:
            code = MX.kv_push(self.store, 1, &part.int_key, &array, priority)
        pthread_mutex_unlock(&self.driver.store)
        return code

    cpdef join(self):
        """Make each chunk wait for its parts; nothing to do for those of one."""
        self.tie(True)

    cpdef show(self):
        """Put the value of the last answer into the buffer once more: of a parameter that travels in 16 bits, the servers have none."""
        for i in range(self.n_parts):
            push_show(<Half>self.parts[i].half, self.parts[i].array)
        self.join()

    cdef int tie(self, bint join) except -1:
        """Make each chunk wait for its parts, or, without ``join``, its parts for the chunk."""
        cdef Chunk* chunk
        cdef int i, first = 0
        for i in range(self.n_chunks):
            chunk = &self.chunks[i]
            if chunk.count > 1 and join:
                push_join(self.context, self.part_arrays + first, chunk.count, chunk.array)
            elif chunk.count > 1:
                push_split(self.context, chunk.array, self.part_arrays + first, chunk.count)
            first += chunk.count
        return 0

    cpdef fence(self):
        """Before the buffer is used as a whole: make it wait for all its chunks, and for copies from them. After that: make the chunks wait
        for it, and for copies from it. Nothing to do if it is one chunk."""
        if self.n_chunks > 1:
            push_fence(self.context, self.chunk_arrays, self.n_chunks + 1)

    def note_landed(self, size_t target, int64_t iteration) -> None:
        """For the timeline: tell when what was pulled into this array is there."""
        cdef void* out = <void*>target
        self.landed(iteration, &out, 1)

    cdef int landed(self, int64_t iteration, void** outs, int n_outs) except -1:
        return push_landed(self.driver, self.parts[0].unit, self.n_parts, iteration, outs, n_outs)   # its units follow one another
