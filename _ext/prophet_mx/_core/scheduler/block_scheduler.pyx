"""The block scheduler: what it keeps, its settings and its events. decisions.pyx says what leaves when, and why."""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from .posix cimport pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock

from prophet_mx import sizes

cdef double START_RATE = sizes.START_RATE


cdef class BlockScheduler:
    """The scheduler of one worker. Its events come from MXNet's engine (Driver) or from Python (Scheduler).

    Contract:

    1. `lock` guards all but `policy`. A C function is called with the lock held, a Python function takes it.
    2. A thread that holds it never takes or gives up the GIL, never blocks and runs no user code. So it makes and frees no Python
       object: the garbage collector may then run any code.
    3. A Python thread takes the lock by acquire(), and has the GIL while it holds it, or holds it without the GIL throughout.
    4. Only Python threads that have the GIL add units and change their urgency, links and policy. They may read these without the lock.
    5. C functions read no clock and do no I/O. Of them grow() alone allocates.

    Parameters
    ----------
    policy : name of one of :data:`prophet_mx.policies.POLICIES`
    links : number of servers
    window : drain window in bytes, 0 to derive it from each link's rate
    lead : lead limit in bytes, 0 to derive it from each link's rate
    rate : bytes/s assumed for each link until measured, 0 for the default
    """

    def __cinit__(self, str policy, int links, int64_t window=0, int64_t lead=0, double rate=0):
        pthread_mutex_init(&self.lock, NULL)
        if links < 1:
            raise ValueError(f"links={links}: at least one server is needed")
        read_policy(&self.limits, policy)
        self.policy = policy
        if window < 0 or lead < 0 or not 0 <= rate < INFINITY:
            raise ValueError(f"window={window}, lead={lead}, rate={rate}: neither may be negative, and the rate must be finite")
        self.limits.fixed_window = window
        self.limits.fixed_lead = lead
        self.n_links = links
        self.steps.iteration = -1
        self.steps.arrived = -1
        self.wide_sent = -1
        self.links = <Link*>calloc(links, sizeof(Link))
        self.queues = <Queue*>calloc(links, sizeof(Queue))
        if self.links == NULL or self.queues == NULL:
            raise MemoryError()
        for i in range(links):
            self.links[i].rate = rate if rate > 0 else START_RATE
            self.links[i].gap = -1
            self.links[i].backlog_since = -1
            self.queues[i].sent = -1
        if self.grow(64) < 0:
            raise MemoryError()

    def __dealloc__(self):
        if self.queues != NULL:
            for i in range(self.n_links):
                free(self.queues[i].ready.items)
        free(self.queues)
        free(self.links)
        free(self.wide.items)
        free(self.units)
        free(self.out)
        free(self.steps.step_of)
        free(self.steps.due)
        pthread_mutex_destroy(&self.lock)

    cdef void acquire(self) noexcept:
        """Take the lock, without the GIL while another has it, and return with both.

        A thread that waited for the GIL under the lock could wait forever: an engine's op may run in the caller's thread, which has the
        GIL, and takes the lock.
        """
        while pthread_mutex_trylock(&self.lock) != 0:
            with nogil:
                pthread_mutex_lock(&self.lock)
                pthread_mutex_unlock(&self.lock)

    cdef int grow(self, int capacity) noexcept nogil:
        """Room for `capacity` units; -1 without memory, the state then being as before."""
        cdef void* p
        p = realloc(self.units, capacity * sizeof(Unit))
        if p == NULL:
            return -1
        self.units = <Unit*>p
        if grow_ints(&self.out, capacity) < 0 or grow_ints(&self.wide.items, capacity) < 0:
            return -1
        for i in range(self.n_links):
            if grow_ints(&self.queues[i].ready.items, capacity) < 0:
                return -1
        self.capacity = capacity
        return 0

    # -- events ----------------------------------------------------------------------------------------------------------

    cdef void on_ready(self, int index, int64_t iteration, double t) noexcept nogil:
        """The unit's bytes are ready. It must be IDLE: a unit's requests follow one another."""
        cdef Unit* unit = &self.units[index]
        unit.state = READY
        unit.iteration = iteration
        unit.round += 1
        unit.ready_time = t
        unit.yielded = False
        unit.major = self.sequence if self.limits.by_arrival else iteration
        unit.minor = 0 if self.limits.by_arrival else unit.order
        self.sequence += 1
        self.step_ready(unit.gradient, iteration, t)
        heap_push(self.units, self.heap_of(unit), index)
        if unit.urgency == 0:
            self.counts.first_ahead += self.unanswered_on(unit.link)
        if unit.link != WIDE:
            backlog_begins(&self.links[unit.link], t)

    cdef void step_ready(self, int gradient, int64_t iteration, double t) noexcept nogil:
        """A gradient is ready, which may begin an iteration or a step."""
        if steps_ready(&self.steps, gradient, iteration, t):
            self.counts.iterations += 1
            calm_down(self)

    cdef int64_t unanswered_on(self, int link) noexcept nogil:
        """Payload bytes sent and not answered: what is in front of a unit that becomes ready now. For WIDE on all links."""
        cdef int64_t total = 0
        cdef int i
        for i in range(self.n_links):
            if link == i or link == WIDE:
                total += self.sent_bytes(self.queues[i].sent)
        total += self.sent_bytes(self.wide_sent) // (1 if link == WIDE else self.n_links)
        return total

    cdef int64_t sent_bytes(self, int latest) noexcept nogil:
        cdef int64_t total = 0
        while latest >= 0:
            total += self.units[latest].bytes
            latest = self.units[latest].sent_before
        return total

    cdef void on_drained(self, int index, int64_t total, double t) noexcept nogil:
        """The link's peer has acknowledged `total` bytes since the start."""
        if total > self.links[index].drained:
            self.queues[index].moved = t
        link_drained(&self.links[index], &self.activity, total, t)
        backlog_may_end(&self.links[index], self.queues[index].ready.count > 0, t)

    cdef void on_done(self, int index, double t) noexcept nogil:
        """The server answered the unit: its bytes, and all released before them on its link, have drained."""
        cdef Unit* unit = &self.units[index]
        cdef int i
        unit.state = IDLE
        if unit.urgency == 0:
            self.counts.first_answers += 1
            self.counts.first_seconds += t - unit.ready_time
        for i in range(self.n_links):
            if unit.link == WIDE or unit.link == i:
                self.queues[i].unanswered -= self.cost(unit)
                self.queues[i].moved = t
        if unit.link != WIDE and self.links[unit.link].drained < unit.end:
            self.assume_drained(unit.link, unit.end, t)
        self.answer_seconds = min(t - unit.release_time, self.answer_seconds * 17 / 16 + 1e-4)
        self.n_sent -= 1
        if unit.sent_after >= 0:
            self.units[unit.sent_after].sent_before = unit.sent_before
        else:
            self.latest_sent(unit.link)[0] = unit.sent_before
        if unit.sent_before >= 0:
            self.units[unit.sent_before].sent_after = unit.sent_after

    cdef void assume_drained(self, int index, int64_t total, double t) noexcept nogil:
        """It is known that `total` bytes have drained, but not when: they do not count for the rate."""
        link_assume_drained(&self.links[index], &self.activity, total, t)
        backlog_may_end(&self.links[index], self.queues[index].ready.count > 0, t)

    cdef int64_t payload(self, Unit* unit) noexcept nogil:
        """The unit's part for each of its links."""
        return unit.bytes // self.n_links if unit.link == WIDE else unit.bytes

    cdef int64_t share(self, int index) noexcept nogil:
        """Bytes that the unit puts on each of its links."""
        return self.payload(&self.units[index]) + self.overhead

    cdef int64_t cost(self, Unit* unit) noexcept nogil:
        """What the unit counts for as unanswered, on each of its links. A server takes time for each message, whatever its size:
        without that, a hundred tiny ones would be nothing, and an urgent one would wait behind all of them."""
        return self.payload(unit) + self.limits.message

    cdef Heap* heap_of(self, Unit* unit) noexcept nogil:
        return &self.wide if unit.link == WIDE else &self.queues[unit.link].ready

    cdef int* latest_sent(self, int link) noexcept nogil:
        return &self.wide_sent if link == WIDE else &self.queues[link].sent

    # -- settings, by Python -------------------------------------------------------------------------------------------------

    def add_unit(self, int64_t size, int link, int gradient, urgency=None, position=None) -> int:
        """Add a unit of ``size`` bytes for server ``link`` (-1: spread over all); its index. ``urgency`` (0: the most urgent) defaults to
        ``gradient`` (index in forward order), ``position`` in the total order to the reverse of it."""
        cdef Unit unit
        cdef int i, index = -1
        if size < 0 or not WIDE <= link < self.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        memset(&unit, 0, sizeof(Unit))
        unit.bytes = size
        unit.link = link
        unit.gradient = gradient
        unit.urgency = gradient if urgency is None else urgency
        unit.order = order_of(self.policy, unit.urgency, size)
        unit.position = -gradient if position is None else position
        unit.round = -1
        self.acquire()
        if self.count < self.capacity or self.grow(2 * self.capacity) == 0:
            index = self.count
            self.units[index] = unit
            self.count += 1
            for i in range(self.n_links):
                if link == i or link == WIDE:
                    self.queues[i].largest = max(self.queues[i].largest, self.payload(&unit))
        pthread_mutex_unlock(&self.lock)
        if index < 0:
            raise MemoryError()
        return index

    def set_places(self, places) -> None:
        """For each (unit, urgency, position): change the unit's urgency, from its next request on, and its position in the total order,
        at once. There is no lead limit from now on until set_unlimited(False): the other workers may still go by another order."""
        cdef int i, unit, n = len(places)
        cdef int64_t* numbers = <int64_t*>malloc((4 * n + 1) * sizeof(int64_t))
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                unit, urgency, position = places[i]
                self.need_unit(unit)
                numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 3] = unit, urgency, position
                numbers[4 * i + 2] = order_of(self.policy, urgency, self.units[unit].bytes)
            self.acquire()
            self.limits.unlimited = True
            for i in range(n):
                unit = <int>numbers[4 * i]
                self.units[unit].urgency, self.units[unit].order = numbers[4 * i + 1], numbers[4 * i + 2]
                self.units[unit].position = numbers[4 * i + 3]
            self.wide.head = -1
            for i in range(self.n_links):
                self.queues[i].ready.head = -1
            pthread_mutex_unlock(&self.lock)
        finally:
            free(numbers)

    def set_unlimited(self, bint unlimited) -> None:
        """Whether the lead limit is off. It may be on when all workers go by one total order."""
        self.acquire()
        self.limits.unlimited = unlimited
        pthread_mutex_unlock(&self.lock)

    def set_steps(self, step_of, due) -> None:
        """Take the stepwise pattern: ``step_of[gradient]`` is its step, -1 if it is in none, ``due[step]`` when the step is ready, in
        seconds after the iteration's first ready gradient."""
        cdef int n_gradients = len(step_of), n_steps = len(due)
        cdef int* steps = <int*>malloc((n_gradients + 1) * sizeof(int))
        cdef double* times = <double*>malloc((n_steps + 1) * sizeof(double))
        try:
            if steps == NULL or times == NULL:
                raise MemoryError()
            for i in range(n_gradients):
                if not -1 <= step_of[i] < n_steps:
                    raise ValueError(f"gradient {i} is in step {step_of[i]}, of {n_steps}")
                steps[i] = step_of[i]
            for i in range(n_steps):
                times[i] = due[i]
            self.acquire()
            self.steps.step_of, steps = steps, self.steps.step_of       # the old ones are freed after the lock
            self.steps.due, times = times, self.steps.due
            self.steps.n_gradients, self.steps.n_steps = n_gradients, n_steps
            pthread_mutex_unlock(&self.lock)
        finally:
            free(steps)
            free(times)

    def set_sizes(self, int64_t unit, int64_t message=0) -> None:
        """Take the size of the layout's slices (bytes), which the windows and blocks are measured in; 0: derive it from the rate; and the
        bytes that a link carries in the time that a server takes for a message. ValueError while something is unanswered."""
        cdef bint taken
        self.acquire()
        taken = unit >= 0 and message >= 0 and self.n_sent == 0
        if taken:
            self.limits.unit = unit
            self.limits.message = message
        pthread_mutex_unlock(&self.lock)
        if not taken:
            raise ValueError(f"unit={unit}, message={message}: neither may be negative, and no unit may be unanswered")

    def set_rate(self, double rate) -> None:
        """Start from this rate (bytes/s) on every link."""
        if not 0 < rate < INFINITY:
            raise ValueError(f"rate={rate}: not positive and finite")
        self.acquire()
        for i in range(self.n_links):
            self.links[i].rate = rate
        pthread_mutex_unlock(&self.lock)

    def set_policy(self, str policy) -> None:
        """Go by this policy, before any unit is ready."""
        cdef Limits limits = self.limits                # of the job's part, only this function's callers write
        cdef int i, n = self.count
        cdef int64_t* orders = <int64_t*>malloc((n + 1) * sizeof(int64_t))
        if orders == NULL:
            raise MemoryError()
        try:
            read_policy(&limits, policy)
            for i in range(n):
                orders[i] = order_of(policy, self.units[i].urgency, self.units[i].bytes)
            self.policy = policy
            self.acquire()
            self.limits = limits
            for i in range(n):
                self.units[i].order = orders[i]
            pthread_mutex_unlock(&self.lock)
        finally:
            free(orders)

    # -- what it is like -----------------------------------------------------------------------------------------------------

    cdef bint anything_waits(self) noexcept nogil:
        """Whether a unit is ready or unanswered."""
        cdef int i
        for i in range(self.n_links):
            if self.queues[i].ready.count > 0:
                return True
        return self.n_sent > 0 or self.wide.count > 0

    cdef LinkState state_of(self, int index) noexcept nogil:
        cdef Link* link = &self.links[index]
        cdef Queue* queue = &self.queues[index]
        return LinkState(link.released, link.drained, queue.unanswered, link.rate, link.rtt, link.measured,
                         min_window(&self.limits, link), lead_limit(&self.limits, link, queue.largest), patience(self, index),
                         queue.ready.count, link.backlog_seconds, link.backlog_bytes)

    def counters(self) -> dict:
        """What was counted so far."""
        cdef Counters counts
        self.acquire()
        counts = self.counts
        pthread_mutex_unlock(&self.lock)
        return counts

    def unit_facts(self, int index) -> dict:
        """What is fixed about a unit: ``gradient`` (index in forward order), ``bytes``, ``link``, and as ``rank``, the
        word of traces, its urgency."""
        cdef Unit unit
        memset(&unit, 0, sizeof(Unit))
        self.acquire()
        if 0 <= index < self.count:
            unit = self.units[index]
        pthread_mutex_unlock(&self.lock)
        return {"gradient": unit.gradient, "bytes": unit.bytes, "link": unit.link, "rank": unit.urgency}

    def check(self) -> None:
        """Verify every invariant; AssertionError if one fails."""
        cdef const char* what
        with nogil:
            pthread_mutex_lock(&self.lock)
            what = broken(self)
            pthread_mutex_unlock(&self.lock)
        if what != NULL:
            raise AssertionError(what.decode())

    cdef int need_unit(self, int unit) except -1:
        """ValueError if there is no unit of this index."""
        if not 0 <= unit < self.count:
            raise ValueError(f"unit {unit}: there are {self.count}")
        return 0

    cdef int need_link(self, int link) except -1:
        """ValueError if there is no link of this index."""
        if not 0 <= link < self.n_links:
            raise ValueError(f"link {link}: there are {self.n_links}")
        return 0


cdef int grow_ints(int** items, int capacity) noexcept nogil:
    cdef void* p = realloc(items[0], capacity * sizeof(int))
    if p == NULL:
        return -1
    items[0] = <int*>p
    return 0
