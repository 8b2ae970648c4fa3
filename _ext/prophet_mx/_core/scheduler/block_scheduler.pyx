"""The block scheduler: see block_scheduler.pxd for what it is.

Theory of operation
-------------------
Events come in, each with its time: ready(unit), drained(link, bytes), done(unit). decide() then says which units to release now.
A *link* is the connection to one server. A *wide* unit (MXNet splits a large whole array over all servers) uses every link.

  state   event                    next     meaning
  IDLE    ready(u)                 READY    the gradient's bytes wait in the worker's buffer
  READY   decide() returns u       SENT     its request may leave; the bytes count as in flight, and as unanswered
  SENT    drained(l, n)            SENT     the peer's kernel acknowledged n bytes in all: in flight shrinks
  SENT    done(u)                  IDLE     the server answered, so every worker has sent it; unanswered shrinks

A unit is released when three things hold on each of its links:
  drain window   in flight < min window, or in flight + unit <= block budget. Drain is known locally, so the window can be tiny, and
                 what is urgent never queues behind much. The budget is Prophet's gradient block (block.pxd): the bytes that the
                 link carries before the next, more urgent step is due, rate * (due - now). It only ever widens the
                 window: a wrong prediction cannot idle the link.
  lead limit     unanswered bytes < lead limit; else only the *head*, the earliest ready unit of the total order (round, position),
                 may go, and only while the unanswered bytes before it in that order are under the limit; and an urgent unit, while
                 the unanswered bytes that are more urgent are next to none: the other workers send it at once as well,
                 so that it will be answered soon, and holding it back would keep them waiting. If the link is quiet for its
                 patience, nothing being in flight, released or answered, the limit yields: the head may go, whatever is unanswered.
  order          no ready unit that is more urgent waits on the same link, unless the lead limit holds that one back.

Liveness: whatever is ready leaves in the end, whatever the others do and wait for. It needs only that what is in flight drains, or is
taken to have drained (drain.pyx). Suppose a worker has ready units and releases none any more. Then nothing is in flight in the end, so
that every window is open: a prediction that holds a unit back ends when its step is late. Answers come to an end, as there are only so
many unanswered units, and every link stays quiet. The earliest ready unit of all, in the total order, is the head of each of its links:
all of them yield to it. The scheduler says when: decide() returns a finite time to ask again while anything is ready. So workers that
wait for different things go on wherever plain dist_sync, which releases everything at once, goes on.

No deadlock without yields, which cost time, where workers wait for the same things: suppose every worker is stuck at its lead limit. Let u
be the earliest unit, in the total order, that some worker sent and that is unanswered; worker w has not sent it. If u is ready at w, then
w's head is u or earlier, nothing before it is unanswered, so w may send: contradiction. That w may send urgent units first changes
nothing: there are only so many. If u is not ready at w, its gradient waits for answers that the worker which did send u already has; an
answered unit was sent, and is answered, everywhere: w waits for nothing. The argument needs the order to be the same on all workers, and
nothing else of it: round counts the requests of one unit, so workers agree on it whatever order they call in. It also holds if some
workers have no lead limit, as those never hold u: so a worker may change its positions while it is unlimited, and be limited again once
all have (order_exchange.py). Of w's own limits, window and policy it needs only that the limits are positive and the window opens in
time: they may differ between workers.
"""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from .posix cimport pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock

from prophet_mx import sizes

cdef double START_RATE = sizes.START_RATE
cdef double URGENT_SHARE = 1 / 8.0  # of the lead limit: with less than this unanswered that is more urgent, a unit may go
cdef double PATIENCE_ANSWERS = 4    # how long a link must be quiet until its lead limit yields, in quick answers
cdef double PATIENCE_MIN = 0.02     # and in seconds: the least
cdef double PATIENCE_MAX = 0.1      # and the most: an answer may be late because another worker waits for its own patience to end
cdef int HURRY_MAX = 10             # the patience is halved no more often


cdef class BlockScheduler:
    """The scheduler of one worker. Its events come from MXNet's engine (Driver) or from Python (Scheduler).

    Contract:

    1. `lock` guards all but `policy`. A C function is called with the lock held, a Python function takes it.
    2. A thread that holds it never takes or gives up the GIL, never blocks and runs no user code. So it makes and frees no Python
       object: the garbage collector may then run any code.
    3. A Python thread takes the lock by acquire(), and has the GIL while it holds it, or holds it without the GIL throughout.
    4. Only Python threads that have the GIL add units and change their ranks, links and policy. They may read these without the lock.
    5. C functions read no clock, do no I/O and allocate nothing.

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
        unit.urgency_major = self.sequence if self.limits.by_arrival else iteration
        unit.urgency_minor = 0 if self.limits.by_arrival else unit.order
        self.sequence += 1
        if steps_ready(&self.steps, unit.gradient, iteration, t):
            self.iterations += 1
            self.calm_down()
        heap_push(self.units, self.heap_of(unit), index)
        if unit.rank == 0:
            self.first_ahead += self.unanswered_on(unit.link)
        if unit.link != WIDE:
            backlog_begins(&self.links[unit.link], t)

    cdef void calm_down(self) noexcept nogil:
        """A new iteration has begun: links that did not yield in the one before take a halving of their patience back. Programs repeat
        themselves, so a link that had to yield in one iteration will likely have to in the next."""
        cdef Queue* queue
        cdef int i
        for i in range(self.n_links):
            queue = &self.queues[i]
            if queue.hurry > 0 and not queue.yielded:
                queue.hurry -= 1
            queue.yielded = False

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
        if unit.rank == 0:
            self.first_answers += 1
            self.first_seconds += t - unit.ready_time
        if unit.link == WIDE:
            for i in range(self.n_links):
                self.answered(i, unit, t)
        else:
            self.answered(unit.link, unit, t)
            if self.links[unit.link].drained < unit.end:
                self.assume_drained(unit.link, unit.end, t)
        self.answer_seconds = min(t - unit.release_time, self.answer_seconds * 17 / 16 + 1e-4)
        self.n_sent -= 1
        if unit.sent_after >= 0:
            self.units[unit.sent_after].sent_before = unit.sent_before
        else:
            self.latest_sent(unit.link)[0] = unit.sent_before
        if unit.sent_before >= 0:
            self.units[unit.sent_before].sent_after = unit.sent_after

    cdef void answered(self, int link, Unit* unit, double t) noexcept nogil:
        """A unit that uses the link was answered."""
        self.queues[link].unanswered -= self.cost(unit)
        self.queues[link].moved = t

    cdef void assume_drained(self, int index, int64_t total, double t) noexcept nogil:
        """It is known that `total` bytes have drained, but not when: they do not count for the rate."""
        link_assume_drained(&self.links[index], &self.activity, total, t)
        backlog_may_end(&self.links[index], self.queues[index].ready.count > 0, t)

    # -- decisions ---------------------------------------------------------------------------------------------------------

    cdef int choose_all(self, double t, double* wake) noexcept nogil:
        """Move every unit that may go now to SENT; their indices are in self.out, their number is returned.

        *wake is when to ask again, at the latest, if nothing happens: when, at the measured rates, a window that holds something back may
        open, or when the lead limit that does may yield. INFINITY if nothing is held back.
        """
        cdef int n = 0, index, changed = ALL
        while True:
            index = self.choose(t, changed, wake)
            if index < 0:
                break
            self.release(index, t)
            changed = self.units[index].link
            self.out[n] = index
            n += 1
        return n

    cdef int choose_rest(self, int n, double t) noexcept nogil:
        """Release also whatever choose_all() held back, after the n units that it released; the number of all."""
        cdef int i
        for i in range(self.n_links):
            while self.queues[i].ready.count > 0:
                self.out[n] = self.queues[i].ready.items[0]
                self.release(self.out[n], t)
                n += 1
        while self.wide.count > 0:
            self.out[n] = self.wide.items[0]
            self.release(self.out[n], t)
            n += 1
        return n

    cdef int choose(self, double t, int changed, double* wake) noexcept nogil:
        """The unit to release next, or -1: the most urgent over all open links. Only the link `changed` is not as it was in the last
        call at the same time."""
        cdef int i, best = -1
        cdef int wide
        cdef bint wide_open
        cdef Queue* queue
        wake[0] = INFINITY
        wide = self.allowed(&self.wide, t, wake)
        wide_open = wide >= 0
        for i in range(self.n_links):
            queue = &self.queues[i]
            if wide >= 0 and not self.window_open(i, wide, t, wake):
                wide_open = False
            if changed == ALL or changed == i:
                queue.opens = INFINITY
                queue.candidate = self.allowed(&queue.ready, t, &queue.opens)
                if queue.candidate >= 0 and not self.window_open(i, queue.candidate, t, &queue.opens):
                    queue.candidate = -1
            if queue.opens < wake[0]:
                wake[0] = queue.opens
            if queue.candidate >= 0 and (best < 0 or before(&self.units[queue.candidate], &self.units[best])):
                best = queue.candidate
        # A wide unit that only waits for a window goes before less urgent ones; one that the lead limit holds lets them pass.
        if wide < 0:
            return best
        if best >= 0 and before(&self.units[best], &self.units[wide]):
            return best
        return wide if wide_open else -1

    cdef bint window_open(self, int link, int unit, double t, double* wake) noexcept nogil:
        """Whether the drain window lets the unit go; if not, *wake is brought forward to when it may."""
        return self.limits.window_open(&self.limits, &self.steps, &self.links[link], self.share(unit), t, wake)

    cdef int allowed(self, Heap* heap, double t, double* wake) noexcept nogil:
        """The most urgent of these ready units if the lead limit allows it, else their head if that may go, else -1 and *wake is brought
        forward to when the limit may yield."""
        cdef int top, head
        if heap.count == 0:
            return -1
        top = heap.items[0]
        if self.lead_allows(top, t, wake):
            return top
        head = heap_head(self.units, heap)
        return head if head != top and self.lead_allows(head, t, wake) else -1

    cdef bint lead_allows(self, int index, double t, double* wake) noexcept nogil:
        """Whether the lead limit lets this ready unit go: on each of its links, too little is unanswered, or too little that is more
        urgent (not for every policy), or it is the head, and too little before it is unanswered or the link is quiet."""
        cdef Unit* unit = &self.units[index]
        cdef int64_t limit
        cdef int i
        unit.yielded = False
        for i in range(self.n_links):
            if unit.link != WIDE and unit.link != i:
                continue
            limit = lead_limit(&self.limits, &self.links[i], self.queues[i].largest)
            if self.queues[i].unanswered < limit:
                continue
            if self.limits.urgent_passes and self.unanswered_before(i, index, True) < URGENT_SHARE * limit:
                continue
            if not self.is_head(i, index):
                return False
            if self.unanswered_before(i, index, False) < limit:
                continue
            if not self.quiet(i, t, wake):
                return False
            unit.yielded = True
        return True

    cdef bint quiet(self, int link, double t, double* wake) noexcept nogil:
        """Whether nothing is in flight on the link and nothing has happened on it for its patience; if not, *wake is brought forward to
        when that may be. An answer may come meanwhile, or bytes drain, that nobody tells of before: then the patience begins again."""
        cdef double since = t if in_flight(&self.links[link]) > IDLE_SLACK else self.queues[link].moved
        cdef double yields = since + self.patience(link)
        if t >= yields:
            return True
        wake[0] = min(wake[0], yields)
        return False

    cdef double patience(self, int link) noexcept nogil:
        """Seconds for which a link must be quiet until its lead limit yields: several times what answers take that come quickly. Each
        yield halves it for the next one, so that many units that wait do not take as many patiences; see calm_down()."""
        cdef double seconds = max(PATIENCE_MIN, min(PATIENCE_MAX, PATIENCE_ANSWERS * self.answer_seconds))
        return seconds / (1 << self.queues[link].hurry)

    cdef bint is_head(self, int link, int index) noexcept nogil:
        """Whether no ready unit that uses the link comes before this one in the total order."""
        cdef Heap* heap = &self.queues[link].ready
        cdef int i
        for i in range(heap.count):
            if ordered(&self.units[heap.items[i]], &self.units[index]):
                return False
        for i in range(self.wide.count):
            if ordered(&self.units[self.wide.items[i]], &self.units[index]):
                return False
        return True

    cdef int64_t unanswered_before(self, int link, int index, bint by_urgency) noexcept nogil:
        """Bytes sent on the link, not answered, and before the unit: by urgency, or in the total order."""
        cdef Unit* unit = &self.units[index]
        cdef Unit* other
        cdef int64_t total = 0
        cdef int i = self.queues[link].sent
        while i >= 0:
            other = &self.units[i]
            if before(other, unit) if by_urgency else ordered(other, unit):
                total += self.cost(other)
            i = other.sent_before
        i = self.wide_sent
        while i >= 0:
            other = &self.units[i]
            if before(other, unit) if by_urgency else ordered(other, unit):
                total += self.cost(other)
            i = other.sent_before
        return total

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

    cdef void release(self, int index, double t) noexcept nogil:
        cdef Unit* unit = &self.units[index]
        cdef Heap* heap = self.heap_of(unit)
        cdef int i
        heap_remove(self.units, heap, unit.slot)
        unit.state = SENT
        unit.release_time = t
        self.n_sent += 1
        unit.sent_before = self.latest_sent(unit.link)[0]
        unit.sent_after = -1
        if unit.sent_before >= 0:
            self.units[unit.sent_before].sent_after = index
        self.latest_sent(unit.link)[0] = index
        self.assemble(index, t)
        for i in range(self.n_links):
            if unit.link == WIDE or unit.link == i:
                link_released(&self.links[i], &self.activity, self.share(index), t)
                self.queues[i].unanswered += self.cost(unit)
                self.queues[i].moved = t
                if unit.yielded:
                    self.queues[i].yielded = True
                    self.queues[i].hurry = min(HURRY_MAX, self.queues[i].hurry + 1)
                unit.end = self.links[i].released
        self.units_released += 1
        self.bytes_released += unit.bytes
        self.yields += unit.yielded
        self.wait_seconds += t - unit.ready_time
        if unit.link != WIDE and heap.count > 0 and more_urgent(&self.units[heap.items[0]], unit):
            self.inverted_bytes += unit.bytes

    cdef void assemble(self, int index, double t) noexcept nogil:
        """Block assembly (ICPP 2021, sec. 4): a unit that is released now leaves with the interval's block, if it fits that on each of its
        links; the first one begins the block. Nothing is decided here: that the window lets it go was."""
        cdef Unit* unit = &self.units[index]
        cdef GradientBlock* block
        cdef int i
        unit.block = 0
        for i in range(self.n_links):
            if (unit.link == WIDE or unit.link == i) and not fits_block(&self.limits, &self.steps, &self.links[i], self.share(index), t):
                return
        for i in range(self.n_links):
            if unit.link == WIDE or unit.link == i:
                block = &self.queues[i].block
                if block.number == 0 or block.iteration != self.steps.iteration or block.step != self.steps.arrived:
                    self.blocks += 1
                    block[0] = GradientBlock(self.blocks, self.steps.iteration, self.steps.arrived,
                                             <int64_t>(self.links[i].rate * interval(&self.steps, t)))
                unit.block = block.number
        self.block_units += 1
        self.block_bytes += unit.bytes

    cdef Heap* heap_of(self, Unit* unit) noexcept nogil:
        return &self.wide if unit.link == WIDE else &self.queues[unit.link].ready

    cdef int* latest_sent(self, int link) noexcept nogil:
        return &self.wide_sent if link == WIDE else &self.queues[link].sent

    # -- settings, by Python -------------------------------------------------------------------------------------------------

    def add_unit(self, int64_t size, int link, int gradient, rank=None, position=None) -> int:
        """Add a unit of ``size`` bytes for server ``link`` (-1: spread over all); its index. Urgency ``rank`` defaults to
        ``gradient`` (index in forward order), ``position`` in the total order to the reverse of it."""
        cdef Unit unit
        cdef int i, index = -1
        if size < 0 or not WIDE <= link < self.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        memset(&unit, 0, sizeof(Unit))
        unit.bytes = size
        unit.link = link
        unit.gradient = gradient
        unit.rank = gradient if rank is None else rank
        unit.order = order_of(self.policy, unit.rank, size)
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
        """For each (unit, rank, position): change the unit's urgency, from its next request on, and its position in the total order, at
        once. There is no lead limit from now on until set_unlimited(False): the other workers may still go by another order."""
        cdef int i, unit, n = len(places)
        cdef int64_t* numbers = <int64_t*>malloc((4 * n + 1) * sizeof(int64_t))
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                unit, rank, position = places[i]
                self.need_unit(unit)
                numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 3] = unit, rank, position
                numbers[4 * i + 2] = order_of(self.policy, rank, self.units[unit].bytes)
            self.acquire()
            self.limits.unlimited = True
            for i in range(n):
                unit = <int>numbers[4 * i]
                self.units[unit].rank, self.units[unit].order = numbers[4 * i + 1], numbers[4 * i + 2]
                self.units[unit].position = numbers[4 * i + 3]
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
                orders[i] = order_of(policy, self.units[i].rank, self.units[i].bytes)
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
        cdef LinkState state
        state.link = self.links[index]
        state.unanswered = self.queues[index].unanswered
        state.ready = self.queues[index].ready.count
        state.window = min_window(&self.limits, &self.links[index])
        state.patience = self.patience(index)
        state.lead = lead_limit(&self.limits, &self.links[index], self.queues[index].largest)
        return state

    def unit_facts(self, int index) -> dict:
        """What is fixed about a unit: ``gradient`` (index in forward order), ``bytes``, ``link``, ``rank`` (0: the most urgent)."""
        cdef Unit unit
        memset(&unit, 0, sizeof(Unit))
        self.acquire()
        if 0 <= index < self.count:
            unit = self.units[index]
        pthread_mutex_unlock(&self.lock)
        return {"gradient": unit.gradient, "bytes": unit.bytes, "link": unit.link, "rank": unit.rank}

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


cdef dict as_dict(LinkState* state):
    cdef Link* link = &state.link
    return {"released": link.released, "drained": link.drained, "unanswered": state.unanswered, "rate": link.rate, "rtt": link.rtt,
            "measured": bool(link.measured), "window": state.window, "lead": state.lead,
            "patience": state.patience, "ready": state.ready,
            "backlog_seconds": link.backlog_seconds, "backlog_bytes": link.backlog_bytes}


cdef int grow_ints(int** items, int capacity) noexcept nogil:
    cdef void* p = realloc(items[0], capacity * sizeof(int))
    if p == NULL:
        return -1
    items[0] = <int*>p
    return 0
