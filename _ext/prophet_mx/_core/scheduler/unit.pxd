"""A unit as the scheduler knows it, the orders of units, and binary heaps of ready ones.

A heap knows where each of its units is (Unit.slot), as a unit that is not at its top may leave it: std::priority_queue cannot do that.
"""
from libc.stdint cimport int64_t

cdef enum UnitState:
    IDLE = 0
    READY = 1
    SENT = 2

cdef enum:
    WIDE = -1                       # Unit.link of a unit that is spread over all links

cdef struct Unit:
    int64_t bytes                   # payload
    int link                        # index of its server, or WIDE
    int gradient                    # index in forward order: 0 is the most urgent
    int64_t urgency                 # within an iteration: smaller first (gradient, then part)
    int64_t order                   # what the policy makes of that: smaller leaves first
    int64_t position                # place in the total order within a round
    UnitState state
    int64_t iteration               # the caller's iteration of the current request
    int64_t round                   # how many requests of this unit came before the current one
    int64_t major, minor            # what the ready heap orders by, smaller first
    int slot                        # its place in the ready heap
    int sent_before, sent_after     # neighbours in its link's list of sent units, -1 none
    int64_t end                     # link's released counter when this unit was released (of a WIDE one, the last link's)
    int64_t block                   # number of the gradient block that it left with, 0 none (of a WIDE one, the last link's)
    bint yielded                    # the lead limit let it go only because its links were quiet
    double ready_time
    double release_time

cdef struct Heap:
    int* items                      # indices of units
    int count
    int head                        # the earliest of them in the total order, -1 where that is not known: see heap_head()


# -- orders ------------------------------------------------------------------------------------------------------------------------

cdef inline bint before(Unit* x, Unit* y) noexcept nogil:
    """Whether x leaves before y under the policy."""
    if x.major != y.major:
        return x.major < y.major
    return x.minor < y.minor


cdef inline bint more_urgent(Unit* x, Unit* y) noexcept nogil:
    """Whether the next forward pass needs x before y, whatever the policy."""
    return x.iteration < y.iteration or (x.iteration == y.iteration and x.urgency < y.urgency)


cdef inline bint ordered(Unit* x, Unit* y) noexcept nogil:
    """Whether x is before y in the total order that all workers share."""
    return x.round < y.round or (x.round == y.round and x.position < y.position)


# -- heaps, by before() --------------------------------------------------------------------------------------------------------------

cdef inline void place(Unit* units, Heap* heap, int slot, int index) noexcept nogil:
    heap.items[slot] = index
    units[index].slot = slot


cdef inline void sift_up(Unit* units, Heap* heap, int slot, int index) noexcept nogil:
    cdef int parent
    while slot > 0:
        parent = (slot - 1) // 2
        if not before(&units[index], &units[heap.items[parent]]):
            break
        place(units, heap, slot, heap.items[parent])
        slot = parent
    place(units, heap, slot, index)


cdef inline void sift_down(Unit* units, Heap* heap, int slot, int index) noexcept nogil:
    cdef int child
    while True:
        child = 2 * slot + 1
        if child >= heap.count:
            break
        if child + 1 < heap.count and before(&units[heap.items[child + 1]], &units[heap.items[child]]):
            child += 1
        if not before(&units[heap.items[child]], &units[index]):
            break
        place(units, heap, slot, heap.items[child])
        slot = child
    place(units, heap, slot, index)


cdef inline void heap_push(Unit* units, Heap* heap, int index) noexcept nogil:
    heap.count += 1
    if heap.count == 1 or (heap.head >= 0 and ordered(&units[index], &units[heap.head])):
        heap.head = index
    sift_up(units, heap, heap.count - 1, index)


cdef inline void heap_remove(Unit* units, Heap* heap, int slot) noexcept nogil:
    cdef int moved
    if heap.items[slot] == heap.head:
        heap.head = -1
    heap.count -= 1
    if slot == heap.count:
        return
    moved = heap.items[heap.count]
    sift_up(units, heap, slot, moved)
    if units[moved].slot == slot:
        sift_down(units, heap, slot, moved)


cdef inline int heap_head(Unit* units, Heap* heap) noexcept nogil:
    """The earliest unit, in the total order, of a heap that is not empty. It is looked for when the one before has left, and not at each
    decision: a link may have hundreds of ready units, and a worker many links."""
    cdef int i
    if heap.head < 0:
        heap.head = heap.items[0]
        for i in range(1, heap.count):
            if ordered(&units[heap.items[i]], &units[heap.head]):
                heap.head = heap.items[i]
    return heap.head
