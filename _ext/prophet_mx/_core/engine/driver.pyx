"""The engine driver: MXNet's engine ops and the kernel's counters on one side, the scheduler's events and decisions on the other.

Per unit and iteration two native ops go onto MXNet's engine around the store's own request:

    gate   runs when the unit's bytes are ready; tells the scheduler and completes only when the scheduler releases the unit, which
           holds back the request behind it
    done   runs when the request was answered

The ops of a group are others: see group.pyx. What is measured, and read, of a driver is in measured.pyx.
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from .drain cimport DRAIN_FED, HOLDING, POLL_MAX, POLL_MIN
from .posix cimport (CLOCK_MONOTONIC, at, nanosleep, now, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_t,
                     pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_init, pthread_condattr_setclock, pthread_condattr_t,
                     pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
                     pthread_mutex_unlock, pthread_t, timespec)
from .scheduler cimport IDLE, SENT, UnitState, choose_all, choose_rest

cdef struct HoldRequest:            # of a call of a group's member, from the push of its hold until that runs
    void* group
    int index
    int64_t request, iteration
    bint ran                        # not skipped

cdef class Group                    # group.pyx

cdef double BUSY_STEP = 0.001       # seconds until the driver's thread looks again whether another thread calls the store
cdef int BUSY_STEPS = 100           # after so many, a call that still goes on is one that waits for other workers


@cython.no_gc                        # it can be part of no cycle; and the collector must not clear what the destructor needs
cdef class Driver(MeasuredScheduler):
    """A scheduler that MXNet's engine drives. The arguments are those of the base class. Starts no thread until start().

    Contract, beside those of the base classes:

    1. Engine threads call on_gate(), on_answer(), on_landed(), and on_hold(), on_skipped(), on_turn(), on_reply() of groups, which take
       the lock. The caller's thread can be one of them.
    2. The driver's own native thread runs loop(). It never takes the GIL. All others are Python threads.
    3. Completing a gate under the lock is safe: the engine then only queues what depended on it (threaded_engine_perdevice.cc runs
       nothing inline on completion).
    4. Ops that were pushed refer to the driver: it lives until they have run.
    5. `store` is held in calls of MXNet's store by compiled code. Of the two locks it is taken first, and waits for nobody who needs the
       GIL. It guards `calling`.
    """
    cdef:
        pthread_mutex_t store
        pthread_cond_t wake
        pthread_t thread
        bint running, stopping
        bint open                   # every gate completes at once: at exit, and when the scheduler failed
        double sleeping_until       # the native thread's next wake-up; INFINITY: only a signal wakes it
        bint made                   # __cinit__ came to its end
        OnComplete* gates           # per unit: how to complete the gate of the unit's READY request
        list owned_groups           # keeps all that were made, as long as the driver lives
        list halves                 # and these: what ops of units that travel in 16 bits refer to
        void** groups
        int n_groups
        double groups_due           # when a group has to be looked at, at the latest
        int calling                 # calls of MXNet's store under way by Python code, which do not hold the GIL

    def __cinit__(self):
        cdef pthread_condattr_t attributes
        pthread_mutex_init(&self.store, NULL)
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
        pthread_cond_init(&self.wake, &attributes)
        self.owned_groups = []
        self.halves = []
        self.groups_due = INFINITY
        self.sleeping_until = INFINITY
        if self.grow(self.capacity) < 0:
            raise MemoryError()
        self.made = True

    def __dealloc__(self):
        if self.made:                                   # else nothing runs, and what __cinit__ did not reach is not there
            self.join()
            pthread_cond_destroy(&self.wake)
            pthread_mutex_destroy(&self.store)
        free(self.gates)
        free(self.groups)

    cdef int grow(self, int capacity) noexcept nogil:
        """Room for the gates as well."""
        cdef void* p = realloc(self.gates, capacity * sizeof(OnComplete))
        if p == NULL:
            return -1
        self.gates = <OnComplete*>p
        return MeasuredScheduler.grow(self, capacity)

    # -- called by Python ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the native thread. A group that is pushed after the end of the thread starts it again."""
        if self.running:
            return
        self.stopping = False
        if pthread_create(&self.thread, NULL, driver_thread, <void*>self) != 0:
            raise OSError("the scheduler's thread could not be started")
        self.running = True

    def release_all(self) -> None:
        """Complete every held gate now and every later one at once; scheduling ends, nothing is lost."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.open = True
            self.groups_due = now()         # what they wait for may not come any more
            self.flush(now())
            pthread_mutex_unlock(&self.lock)

    def stop(self) -> None:
        """release_all(), then join(), unless something of a group is under way, which needs the thread. May be called again."""
        cdef bint idle = True
        cdef int i
        self.release_all()
        with nogil:
            pthread_mutex_lock(&self.lock)
            for i in range(self.n_groups):
                idle = idle and (<Group>self.groups[i]).rounds.idle()
            pthread_mutex_unlock(&self.lock)
        if idle:
            self.join()

    def join(self) -> None:
        """release_all(), then join the native thread: nothing of a group may be under way. May be called again."""
        self.release_all()
        if not self.running:
            return
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.stopping = True
            pthread_cond_signal(&self.wake)
            pthread_mutex_unlock(&self.lock)
            pthread_join(self.thread, NULL)
        self.running = False

    def forget_thread(self) -> None:
        """In a forked child: the native thread exists in the parent only. It may have held the locks, and waits in the condition."""
        pthread_mutex_init(&self.lock, NULL)
        pthread_mutex_init(&self.store, NULL)
        pthread_cond_init(&self.wake, NULL)
        self.running = False

    def feed_drained(self, int link, int64_t fresh) -> None:
        """`fresh` more bytes have left on a link (DRAIN_FED)."""
        self.need_link(link)
        self.acquire()
        if self.drain.source == DRAIN_FED:
            self.on_drained(link, self.links[link].drained + fresh, now())
            self.flush(now())
        pthread_mutex_unlock(&self.lock)

    def set_places(self, places) -> None:
        MeasuredScheduler.set_places(self, places)
        pthread_cond_signal(&self.wake)                 # what the lead limit held back may go

    def keep_group(self, Group group not None) -> None:
        """Look after a group from now on."""
        cdef void** table = <void**>malloc((self.n_groups + 1) * sizeof(void*))
        if table == NULL:
            raise MemoryError()
        self.owned_groups.append(group)
        memcpy(table, self.groups, self.n_groups * sizeof(void*))
        table[self.n_groups] = <void*>group
        self.acquire()
        self.groups, table = table, self.groups
        self.n_groups += 1
        pthread_mutex_unlock(&self.lock)
        free(table)

    def set_calling(self, bint calling) -> None:
        """The caller's thread enters or leaves a function of MXNet's store that does not hold the GIL."""
        pthread_mutex_lock(&self.store)
        self.calling += 1 if calling else -1
        pthread_mutex_unlock(&self.store)

    # -- called by engine threads ------------------------------------------------------------------------------------------------

    cdef void on_gate(self, int unit, int64_t iteration, OnComplete* complete) noexcept nogil:
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        self.requests += 1
        if not self.consistent(unit, IDLE, t):
            finish_op(complete)
            pthread_mutex_unlock(&self.lock)
            return
        self.gates[unit] = complete[0]
        self.note_ready(iteration, self.units[unit].gradient, t)
        self.unit_ready(unit, iteration, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void note_saturated(self, int64_t count) noexcept nogil:
        """So many numbers were beyond what 16 bits hold."""
        pthread_mutex_lock(&self.lock)
        self.saturated += count
        pthread_mutex_unlock(&self.lock)

    cdef void on_answer(self, int unit) noexcept nogil:
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        if self.fault < 0 and self.units[unit].state == IDLE:       # its gate was skipped, and so was the request
            pthread_mutex_unlock(&self.lock)
            return
        self.answers += 1
        if not self.consistent(unit, SENT, t):
            pthread_mutex_unlock(&self.lock)
            return
        self.unit_answered(unit, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_landed(self, int first, int count, int64_t iteration) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        if self.recorder is not None:
            self.recorder.landed(first, count, iteration, now())
        pthread_mutex_unlock(&self.lock)

    cdef void on_hold(self, HoldRequest* hold, OnComplete* complete) noexcept nogil:
        """The gradient of a group's member is here."""
        cdef double t
        cdef int gradient
        pthread_mutex_lock(&self.lock)
        t = now()
        self.requests += 1
        gradient = (<Group>hold.group).members[hold.index].gradient
        (<Group>hold.group).members[hold.index].held = complete[0]
        (<Group>hold.group).rounds.ready(hold.index, hold.request, hold.iteration, t)
        self.note_ready(hold.iteration, gradient, t)
        self.step_ready(gradient, hold.iteration, t)
        self.attend(hold.group, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_skipped(self, HoldRequest* hold) noexcept nogil:
        """MXNet failed to compute the gradient of a group's member."""
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        (<Group>hold.group).rounds.cancel(hold.index, hold.request, t)
        self.attend(hold.group, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_turn(self, void* group, OnComplete* complete) noexcept nogil:
        """The wire array of a group is free for its next message."""
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        self.gates[(<Group>group).unit] = complete[0]
        (<Group>group).rounds.open()
        self.attend(group, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_reply(self, void* group) noexcept nogil:
        """The answer to a group's message is in its wire array."""
        cdef double t
        cdef int unit = (<Group>group).unit
        pthread_mutex_lock(&self.lock)
        t = now()
        self.answers += (<Group>group).unpack(t) + ((<Group>group).rounds.carried == 0)
        if self.consistent(unit, SENT, t):
            self.unit_answered(unit, t)
        self.attend(group, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    # -- under the lock -------------------------------------------------------------------------------------------------------------

    cdef bint consistent(self, int unit, UnitState expected, double t) noexcept nogil:
        """Whether a unit is in the state that an event implies. If one was not, the scheduler can no longer be relied on: all gates
        are opened, and later events only counted. The watchdog says so."""
        if self.fault < 0 and self.units[unit].state != expected:
            self.fault = unit
            self.open = True
            self.flush(t)
        return self.fault < 0

    cdef bint attend(self, void* group, double t) noexcept nogil:
        """Let a group's message leave if it may, and see to it that the group is looked at again in time. The scheduler gets a unit that
        is ready; a scheduler that has failed gets none, and the message goes at once. Returns whether the native thread is to push a
        request."""
        cdef int unit = (<Group>group).unit
        cdef int64_t iteration
        if (<Group>group).rounds.may_close(self.open, t, &self.groups_due):
            iteration = (<Group>group).rounds.close()
            self.requests += (<Group>group).rounds.carried == 0     # others are counted with their holds
            (<Group>group).pack()
            if self.consistent(unit, IDLE, t):
                self.unit_ready(unit, iteration, t)
            else:
                finish_op(&self.gates[unit])
        if not (<Group>group).rounds.stranded(t, &self.groups_due):
            return False
        self.groups_due = t
        return True

    cdef void* attend_all(self, double t) noexcept nogil:
        """By the native thread: a group for which it is to push a request, or NULL."""
        cdef void* group
        cdef int i
        self.groups_due = INFINITY
        for i in range(self.n_groups):
            group = self.groups[i]
            if self.attend(group, t):   # which has it looked at again: others may need a request as well
                (<Group>group).rounds.push()
                return group
        return NULL

    cdef double flush(self, double t) noexcept nogil:
        """Complete the gates of every unit that may go, in order, and see to it that the native thread wakes in time: when that is."""
        cdef double wake
        cdef int n, i, unit
        n = choose_all(self, t, &wake)
        if self.open:
            n = choose_rest(self, n, t)
            wake = INFINITY
        if self.recorder is not None:
            wake = self.recorder.released(self, n, t, wake)
        wake = min(wake, self.groups_due)
        for i in range(n):
            unit = self.out[i]
            self.drain.unit_released(self.units[unit].link)
            finish_op(&self.gates[unit])
        if wake < self.sleeping_until - POLL_MIN:
            pthread_cond_signal(&self.wake)
        return wake

    cdef void loop(self) noexcept nogil:
        """The native thread: samples drain while a limit holds something back, looks after groups whose patience ends, sleeps otherwise."""
        cdef double t, wake
        cdef void* group
        cdef timespec until
        pthread_mutex_lock(&self.lock)
        while not self.stopping:
            t = now()
            self.sleeping_until = 0                     # awake: flush() need not signal
            self.sample(t, HOLDING)
            group = self.attend_all(t) if t >= self.groups_due else NULL
            wake = self.flush(t)
            if group != NULL:
                pthread_mutex_unlock(&self.lock)
                self.push_request(group)
                pthread_mutex_lock(&self.lock)
                continue
            if wake == INFINITY:
                self.sleeping_until = INFINITY
                pthread_cond_wait(&self.wake, &self.lock)
            else:
                wake = t + POLL_MIN if wake < t + POLL_MIN else t + POLL_MAX if wake > t + POLL_MAX else wake
                self.sleeping_until = wake
                until = at(wake)
                pthread_cond_timedwait(&self.wake, &self.lock, &until)
        pthread_mutex_unlock(&self.lock)

    cdef void push_request(self, void* group) noexcept nogil:
        """Push a request for what is stranded. MXNet's store takes one thread at a time: its tables may just grow in a call of another.
        That takes no time to speak of, and a call that takes long waits for other workers."""
        cdef timespec step = timespec(0, <long>(BUSY_STEP * 1e9))
        cdef int code, steps = 0
        pthread_mutex_lock(&self.store)
        while self.calling and steps < BUSY_STEPS:
            pthread_mutex_unlock(&self.store)
            nanosleep(&step, NULL)
            steps += 1
            pthread_mutex_lock(&self.store)
        code = (<Group>group).push_request(0)
        pthread_mutex_unlock(&self.store)
        if code != 0:
            pthread_mutex_lock(&self.lock)
            self.fault = (<Group>group).unit            # the watchdog says so
            self.open = True
            pthread_mutex_unlock(&self.lock)


cdef void* driver_thread(void* driver) noexcept nogil:
    (<Driver>driver).loop()
    return NULL
