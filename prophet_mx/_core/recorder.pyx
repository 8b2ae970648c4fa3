# The timeline's recorder: what happened to every unit, kept in a buffer of fixed size until a Python thread asks for it as text.
#
# Contract: everything that is called by the driver (ready, released, sampled, done, landed) is called with the driver's lock held and
# costs some stores; nothing is formatted, allocated (but for new units) or written there. drain() takes the lock only to exchange
# buffers and turns events into JSON without the GIL. Where the buffer is full, events are counted as lost.
#
# Wire times are an approximation: drain is sampled, and between two samples the link is taken to carry bytes at an even rate.
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdio cimport snprintf

cdef enum EventKind:
    UNIT_EVENT = 0
    UNPACK_EVENT = 1
    BLOCK_EVENT = 2
    STEP_EVENT = 3
    ITERATION_EVENT = 4
    GAP_EVENT = 5
    COUNTER_EVENT = 6

cpdef enum:                         # rows of the worker's process in the trace; a link's row is LINK_ROW + its index
    ITERATION_ROW = 1
    STEP_ROW = 2
    GAP_ROW = 3
    LINK_ROW = 10
    LABEL_MAX = 160                 # characters of a slice's name, as JSON
    SLICE_MAX = 512                 # of one slice up to its arguments, at most
    TEXT_MAX = 4096                 # of one event's text, which is up to four slices

cdef double COUNTER_SECONDS = 0.002     # between two values of a link's counters

cdef struct TimelineEvent:
    EventKind kind
    int index                       # unit, link or step
    int64_t iteration
    int64_t[5] numbers
    double[5] times

cdef struct UnitTrack:
    bint known                      # released while the recorder was on, and not yet answered
    bint flying                     # in its link's queue of units that have not drained
    int after                       # the next unit of that queue, -1 none
    int64_t block
    double wire, drained            # when the link turned to it, and when its last byte had drained
    double answered
    int64_t answered_iteration

cdef struct LinkTrack:
    int first, last                 # queue of released units, in that order, -1 none
    int64_t drained                 # at the last sample
    double sampled
    double free                     # when the unit before had drained
    int64_t block, block_units, block_bytes, block_iteration
    double block_begin, block_end
    double counted                  # when counters were last kept
    int64_t counted_flight, counted_unanswered
    int counted_ready


cdef class Recorder:
    """Records what a driver does. Install it with :meth:`Driver.record_timeline`.

    Parameters
    ----------
    links : number of servers
    process : number of the worker's process in the trace; its units have the next one
    capacity : events that are kept until they are drained
    """
    cdef:
        TimelineEvent* filling
        TimelineEvent* full
        int n, capacity
        UnitTrack* units
        int n_units
        LinkTrack* links
        int n_links
        int process
        double origin
        int64_t every, iterations_every
        int64_t iteration           # the newest one
        double iteration_begin
        double gap_since
        int step, step_units
        int64_t step_iteration, step_bytes
        double step_begin, step_end
        readonly int64_t lost

    def __cinit__(self, int links, int process, int capacity=1 << 15):
        if links < 1 or capacity < 1:
            raise ValueError(f"links={links}, capacity={capacity}: both are at least 1")
        self.capacity = capacity
        self.n_links = links
        self.process = process
        self.origin = now()
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

    cdef void ready(self, Scheduler s, int index, double t) noexcept nogil:
        """A unit has become ready, and the scheduler knows."""
        cdef Unit* unit = &s.units[index]
        cdef int step
        if self.gap_since >= 0:
            self.add(GAP_EVENT, 0, unit.iteration, self.gap_since, t)
            self.gap_since = -1
        if unit.iteration > self.iteration:
            if self.iteration_begin >= 0 and self.iteration % self.iterations_every == 0:
                self.append(ITERATION_EVENT, 0, self.iteration, self.iteration_begin, t)
            self.iteration = unit.iteration
            self.iteration_begin = t if s.iteration_start == t else -1      # unknown where the recorder came in the middle
        step = s.step_of[unit.gradient] if unit.gradient < s.n_gradients else -1
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

    cdef double released(self, Scheduler s, int n, double t, double wake) noexcept nogil:
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
            track.block = s.blocks
            if link.last >= 0:
                self.units[link.last].after = index
            else:
                link.first = index
            link.last = index
        for i in range(self.n_links):
            if s.links[i].released > s.links[i].drained and wake > t + POLL_MAX:
                wake = t + POLL_MAX
        return wake

    cdef void sampled(self, Scheduler s, double t) noexcept nogil:
        """Drain was brought up to date."""
        cdef int i
        for i in range(self.n_links):
            self.advance(s, i, t)
            if t - self.links[i].counted >= COUNTER_SECONDS:
                self.count(s, i, t)

    cdef void done(self, Scheduler s, int index, double t) noexcept nogil:
        """A unit was answered, and the scheduler knows."""
        cdef Unit* unit = &s.units[index]
        cdef UnitTrack* track
        cdef TimelineEvent* event
        cdef LinkTrack* link = self.link_of(s, index)
        cdef int i
        if index >= self.n_units or not self.units[index].known:
            return                                      # it was released before the recorder was on
        track = &self.units[index]
        self.advance(s, self.link_index(unit), t)
        while track.flying:
            self.pop(s, link, t)
        track.known = False
        track.answered = t
        track.answered_iteration = unit.iteration
        event = self.add(UNIT_EVENT, index, unit.iteration, unit.ready_time, unit.release_time)
        if event != NULL:
            event.times[2] = track.wire
            event.times[3] = track.drained
            event.times[4] = t
            event.numbers[0] = track.block
            event.numbers[1] = s.step_of[unit.gradient] if unit.gradient < s.n_gradients else -1
            event.numbers[2] = self.link_index(unit)
        if s.n_sent == 0 and s.wide.count == 0:
            for i in range(self.n_links):
                if s.links[i].ready.count > 0:
                    return
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

    cdef LinkTrack* link_of(self, Scheduler s, int index) noexcept nogil:
        return &self.links[self.link_index(&s.units[index])]

    cdef void advance(self, Scheduler s, int index, double t) noexcept nogil:
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

    cdef void pop(self, Scheduler s, LinkTrack* link, double when) noexcept nogil:
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
        if track.block != link.block or link.block_iteration != unit.iteration:
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
                event.numbers[0] = link.block
                event.numbers[1] = link.block_units
                event.numbers[2] = link.block_bytes
        link.block_units = 0
        link.block_bytes = 0

    cdef void count(self, Scheduler s, int index, double t) noexcept nogil:
        """Keep a link's counters, if they have changed."""
        cdef LinkTrack* track = &self.links[index]
        cdef Link* link = &s.links[index]
        cdef int64_t flight = link.released - link.drained
        cdef TimelineEvent* event
        if flight == track.counted_flight and link.unanswered == track.counted_unanswered and link.ready.count == track.counted_ready:
            return
        track.counted = t
        track.counted_flight = flight
        track.counted_unanswered = link.unanswered
        track.counted_ready = link.ready.count
        event = self.add(COUNTER_EVENT, index, s.iteration, t, t)
        if event != NULL:
            event.numbers[0] = flight
            event.numbers[1] = max(s.min_window(link), <int64_t>s.block_budget(link, t))
            event.numbers[2] = link.unanswered
            event.numbers[3] = link.ready.count
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

    cdef int grow(self, int count) noexcept nogil:
        cdef void* p = realloc(self.units, count * sizeof(UnitTrack))
        if p == NULL:
            return -1
        self.units = <UnitTrack*>p
        memset(&self.units[self.n_units], 0, (count - self.n_units) * sizeof(UnitTrack))
        self.n_units = count
        return 0

    # -- called by Python -----------------------------------------------------------------------------------------------------

    def keep(self, int64_t every, int64_t iterations_every) -> None:
        """Record one iteration in ``every``, and of the others when one in ``iterations_every`` began."""
        self.every = every
        self.iterations_every = iterations_every

    def drain(self, Driver driver not None, list labels not None, bint last=False) -> bytes:
        """The events since the last call as JSON objects, each with ``,\\n`` before it. ``labels[unit]`` is the unit's name as a JSON
        text in bytes. With ``last``, what is still open (step, block) is closed."""
        cdef const char** names = <const char**>malloc((len(labels) + 1) * sizeof(char*))
        cdef char* text = NULL
        cdef int n, n_names = len(labels)
        cdef Py_ssize_t size
        if names == NULL:
            raise MemoryError()
        try:
            for i in range(n_names):
                names[i] = <const char*><bytes>labels[i]
            with nogil:
                pthread_mutex_lock(&driver.lock)
                if last:
                    self.close_step()
                    for i in range(self.n_links):
                        self.close_block(&self.links[i])
                self.filling, self.full = self.full, self.filling
                n = self.n
                self.n = 0
                pthread_mutex_unlock(&driver.lock)
                size = self.format(n, names, n_names, &text)
            if size < 0:
                raise MemoryError()
            return PyBytes_FromStringAndSize(text, size)
        finally:
            free(text)
            free(names)

    def now_us(self) -> int:
        """The time of an event that happens now."""
        return self.us(now())

    @staticmethod
    def unit_facts(Driver driver not None, int index) -> dict:
        """What is fixed about a unit: ``gradient`` (index in forward order), ``bytes``, ``link``, ``rank`` (0: the most urgent)."""
        cdef Unit unit
        memset(&unit, 0, sizeof(Unit))
        driver.acquire()
        if 0 <= index < driver.count:
            unit = driver.units[index]
        pthread_mutex_unlock(&driver.lock)
        return {"gradient": unit.gradient, "bytes": unit.bytes, "link": unit.link, "rank": unit.rank}

    # -- text -------------------------------------------------------------------------------------------------------------------

    cdef Py_ssize_t format(self, int n, const char** names, int n_names, char** text) noexcept nogil:
        """JSON of the n events of the full buffer; its length, -1 without memory."""
        cdef Py_ssize_t used = 0, size = 0
        cdef void* p
        cdef int i
        for i in range(n):
            if size - used < TEXT_MAX:
                size += size // 2 + 64 * TEXT_MAX
                p = realloc(text[0], size)
                if p == NULL:
                    return -1
                text[0] = <char*>p
            used += self.format_event(&self.full[i], names, n_names, text[0] + used)
        return used

    cdef long us(self, double t) noexcept nogil:
        """Microseconds since the recorder was made: whole ones, so that slices which touch do not overlap."""
        return <long>((t - self.origin) * 1e6 + 0.5)

    cdef int slice(self, char* text, const char* name, int process, int row, double begin, double end, int64_t iteration) noexcept nogil:
        """A slice up to its arguments, which the caller ends with '}}'; ``name`` is a JSON text."""
        return snprintf(text, SLICE_MAX, b',\n{"ph":"X","name":%.*s,"pid":%d,"tid":%d,"ts":%ld,"dur":%ld,"args":{"iteration":%ld',
                        LABEL_MAX, name, process, row, self.us(begin), self.us(end) - self.us(begin), <long>iteration)

    cdef int format_event(self, TimelineEvent* event, const char** names, int n_names, char* text) noexcept nogil:
        cdef int n = 0
        cdef double* times = event.times
        cdef int64_t* numbers = event.numbers
        cdef int units = self.process + 1, row = event.index + 1
        cdef const char* name = b'"unit"'
        if event.kind == UNIT_EVENT:
            if event.index < n_names:
                name = names[event.index]
            n += self.slice(text + n, b'"wait"', units, row, times[0], times[1], event.iteration)
            n += snprintf(text + n, 64, b',"step":%ld}}', <long>numbers[1])
            n += self.slice(text + n, b'"wire"', units, row, times[1], times[3], event.iteration)
            n += snprintf(text + n, 64, b',"block":%ld}}', <long>numbers[0])
            n += self.slice(text + n, b'"answer"', units, row, times[3], times[4], event.iteration)
            n += snprintf(text + n, 64, b'}}')
            n += self.slice(text + n, name, self.process, LINK_ROW + <int>numbers[2], times[2], times[3], event.iteration)
            n += snprintf(text + n, 64, b'}}')
        elif event.kind == UNPACK_EVENT:
            n += self.slice(text, b'"unpack"', units, row, times[0], times[1], event.iteration)
            n += snprintf(text + n, 64, b'}}')
        elif event.kind == BLOCK_EVENT:
            n += self.slice(text, b'"block"', self.process, LINK_ROW + event.index, times[0], times[1], event.iteration)
            n += snprintf(text + n, 128, b',"block":%ld,"units":%ld,"bytes":%ld}}', <long>numbers[0], <long>numbers[1], <long>numbers[2])
        elif event.kind == STEP_EVENT:
            n += self.slice(text, b'"step"', self.process, STEP_ROW, times[0], times[1], event.iteration)
            n += snprintf(text + n, 128, b',"step":%d,"units":%ld,"bytes":%ld}}', event.index, <long>numbers[0], <long>numbers[1])
        elif event.kind == ITERATION_EVENT:
            n += self.slice(text, b'"iteration"', self.process, ITERATION_ROW, times[0], times[1], event.iteration)
            n += snprintf(text + n, 64, b'}}')
        elif event.kind == GAP_EVENT:
            n += self.slice(text, b'"compute gap"', self.process, GAP_ROW, times[0], times[1], event.iteration)
            n += snprintf(text + n, 64, b'}}')
        else:
            n += snprintf(text, TEXT_MAX, b',\n{"ph":"C","name":"link %d","pid":%d,"ts":%ld,"args":{"in flight":%ld,"window":%ld,'
                          b'"unanswered":%ld,"ready units":%ld,"rate":%ld}}', event.index, self.process, self.us(times[0]),
                          <long>numbers[0], <long>numbers[1], <long>numbers[2], <long>numbers[3], <long>numbers[4])
        return n


cdef struct Landing:
    void* driver
    int first, count                # units of one parameter
    int64_t iteration


cdef void landed_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Landing* landing = <Landing*>param
    cdef OnComplete* complete = <OnComplete*>on_complete
    (<Driver>landing.driver).on_landed(landing.first, landing.count, landing.iteration)
    free(landing)
    complete.callback(complete.engine, complete.param, NULL)
