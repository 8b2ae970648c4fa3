"""A scheduler whose links and units are measured: how drain is counted, what a timeline records, and what others read of it."""
cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from .drain cimport DRAIN_FED, DRAIN_PREDICTED, Drain, DrainSource
from .posix cimport now, pthread_mutex_lock, pthread_mutex_unlock
from .scheduler cimport ALL, IDLE, SENT, BlockScheduler, Counters, LinkState, Unit, active_until
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
    int gradient
    double time


@cython.no_gc                        # see Driver
cdef class MeasuredScheduler(BlockScheduler):
    """What a driver is, without MXNet's engine. The arguments are those of the base class.

    Contract, beside that of the base class: the lock guards the drain and the recorder as well.
    """
    cdef:
        Drain drain
        Recorder recorder           # of the timeline; None: off
        bint recording              # whether ready events are kept for take_events()
        ReadyEvent* events          # not yet taken by Python
        int n_events, event_capacity
        int64_t requests, answers   # gates that ran, requests that were answered: counted whatever state the scheduler is in
        int64_t saturated           # numbers that were beyond what 16 bits hold
        int fault                   # the unit whose state contradicted an event, -1 none

    def __cinit__(self):
        self.drain = Drain(self.n_links)
        self.fault = -1
        self.recording = True
        self.event_capacity = 1 << 15
        self.events = <ReadyEvent*>malloc(self.event_capacity * sizeof(ReadyEvent))
        if self.events == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.events)

    # -- called by Python ------------------------------------------------------------------------------------------------------

    def use_tcp(self, fds) -> None:
        """Read drain from these sockets, one per link, in the order of the servers; OSError if one cannot be read."""
        cdef int* numbers
        cdef int i, n = self.n_links
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
            self.drain.use_tcp(self, numbers)
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

    def record(self, bint recording) -> None:
        """Whether ready events are kept for take_events(); they are at first."""
        self.acquire()
        self.recording = recording
        if recording:
            self.n_events = 0
        pthread_mutex_unlock(&self.lock)

    def take_events(self) -> list:
        """Ready events since the last call: (iteration, gradient, seconds on the monotonic clock), one for each of its units. The newest
        are lost when over 32768 were not taken."""
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
            return [(taken[i].iteration, taken[i].gradient, taken[i].time) for i in range(n)]
        finally:
            free(taken)

    def record_timeline(self, Recorder recorder) -> None:
        """Tell this recorder everything that happens; None: nobody."""
        if recorder is not None and recorder.n_links != self.n_links:
            raise ValueError(f"a recorder of {recorder.n_links} links for a driver of {self.n_links}")
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

    def snapshot(self) -> dict:
        """The counters, and the state of each link in ``links``, at one moment."""
        cdef Counters counts
        cdef int64_t overhead, saturated
        cdef double sending
        cdef int i, n = self.n_links
        cdef LinkState* states = <LinkState*>malloc(n * sizeof(LinkState))
        if states == NULL:
            raise MemoryError()
        self.acquire()
        counts, overhead, saturated = self.counts, self.overhead, self.saturated
        sending = active_until(&self.activity, now())
        for i in range(n):
            states[i] = self.state_of(i)
        pthread_mutex_unlock(&self.lock)
        try:
            return {**counts, "overhead": overhead, "saturated": saturated, "sending_seconds": sending,
                    "links": [states[i] for i in range(n)]}
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

    # -- under the lock -------------------------------------------------------------------------------------------------------------

    cdef void unit_ready(self, int unit, int64_t iteration, double t) noexcept nogil:
        self.sample(t, self.units[unit].link)
        self.on_ready(unit, iteration, t)
        if self.recorder is not None:
            self.recorder.ready(self, unit, t)

    cdef void unit_answered(self, int unit, double t) noexcept nogil:
        self.sample(t, self.units[unit].link)
        self.on_done(unit, t)
        if self.recorder is not None:
            self.recorder.done(self, unit, t)
        self.drain.unit_answered(self, unit, t)

    cdef void note_ready(self, int64_t iteration, int gradient, double t) noexcept nogil:
        """For take_events()."""
        if self.recording and self.n_events < self.event_capacity:
            self.events[self.n_events] = ReadyEvent(iteration, gradient, t)
            self.n_events += 1

    cdef int list_waiting(self, WaitingUnit* found) noexcept nogil:
        cdef Unit* unit
        cdef bint sent
        cdef int i, n = 0
        for i in range(self.count):
            unit = &self.units[i]
            if unit.state != IDLE:
                sent = unit.state == SENT
                found[n] = WaitingUnit(i, unit.link, sent, self.drain.has_drained(self, unit),
                                       unit.release_time if sent else unit.ready_time)
                n += 1
        return n

    cdef void sample(self, double t, int which) noexcept nogil:
        """Bring drain up to date for one link, ALL, or those HOLDING something back."""
        self.drain.sample(self, t, which, self.recorder is not None)
        if self.recorder is not None:
            self.recorder.sampled(self, t)
