# The block scheduler: decides when each unit goes onto the wire. It does no I/O, reads no clock and takes no lock.
#
# Theory of operation
# -------------------
# Events come in, each with its time: ready(unit), drained(link, bytes), done(unit). decide() then says which units to release now.
# A *link* is the connection to one server. A *wide* unit (MXNet splits a large whole array over all servers) uses every link.
#
#   state   event                    next     meaning
#   IDLE    ready(u)                 READY    the gradient's bytes wait in the worker's buffer
#   READY   decide() returns u       SENT     its request may leave; the bytes count as in flight, and as unanswered
#   SENT    drained(l, n)            SENT     the peer's kernel acknowledged n bytes in all: in flight shrinks
#   SENT    done(u)                  IDLE     the server answered, so every worker has sent it; unanswered shrinks
#
# A unit is released when three things hold on each of its links:
#   drain window   in flight < min window, or in flight + unit <= block budget. Drain is known locally, so the window can be tiny, and
#                  what is urgent never queues behind much. The budget is Prophet's prediction (ICPP 2021, sec. 4): the bytes that the
#                  link carries before the next, more urgent step is due, rate * (due - now). It only ever widens the
#                  window: a wrong prediction cannot idle the link.
#   lead limit     unanswered bytes < lead limit; else only the *head*, the earliest ready unit of the total order (round, position),
#                  may go, and only while the unanswered bytes before it in that order are under the limit; and an urgent unit, while
#                  the unanswered bytes that are more urgent are next to none: the other workers send it at once as well,
#                  so that it will be answered soon, and holding it back would keep them waiting.
#   order          no ready unit that is more urgent waits on the same link, unless the lead limit holds that one back.
#
# No deadlock: suppose every worker is stuck at its lead limit. Let u be the earliest unit, in the total order, that some worker sent and
# that is unanswered; worker w has not sent it. If u is ready at w, then w's head is u or earlier, nothing before it is unanswered, so w
# may send: contradiction. That w may send urgent units first changes nothing: there are only so many. If u is not ready at w, its
# gradient waits for answers that the worker which did send u already has; an answered unit was sent, and is answered, everywhere: w
# waits for nothing. The argument needs the order to be the same on all workers, and nothing else of it: round counts the requests of
# one unit, so workers agree on it whatever order they call in. It also holds if some workers have no lead limit, as those never
# hold u: so a worker may change its positions while it is unlimited, and be limited again once all have (order_exchange.py). Of w's own
# limits, window and policy it needs only that the limits are positive and the window opens in time: they may differ between workers.
from libc.math cimport INFINITY

from prophet_mx.planning import partition

cdef enum UnitState:
    IDLE = 0
    READY = 1
    SENT = 2

cdef enum PolicyKind:
    FIFO = 0
    PRIORITY = 1
    PROPHET = 2
    CREDIT = 3                      # ByteScheduler (SOSP 2019): a credit of unanswered bytes, urgent first, no drain window
    ICPP21 = 4                      # Prophet as its paper has it: blocks that fit the interval or nothing, then one by one

cdef enum:
    WIDE = -1                       # Unit.link of a unit that is spread over all links
    ALL = -1                        # choose(): every link may have changed

# A unit's size where the layout has not fixed it: from its time on the wire, by the layout's own numbers.
cdef double UNIT_SECONDS = partition.UNIT_SECONDS
cdef double MIN_UNIT = partition.MIN_UNIT          # bytes
cdef double MAX_UNIT = partition.MAX_UNIT          # bytes
cdef double START_RATE = partition.START_RATE      # bytes/s, until the first measurement

# What the other sizes are derived from. A unit of the layout that takes less than SHORTEST_UNIT (seconds on the wire), on a link that has
# grown faster, no longer measures the windows.
cdef double SHORTEST_UNIT = 0.001
cdef double WINDOW_UNITS = 2        # drain window, in units
cdef double LEAD_UNITS = 4          # lead limit, in units
cdef double URGENT_SHARE = 1 / 8.0  # of the lead limit: with less than this unanswered that is more urgent, a unit may go
cdef double SAMPLE_SECONDS = 0.02   # busy time that makes one sample of a link's rate
cdef double BLOCK_UNITS = 8         # no block is predicted larger than this, in units
cdef int64_t IDLE_SLACK = 16384     # in flight up to here counts as an idle link: what a message costs besides payload is estimated

cdef double CREDIT_BYTES = 16e6     # ByteScheduler's credit of 4 million float32 parameters

POLICY_KINDS = {"fifo": FIFO, "priority": PRIORITY, "prophet": PROPHET, "credit": CREDIT, "prophet-icpp21": ICPP21}

cdef struct Unit:
    int64_t bytes                   # payload
    int link                        # index of its server, or WIDE
    int gradient                    # index in forward order: 0 is the most urgent
    int64_t rank                    # urgency within an iteration: smaller first (gradient, then part)
    int64_t position                # place in the total order within a round
    UnitState state
    int64_t iteration               # the caller's iteration of the current request
    int64_t round                   # how many requests of this unit came before the current one
    int64_t urgency_major           # what the ready heap orders by: (major, minor), smaller first
    int64_t urgency_minor
    int slot                        # its place in the ready heap
    int sent_before, sent_after     # neighbours in its link's list of sent units, -1 none
    int64_t end                     # link's released counter when this unit was released (not for WIDE)
    double ready_time
    double release_time

cdef struct Heap:
    int* items
    int count

cdef struct Link:
    int64_t released                # bytes released in all, overhead included
    int64_t drained                 # of those, bytes the peer acknowledged
    int64_t unanswered              # payload bytes sent and not answered
    int64_t largest                 # bytes of its largest unit
    double rate                     # bytes/s
    double rtt                      # seconds: the path's round trip when idle
    bint measured
    double sample_time              # when `drained` was last set
    double busy_bytes               # of the running rate sample
    double busy_seconds
    bint went_idle                  # within the running rate sample
    bint busy                       # in flight has not been seen at 0 since sample_time
    double backlog_since            # statistics: since when there has been something to send; -1 if there is nothing
    double backlog_seconds
    int64_t backlog_start           # `drained` at backlog_since
    int64_t backlog_bytes
    Heap ready
    int sent                        # latest of its sent units, -1 none
    int candidate                   # while decide() runs: the unit that may go next, -1 none
    double opens                    # and when a window that holds one back may open

cdef struct LinkState:              # a link as it was at one moment
    Link link
    int64_t window
    int64_t lead


cdef class Scheduler:
    """Compiled block scheduler for one worker; the Python methods serve tests and the simulator.

    Parameters
    ----------
    policy : 'fifo', 'priority', 'prophet', 'credit' or 'prophet-icpp21'
    links : number of servers
    window : drain window in bytes, 0 to derive it from each link's rate
    lead : lead limit in bytes, 0 to derive it from each link's rate
    rate : bytes/s assumed for each link until measured, 0 for the default
    """
    cdef:
        Unit* units
        int count, capacity
        Link* links
        int n_links
        Heap wide                   # ready wide units
        int wide_sent               # latest sent wide unit, -1 none
        int n_sent                  # units in state SENT
        int* out                    # decide(): the units to release
        PolicyKind kind
        int64_t fixed_window, fixed_lead
        bint unlimited              # no lead limit
        int busy_links              # links with `busy`
        double sending_since        # since when there have been any
        double sending_seconds      # and how long there were before
        int64_t unit                # bytes of the layout's slices, 0 if there are none
        int64_t sequence            # numbers ready events, for fifo
        int64_t overhead            # bytes a message costs on the wire besides its payload
        # prophet: the steps of the profile and what has arrived of the current iteration
        int n_steps, n_gradients
        int* step_of                # gradient -> step
        double* step_due            # step -> seconds after the iteration's first ready gradient
        int64_t iteration
        int arrived                 # latest step seen in this iteration, -1 none
        double iteration_start
        # statistics
        public int64_t units_released, bytes_released, blocks, inverted_bytes, iterations
        public int64_t first_answers
        public double wait_seconds, first_seconds

    def __cinit__(self, str policy, int links, int64_t window=0, int64_t lead=0, double rate=0):
        if links < 1:
            raise ValueError(f"links={links}: at least one server is needed")
        if policy not in POLICY_KINDS:
            raise ValueError(f"policy={policy!r}: not one of {', '.join(POLICY_KINDS)}")
        if window < 0 or lead < 0 or not 0 <= rate < INFINITY:
            raise ValueError(f"window={window}, lead={lead}, rate={rate}: neither may be negative, and the rate must be finite")
        self.kind = POLICY_KINDS[policy]
        self.fixed_window = window
        self.fixed_lead = lead
        self.n_links = links
        self.iteration = -1
        self.arrived = -1
        self.links = <Link*>calloc(links, sizeof(Link))
        if self.links == NULL:
            raise MemoryError()
        self.wide_sent = -1
        for i in range(links):
            self.links[i].rate = rate if rate > 0 else START_RATE
            self.links[i].backlog_since = -1
            self.links[i].sent = -1
        if self.grow(64) < 0:
            raise MemoryError()

    def __dealloc__(self):
        if self.links != NULL:
            for i in range(self.n_links):
                free(self.links[i].ready.items)
        free(self.links)
        free(self.wide.items)
        free(self.units)
        free(self.out)
        free(self.step_of)
        free(self.step_due)

    # -- units -----------------------------------------------------------------------------------------------------------

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
            if grow_ints(&self.links[i].ready.items, capacity) < 0:
                return -1
        self.capacity = capacity
        return 0

    cdef int c_add_unit(self, int64_t size, int link, int gradient, int64_t rank, int64_t position) noexcept nogil:
        """Index of a new unit; -1 without memory."""
        cdef Unit* unit
        cdef int i
        if self.count == self.capacity and self.grow(2 * self.capacity) < 0:
            return -1
        unit = &self.units[self.count]
        memset(unit, 0, sizeof(Unit))
        unit.bytes = size
        unit.link = link
        for i in range(self.n_links):
            if link == i or link == WIDE:
                if self.links[i].largest < (size // self.n_links if link == WIDE else size):
                    self.links[i].largest = size // self.n_links if link == WIDE else size
        unit.gradient = gradient
        unit.rank = rank
        unit.position = position
        unit.round = -1
        self.count += 1
        return self.count - 1

    cdef int c_set_steps(self, int n_gradients, int* step_of, int n_steps, double* due) noexcept nogil:
        """Take a profile's steps (copied); -1 without memory, the old ones then being kept."""
        cdef int* new_steps = <int*>malloc(n_gradients * sizeof(int))
        cdef double* new_due = <double*>malloc(n_steps * sizeof(double))
        if new_steps == NULL or new_due == NULL:
            free(new_steps)
            free(new_due)
            return -1
        memcpy(new_steps, step_of, n_gradients * sizeof(int))
        memcpy(new_due, due, n_steps * sizeof(double))
        free(self.step_of)
        free(self.step_due)
        self.step_of = new_steps
        self.step_due = new_due
        self.n_gradients = n_gradients
        self.n_steps = n_steps
        return 0

    cdef void c_set_place(self, int index, int64_t rank, int64_t position) noexcept nogil:
        """Change the unit's urgency, from its next request on, and its position in the total order, at once."""
        self.units[index].rank = rank
        self.units[index].position = position

    # -- events ----------------------------------------------------------------------------------------------------------

    cdef void c_ready(self, int index, int64_t iteration, double t) noexcept nogil:
        """The unit's bytes are ready. It must be IDLE: a unit's requests follow one another."""
        cdef Unit* unit = &self.units[index]
        cdef int step
        unit.state = READY
        unit.iteration = iteration
        unit.round += 1
        unit.ready_time = t
        if self.kind == FIFO:
            unit.urgency_major = self.sequence
            unit.urgency_minor = 0
        else:
            unit.urgency_major = iteration
            unit.urgency_minor = unit.rank
        self.sequence += 1
        if iteration > self.iteration:
            self.iteration = iteration
            self.iteration_start = t
            self.arrived = -1
            self.iterations += 1
        if iteration == self.iteration and unit.gradient < self.n_gradients:
            step = self.step_of[unit.gradient]
            if step > self.arrived:
                self.arrived = step
        self.push(self.heap_of(unit), index)
        if unit.link != WIDE and self.links[unit.link].backlog_since < 0:
            self.links[unit.link].backlog_since = t
            self.links[unit.link].backlog_start = self.links[unit.link].drained

    cdef void c_drained(self, int index, int64_t total, double t) noexcept nogil:
        """The link's peer has acknowledged `total` bytes since the start."""
        cdef Link* link = &self.links[index]
        cdef int64_t fresh
        if total > link.released:
            total = link.released
        fresh = total - link.drained
        if fresh > 0:
            link.drained = total
        else:
            fresh = 0
        self.measure(link, fresh, t)
        self.note_backlog(link, t)

    cdef void c_done(self, int index, double t) noexcept nogil:
        """The server answered the unit: its bytes, and all released before them on its link, have drained."""
        cdef Unit* unit = &self.units[index]
        cdef int i
        unit.state = IDLE
        if unit.rank == 0:
            self.first_answers += 1
            self.first_seconds += t - unit.ready_time
        if unit.link == WIDE:
            for i in range(self.n_links):
                self.links[i].unanswered -= unit.bytes // self.n_links
        else:
            self.links[unit.link].unanswered -= unit.bytes
            if self.links[unit.link].drained < unit.end:
                self.c_assume_drained(unit.link, unit.end, t)
        self.n_sent -= 1
        if unit.sent_after >= 0:
            self.units[unit.sent_after].sent_before = unit.sent_before
        else:
            self.latest_sent(unit.link)[0] = unit.sent_before
        if unit.sent_before >= 0:
            self.units[unit.sent_before].sent_after = unit.sent_after

    cdef void c_assume_drained(self, int index, int64_t total, double t) noexcept nogil:
        """It is known that `total` bytes have drained, but not when: they do not count for the rate."""
        cdef Link* link = &self.links[index]
        if total > link.drained:
            link.drained = total
        link.sample_time = t
        self.set_busy(link, link.released - link.drained > IDLE_SLACK, t)
        self.note_backlog(link, t)

    cdef void set_busy(self, Link* link, bint busy, double t) noexcept nogil:
        """Whether the link has bytes in flight; counts the time in which any link has."""
        if link.busy == busy:
            return
        link.busy = busy
        self.busy_links += 1 if busy else -1
        if busy and self.busy_links == 1:
            self.sending_since = t
        elif self.busy_links == 0:
            self.sending_seconds += t - self.sending_since

    cdef double sending_until(self, double t) noexcept nogil:
        """Seconds until now in which any link was busy."""
        return self.sending_seconds + (t - self.sending_since if self.busy_links > 0 else 0)

    cdef void measure(self, Link* link, int64_t fresh, double t) noexcept nogil:
        """Follow the link's rate: `fresh` bytes have drained since the last sample. Only time in which the link was busy counts."""
        cdef double rate
        if t <= link.sample_time:
            return
        if link.busy:
            link.busy_bytes += fresh
            link.busy_seconds += t - link.sample_time
        link.sample_time = t
        self.set_busy(link, link.released - link.drained > IDLE_SLACK, t)
        if not link.busy:
            link.went_idle = True           # at an unknown time before t: the sample is a lower limit
        if link.busy_seconds >= SAMPLE_SECONDS:
            rate = link.busy_bytes / link.busy_seconds
            if rate > 0 and (rate > link.rate or not link.went_idle):
                link.rate = 0.8 * link.rate + 0.2 * rate if link.measured else rate
                link.measured = True
            link.busy_bytes = link.busy_seconds = 0
            link.went_idle = not link.busy

    cdef void note_backlog(self, Link* link, double t) noexcept nogil:
        """Statistics: close a time of backlog that has ended."""
        if link.backlog_since >= 0 and link.ready.count == 0 and link.released - link.drained <= IDLE_SLACK:
            link.backlog_seconds += t - link.backlog_since
            link.backlog_bytes += link.drained - link.backlog_start
            link.backlog_since = -1

    # -- decisions ---------------------------------------------------------------------------------------------------------

    cdef int c_decide(self, double t, double* wake) noexcept nogil:
        """Move every unit that may go now to SENT; their indices are in self.out, their number is returned.

        *wake is when, at the measured rates, a window that holds something back may open again: INFINITY if none does.
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
        if n > 0:
            self.blocks += 1
        return n

    cdef int choose(self, double t, int changed, double* wake) noexcept nogil:
        """The unit to release next, or -1: the most urgent over all open links. Only the link `changed` is not as it was in the last
        call at the same time."""
        cdef int i, best = -1
        cdef int wide = self.allowed(&self.wide)
        cdef bint wide_open = wide >= 0
        cdef Link* link
        wake[0] = INFINITY
        for i in range(self.n_links):
            link = &self.links[i]
            if wide >= 0 and not self.window_open(i, wide, t, wake):
                wide_open = False
            if changed == ALL or changed == i:
                link.opens = INFINITY
                link.candidate = self.allowed(&link.ready)
                if link.candidate >= 0 and not self.window_open(i, link.candidate, t, &link.opens):
                    link.candidate = -1
            if link.opens < wake[0]:
                wake[0] = link.opens
            if link.candidate >= 0 and (best < 0 or self.before(link.candidate, best)):
                best = link.candidate
        # A wide unit that only waits for a window goes before less urgent ones; one that the lead limit holds lets them pass.
        if wide < 0:
            return best
        if best >= 0 and self.before(best, wide):
            return best
        return wide if wide_open else -1

    cdef int allowed(self, Heap* heap) noexcept nogil:
        """The most urgent of these ready units if the lead limit allows it, else their head if that may go, else -1."""
        cdef int top, head
        if heap.count == 0:
            return -1
        top = heap.items[0]
        if self.lead_allows(top):
            return top
        head = self.head_of(heap)
        return head if head != top and self.lead_allows(head) else -1

    cdef int head_of(self, Heap* heap) noexcept nogil:
        cdef int i, head = heap.items[0]
        for i in range(1, heap.count):
            if self.ordered(heap.items[i], head):
                head = heap.items[i]
        return head

    cdef bint lead_allows(self, int index) noexcept nogil:
        """Whether the lead limit lets this ready unit go: on each of its links, too little is unanswered, or too little that is more
        urgent (not for ByteScheduler's policy), or too little before it and it is the head."""
        cdef Unit* unit = &self.units[index]
        cdef int64_t limit
        cdef int i
        for i in range(self.n_links):
            if unit.link != WIDE and unit.link != i:
                continue
            limit = self.lead_limit(&self.links[i])
            if self.links[i].unanswered < limit:
                continue
            if self.kind != CREDIT and self.unanswered_before(i, index, True) < URGENT_SHARE * limit:
                continue
            if self.unanswered_before(i, index, False) >= limit or not self.is_head(i, index):
                return False
        return True

    cdef bint is_head(self, int link, int index) noexcept nogil:
        """Whether no ready unit that uses the link comes before this one in the total order."""
        cdef int i
        for i in range(self.links[link].ready.count):
            if self.ordered(self.links[link].ready.items[i], index):
                return False
        for i in range(self.wide.count):
            if self.ordered(self.wide.items[i], index):
                return False
        return True

    cdef int64_t unanswered_before(self, int link, int index, bint by_urgency) noexcept nogil:
        """Bytes sent on the link, not answered, and before the unit: by urgency, or in the total order."""
        cdef int64_t total = 0
        cdef int other = self.links[link].sent
        while other >= 0:
            if self.before(other, index) if by_urgency else self.ordered(other, index):
                total += self.units[other].bytes
            other = self.units[other].sent_before
        other = self.wide_sent
        while other >= 0:
            if self.before(other, index) if by_urgency else self.ordered(other, index):
                total += self.units[other].bytes // self.n_links
            other = self.units[other].sent_before
        return total

    cdef bint window_open(self, int index, int unit, double t, double* wake) noexcept nogil:
        """Whether the drain window lets the unit go; if not, *wake is brought forward to when it may."""
        cdef Link* link = &self.links[index]
        cdef int64_t in_flight = link.released - link.drained
        cdef int64_t window = self.min_window(link)
        cdef double opens
        if self.kind == CREDIT:
            return True
        if self.kind == ICPP21 and self.fixed_window == 0:
            return self.literal_open(link, in_flight, self.share(unit), t, wake)
        if in_flight < window or in_flight + self.share(unit) <= self.block_budget(link, t):
            return True
        opens = t + (in_flight - window) / link.rate
        if opens < wake[0]:
            wake[0] = opens
        return False

    cdef bint literal_open(self, Link* link, int64_t in_flight, int64_t size, double t, double* wake) noexcept nogil:
        """The paper's rule: while steps are to come, what fits the interval; then one by one, in order of priority."""
        cdef double seconds = 0
        if self.n_steps > 0 and self.arrived + 1 < self.n_steps:
            seconds = self.iteration_start + self.step_due[self.arrived + 1] - t
        if seconds > 0:
            if in_flight + size <= link.rate * seconds:
                return True
            wake[0] = min(wake[0], t + seconds)         # a step that is late must not hold everything for ever
            return False
        if in_flight <= IDLE_SLACK:
            return True
        wake[0] = min(wake[0], t + in_flight / link.rate)
        return False

    cdef int64_t unit_bytes(self, Link* link) noexcept nogil:
        """What the windows are measured in: the layout's unit. It does not follow the rate, which is high for a worker that finds a
        shared link free for a moment, unless the link became several times faster."""
        cdef double size = link.rate * UNIT_SECONDS
        if self.unit > 0:
            size = link.rate * SHORTEST_UNIT
            return self.unit if size < self.unit else <int64_t>(MAX_UNIT if size > MAX_UNIT else size)
        return <int64_t>(MIN_UNIT if size < MIN_UNIT else MAX_UNIT if size > MAX_UNIT else size)

    cdef int64_t min_window(self, Link* link) noexcept nogil:
        if self.fixed_window > 0:
            return self.fixed_window
        return <int64_t>(WINDOW_UNITS * self.unit_bytes(link) + link.rate * link.rtt)

    cdef int64_t lead_limit(self, Link* link) noexcept nogil:
        cdef double limit
        if self.unlimited:
            return 1 << 62
        if self.fixed_lead > 0:
            return self.fixed_lead
        if self.kind == CREDIT:
            return <int64_t>CREDIT_BYTES
        if self.kind == ICPP21 or self.kind == FIFO:
            return 1 << 62                              # neither the paper nor stock MXNet waits for other workers
        # Of gradients that stay whole, one must be able to leave while the one before it is answered.
        limit = LEAD_UNITS * self.unit_bytes(link)
        return <int64_t>((limit if limit > 2 * link.largest else 2 * link.largest) + link.rate * link.rtt)

    cdef double block_budget(self, Link* link, double t) noexcept nogil:
        """Prophet's block: bytes that drain before the next, more urgent step is due (ICPP 2021, sec. 4); 0 for other policies."""
        cdef double seconds, most
        if self.kind != PROPHET or self.n_steps == 0 or self.fixed_window > 0:
            return 0
        most = BLOCK_UNITS * self.unit_bytes(link)
        if self.arrived + 1 >= self.n_steps:
            return most                              # the last step is here: what waits is in its final order
        seconds = self.iteration_start + self.step_due[self.arrived + 1] - t
        return 0 if seconds <= 0 else link.rate * seconds if link.rate * seconds < most else most

    cdef int64_t share(self, int index) noexcept nogil:
        """Bytes that the unit puts on each of its links."""
        cdef Unit* unit = &self.units[index]
        return (unit.bytes // self.n_links if unit.link == WIDE else unit.bytes) + self.overhead

    cdef void release(self, int index, double t) noexcept nogil:
        cdef Unit* unit = &self.units[index]
        cdef int i
        self.remove(self.heap_of(unit), unit.slot)
        unit.state = SENT
        unit.release_time = t
        self.n_sent += 1
        unit.sent_before = self.latest_sent(unit.link)[0]
        unit.sent_after = -1
        if unit.sent_before >= 0:
            self.units[unit.sent_before].sent_after = index
        self.latest_sent(unit.link)[0] = index
        for i in range(self.n_links):
            if unit.link == WIDE or unit.link == i:
                if self.links[i].released - self.links[i].drained <= IDLE_SLACK:
                    self.links[i].sample_time = t        # the link was idle until now
                    self.set_busy(&self.links[i], True, t)
                self.links[i].released += self.share(index)
                self.links[i].unanswered += unit.bytes // self.n_links if unit.link == WIDE else unit.bytes
                unit.end = self.links[i].released
        self.units_released += 1
        self.bytes_released += unit.bytes
        self.wait_seconds += t - unit.ready_time
        if unit.link != WIDE and self.links[unit.link].ready.count > 0 and self.more_urgent(
                self.links[unit.link].ready.items[0], index):
            self.inverted_bytes += unit.bytes

    cdef int* latest_sent(self, int link) noexcept nogil:
        return &self.wide_sent if link == WIDE else &self.links[link].sent

    # -- orders --------------------------------------------------------------------------------------------------------------

    cdef bint before(self, int a, int b) noexcept nogil:
        """Whether a leaves before b under the policy."""
        cdef Unit* x = &self.units[a]
        cdef Unit* y = &self.units[b]
        if x.urgency_major != y.urgency_major:
            return x.urgency_major < y.urgency_major
        return x.urgency_minor < y.urgency_minor

    cdef bint more_urgent(self, int a, int b) noexcept nogil:
        """Whether the next forward pass needs a before b, whatever the policy."""
        cdef Unit* x = &self.units[a]
        cdef Unit* y = &self.units[b]
        return x.iteration < y.iteration or (x.iteration == y.iteration and x.rank < y.rank)

    cdef bint ordered(self, int a, int b) noexcept nogil:
        """Whether a is before b in the total order that all workers share."""
        cdef Unit* x = &self.units[a]
        cdef Unit* y = &self.units[b]
        return x.round < y.round or (x.round == y.round and x.position < y.position)

    # -- ready heaps (binary, by before()) ---------------------------------------------------------------------------------------

    cdef Heap* heap_of(self, Unit* unit) noexcept nogil:
        return &self.wide if unit.link == WIDE else &self.links[unit.link].ready

    cdef void push(self, Heap* heap, int index) noexcept nogil:
        heap.count += 1
        self.sift_up(heap, heap.count - 1, index)

    cdef void remove(self, Heap* heap, int slot) noexcept nogil:
        cdef int moved
        heap.count -= 1
        if slot == heap.count:
            return
        moved = heap.items[heap.count]
        self.sift_up(heap, slot, moved)
        if self.units[moved].slot == slot:
            self.sift_down(heap, slot, moved)

    cdef void sift_up(self, Heap* heap, int slot, int index) noexcept nogil:
        cdef int parent
        while slot > 0:
            parent = (slot - 1) // 2
            if not self.before(index, heap.items[parent]):
                break
            self.place(heap, slot, heap.items[parent])
            slot = parent
        self.place(heap, slot, index)

    cdef void sift_down(self, Heap* heap, int slot, int index) noexcept nogil:
        cdef int child
        while True:
            child = 2 * slot + 1
            if child >= heap.count:
                break
            if child + 1 < heap.count and self.before(heap.items[child + 1], heap.items[child]):
                child += 1
            if not self.before(heap.items[child], index):
                break
            self.place(heap, slot, heap.items[child])
            slot = child
        self.place(heap, slot, index)

    cdef inline void place(self, Heap* heap, int slot, int index) noexcept nogil:
        heap.items[slot] = index
        self.units[index].slot = slot

    # -- Python ------------------------------------------------------------------------------------------------------------------

    def add_unit(self, int64_t size, int link, int gradient, rank=None, position=None) -> int:
        """Add a unit of ``size`` bytes for server ``link`` (-1: spread over all); its index. Urgency ``rank`` defaults to
        ``gradient`` (index in forward order), ``position`` in the total order to the reverse of it."""
        if size < 0 or not -1 <= link < self.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        index = self.c_add_unit(size, link, gradient, gradient if rank is None else rank,
                                -gradient if position is None else position)
        if index < 0:
            raise MemoryError()
        return index

    def set_steps(self, step_of, due) -> None:
        """Take the stepwise pattern: ``step_of[gradient]`` is its step, -1 if it is in none, ``due[step]`` when the step is ready, in
        seconds after the iteration's first ready gradient."""
        cdef int* steps
        cdef double* dues
        steps, dues = NULL, NULL
        try:
            copy_steps(step_of, due, &steps, &dues)
            if self.c_set_steps(len(step_of), steps, len(due), dues) < 0:
                raise MemoryError()
        finally:
            free(steps)
            free(dues)

    def set_unit(self, int64_t unit) -> None:
        """Take the size of the layout's slices (bytes), which the windows and blocks are measured in; 0: derive it from the rate."""
        self.unit = unit

    def set_place(self, int unit, int64_t rank, int64_t position) -> None:
        """See c_set_place()."""
        self.need_unit(unit)
        self.c_set_place(unit, rank, position)

    def set_unlimited(self, bint unlimited) -> None:
        """Whether the lead limit is off."""
        self.unlimited = unlimited

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

    def set_link(self, int link, double rate=0, double rtt=-1) -> None:
        """Set a link's rate (bytes/s) and idle round trip (seconds); what is not given stays."""
        self.need_link(link)
        if not rate < INFINITY or not rtt < INFINITY:
            raise ValueError(f"link {link}: rate {rate}, round trip {rtt}: not finite")
        if rate > 0:
            self.links[link].rate = rate
            self.links[link].measured = True
        if rtt >= 0:
            self.links[link].rtt = rtt

    def ready(self, int unit, int64_t iteration, double t) -> None:
        self.need_unit(unit)
        if self.units[unit].state != IDLE:
            raise ValueError(f"unit {unit} is already on its way")
        self.c_ready(unit, iteration, t)

    def drained(self, int link, int64_t total, double t) -> None:
        self.need_link(link)
        self.c_drained(link, total, t)

    def done(self, int unit, double t) -> None:
        self.need_unit(unit)
        if self.units[unit].state != SENT:
            raise ValueError(f"unit {unit} was not sent")
        self.c_done(unit, t)

    def decide(self, double t):
        """The units to release now, in order, and when to ask again (seconds; inf: at the next event)."""
        cdef double wake
        cdef int n = self.c_decide(t, &wake)
        return [self.out[i] for i in range(n)], wake

    def sending(self, double t) -> float:
        """Seconds until now in which any link had bytes in flight."""
        return self.sending_until(t)

    def link_state(self, int link) -> dict:
        self.need_link(link)
        cdef LinkState state = self.state_of(link)
        return as_dict(&state)

    cdef LinkState state_of(self, int index) noexcept nogil:
        cdef LinkState state
        state.link = self.links[index]
        state.window = self.min_window(&self.links[index])
        state.lead = self.lead_limit(&self.links[index])
        return state

    def unit_state(self, int unit) -> str:
        self.need_unit(unit)
        return ("idle", "ready", "sent")[<int>self.units[unit].state]

    @property
    def unit_count(self) -> int:
        return self.count

    def check(self) -> None:
        """Verify every invariant; AssertionError with the state if one fails. O(units)."""
        try:
            self.verify()
        except AssertionError as error:
            links = [self.link_state(i) for i in range(self.n_links)]
            sent = [i for i in range(self.count) if self.units[i].state == SENT]
            raise AssertionError(f"{error}; links {links}; sent {sent}") from None

    cdef verify(self):
        cdef Heap* heap
        unanswered = [0] * self.n_links
        listed = 0
        for i in range(-1, self.n_links):
            other = self.latest_sent(i)[0]
            while other >= 0:
                listed += 1
                assert self.units[other].state == SENT and self.units[other].link == i, f"unit {other} is in the list of link {i}"
                other = self.units[other].sent_before
        assert listed == self.n_sent, f"{listed} units in the links' lists of sent ones, not {self.n_sent}"
        ready = sent = 0
        for i in range(self.count):
            unit = self.units[i]
            if unit.state == READY:
                ready += 1
                heap = self.heap_of(&self.units[i])
                assert unit.slot < heap.count and heap.items[unit.slot] == i, f"unit {i} is not where its heap has it"
                assert unit.slot == 0 or not self.before(i, heap.items[(unit.slot - 1) // 2]), f"heap order at unit {i}"
            elif unit.state == SENT:
                sent += 1
                for link in range(self.n_links):
                    if unit.link == WIDE:
                        unanswered[link] += unit.bytes // self.n_links
                    elif unit.link == link:
                        unanswered[link] += unit.bytes
        assert sent == self.n_sent, f"{sent} units are sent, {self.n_sent} are counted and listed"
        assert self.busy_links == sum([self.links[i].busy for i in range(self.n_links)]), f"{self.busy_links} busy links are counted"
        assert ready == self.wide.count + sum([self.links[i].ready.count for i in range(self.n_links)]), "ready units lost"
        for i in range(self.n_links):
            assert 0 <= self.links[i].drained <= self.links[i].released, f"link {i} drained more than was released"
            assert self.links[i].unanswered == unanswered[i], f"link {i}: unanswered bytes do not add up"
            assert self.links[i].rate > 0, f"link {i}: no rate"


cdef dict as_dict(LinkState* state):
    cdef Link* link = &state.link
    return {"released": link.released, "drained": link.drained, "unanswered": link.unanswered, "rate": link.rate, "rtt": link.rtt,
            "measured": bool(link.measured), "window": state.window, "lead": state.lead, "ready": link.ready.count,
            "backlog_seconds": link.backlog_seconds, "backlog_bytes": link.backlog_bytes}


cdef int copy_steps(step_of, due, int** steps, double** dues) except -1:
    """The arguments of set_steps() as C arrays, which the caller frees also when this raises."""
    steps[0] = <int*>malloc((len(step_of) + 1) * sizeof(int))
    dues[0] = <double*>malloc((len(due) + 1) * sizeof(double))
    if steps[0] == NULL or dues[0] == NULL:
        raise MemoryError()
    for i, step in enumerate(step_of):
        if not -1 <= step < len(due):
            raise ValueError(f"gradient {i} is in step {step}, of {len(due)}")
        steps[0][i] = step
    for i, seconds in enumerate(due):
        dues[0][i] = seconds
    return 0


cdef int grow_ints(int** items, int capacity) noexcept nogil:
    cdef void* p = realloc(items[0], capacity * sizeof(int))
    if p == NULL:
        return -1
    items[0] = <int*>p
    return 0
