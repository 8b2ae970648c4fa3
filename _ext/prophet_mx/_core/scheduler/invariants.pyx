"""Every invariant of the scheduler's state, verified without the GIL: so also under a driver's lock."""
from libc.stdint cimport int64_t


cdef const char* broken(BlockScheduler s) noexcept nogil:
    """Which invariant does not hold, in words, or NULL. O(units * links)."""
    cdef const char* found = broken_units(s)
    cdef int i, busy = 0
    for i in range(s.n_links):
        busy += s.links[i].busy
        if found == NULL:
            found = broken_link(s, i)
    if found == NULL and s.activity.busy_links != busy:
        found = b"the busy links are not those that are counted"
    return found


cdef const char* broken_units(BlockScheduler s) noexcept nogil:
    cdef Unit* unit
    cdef Heap* heap
    cdef int i, ready = 0, sent = 0, listed = 0, waiting = s.wide.count
    for i in range(s.count):
        unit = &s.units[i]
        sent += unit.state == SENT
        if unit.state != READY:
            continue
        ready += 1
        heap = s.heap_of(unit)
        if unit.slot >= heap.count or heap.items[unit.slot] != i:
            return b"a ready unit is not where its heap has it"
        if heap.head >= 0 and ordered(unit, &s.units[heap.head]):
            return b"the head of a heap is not its earliest unit"
        if unit.slot > 0 and before(unit, &s.units[heap.items[(unit.slot - 1) // 2]]):
            return b"a heap is out of order"
    for i in range(WIDE, s.n_links):
        listed += count_sent(s, i)
        waiting += s.queues[i].ready.count if i >= 0 else 0
    if ready != waiting:
        return b"ready units are lost"
    if sent != s.n_sent or listed != sent:
        return b"the sent units are not those that are counted and listed"
    return NULL


cdef int count_sent(BlockScheduler s, int link) noexcept nogil:
    """Units in a link's list of sent ones that belong there."""
    cdef int i = s.latest_sent(link)[0], n = 0
    while i >= 0:
        n += s.units[i].state == SENT and s.units[i].link == link
        i = s.units[i].sent_before
    return n


cdef const char* broken_link(BlockScheduler s, int index) noexcept nogil:
    cdef int64_t unanswered = 0
    cdef Unit* unit
    cdef int i
    for i in range(s.count):
        unit = &s.units[i]
        if unit.state == SENT and (unit.link == index or unit.link == WIDE):
            unanswered += s.cost(unit)
    if s.queues[index].unanswered != unanswered:
        return b"a link's unanswered bytes do not add up"
    if s.links[index].drained < 0 or in_flight(&s.links[index]) < 0:
        return b"a link has drained more than was released"
    if s.queues[index].hurry < 0 or not patience(s, index) > 0:
        return b"a link has no patience"
    if not s.links[index].rate > 0:
        return b"a link has no rate"
    return NULL
