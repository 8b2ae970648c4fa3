"""The engine driver: MXNet's engine ops and the kernel's counters on one side, the scheduler's events and decisions on the other.

Per unit and iteration two native ops go onto MXNet's engine around the store's own request:

    gate   runs when the unit's bytes are ready; tells the scheduler and completes only when the scheduler releases the unit, which
           holds back the request behind it
    done   runs when the request was answered

Threads and locks. `lock` guards the driver and its scheduler, drain and recorder. It is taken by engine threads (in gate and done), by the
driver's own native thread, and by Python threads; a thread that holds it never takes the GIL, blocks, makes a Python object (the garbage
collector may then run any code), or runs user code, and a Python thread that waits for it gives up the GIL. Completing a gate under
it is safe: the engine then only queues what depended on it (threaded_engine_perdevice.cc runs nothing inline on completion).
"""
cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from .drain cimport DRAIN_FED, DRAIN_PREDICTED, HOLDING, POLL_MAX, POLL_MIN, Drain, DrainSource
from .posix cimport (CLOCK_MONOTONIC, at, now, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_t,
                     pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_init, pthread_condattr_setclock, pthread_condattr_t,
                     pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
                     pthread_mutex_trylock, pthread_mutex_unlock, pthread_t, timespec)
from .scheduler cimport (ALL, IDLE, SENT, WIDE, BlockScheduler, Limits, LinkState, Unit, UnitState, as_dict, broken, check_taken,
                         copy_steps, in_flight, order_of, read_policy, sending_until)
from .timeline cimport Recorder

from .drain import tcp_sample

cdef struct WaitingUnit:
    int unit
    int link
    bint sent
    int drained                     # whether its bytes have left: 1, 0, or -1 if that is only predicted
    double since                    # when it was released, or else became ready

cdef struct ReadyEvent:
    int64_t iteration
    int unit
    double time


@cython.no_gc                        # it can be part of no cycle; and the collector must not clear what the destructor needs
cdef class Driver:
    """Drives a scheduler by MXNet's engine. Starts no thread until start(). The arguments are those of :class:`Scheduler`."""
    cdef:
        BlockScheduler scheduler
        Drain drain
        Recorder recorder           # of the timeline; None: off
        pthread_mutex_t lock
        pthread_cond_t wake
        pthread_t thread
        bint running, stopping
        bint open                   # every gate completes at once: at exit, and when the scheduler failed
        double sleeping_until       # the native thread's next wake-up; INFINITY: only a signal wakes it
        bint made                   # __cinit__ came to its end
        OnComplete* gates           # per unit: how to complete the gate of the unit's READY request
        int n_gates                 # there is room for
        bint recording              # whether ready events are kept for take_events()
        ReadyEvent* events          # not yet taken by Python
        int n_events, event_capacity
        int64_t requests, answers   # gates that ran, requests that were answered: counted whatever state the scheduler is in
        int fault                   # the unit whose state contradicted an event, -1 none

    def __cinit__(self, str policy, int links, int64_t window=0, int64_t lead=0, double rate=0):
        cdef pthread_condattr_t attributes
        self.scheduler = BlockScheduler(policy, links, window, lead, rate)
        self.drain = Drain(self.scheduler)
        pthread_mutex_init(&self.lock, NULL)
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
        pthread_cond_init(&self.wake, &attributes)
        self.fault = -1
        self.sleeping_until = INFINITY
        self.recording = True
        self.event_capacity = 1 << 15
        self.events = <ReadyEvent*>malloc(self.event_capacity * sizeof(ReadyEvent))
        if self.events == NULL or self.make_room(self.scheduler.capacity) < 0:
            raise MemoryError()
        self.made = True

    def __dealloc__(self):
        if self.made:                                   # else nothing runs, and what __cinit__ did not reach is not there
            self.stop()
            pthread_cond_destroy(&self.wake)
            pthread_mutex_destroy(&self.lock)
        free(self.gates)
        free(self.events)

    cdef int make_room(self, int capacity) noexcept nogil:
        """Room for the gates of at least so many units; -1 without memory."""
        cdef void* p
        if capacity > self.n_gates:
            capacity = max(capacity, 2 * self.n_gates)
            p = realloc(self.gates, capacity * sizeof(OnComplete))
            if p == NULL:
                return -1
            self.gates = <OnComplete*>p
            self.n_gates = capacity
        return 0

    # -- called by Python ------------------------------------------------------------------------------------------------------

    cdef void acquire(self) noexcept:
        """Take the lock, without the GIL while another has it, and return with both.

        A thread that waited for the GIL under the lock could wait forever: a gate may run in the caller's thread, which has the GIL, and
        takes the lock. For the same reason nothing under the lock may give up the GIL, as freeing or making a Python object can.
        """
        while pthread_mutex_trylock(&self.lock) != 0:
            with nogil:
                pthread_mutex_lock(&self.lock)
                pthread_mutex_unlock(&self.lock)

    def start(self) -> None:
        """Start the native thread."""
        if self.running:
            return
        if pthread_create(&self.thread, NULL, driver_thread, <void*>self) != 0:
            raise OSError("the scheduler's thread could not be started")
        self.running = True

    def release_all(self) -> None:
        """Complete every held gate now and every later one at once; scheduling ends, nothing is lost."""
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.open = True
            self.flush(now())
            pthread_mutex_unlock(&self.lock)

    def stop(self) -> None:
        """release_all(), then join the native thread. May be called again."""
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
        """In a forked child: the native thread exists in the parent only. It may have held the lock, and waits in the condition."""
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.wake, NULL)
        self.running = False

    def add_unit(self, int64_t size, int link, int gradient, int64_t rank, int64_t position) -> int:
        """Add a unit while the driver runs; its index."""
        cdef int64_t order = order_of(self.scheduler.policy, rank, size)
        cdef int index = -1
        if size < 0 or not WIDE <= link < self.scheduler.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        self.acquire()
        if self.make_room(self.scheduler.count + 1) == 0:
            index = self.scheduler.add(size, link, gradient, rank, order, position)
        pthread_mutex_unlock(&self.lock)
        if index < 0:
            raise MemoryError()
        return index

    def use_tcp(self, fds) -> None:
        """Read drain from these sockets, one per link, in the order of the servers; OSError if one cannot be read."""
        cdef int* numbers
        cdef int i, n = self.scheduler.n_links
        if len(fds) != n:
            raise ValueError(f"{len(fds)} sockets for {n} links")
        for fd in fds:
            tcp_sample(fd)
        numbers = <int*>malloc(n * sizeof(int))
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                numbers[i] = fds[i]
            self.acquire()
            self.drain.use_tcp(numbers)
            pthread_mutex_unlock(&self.lock)
        finally:
            free(numbers)

    def use_fed(self) -> None:
        """Take drain from feed_drained()."""
        self.use_source(DRAIN_FED)

    def use_predicted(self) -> None:
        """Predict drain from the rate."""
        self.use_source(DRAIN_PREDICTED)

    cdef void use_source(self, DrainSource source) noexcept:
        self.acquire()
        self.drain.source = source
        pthread_mutex_unlock(&self.lock)

    def feed_drained(self, int link, int64_t fresh) -> None:
        """`fresh` more bytes have left on a link (DRAIN_FED)."""
        self.scheduler.need_link(link)
        self.acquire()
        if self.drain.source == DRAIN_FED:
            self.scheduler.on_drained(link, self.scheduler.links[link].drained + fresh, now())
            self.flush(now())
        pthread_mutex_unlock(&self.lock)

    def in_flight(self) -> int:
        """Bytes released and not drained, over all links."""
        cdef int64_t total = 0
        cdef int i
        self.acquire()
        for i in range(self.scheduler.n_links):
            total += in_flight(&self.scheduler.links[i])
        pthread_mutex_unlock(&self.lock)
        return total

    def set_steps(self, step_of, due) -> None:
        """Take the stepwise pattern; see Scheduler.set_steps()."""
        cdef int n_gradients = len(step_of), n_steps = len(due), code
        cdef int* steps
        cdef double* dues
        steps, dues = NULL, NULL
        try:
            copy_steps(step_of, due, &steps, &dues)
            self.acquire()
            code = self.scheduler.take_steps(n_gradients, steps, n_steps, dues)
            pthread_mutex_unlock(&self.lock)
            if code < 0:
                raise MemoryError()
        finally:
            free(steps)
            free(dues)

    def set_rate(self, double rate) -> None:
        """Start from this rate (bytes/s) on every link."""
        if not 0 < rate < INFINITY:
            raise ValueError(f"rate={rate}: not positive and finite")
        self.acquire()
        for i in range(self.scheduler.n_links):
            self.scheduler.links[i].rate = rate
        pthread_mutex_unlock(&self.lock)

    def set_sizes(self, int64_t unit, int64_t message=0) -> None:
        """Take the sizes of the layout before any unit is ready; see Scheduler.set_sizes()."""
        cdef int code
        self.acquire()
        code = self.scheduler.take_unit(unit, message)
        pthread_mutex_unlock(&self.lock)
        check_taken(code, unit, message)

    def set_policy(self, str policy) -> None:
        """Go by this policy, before any unit is ready."""
        cdef Limits limits = self.scheduler.limits      # of the job's own part, only this function's callers write
        read_policy(&limits, policy)
        cdef int i, n = self.scheduler.count
        cdef int64_t* orders = <int64_t*>malloc((n + 1) * sizeof(int64_t))
        if orders == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                orders[i] = order_of(policy, self.scheduler.units[i].rank, self.scheduler.units[i].bytes)
            self.scheduler.policy = policy
            self.acquire()
            self.scheduler.limits = limits
            for i in range(n):
                self.scheduler.units[i].order = orders[i]
            pthread_mutex_unlock(&self.lock)
        finally:
            free(orders)

    def set_places(self, places) -> None:
        """See Scheduler.set_places(); there is no lead limit from now on until set_unlimited(False)."""
        cdef int i, unit, n = len(places)
        cdef int64_t* numbers = <int64_t*>malloc((4 * n + 1) * sizeof(int64_t))
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                unit, rank, position = places[i]
                self.scheduler.need_unit(unit)
                numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 3] = unit, rank, position
                numbers[4 * i + 2] = order_of(self.scheduler.policy, rank, self.scheduler.units[unit].bytes)
            self.acquire()
            self.scheduler.limits.unlimited = True
            for i in range(n):
                self.scheduler.move(<int>numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 2], numbers[4 * i + 3])
            pthread_cond_signal(&self.wake)
            pthread_mutex_unlock(&self.lock)
        finally:
            free(numbers)

    def set_unlimited(self, bint unlimited) -> None:
        """Whether the lead limit is off: while not all workers share one total order."""
        self.acquire()
        self.scheduler.limits.unlimited = unlimited
        pthread_mutex_unlock(&self.lock)

    def record(self, bint recording) -> None:
        """Whether ready events are kept for take_events(); they are at first."""
        self.acquire()
        self.recording = recording
        if recording:
            self.n_events = 0
        pthread_mutex_unlock(&self.lock)

    def take_events(self) -> list:
        """Ready events since the last call: (iteration, unit, seconds on the monotonic clock). The newest are lost when over 32768
        were not taken."""
        cdef int n, i
        cdef ReadyEvent* taken = <ReadyEvent*>malloc(self.event_capacity * sizeof(ReadyEvent))
        if taken == NULL:
            raise MemoryError()
        self.acquire()
        n = self.n_events
        memcpy(taken, self.events, n * sizeof(ReadyEvent))
        self.n_events = 0
        pthread_mutex_unlock(&self.lock)
        try:
            return [(taken[i].iteration, taken[i].unit, taken[i].time) for i in range(n)]
        finally:
            free(taken)

    def record_timeline(self, Recorder recorder) -> None:
        """Tell this recorder everything that happens; None: nobody."""
        if recorder is not None and recorder.n_links != self.scheduler.n_links:
            raise ValueError(f"a recorder of {recorder.n_links} links for a driver of {self.scheduler.n_links}")
        self.acquire()
        self.recorder, recorder = recorder, self.recorder       # the old one is freed after the lock
        pthread_mutex_unlock(&self.lock)

    def drain_timeline(self, Recorder recorder not None, list labels not None, bint last=False) -> bytes:
        """The recorder's events since the last call as JSON objects, each with ``,\\n`` before it. ``labels[unit]`` is the unit's name as a
        JSON text in bytes. With ``last``, what is still open (step, block) is closed."""
        cdef int n
        with nogil:
            pthread_mutex_lock(&self.lock)
            n = recorder.exchange(last)
            pthread_mutex_unlock(&self.lock)
        return recorder.text(n, labels)

    def unit_facts(self, int index) -> dict:
        """What is fixed about a unit: ``gradient`` (index in forward order), ``bytes``, ``link``, ``rank`` (0: the most urgent)."""
        cdef Unit unit
        memset(&unit, 0, sizeof(Unit))
        self.acquire()
        if 0 <= index < self.scheduler.count:
            unit = self.scheduler.units[index]
        pthread_mutex_unlock(&self.lock)
        return {"gradient": unit.gradient, "bytes": unit.bytes, "link": unit.link, "rank": unit.rank}

    def snapshot(self) -> dict:
        """Counters and link states at this moment."""
        cdef BlockScheduler s = self.scheduler
        cdef int64_t iterations, units, size, blocks, block_units, block_bytes, inverted, yields, overhead, answers, ahead
        cdef double wait, first, sending
        cdef int i, n = s.n_links
        cdef LinkState* states = <LinkState*>malloc(n * sizeof(LinkState))
        if states == NULL:
            raise MemoryError()
        self.acquire()
        iterations, units, size = s.iterations, s.units_released, s.bytes_released
        blocks, block_units, block_bytes = s.blocks, s.block_units, s.block_bytes
        inverted, yields, overhead, answers, ahead = s.inverted_bytes, s.yields, s.overhead, s.first_answers, s.first_ahead
        wait, first, sending = s.wait_seconds, s.first_seconds, sending_until(&s.activity, now())
        for i in range(n):
            states[i] = s.state_of(i)
        pthread_mutex_unlock(&self.lock)
        try:
            return {"iterations": iterations, "units": units, "bytes": size, "blocks": blocks, "block_units": block_units,
                    "block_bytes": block_bytes, "inverted_bytes": inverted, "yields": yields,
                    "wait_seconds": wait, "sending_seconds": sending, "overhead": overhead, "first_answers": answers,
                    "first_seconds": first, "first_ahead": ahead, "links": [as_dict(&states[i]) for i in range(n)]}
        finally:
            free(states)

    def check(self) -> None:
        """Verify every invariant of the scheduler; AssertionError if one fails."""
        cdef const char* what
        with nogil:
            pthread_mutex_lock(&self.lock)
            what = broken(self.scheduler)
            pthread_mutex_unlock(&self.lock)
        if what != NULL:
            raise AssertionError(what.decode())

    def progress(self) -> tuple:
        """(requests that wait for their release or their answer, requests answered so far, what is wrong with the scheduler or '')."""
        cdef int64_t requests, answers
        cdef int fault
        with nogil:
            pthread_mutex_lock(&self.lock)
            requests, answers, fault = self.requests, self.answers, self.fault
            pthread_mutex_unlock(&self.lock)
        return requests - answers, answers, f"unit {fault} was not in the state that an event implies" if fault >= 0 else ""

    def waiting(self) -> list:
        """Every unit that waits, oldest first: (unit, its server or -1 for all, 'ready' or 'sent', seconds in that state, whether its
        bytes have drained, None if that is only predicted). Brings drain up to date first."""
        cdef WaitingUnit* found = NULL
        cdef int n = 0
        cdef double t
        with nogil:                                     # no Python object is made under the lock: collecting garbage may need it
            pthread_mutex_lock(&self.lock)
            t = now()
            self.sample(t, ALL)
            found = <WaitingUnit*>malloc((self.scheduler.count + 1) * sizeof(WaitingUnit))
            if found != NULL:
                n = self.list_waiting(found)
            pthread_mutex_unlock(&self.lock)
        if found == NULL:
            raise MemoryError()
        try:
            units = [(found[i].unit, found[i].link, "sent" if found[i].sent else "ready", t - found[i].since,
                      None if found[i].drained < 0 else bool(found[i].drained)) for i in range(n)]
        finally:
            free(found)
        return sorted(units, key=lambda unit: -unit[3])

    # -- called by engine threads ------------------------------------------------------------------------------------------------

    cdef void on_ready(self, int unit, int64_t iteration, OnComplete* complete) noexcept nogil:
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        self.requests += 1
        if not self.consistent(unit, IDLE, t):
            complete.callback(complete.engine, complete.param, NULL)
            pthread_mutex_unlock(&self.lock)
            return
        self.gates[unit] = complete[0]
        if self.recording and self.n_events < self.event_capacity:
            self.events[self.n_events] = ReadyEvent(iteration, unit, t)
            self.n_events += 1
        self.sample(t, self.scheduler.units[unit].link)
        self.scheduler.on_ready(unit, iteration, t)
        if self.recorder is not None:
            self.recorder.ready(self.scheduler, unit, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_done(self, int unit) noexcept nogil:
        cdef double t
        pthread_mutex_lock(&self.lock)
        t = now()
        self.answers += 1
        if not self.consistent(unit, SENT, t):
            pthread_mutex_unlock(&self.lock)
            return
        self.sample(t, self.scheduler.units[unit].link)
        self.scheduler.on_done(unit, t)
        if self.recorder is not None:
            self.recorder.done(self.scheduler, unit, t)
        self.drain.unit_answered(unit, t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_landed(self, int first, int count, int64_t iteration) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        if self.recorder is not None:
            self.recorder.landed(first, count, iteration, now())
        pthread_mutex_unlock(&self.lock)

    # -- under the lock -------------------------------------------------------------------------------------------------------------

    cdef bint consistent(self, int unit, UnitState expected, double t) noexcept nogil:
        """Whether a unit is in the state that an event implies. If one was not, the scheduler can no longer be relied on: all gates
        are opened, and later events only counted. The watchdog says so."""
        if self.fault < 0 and self.scheduler.units[unit].state != expected:
            self.fault = unit
            self.open = True
            self.flush(t)
        return self.fault < 0

    cdef int list_waiting(self, WaitingUnit* found) noexcept nogil:
        cdef Unit* unit
        cdef bint sent
        cdef int i, n = 0
        for i in range(self.scheduler.count):
            unit = &self.scheduler.units[i]
            if unit.state != IDLE:
                sent = unit.state == SENT
                found[n] = WaitingUnit(i, unit.link, sent, self.drain.has_drained(unit),
                                       unit.release_time if sent else unit.ready_time)
                n += 1
        return n

    cdef double flush(self, double t) noexcept nogil:
        """Complete the gates of every unit that may go, in order, and see to it that the native thread wakes in time: when that is."""
        cdef double wake
        cdef int n, i, unit
        cdef OnComplete* gate
        n = self.scheduler.choose_all(t, &wake)
        if self.open:
            n = self.scheduler.release_all(n, t)
            wake = INFINITY
        if self.recorder is not None:
            wake = self.recorder.released(self.scheduler, n, t, wake)
        for i in range(n):
            unit = self.scheduler.out[i]
            self.drain.unit_released(self.scheduler.units[unit].link)
            gate = &self.gates[unit]
            gate.callback(gate.engine, gate.param, NULL)
        if wake < self.sleeping_until - POLL_MIN:
            pthread_cond_signal(&self.wake)
        return wake

    cdef void sample(self, double t, int which) noexcept nogil:
        """Bring drain up to date for one link, ALL, or those HOLDING something back."""
        self.drain.sample(t, which, self.recorder is not None)
        if self.recorder is not None:
            self.recorder.sampled(self.scheduler, t)

    cdef void loop(self) noexcept nogil:
        """The native thread: samples drain while a limit holds something back, sleeps otherwise."""
        cdef double t, wake
        cdef timespec until
        pthread_mutex_lock(&self.lock)
        while not self.stopping:
            t = now()
            self.sleeping_until = 0                     # awake: flush() need not signal
            self.sample(t, HOLDING)
            wake = self.flush(t)
            if wake == INFINITY:
                self.sleeping_until = INFINITY
                pthread_cond_wait(&self.wake, &self.lock)
            else:
                wake = t + POLL_MIN if wake < t + POLL_MIN else t + POLL_MAX if wake > t + POLL_MAX else wake
                self.sleeping_until = wake
                until = at(wake)
                pthread_cond_timedwait(&self.wake, &self.lock, &until)
        pthread_mutex_unlock(&self.lock)


cdef void* driver_thread(void* driver) noexcept nogil:
    (<Driver>driver).loop()
    return NULL
