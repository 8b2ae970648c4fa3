"""The scheduler of the simulator and the tests. A job's scheduler is its driver."""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t


cdef class Scheduler(BlockScheduler):
    """A block scheduler whose events, and their times, come from Python. One thread alone may use it, so nothing here takes the lock. The
    arguments are those of the base class."""

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
        self.on_ready(unit, iteration, t)

    def drained(self, int link, int64_t total, double t) -> None:
        self.need_link(link)
        self.on_drained(link, total, t)

    def done(self, int unit, double t) -> None:
        self.need_unit(unit)
        if self.units[unit].state != SENT:
            raise ValueError(f"unit {unit} was not sent")
        self.on_done(unit, t)

    def decide(self, double t):
        """The units to release now, in order, and when to ask again (seconds; inf: at the next event)."""
        cdef double wake
        cdef int n = choose_all(self, t, &wake)
        return [self.out[i] for i in range(n)], wake

    def sending(self, double t) -> float:
        """Seconds until now in which any link had bytes in flight."""
        return active_until(&self.activity, t)

    def link_state(self, int link) -> dict:
        self.need_link(link)
        return self.state_of(link)

    def unit_state(self, int unit) -> str:
        self.need_unit(unit)
        return ("idle", "ready", "sent")[<int>self.units[unit].state]
