"""What the kernel says of one TCP connection: see tcpinfo.pxd."""
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

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
