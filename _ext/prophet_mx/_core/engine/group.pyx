"""A group of small gradients that travel in one message: its memory, and its ops on MXNet's engine. gathering.pyx says what leaves when.

Three arrays hold a group. In *gradients* and in *values* each member has an array with an engine variable of its own: the caller's
gradient is copied into the one, and the value out of the other. They are two because a signal handler may push in the middle of a push,
which then copies the gradient once more when the value may have come. The *wire* array is sent and received: the members, and behind
them a word for each.

Of a group that travels in 16 bits, the wire array and the words are of 16 bits, and the other two of 32. A gradient is squeezed when it is
here, once, as a member that has to go again goes as it was. What half.pyx says of answers holds here too, with the values as what is held.

  hold    per member and call: its gradient is here; completes when the value is, for which whatever reads the value waits; skipped if
          MXNet failed to compute the gradient
  turn    per request: the wire array is free; completes when the scheduler releases the group, which lets the message go
  reply   per request: the answer is in the wire array

The bytes of what is to go are copied into the wire array when the message closes, and those of what is done out of it when the answer
comes. The engine touches none of them meanwhile: holds are not complete while members are on their way, nor is a turn until the message
goes.
"""
from libc.stdint cimport int64_t, uint16_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from .halves cimport prophet_follow, prophet_squeeze, prophet_widen

cdef enum:
    WORD_MAX = 8                    # bytes of a word, at most

cdef struct Member:
    int gradient
    int64_t start, bytes            # in the wire array
    int64_t first, elements         # in the others, of a group that travels in 16 bits
    OnComplete held                 # of a READY or CARRIED member: how to complete its hold


cdef class Group:
    """The native side of a group.

    Contract:

    1. The caller's thread, and the driver's own for what is stranded, push requests, the latter without the GIL: MXNet waits for its
       engine in a fork, where the caller's thread keeps the GIL. MXNet's store must not be called by two threads at once: the driver's
       lock `store` sees to that.
    2. Engine threads call the driver's on_hold(), on_turn() and on_reply(), under whose lock all else of a group changes.
    3. The driver keeps its groups. Whoever makes one keeps the store and the arrays alive.

    Parameters
    ----------
    driver : the engine driver
    store : handle of the wrapped KVStore
    unit : the group's index in the scheduler
    key : of the group on the servers
    wire, gradients, values : handles of arrays in host memory, for which nothing on the engine waits
    members : a list of (gradient index, bytes), in the order of the array
    one, full : the bytes of a word that says that a member is in the message, and of one that all workers had it
    halves : (whether answers are changes, the largest number that is sent) of a group that travels in 16 bits; else None. Its ``members``
        have the bytes that travel
    """
    cdef:
        void* driver                # not owned: the driver keeps the group
        void* store
        int unit
        bint str_keys
        bytes key_bytes
        const char* str_key
        int int_key
        void* array
        char* wire
        char* gradients             # as they travel
        float* full_gradients       # of a narrow group, in 32 bits
        char* values
        Member* members
        int count
        bint narrow, changes        # whether it travels in 16 bits, and what answers are
        float limit
        uint16_t* squeezed          # of a narrow group, the gradients as they travel
        float* lost                 # and what 16 bits do not hold of them
        Gathering rounds
        int word                    # bytes of a word
        int64_t words               # where they begin
        char[WORD_MAX] one
        char[WORD_MAX] full
        EngineContext* context

    def __cinit__(self, Driver driver not None, size_t store, int unit, key, size_t wire, size_t gradients, size_t values,
                  list members not None, bytes one not None, bytes full not None, halves=None):
        cdef void* data
        cdef void* data_gradients
        need_mxnet()
        driver.need_unit(unit)
        if not 0 < len(one) == len(full) <= WORD_MAX:
            raise ValueError(f"words of {len(one)} and {len(full)} bytes")
        self.driver = <void*>driver
        self.store = <void*>store
        self.unit = unit
        self.str_keys = isinstance(key, str)
        if self.str_keys:
            self.key_bytes = key.encode("utf-8")
            self.str_key = <const char*>self.key_bytes
        else:
            self.int_key = key
        self.array = <void*>wire
        mx_check(MX.array_data(self.array, &data))
        self.wire = <char*>data
        mx_check(MX.array_data(<void*>gradients, &data_gradients))
        self.gradients = <char*>data_gradients
        mx_check(MX.array_data(<void*>values, &data))
        self.values = <char*>data
        self.count = len(members)
        self.rounds = Gathering(self.count)
        self.members = <Member*>calloc(self.count, sizeof(Member))
        if self.members == NULL:
            raise MemoryError()
        for i, (gradient, size) in enumerate(members):
            self.members[i].gradient = gradient
            self.members[i].start = self.words
            self.members[i].bytes = size
            self.members[i].first = self.words // sizeof(uint16_t)
            self.members[i].elements = size // sizeof(uint16_t)
            self.words += size
        if halves is not None:
            self.narrow = True
            self.changes, self.limit = halves
            self.squeezed = <uint16_t*>calloc(self.words, 1)
            self.lost = <float*>calloc(self.words // sizeof(uint16_t), sizeof(float))
            if self.squeezed == NULL or self.lost == NULL:
                raise MemoryError()
            self.gradients = <char*>self.squeezed
            self.full_gradients = <float*>data_gradients
        self.word = len(one)
        memcpy(self.one, <char*>one, self.word)
        memcpy(self.full, <char*>full, self.word)
        self.context = &OWN_CONTEXT if driver.units[unit].bytes >= SMALL_UNIT else &SHARED_CONTEXT
        driver.keep_group(self)

    def __dealloc__(self):
        free(self.members)
        free(self.squeezed)
        free(self.lost)

    cdef int send(self, int index, void** arrays, int64_t iteration, int priority) except -1:
        """A member's gradient will be in the first of its two arrays: hold both, and see to it that a request carries it."""
        cdef Driver driver = <Driver>self.driver
        cdef int64_t request
        cdef int code
        cdef bint new
        if not driver.running:
            driver.start()              # the store was closed
        driver.acquire()
        request = self.rounds.call(index, iteration, now())
        new = request > self.rounds.pushed
        if new:
            self.rounds.push()
        pthread_mutex_unlock(&driver.lock)
        push_hold(self, index, request, iteration, arrays)
        if new:
            pthread_mutex_lock(&driver.store)
            code = self.push_request(priority)
            pthread_mutex_unlock(&driver.store)
            mx_check(code)
        return 0

    cdef int push_request(self, int priority) noexcept nogil:
        """The request after the last one, with its turn and its reply; MXNet's code. Under the driver's lock `store`."""
        cdef int code = push_turn(self)
        if code != 0:
            return code
        if self.str_keys:
            code = MX.kv_pushpull_ex(self.store, 1, &self.str_key, 1, &self.str_key, &self.array, &self.array, of_values(priority))
        else:
            code = MX.kv_pushpull(self.store, 1, &self.int_key, 1, &self.int_key, &self.array, &self.array, of_values(priority))
        push_reply(self)                # also after a refused request: its turn is on the engine already
        return code

    cdef int64_t squeeze(self, int index) noexcept nogil:
        """A member's gradient is here. Returns how many of its numbers were beyond the limit."""
        cdef Member* member = &self.members[index]
        if not self.narrow:
            return 0
        return prophet_squeeze(self.full_gradients + member.first, self.lost + member.first, self.squeezed + member.first,
                               member.elements, self.limit)

    cdef void take(self, Member* member) noexcept nogil:
        """A member's answer is its value from now on."""
        cdef float* value = <float*>self.values + member.first
        cdef const uint16_t* answer = <const uint16_t*>(self.wire + member.start)
        if not self.narrow:
            memcpy(self.values + member.start, self.wire + member.start, member.bytes)
        elif self.changes:
            prophet_follow(answer, value, value, member.elements)
        else:
            prophet_widen(answer, value, member.elements)

    cdef void pack(self) noexcept nogil:
        """Put what is carried onto the wire."""
        cdef Member* member
        cdef char* words = self.wire + self.words
        cdef int i
        memset(words, 0, self.count * self.word)
        for i in range(self.count):
            if self.rounds.members[i].state == CARRIED:
                member = &self.members[i]
                memcpy(self.wire + member.start, self.gradients + member.start, member.bytes)
                memcpy(words + i * self.word, self.one, self.word)

    cdef int unpack(self, double t) noexcept nogil:
        """Take from the wire what is done, and complete its holds; how many members are."""
        cdef Member* member
        cdef bint done
        cdef int i, n = 0
        for i in range(self.count):
            if self.rounds.members[i].state != CARRIED:
                continue
            done = memcmp(self.wire + self.words + i * self.word, self.full, self.word) == 0
            self.rounds.settle(i, done)
            if done:
                member = &self.members[i]
                self.take(member)
                finish_op(&member.held)
                n += 1
        self.rounds.answer(n, t)
        return n

    def check(self) -> None:
        """AssertionError if the rounds contradict themselves; nothing may be under way meanwhile."""
        self.rounds.check()


# -- ops; none reads or writes a caller's array -------------------------------------------------------------------------------------

cdef int push_hold(Group group, int index, int64_t request, int64_t iteration, void** arrays) except -1:
    cdef HoldRequest* hold = <HoldRequest*>malloc(sizeof(HoldRequest))
    if hold == NULL:
        raise MemoryError()
    hold[0] = HoldRequest(<void*>group, index, request, iteration, False)
    return push_skippable(hold_op, hold, hold_over, &SHARED_CONTEXT, NULL, 0, arrays, 2, b"prophet_hold")


cdef void hold_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef HoldRequest* hold = <HoldRequest*>param
    cdef void* driver = (<Group>hold.group).driver
    cdef int64_t beyond = (<Group>hold.group).squeeze(hold.index)
    if beyond:
        (<Driver>driver).note_saturated(beyond)
    hold.ran = True
    (<Driver>driver).on_hold(hold, <OnComplete*>on_complete)


cdef void hold_over(void* param) noexcept nogil:
    """A hold that ran was completed under the driver's lock. One that was skipped was not."""
    cdef HoldRequest* hold = <HoldRequest*>param
    cdef void* driver = (<Group>hold.group).driver
    if not hold.ran:
        (<Driver>driver).on_skipped(hold)
    free(hold)


cdef int push_turn(Group group) noexcept nogil:
    return push_code(turn_op, <void*>group, group.context, NULL, 0, &group.array, 1, b"prophet_turn")


cdef void turn_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef void* driver = (<Group>param).driver
    (<Driver>driver).on_turn(param, <OnComplete*>on_complete)


cdef int push_reply(Group group) noexcept nogil:
    """A pushpull writes the wire array, so that what reads it comes after; the next turn, which writes it, after that."""
    return push_code(reply_op, <void*>group, group.context, &group.array, 1, NULL, 0, b"prophet_reply")


cdef void reply_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef void* driver = (<Group>param).driver
    (<Driver>driver).on_reply(param)
    complete(on_complete)
