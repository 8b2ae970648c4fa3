# The engine driver: MXNet's engine ops and the kernel's counters on one side, the scheduler's events and decisions on the other.
#
# Per unit and iteration two native ops go onto MXNet's engine around the store's own request:
#   gate   runs when the unit's bytes are ready; tells the scheduler and completes only when the scheduler releases the unit, which
#          holds back the request behind it
#   done   runs when the request was answered
#
# Threads and locks. `lock` guards everything in Driver and its Scheduler. It is taken by engine threads (in gate and done), by the
# driver's own native thread, and by Python threads; nobody who holds it takes the GIL, blocks, makes a Python object (the garbage
# collector may then run any code), or runs user code, and a Python thread that waits for it gives up the GIL. Completing a gate under
# it is safe: the engine then only queues what depended on it (threaded_engine_perdevice.cc runs nothing inline on completion).
from libc.math cimport INFINITY

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    ctypedef unsigned long pthread_t
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_condattr_init(pthread_condattr_t*)
    int pthread_condattr_setclock(pthread_condattr_t*, int)
    int pthread_cond_init(pthread_cond_t*, pthread_condattr_t*)
    int pthread_cond_destroy(pthread_cond_t*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*)
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int CLOCK_MONOTONIC

cdef enum:
    OWN_DEVICE = 99                 # a device id that no program has: nothing is ever placed there
    SMALL_UNIT = 16384              # bytes: the ops of a smaller unit stay in cpu(0)'s thread
    HOLDING = -2                    # sample(): the links that hold something back

cdef enum DrainSource:
    DRAIN_TCP = 0
    DRAIN_FED = 1                   # totals come from feed_drained(): a Python thread reads them (NIC counters)
    DRAIN_PREDICTED = 2             # bytes / rate, corrected by the answers

cdef double POLL_MIN = 0.0002       # seconds between samples of a link while a window holds something back
cdef double POLL_MAX = 0.002
POLL_TIMES = (POLL_MIN, POLL_MAX)   # for the simulator
cdef double QUIET_SECONDS = 0.005   # a link without motion for so long carries nothing, if little is missing from the count
cdef double WAITING_SECONDS = 0.5   # and for so long, if more is missing: a send may wait behind the program's own operators
cdef int64_t OVERHEAD_ERROR = 64    # bytes by which the estimate of what a message costs may be wrong
cdef double OVERHEAD_MAX = 4096     # bytes a message may cost besides its payload

# Contexts and property of our ops, which the engine refers to by address. An op that is ready only after it was pushed runs in the one FIFO
# thread of its device id. That of cpu(0) has the store's sends in it and, in a job on CPUs, all of the program's operators; so ours have a
# device id, and with it a thread, of their own. But to wake that thread takes about a fifth of the processor time of a whole small key.
cdef EngineContext OWN_CONTEXT = EngineContext(DEV_CPU, OWN_DEVICE)
cdef EngineContext SHARED_CONTEXT = EngineContext(DEV_CPU, 0)
cdef int ASYNC = FN_ASYNC


cdef inline double now() noexcept nogil:
    """Seconds on the monotonic clock."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


cdef inline timespec at(double seconds) noexcept nogil:
    cdef timespec t
    t.tv_sec = <long>seconds
    t.tv_nsec = <long>((seconds - t.tv_sec) * 1e9)
    return t


cdef struct Gate:                   # one request of a unit, from the push of its gate until the gate runs
    void* driver
    int unit
    int64_t iteration

cdef struct Meter:                  # drain of one link
    int fd
    int64_t base                    # acknowledged bytes that are not the scheduler's: acked - base = drained
    double sampled                  # when
    int64_t acked                   # what the kernel said then
    int64_t quiet_written           # bytes written to the socket when everything was last answered, -1 unknown
    int64_t quiet_released
    int64_t quiet_messages
    int64_t messages                # units released on this link in all
    double moved                    # when bytes were last released or seen to drain
    int64_t moved_released          # the scheduler's counters at that time
    int64_t moved_drained

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


cdef class Recorder                 # timeline.pyx


cdef class Driver(Scheduler):
    """The scheduler, driven by MXNet's engine. Starts no thread until start()."""
    cdef:
        pthread_mutex_t lock
        pthread_cond_t wake
        pthread_t thread
        bint running, stopping
        bint open                   # every gate completes at once: at exit, and when the scheduler failed
        double sleeping_until       # the native thread's next wake-up; INFINITY: only a signal wakes it
        bint made                   # __cinit__ came to its end
        OnComplete* gates           # per unit: how to complete the gate of the unit's READY request
        DrainSource source
        Meter* meters
        double last_prediction
        double settled              # when the counters were last aligned
        bint recording              # whether ready events are kept for take_events()
        ReadyEvent* events          # not yet taken by Python
        int n_events, event_capacity
        Recorder recorder           # of the timeline; None: off
        int64_t requests, answers   # gates that ran, requests that were answered: counted whatever state the scheduler is in
        int fault                   # the unit whose state contradicted an event, -1 none

    def __cinit__(self, str policy, int links, int64_t window=0, int64_t lead=0, double rate=0):
        cdef pthread_condattr_t attributes
        pthread_mutex_init(&self.lock, NULL)
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
        pthread_cond_init(&self.wake, &attributes)
        self.source = DRAIN_PREDICTED
        self.fault = -1
        self.sleeping_until = INFINITY
        self.recording = True
        self.meters = <Meter*>calloc(links, sizeof(Meter))
        self.event_capacity = 1 << 15
        self.events = <ReadyEvent*>malloc(self.event_capacity * sizeof(ReadyEvent))
        if self.meters == NULL or self.events == NULL or self.grow(self.capacity) < 0:
            raise MemoryError()
        self.made = True

    def __dealloc__(self):
        if self.made:                                   # else nothing runs, and what __cinit__ did not reach is not there
            self.stop()
            pthread_cond_destroy(&self.wake)
            pthread_mutex_destroy(&self.lock)
        free(self.gates)
        free(self.meters)
        free(self.events)

    cdef int grow(self, int capacity) noexcept nogil:
        """Room for the gates as well."""
        cdef void* p = realloc(self.gates, capacity * sizeof(OnComplete))
        if p == NULL:
            return -1
        self.gates = <OnComplete*>p
        return Scheduler.grow(self, capacity)

    # -- called by Python ------------------------------------------------------------------------------------------------------

    cdef void acquire(self) noexcept:
        """Take the lock, without the GIL while another has it, and return with both.

        Who waited for the GIL under the lock could wait for ever: a gate may run in the caller's thread, which has the GIL, and takes the
        lock. For the same reason nothing under the lock may give up the GIL, as freeing or making a Python object can.
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
        cdef int n, i
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

    def new_unit(self, int64_t size, int link, int gradient, int64_t rank, int64_t position) -> int:
        """Add a unit while the driver runs; its index."""
        cdef int index
        if size < 0 or not WIDE <= link < self.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        self.acquire()
        index = self.c_add_unit(size, link, gradient, rank, position)
        pthread_mutex_unlock(&self.lock)
        if index < 0:
            raise MemoryError()
        return index

    def use_tcp(self, fds) -> None:
        """Read drain from these sockets, one per link, in the order of the servers; OSError if one cannot be read."""
        cdef TcpSample sample
        cdef int i
        if len(fds) != self.n_links:
            raise ValueError(f"{len(fds)} sockets for {self.n_links} links")
        for i in range(self.n_links):
            tcp_sample(fds[i])
            self.meters[i].fd = fds[i]                  # looked at only while the source is DRAIN_TCP
        self.acquire()
        for i in range(self.n_links):
            read_tcp(self.meters[i].fd, &sample)
            self.meters[i].acked = sample.acked
            self.meters[i].base = sample.acked - self.links[i].drained
            self.meters[i].quiet_written = -1
            self.links[i].rtt = sample.min_rtt
        self.source = DRAIN_TCP
        pthread_mutex_unlock(&self.lock)

    def use_fed(self) -> None:
        """Take drain from feed_drained()."""
        self.use_source(DRAIN_FED)

    def use_predicted(self) -> None:
        """Predict drain from the rate."""
        self.use_source(DRAIN_PREDICTED)

    cdef void use_source(self, DrainSource source) noexcept:
        self.acquire()
        self.source = source
        pthread_mutex_unlock(&self.lock)

    def feed_drained(self, int link, int64_t fresh) -> None:
        """`fresh` more bytes have left on a link (DRAIN_FED)."""
        self.need_link(link)
        self.acquire()
        if self.source == DRAIN_FED:
            self.c_drained(link, self.links[link].drained + fresh, now())
            self.flush(now())
        pthread_mutex_unlock(&self.lock)

    def in_flight(self) -> int:
        """Bytes released and not drained, over all links."""
        cdef int64_t total = 0
        cdef int i
        self.acquire()
        for i in range(self.n_links):
            total += self.links[i].released - self.links[i].drained
        pthread_mutex_unlock(&self.lock)
        return total

    def steps_changed(self, step_of, due) -> None:
        """set_steps() while the driver runs."""
        cdef int n_gradients = len(step_of), n_steps = len(due), code
        cdef int* steps
        cdef double* dues
        steps, dues = NULL, NULL
        try:
            copy_steps(step_of, due, &steps, &dues)
            self.acquire()
            code = self.c_set_steps(n_gradients, steps, n_steps, dues)
            pthread_mutex_unlock(&self.lock)
            if code < 0:
                raise MemoryError()
        finally:
            free(steps)
            free(dues)

    def rates_known(self, double rate) -> None:
        """Start from this rate (bytes/s) on every link."""
        if not 0 < rate < INFINITY:
            raise ValueError(f"rate={rate}: not positive and finite")
        self.acquire()
        for i in range(self.n_links):
            self.links[i].rate = rate
        pthread_mutex_unlock(&self.lock)

    def unit_known(self, int64_t unit) -> None:
        """set_unit() while the driver runs."""
        self.acquire()
        self.unit = unit
        pthread_mutex_unlock(&self.lock)

    def policy_known(self, str policy) -> None:
        """Go by this policy, before any unit is ready."""
        if policy not in POLICY_KINDS:
            raise ValueError(f"policy={policy!r}: not one of {', '.join(POLICY_KINDS)}")
        cdef PolicyKind kind = POLICY_KINDS[policy]
        self.acquire()
        self.kind = kind
        pthread_mutex_unlock(&self.lock)

    def places_changed(self, places) -> None:
        """set_place() for each (unit, rank, position), without a lead limit from now on until limit_again()."""
        cdef int i, n = len(places)
        cdef int64_t* numbers = <int64_t*>malloc((3 * n + 1) * sizeof(int64_t))
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                self.need_unit(places[i][0])
                numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2] = places[i]
            self.acquire()
            self.unlimited = True
            for i in range(n):
                self.c_set_place(<int>numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2])
            pthread_cond_signal(&self.wake)
            pthread_mutex_unlock(&self.lock)
        finally:
            free(numbers)

    def limit_again(self) -> None:
        """All workers share one total order again: the lead limit counts."""
        self.acquire()
        self.unlimited = False
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
        if recorder is not None and recorder.n_links != self.n_links:
            raise ValueError(f"a recorder of {recorder.n_links} links for a driver of {self.n_links}")
        self.acquire()
        self.recorder, recorder = recorder, self.recorder       # the old one is freed after the lock
        pthread_mutex_unlock(&self.lock)

    def snapshot(self) -> dict:
        """Counters and link states at this moment."""
        cdef int64_t iterations, units, size, blocks, inverted, overhead, answers
        cdef double wait, first, sending
        cdef int i
        cdef LinkState* states = <LinkState*>malloc(self.n_links * sizeof(LinkState))
        if states == NULL:
            raise MemoryError()
        self.acquire()
        iterations, units, size, blocks = self.iterations, self.units_released, self.bytes_released, self.blocks
        inverted, overhead, answers = self.inverted_bytes, self.overhead, self.first_answers
        wait, first, sending = self.wait_seconds, self.first_seconds, self.sending_until(now())
        for i in range(self.n_links):
            states[i] = self.state_of(i)
        pthread_mutex_unlock(&self.lock)
        try:
            return {"iterations": iterations, "units": units, "bytes": size, "blocks": blocks, "inverted_bytes": inverted,
                    "wait_seconds": wait, "sending_seconds": sending, "overhead": overhead, "first_answers": answers, "first_seconds": first,
                    "links": [as_dict(&states[i]) for i in range(self.n_links)]}
        finally:
            free(states)

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
            found = <WaitingUnit*>malloc((self.count + 1) * sizeof(WaitingUnit))
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
        self.sample(t, self.units[unit].link)
        self.c_ready(unit, iteration, t)
        if self.recorder is not None:
            self.recorder.ready(self, unit, t)
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
        self.sample(t, self.units[unit].link)
        self.c_done(unit, t)
        if self.recorder is not None:
            self.recorder.done(self, unit, t)
        self.trust_answer(unit, t)
        if self.n_sent == 0:
            self.settle(t)
        self.flush(t)
        pthread_mutex_unlock(&self.lock)

    cdef void on_landed(self, int first, int count, int64_t iteration) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        if self.recorder is not None:
            self.recorder.landed(first, count, iteration, now())
        pthread_mutex_unlock(&self.lock)

    # -- under the lock -------------------------------------------------------------------------------------------------------------

    cdef bint consistent(self, int unit, UnitState expected, double t) noexcept nogil:
        """Whether a unit is in the state that an event implies. If one was not, the scheduler cannot be relied on any more: all gates
        are opened, and later events only counted. The watchdog says so."""
        if self.fault < 0 and self.units[unit].state != expected:
            self.fault = unit
            self.open = True
            self.flush(t)
        return self.fault < 0

    cdef int list_waiting(self, WaitingUnit* found) noexcept nogil:
        cdef Unit* unit
        cdef bint sent
        cdef int i, n = 0
        for i in range(self.count):
            unit = &self.units[i]
            if unit.state != IDLE:
                sent = unit.state == SENT
                found[n] = WaitingUnit(i, unit.link, sent, self.has_drained(unit) if sent and self.source == DRAIN_TCP else -1,
                                       unit.release_time if sent else unit.ready_time)
                n += 1
        return n

    cdef bint has_drained(self, Unit* unit) noexcept nogil:
        """Whether the bytes of a sent unit have left, by the connections' counts and queues."""
        cdef int k
        cdef int64_t end
        for k in range(self.n_links):
            if unit.link == WIDE or unit.link == k:
                end = self.links[k].released if unit.link == WIDE else unit.end
                # An empty queue proves drain, where the count is an estimate.
                if self.links[k].drained < end and read_queued(self.meters[k].fd) != 0:
                    return False
        return True

    cdef double flush(self, double t) noexcept nogil:
        """Complete the gates of every unit that may go, in order, and see to it that the native thread wakes in time: when that is."""
        cdef double wake
        cdef int n, i, k, link
        cdef OnComplete* gate
        n = self.c_decide(t, &wake)
        if self.open:
            n = self.take_all_ready(n, t)
            wake = INFINITY
        if self.recorder is not None:
            wake = self.recorder.released(self, n, t, wake)
        for i in range(n):
            link = self.units[self.out[i]].link
            for k in range(self.n_links):
                if link == k or link == WIDE:
                    self.meters[k].messages += 1
            gate = &self.gates[self.out[i]]
            gate.callback(gate.engine, gate.param, NULL)
        if wake < self.sleeping_until - POLL_MIN:
            pthread_cond_signal(&self.wake)
        return wake

    cdef int take_all_ready(self, int n, double t) noexcept nogil:
        """Release whatever c_decide() held back, after the n units it released."""
        cdef int i
        for i in range(self.n_links):
            while self.links[i].ready.count > 0:
                self.out[n] = self.links[i].ready.items[0]
                self.release(self.out[n], t)
                n += 1
        while self.wide.count > 0:
            self.out[n] = self.wide.items[0]
            self.release(self.out[n], t)
            n += 1
        return n

    cdef void sample(self, double t, int which) noexcept nogil:
        """Bring drain up to date for one link, ALL, or those HOLDING something back, where bytes are in flight. A connection is not asked
        again within POLL_MIN: between that and its next event the native thread asks, if anything waits for it."""
        cdef Link* link
        cdef int i
        for i in range(self.n_links):
            link = &self.links[i]
            if link.released == link.drained:
                continue
            if self.source == DRAIN_TCP:
                if which >= 0 and which != i or t - self.meters[i].sampled < 0.99 * POLL_MIN:
                    continue
                if which == HOLDING and link.ready.count == 0 and self.wide.count == 0 and self.recorder is None:
                    continue
                self.ask(i, t)
            elif self.source == DRAIN_PREDICTED and t > self.last_prediction:
                link.drained += <int64_t>(link.rate * (t - self.last_prediction))
                if link.drained > link.released:
                    link.drained = link.released
            if self.quiet(i, t):
                self.c_assume_drained(i, link.released, t)
                if self.source == DRAIN_TCP:
                    self.meters[i].base = self.meters[i].acked - link.drained
        self.last_prediction = t
        if self.recorder is not None:
            self.recorder.sampled(self, t)

    cdef void ask(self, int index, double t) noexcept nogil:
        """Ask the kernel how much of a link's bytes have been acknowledged."""
        cdef TcpSample tcp
        cdef Meter* meter = &self.meters[index]
        if read_tcp(meter.fd, &tcp) != 0:
            self.source = DRAIN_PREDICTED               # the connection is gone; the watchdog reports that, not the clock
            return
        meter.sampled = t
        meter.acked = tcp.acked
        if tcp.min_rtt > 0:
            self.links[index].rtt = tcp.min_rtt
        self.c_drained(index, tcp.acked - meter.base, t)

    cdef bint quiet(self, int index, double t) noexcept nogil:
        """Whether a link is at rest though bytes seem to be in flight. What a message costs besides its payload is an estimate, and an
        interface's counters do not tell the links apart: without this, an error could keep the window shut until the next answer,
        which other workers may be waiting to make possible. Where more is missing than the estimate explains, a send that was released
        still waits in the engine: it keeps its place in the window, but not for ever, as that too is only likely."""
        cdef Link* link = &self.links[index]
        cdef Meter* meter = &self.meters[index]
        cdef double patience = QUIET_SECONDS
        if meter.moved_released != link.released or meter.moved_drained != link.drained:
            meter.moved_released = link.released
            meter.moved_drained = link.drained
            meter.moved = t
        if self.source == DRAIN_FED:
            patience = 4 * QUIET_SECONDS                # it is fed every QUIET_SECONDS, if the machine keeps time
        elif self.source == DRAIN_TCP and link.released - link.drained > OVERHEAD_ERROR * (meter.messages - meter.quiet_messages):
            patience = WAITING_SECONDS
        return t - meter.moved > patience and (self.source != DRAIN_TCP or read_queued(meter.fd) == 0)

    cdef void trust_answer(self, int unit, double t) noexcept nogil:
        """An answer proves drain. Where the counter says less, also now, it is the base that is wrong."""
        cdef int k = self.units[unit].link
        if k == WIDE or self.source != DRAIN_TCP or self.meters[k].acked - self.meters[k].base >= self.links[k].drained:
            return
        if self.meters[k].sampled < t:
            self.ask(k, t)
        if self.meters[k].acked - self.meters[k].base < self.links[k].drained:
            self.meters[k].base = self.meters[k].acked - self.links[k].drained

    cdef void settle(self, double t) noexcept nogil:
        """Everything is answered: align the counters, and learn what a message costs on the wire besides its payload."""
        cdef Meter* meter
        cdef int64_t written, messages
        cdef double cost, total = 0
        cdef int i, n = 0
        cdef bint align = self.source == DRAIN_TCP and t - self.settled >= POLL_MIN
        for i in range(self.n_links):
            self.c_assume_drained(i, self.links[i].released, t)
            meter = &self.meters[i]
            if not align or meter.messages == meter.quiet_messages and meter.quiet_written >= 0:
                continue                                # it was aligned a moment ago, or nothing has happened on it since
            if meter.sampled < t:
                self.ask(i, t)
            written = meter.acked + read_queued(meter.fd)
            messages = meter.messages - meter.quiet_messages
            if meter.quiet_written >= 0 and messages > 0:
                cost = <double>(written - meter.quiet_written - (self.links[i].released - meter.quiet_released)) / messages
                cost += self.overhead                   # `released` counted the old estimate already
                if 0 <= cost <= OVERHEAD_MAX:
                    total += cost
                    n += 1
            meter.quiet_written = written
            meter.quiet_released = self.links[i].released
            meter.quiet_messages = meter.messages
            meter.base = written - self.links[i].released
        if align:
            self.settled = t
        if n > 0:
            self.overhead = <int64_t>(total / n)

    cdef void loop(self) noexcept nogil:
        """The native thread: samples drain while a window holds something back, sleeps otherwise."""
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


cdef void gate_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Gate* gate = <Gate*>param
    (<Driver>gate.driver).on_ready(gate.unit, gate.iteration, <OnComplete*>on_complete)
    free(gate)


cdef void done_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Gate* request = <Gate*>param
    cdef OnComplete* complete = <OnComplete*>on_complete
    (<Driver>request.driver).on_done(request.unit)
    free(request)
    complete.callback(complete.engine, complete.param, NULL)
