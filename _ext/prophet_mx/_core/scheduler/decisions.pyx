"""What leaves when. All functions are called with the scheduler's lock held.

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

cdef double URGENT_SHARE = 1 / 8.0  # of the lead limit: with less than this unanswered that is more urgent, a unit may go
cdef double PATIENCE_ANSWERS = 4    # how long a link must be quiet until its lead limit yields, in quick answers
cdef double PATIENCE_MIN = 0.02     # and in seconds: the least
cdef double PATIENCE_MAX = 0.1      # and the most: an answer may be late because another worker waits for its own patience to end
cdef int HURRY_MAX = 10             # the patience is halved no more often


cdef int choose_all(BlockScheduler s, double t, double* wake) noexcept nogil:
    """Move every unit that may go now to SENT; their indices are in s.out, their number is returned.

    *wake is when to ask again, at the latest, if nothing happens: when, at the measured rates, a window that holds something back may
    open, or when the lead limit that does may yield. INFINITY if nothing is held back.
    """
    cdef int n = 0, index, changed = ALL
    while True:
        index = choose(s, t, changed, wake)
        if index < 0:
            break
        release(s, index, t)
        changed = s.units[index].link
        s.out[n] = index
        n += 1
    return n


cdef int choose_rest(BlockScheduler s, int n, double t) noexcept nogil:
    """Release also whatever choose_all() held back, after the n units that it released; the number of all."""
    cdef int i
    for i in range(s.n_links):
        while s.queues[i].ready.count > 0:
            s.out[n] = s.queues[i].ready.items[0]
            release(s, s.out[n], t)
            n += 1
    while s.wide.count > 0:
        s.out[n] = s.wide.items[0]
        release(s, s.out[n], t)
        n += 1
    return n


cdef int choose(BlockScheduler s, double t, int changed, double* wake) noexcept nogil:
    """The unit to release next, or -1: the most urgent over all open links. Only the link `changed` is not as it was in the last
    call at the same time."""
    cdef int i, best = -1
    cdef int wide
    cdef bint wide_open
    cdef Queue* queue
    wake[0] = INFINITY
    wide = allowed(s, &s.wide, t, wake)
    wide_open = wide >= 0
    for i in range(s.n_links):
        queue = &s.queues[i]
        if wide >= 0 and not window_open(s, i, wide, t, wake):
            wide_open = False
        if changed == ALL or changed == i:
            queue.opens = INFINITY
            queue.candidate = allowed(s, &queue.ready, t, &queue.opens)
            if queue.candidate >= 0 and not window_open(s, i, queue.candidate, t, &queue.opens):
                queue.candidate = -1
        if queue.opens < wake[0]:
            wake[0] = queue.opens
        if queue.candidate >= 0 and (best < 0 or before(&s.units[queue.candidate], &s.units[best])):
            best = queue.candidate
    # A wide unit that only waits for a window goes before less urgent ones; one that the lead limit holds lets them pass.
    if wide < 0:
        return best
    if best >= 0 and before(&s.units[best], &s.units[wide]):
        return best
    return wide if wide_open else -1


cdef bint window_open(BlockScheduler s, int link, int unit, double t, double* wake) noexcept nogil:
    """Whether the drain window lets the unit go; if not, *wake is brought forward to when it may."""
    return s.limits.window_open(&s.limits, &s.steps, &s.links[link], s.share(unit), t, wake)


cdef int allowed(BlockScheduler s, Heap* heap, double t, double* wake) noexcept nogil:
    """The most urgent of these ready units if the lead limit allows it, else their head if that may go, else -1 and *wake is brought
    forward to when the limit may yield."""
    cdef int top, head
    if heap.count == 0:
        return -1
    top = heap.items[0]
    if lead_allows(s, top, t, wake):
        return top
    head = heap_head(s.units, heap)
    return head if head != top and lead_allows(s, head, t, wake) else -1


cdef bint lead_allows(BlockScheduler s, int index, double t, double* wake) noexcept nogil:
    """Whether the lead limit lets this ready unit go: on each of its links, too little is unanswered, or too little that is more
    urgent (not for every policy), or it is the head, and too little before it is unanswered or the link is quiet."""
    cdef Unit* unit = &s.units[index]
    cdef int64_t limit
    cdef int i
    unit.yielded = False
    for i in range(s.n_links):
        if unit.link != WIDE and unit.link != i:
            continue
        limit = lead_limit(&s.limits, &s.links[i], s.queues[i].largest)
        if s.queues[i].unanswered < limit:
            continue
        if s.limits.urgent_passes and unanswered_before(s, i, index, True) < URGENT_SHARE * limit:
            continue
        if not is_head(s, i, index):
            return False
        if unanswered_before(s, i, index, False) < limit:
            continue
        if not quiet(s, i, t, wake):
            return False
        unit.yielded = True
    return True


cdef bint is_head(BlockScheduler s, int link, int index) noexcept nogil:
    """Whether no ready unit that uses the link comes before this one in the total order."""
    return not earlier_in(s, &s.queues[link].ready, index) and not earlier_in(s, &s.wide, index)


cdef bint earlier_in(BlockScheduler s, Heap* heap, int index) noexcept nogil:
    """Whether one of these ready units comes before this one in the total order."""
    return heap.count > 0 and ordered(&s.units[heap_head(s.units, heap)], &s.units[index])


cdef int64_t unanswered_before(BlockScheduler s, int link, int index, bint by_urgency) noexcept nogil:
    """Bytes sent on the link, not answered, and before the unit: by urgency, or in the total order."""
    return sent_before(s, s.queues[link].sent, index, by_urgency) + sent_before(s, s.wide_sent, index, by_urgency)


cdef int64_t sent_before(BlockScheduler s, int latest, int index, bint by_urgency) noexcept nogil:
    """The same, of one list of sent units, by its latest."""
    cdef Unit* unit = &s.units[index]
    cdef Unit* other
    cdef int64_t total = 0
    while latest >= 0:
        other = &s.units[latest]
        if before(other, unit) if by_urgency else ordered(other, unit):
            total += s.cost(other)
        latest = other.sent_before
    return total


cdef bint quiet(BlockScheduler s, int link, double t, double* wake) noexcept nogil:
    """Whether nothing is in flight on the link and nothing has happened on it for its patience; if not, *wake is brought forward to
    when that may be. An answer may come meanwhile, or bytes drain, that nobody tells of before: then the patience begins again."""
    cdef double since = t if in_flight(&s.links[link]) > IDLE_SLACK else s.queues[link].moved
    cdef double yields = since + patience(s, link)
    if t >= yields:
        return True
    wake[0] = min(wake[0], yields)
    return False


cdef double patience(BlockScheduler s, int link) noexcept nogil:
    """Seconds for which a link must be quiet until its lead limit yields: several times what answers take that come quickly. Each
    yield halves it for the next one, so that many units that wait do not take as many patiences; see calm_down()."""
    cdef double seconds = max(PATIENCE_MIN, min(PATIENCE_MAX, PATIENCE_ANSWERS * s.answer_seconds))
    return seconds / (1 << s.queues[link].hurry)


cdef void calm_down(BlockScheduler s) noexcept nogil:
    """A new iteration has begun: links that did not yield in the one before take a halving of their patience back. Programs repeat
    themselves, so a link that had to yield in one iteration will likely have to in the next."""
    cdef Queue* queue
    cdef int i
    for i in range(s.n_links):
        queue = &s.queues[i]
        if queue.hurry > 0 and not queue.yielded:
            queue.hurry -= 1
        queue.yielded = False


cdef void release(BlockScheduler s, int index, double t) noexcept nogil:
    cdef Unit* unit = &s.units[index]
    cdef Heap* heap = s.heap_of(unit)
    cdef int i
    heap_remove(s.units, heap, unit.slot)
    unit.state = SENT
    unit.release_time = t
    s.n_sent += 1
    unit.sent_before = s.latest_sent(unit.link)[0]
    unit.sent_after = -1
    if unit.sent_before >= 0:
        s.units[unit.sent_before].sent_after = index
    s.latest_sent(unit.link)[0] = index
    assemble(s, index, t)
    for i in range(s.n_links):
        if unit.link == WIDE or unit.link == i:
            link_released(&s.links[i], &s.activity, s.share(index), t)
            s.queues[i].unanswered += s.cost(unit)
            s.queues[i].moved = t
            if unit.yielded:
                s.queues[i].yielded = True
                s.queues[i].hurry = min(HURRY_MAX, s.queues[i].hurry + 1)
            unit.end = s.links[i].released
    s.counts.units += 1
    s.counts.bytes += unit.bytes
    s.counts.yields += unit.yielded
    s.counts.wait_seconds += t - unit.ready_time
    if unit.link != WIDE and heap.count > 0 and more_urgent(&s.units[heap.items[0]], unit):
        s.counts.inverted_bytes += unit.bytes


cdef void assemble(BlockScheduler s, int index, double t) noexcept nogil:
    """Block assembly (ICPP 2021, sec. 4): a unit that is released now leaves with the interval's block, if it fits that on each of its
    links; the first one begins the block. Nothing is decided here: that the window lets it go was."""
    cdef Unit* unit = &s.units[index]
    cdef GradientBlock* block
    cdef int i
    unit.block = 0
    for i in range(s.n_links):
        if (unit.link == WIDE or unit.link == i) and not fits_block(&s.limits, &s.steps, &s.links[i], s.share(index), t):
            return
    for i in range(s.n_links):
        if unit.link == WIDE or unit.link == i:
            block = &s.queues[i].block
            if block.number == 0 or block.iteration != s.steps.iteration or block.step != s.steps.arrived:
                s.counts.blocks += 1
                block[0] = GradientBlock(s.counts.blocks, s.steps.iteration, s.steps.arrived,
                                         <int64_t>(s.links[i].rate * interval(&s.steps, t)))
            unit.block = block.number
    s.counts.block_units += 1
    s.counts.block_bytes += unit.bytes
