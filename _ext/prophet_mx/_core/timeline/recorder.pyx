"""The timeline's recorder: see recorder.pxd."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from .drain cimport POLL_MAX
from .posix cimport now
from .scheduler cimport WIDE, BlockScheduler, Link, Queue, Unit, block_budget, in_flight, min_window, step_of

cdef double COUNTER_SECONDS = 0.002     # between two values of a link's counters


cdef class Recorder:
    """Records what a driver does. Install it with :meth:`Driver.record_timeline`.

    Contract:

    1. C functions but text() are called with the driver's lock held, and cost some stores. They format and write nothing, and allocate
       for new units only.
    2. exchange(), and then text(), are called by one thread at a time.
    3. Where the buffer is full, events are counted as lost.

    Wire times are an approximation: drain is sampled, and between two samples the link is taken to carry bytes at an even rate.

    Parameters
    ----------
    links : number of servers
    process : number of the worker's process in the trace; its units have the next one
    capacity : events that are kept until they are drained
    """
    def __cinit__(self, int links, int process, int capacity=1 << 15):
        if links < 1 or capacity < 1:
            raise ValueError(f"links={links}, capacity={capacity}: both are at least 1")
        self.capacity = capacity
        self.n_links = links
        self.stamp = Stamp(process, now())
        self.every = self.iterations_every = 1
        self.iteration = self.step_iteration = -1
        self.iteration_begin = self.gap_since = -1
        self.filling = <TimelineEvent*>malloc(capacity * sizeof(TimelineEvent))
        self.full = <TimelineEvent*>malloc(capacity * sizeof(TimelineEvent))
        self.links = <LinkTrack*>calloc(links, sizeof(LinkTrack))
        if self.filling == NULL or self.full == NULL or self.links == NULL:
            raise MemoryError()
        for i in range(links):
            self.links[i].first = self.links[i].last = -1
            self.links[i].sampled = -1

    def __dealloc__(self):
        free(self.filling)
        free(self.full)
        free(self.units)
        free(self.links)

    # -- called by the driver, under its lock -----------------------------------------------------------------------------

    cdef void ready(self, BlockScheduler s, int index, double t) noexcept nogil:
        """A unit has become ready, and the scheduler knows."""
        cdef Unit* unit = &s.units[index]
        cdef int step
        cdef bint known
        if self.gap_since >= 0:
            self.add(GAP_EVENT, 0, unit.iteration, self.gap_since, t)
            self.gap_since = -1
        if unit.iteration > self.iteration:
            if self.iteration_begin >= 0 and self.iteration % self.iterations_every == 0:
                self.append(ITERATION_EVENT, 0, self.iteration, self.iteration_begin, t)
            # Members of a group are ready before their unit. Where the recorder came in the middle, the beginning is not known.
            known = s.steps.start == t or (self.iteration >= 0 and s.steps.iteration == unit.iteration)
            self.iteration = unit.iteration
            self.iteration_begin = s.steps.start if known else -1
        step = step_of(&s.steps, unit.gradient)
        if unit.iteration != self.step_iteration or step > self.step:
            self.close_step()
            self.step = step
            self.step_iteration = unit.iteration
            self.step_begin = t
        if step == self.step:
            self.step_end = t
            self.step_units += 1
            self.step_bytes += unit.bytes

    cdef void close_step(self) noexcept nogil:
        cdef TimelineEvent* event
        if self.step_units > 0 and self.step >= 0:
            event = self.add(STEP_EVENT, self.step, self.step_iteration, self.step_begin, self.step_end)
            if event != NULL:
                event.numbers[0] = self.step_units
                event.numbers[1] = self.step_bytes
        self.step_units = 0
        self.step_bytes = 0

    cdef double released(self, BlockScheduler s, int n, double t, double wake) noexcept nogil:
        """The n units of s.out go now. When to wake for the next sample: drain is followed also while nothing is held back."""
        cdef UnitTrack* track
        cdef LinkTrack* link
        cdef int i, index
        for i in range(n):
            index = s.out[i]
            if index >= self.n_units and self.grow(s.capacity) < 0:
                self.lost += 1
                continue
            link = self.link_of(s, index)
            track = &self.units[index]
            track.known = track.flying = True
            track.after = -1
            track.block = s.queues[self.link_index(&s.units[index])].block
            track.block.number = s.units[index].block
            if link.last >= 0:
                self.units[link.last].after = index
            else:
                link.first = index
            link.last = index
        for i in range(self.n_links):
            if in_flight(&s.links[i]) > 0 and wake > t + POLL_MAX:
                wake = t + POLL_MAX
        return wake

    cdef void sampled(self, BlockScheduler s, double t) noexcept nogil:
        """Drain was brought up to date."""
        cdef int i
        for i in range(self.n_links):
            self.advance(s, i, t)
            if t - self.links[i].counted >= COUNTER_SECONDS:
                self.count(s, i, t)

    cdef void done(self, BlockScheduler s, int index, double t) noexcept nogil:
        """A unit was answered, and the scheduler knows."""
        cdef Unit* unit = &s.units[index]
        cdef UnitTrack* track
        cdef TimelineEvent* event
        cdef LinkTrack* link = self.link_of(s, index)
        if index >= self.n_units or not self.units[index].known:
            return                                      # it was released before the recorder was on
        track = &self.units[index]
        self.advance(s, self.link_index(unit), t)
        while track.flying:
            self.pop(s, link, t)
        track.known = False
        track.answered = t
        track.answered_iteration = unit.iteration
        # It may have been ready before the recorder was on.
        event = self.add(UNIT_EVENT, index, unit.iteration, max(unit.ready_time, self.stamp.origin), unit.release_time)
        if event != NULL:
            event.times[2] = track.wire
            event.times[3] = track.drained
            event.times[4] = t
            event.numbers[0] = track.block.number
            event.numbers[1] = step_of(&s.steps, unit.gradient)
            event.numbers[2] = self.link_index(unit)
        if not s.anything_waits():
            self.gap_since = t

    cdef void landed(self, int first, int count, int64_t iteration, double t) noexcept nogil:
        """The values of these units are in the caller's arrays."""
        cdef int i
        for i in range(first, first + count):
            if i < self.n_units and self.units[i].answered_iteration == iteration and self.units[i].answered > 0:
                self.add(UNPACK_EVENT, i, iteration, self.units[i].answered, t)

    # -- under the lock -----------------------------------------------------------------------------------------------------

    cdef int link_index(self, Unit* unit) noexcept nogil:
        """The link whose counter the unit's `end` is on: for a wide unit, the last."""
        return self.n_links - 1 if unit.link == WIDE else unit.link

    cdef LinkTrack* link_of(self, BlockScheduler s, int index) noexcept nogil:
        return &self.links[self.link_index(&s.units[index])]

    cdef void advance(self, BlockScheduler s, int index, double t) noexcept nogil:
        """Take every unit out of a link's queue whose last byte has drained by now."""
        cdef LinkTrack* link = &self.links[index]
        cdef int64_t drained = s.links[index].drained, fresh = drained - link.drained
        cdef double when
        while link.first >= 0 and s.units[link.first].end <= drained:
            when = t
            if fresh > 0 and link.sampled >= 0 and s.units[link.first].end > link.drained:
                when = link.sampled + (t - link.sampled) * (s.units[link.first].end - link.drained) / fresh
            self.pop(s, link, when)
        link.drained = drained
        link.sampled = t

    cdef void pop(self, BlockScheduler s, LinkTrack* link, double when) noexcept nogil:
        """The first unit of a link's queue had drained at this time."""
        cdef int index = link.first
        cdef UnitTrack* track = &self.units[index]
        cdef Unit* unit = &s.units[index]
        link.first = track.after
        if link.first < 0:
            link.last = -1
        track.flying = False
        track.wire = max(unit.release_time, link.free)
        track.drained = max(when, track.wire)
        link.free = track.drained
        if track.block.number == 0:
            return
        if track.block.number != link.block.number or link.block_iteration != unit.iteration:
            self.close_block(link)
            link.block = track.block
            link.block_iteration = unit.iteration
            link.block_begin = track.wire
        link.block_end = track.drained
        link.block_units += 1
        link.block_bytes += unit.bytes

    cdef void close_block(self, LinkTrack* link) noexcept nogil:
        cdef TimelineEvent* event
        if link.block_units > 0:
            event = self.add(BLOCK_EVENT, <int>(link - self.links), link.block_iteration, link.block_begin, link.block_end)
            if event != NULL:
                event.numbers[0] = link.block.number
                event.numbers[1] = link.block_units
                event.numbers[2] = link.block_bytes
                event.numbers[3] = link.block.step
                event.numbers[4] = link.block.predicted
        link.block_units = 0
        link.block_bytes = 0

    cdef void count(self, BlockScheduler s, int index, double t) noexcept nogil:
        """Keep a link's counters, if they have changed."""
        cdef LinkTrack* track = &self.links[index]
        cdef Link* link = &s.links[index]
        cdef Queue* queue = &s.queues[index]
        cdef int64_t flight = in_flight(link)
        cdef TimelineEvent* event
        if flight == track.counted_flight and queue.unanswered == track.counted_unanswered and queue.ready.count == track.counted_ready:
            return
        track.counted = t
        track.counted_flight = flight
        track.counted_unanswered = queue.unanswered
        track.counted_ready = queue.ready.count
        event = self.add(COUNTER_EVENT, index, s.steps.iteration, t, t)
        if event != NULL:
            event.numbers[0] = flight
            event.numbers[1] = max(min_window(&s.limits, link), <int64_t>block_budget(&s.limits, &s.steps, link, t))
            event.numbers[2] = queue.unanswered
            event.numbers[3] = queue.ready.count
            event.numbers[4] = <int64_t>link.rate

    cdef TimelineEvent* add(self, EventKind kind, int index, int64_t iteration, double begin, double end) noexcept nogil:
        """A new event with its first two times; NULL if its iteration is not kept, or there is no room."""
        if iteration % self.every != 0:
            return NULL
        return self.append(kind, index, iteration, begin, end)

    cdef TimelineEvent* append(self, EventKind kind, int index, int64_t iteration, double begin, double end) noexcept nogil:
        cdef TimelineEvent* event
        if self.n == self.capacity:
            self.lost += 1
            return NULL
        event = &self.filling[self.n]
        self.n += 1
        event.kind = kind
        event.index = index
        event.iteration = iteration
        event.times[0] = begin
        event.times[1] = end
        return event

    cdef int exchange(self, bint last) noexcept nogil:
        """Begin a new buffer; how many events are in the old one, for text(). With `last`, what is still open (step, block) is closed."""
        cdef int n
        if last:
            self.close_step()
            for i in range(self.n_links):
                self.close_block(&self.links[i])
        self.filling, self.full = self.full, self.filling
        n = self.n
        self.n = 0
        return n

    cdef int grow(self, int count) noexcept nogil:
        cdef void* p = realloc(self.units, count * sizeof(UnitTrack))
        if p == NULL:
            return -1
        self.units = <UnitTrack*>p
        memset(&self.units[self.n_units], 0, (count - self.n_units) * sizeof(UnitTrack))
        self.n_units = count
        return 0

    # -- without the lock ---------------------------------------------------------------------------------------------------

    cdef bytes text(self, int n, list labels):
        """The n events of the old buffer; see Driver.drain_timeline()."""
        cdef const char** names = <const char**>malloc((len(labels) + 1) * sizeof(char*))
        cdef char* text = NULL
        cdef int n_names = len(labels)
        cdef Py_ssize_t size
        if names == NULL:
            raise MemoryError()
        try:
            for i in range(n_names):
                names[i] = <const char*><bytes>labels[i]
            with nogil:
                size = format_events(&self.stamp, self.full, n, names, n_names, &text)
            if size < 0:
                raise MemoryError()
            return PyBytes_FromStringAndSize(text, size)
        finally:
            free(text)
            free(names)

    def keep(self, int64_t every, int64_t iterations_every) -> None:
        """Record one iteration in ``every``, and of the others when one in ``iterations_every`` began."""
        self.every = every
        self.iterations_every = iterations_every

    def now_us(self) -> int:
        """The time of an event that happens now."""
        return us(&self.stamp, now())
