"""How many bytes of each link have drained: see drain.pxd."""
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from .scheduler cimport SENT, WIDE, BlockScheduler, Link, Unit, in_flight

POLL_TIMES = (POLL_MIN, POLL_MAX)   # for the simulator

cdef double QUIET_SECONDS = 0.005   # a link without motion for so long carries nothing, if little is missing from the count
cdef double WAITING_SECONDS = 0.5   # and for so long, if more is missing: a send may wait behind the program's own operators
cdef int64_t OVERHEAD_ERROR = 64    # bytes by which the estimate of what a message costs may be wrong
cdef double OVERHEAD_MAX = 4096     # bytes a message may cost besides its payload


# -- what the kernel says of one TCP connection ------------------------------------------------------------------------------------

cdef extern from "<sys/socket.h>" nogil:
    int getsockopt(int fd, int level, int name, void* value, unsigned int* length)

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef enum:
    IPPROTO_TCP = 6
    TCP_INFO = 11
    SIOCOUTQ = 0x5411
    # Offsets in Linux's struct tcp_info, which only ever grows at its end; the build's own headers may be too old to know them.
    AT_BYTES_ACKED = 120
    AT_MIN_RTT = 148
    TCP_INFO_BYTES = 160

cdef struct TcpSample:
    int64_t acked                   # bytes acknowledged by the peer's kernel since the connection was made
    double min_rtt                  # seconds


cdef int read_tcp(int fd, TcpSample* sample) noexcept nogil:
    """Sample a connection; -1 if it is none, or if this kernel does not count acknowledged bytes (before 4.1). Never blocks."""
    cdef char[TCP_INFO_BYTES] info
    cdef unsigned int length = TCP_INFO_BYTES
    if getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) != 0 or length < AT_BYTES_ACKED + 8:
        return -1
    memcpy(&sample.acked, &info[AT_BYTES_ACKED], 8)
    sample.min_rtt = 0
    if length >= AT_MIN_RTT + 4:
        sample.min_rtt = (<uint32_t*>&info[AT_MIN_RTT])[0] * 1e-6
        if sample.min_rtt > 1:
            sample.min_rtt = 0      # not measured yet
    return 0


cdef int64_t read_queued(int fd) noexcept nogil:
    """Bytes written to the socket and not acknowledged yet; 0 if that cannot be read."""
    cdef int queued = 0
    return queued if ioctl(fd, SIOCOUTQ, &queued) == 0 else 0


def tcp_sample(int fd) -> tuple:
    """(bytes acknowledged, bytes queued, smallest round trip in seconds) of a connected TCP socket; OSError if it is none."""
    cdef TcpSample sample
    if read_tcp(fd, &sample) != 0:
        raise OSError(errno, f"file descriptor {fd} gives no TCP_INFO with acknowledged bytes")
    return sample.acked, read_queued(fd), sample.min_rtt


# -- all links -----------------------------------------------------------------------------------------------------------------------

cdef class Drain:
    """The meters of a scheduler's links. It predicts, unless another source is set.

    Contract:

    1. All functions are called with the lock of the scheduler `s` held, and tell it what they find out.
    2. The kernel is asked by getsockopt() and ioctl(), which do not block.
    """

    def __cinit__(self, int links):
        self.n_links = links
        self.source = DRAIN_PREDICTED
        self.meters = <Meter*>calloc(links, sizeof(Meter))
        if self.meters == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.meters)

    cdef void use_tcp(self, BlockScheduler s, int* fds) noexcept nogil:
        """Read drain from these sockets, one per link, which were seen to be readable."""
        cdef TcpSample tcp
        cdef int i
        for i in range(self.n_links):
            read_tcp(fds[i], &tcp)
            self.meters[i].fd = fds[i]
            self.meters[i].acked = tcp.acked
            self.meters[i].base = tcp.acked - s.links[i].drained
            self.meters[i].quiet_written = -1
            s.links[i].rtt = tcp.min_rtt
        self.source = DRAIN_TCP

    cdef void unit_released(self, int link) noexcept nogil:
        """A unit's message goes onto this link, or onto all if it is WIDE."""
        cdef int i
        for i in range(self.n_links):
            if link == i or link == WIDE:
                self.meters[i].messages += 1

    cdef void unit_answered(self, BlockScheduler s, int unit, double t) noexcept nogil:
        """The unit was answered, and the scheduler knows."""
        self.trust_answer(s, unit, t)
        if s.n_sent == 0:
            self.settle(s, t)

    cdef int has_drained(self, BlockScheduler s, Unit* unit) noexcept nogil:
        """Whether a unit's bytes have left, by the connections' counts and queues: 1, 0, or -1 if that is only predicted."""
        cdef Link* links = s.links
        cdef int i
        cdef int64_t end
        if unit.state != SENT or self.source != DRAIN_TCP:
            return -1
        for i in range(self.n_links):
            if unit.link == WIDE or unit.link == i:
                end = links[i].released if unit.link == WIDE else unit.end
                # An empty queue proves drain, where the count is an estimate.
                if links[i].drained < end and read_queued(self.meters[i].fd) != 0:
                    return 0
        return 1

    cdef void sample(self, BlockScheduler s, double t, int which, bint watched) noexcept nogil:
        """Bring drain up to date for one link, ALL, or those HOLDING something back, where bytes are in flight. A connection is not asked
        again within POLL_MIN: between that and its next event the native thread asks, if anything waits for it. `watched`: a timeline is
        recorded, which shows drain also where nothing is held back."""
        cdef Link* link
        cdef int i
        for i in range(self.n_links):
            link = &s.links[i]
            if in_flight(link) == 0:
                continue
            if self.source == DRAIN_TCP:
                if which >= 0 and which != i or t - self.meters[i].sampled < 0.99 * POLL_MIN:
                    continue
                if which == HOLDING and not watched and s.queues[i].ready.count == 0 and s.wide.count == 0:
                    continue
                self.ask(s, i, t)
            elif self.source == DRAIN_PREDICTED and t > self.last_prediction:
                link.drained += <int64_t>(link.rate * (t - self.last_prediction))
                if link.drained > link.released:
                    link.drained = link.released
            if self.quiet(link, &self.meters[i], t):
                s.assume_drained(i, link.released, t)
                if self.source == DRAIN_TCP:
                    self.meters[i].base = self.meters[i].acked - link.drained
        self.last_prediction = t

    cdef void ask(self, BlockScheduler s, int index, double t) noexcept nogil:
        """Ask the kernel how much of a link's bytes have been acknowledged."""
        cdef TcpSample tcp
        cdef Meter* meter = &self.meters[index]
        if read_tcp(meter.fd, &tcp) != 0:
            self.source = DRAIN_PREDICTED               # the connection is gone; the watchdog reports that, not the clock
            return
        meter.sampled = t
        meter.acked = tcp.acked
        if tcp.min_rtt > 0:
            s.links[index].rtt = tcp.min_rtt
        s.on_drained(index, tcp.acked - meter.base, t)

    cdef bint quiet(self, Link* link, Meter* meter, double t) noexcept nogil:
        """Whether a link is at rest though bytes seem to be in flight. What a message costs besides its payload is an estimate, and an
        interface's counters do not tell the links apart: without this, an error could keep the window shut until the next answer,
        which other workers may be waiting to make possible. Where more is missing than the estimate explains, a send that was released
        still waits in the engine: it keeps its place in the window, but not forever, as that too is only likely."""
        cdef double patience = QUIET_SECONDS
        if meter.moved_released != link.released or meter.moved_drained != link.drained:
            meter.moved_released = link.released
            meter.moved_drained = link.drained
            meter.moved = t
        if self.source == DRAIN_FED:
            patience = 4 * QUIET_SECONDS                # it is fed every QUIET_SECONDS, if the machine keeps time
        elif self.source == DRAIN_TCP and in_flight(link) > OVERHEAD_ERROR * (meter.messages - meter.quiet_messages):
            patience = WAITING_SECONDS
        return t - meter.moved > patience and (self.source != DRAIN_TCP or read_queued(meter.fd) == 0)

    cdef void trust_answer(self, BlockScheduler s, int unit, double t) noexcept nogil:
        """An answer proves drain. Where the counter says less, also now, it is the base that is wrong."""
        cdef int k = s.units[unit].link
        if k == WIDE or self.source != DRAIN_TCP or self.meters[k].acked - self.meters[k].base >= s.links[k].drained:
            return
        if self.meters[k].sampled < t:
            self.ask(s, k, t)
        if self.meters[k].acked - self.meters[k].base < s.links[k].drained:
            self.meters[k].base = self.meters[k].acked - s.links[k].drained

    cdef void settle(self, BlockScheduler s, double t) noexcept nogil:
        """Everything is answered: align the counters, and learn what a message costs on the wire besides its payload."""
        cdef Meter* meter
        cdef int64_t written, messages
        cdef double cost, total = 0
        cdef int i, n = 0
        cdef bint align = self.source == DRAIN_TCP and t - self.settled >= POLL_MIN
        for i in range(self.n_links):
            s.assume_drained(i, s.links[i].released, t)
            meter = &self.meters[i]
            if not align or meter.messages == meter.quiet_messages and meter.quiet_written >= 0:
                continue                                # it was aligned a moment ago, or nothing has happened on it since
            if meter.sampled < t:
                self.ask(s, i, t)
            written = meter.acked + read_queued(meter.fd)
            messages = meter.messages - meter.quiet_messages
            if meter.quiet_written >= 0 and messages > 0:
                cost = <double>(written - meter.quiet_written - (s.links[i].released - meter.quiet_released)) / messages
                cost += s.overhead                      # `released` counted the old estimate already
                if 0 <= cost <= OVERHEAD_MAX:
                    total += cost
                    n += 1
            meter.quiet_written = written
            meter.quiet_released = s.links[i].released
            meter.quiet_messages = meter.messages
            meter.base = written - s.links[i].released
        if align:
            self.settled = t
        if n > 0:
            s.overhead = <int64_t>(total / n)
