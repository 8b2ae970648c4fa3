"""What the kernel says of one TCP connection: bytes that the peer acknowledged, bytes still queued here, the path's round trip."""
from libc.stdint cimport int64_t

cdef struct TcpSample:
    int64_t acked                   # bytes acknowledged by the peer's kernel since the connection was made
    double min_rtt                  # seconds

cdef int read_tcp(int fd, TcpSample* sample) noexcept nogil
cdef int64_t read_queued(int fd) noexcept nogil
