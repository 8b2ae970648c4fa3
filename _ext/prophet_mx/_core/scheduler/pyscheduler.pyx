"""The scheduler for Python: for the simulator and the tests. A job's scheduler belongs to its driver."""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport free


cdef class Scheduler(BlockScheduler):
    """Compiled block scheduler for one worker.

    Parameters
    ----------
    policy : name of one of :data:`prophet_mx.policies.POLICIES`
    links : number of servers
    window : drain window in bytes, 0 to derive it from each link's rate
    lead : lead limit in bytes, 0 to derive it from each link's rate
    rate : bytes/s assumed for each link until measured, 0 for the default
    """

    def add_unit(self, int64_t size, int link, int gradient, rank=None, position=None) -> int:
        """Add a unit of ``size`` bytes for server ``link`` (-1: spread over all); its index. Urgency ``rank`` defaults to
        ``gradient`` (index in forward order), ``position`` in the total order to the reverse of it."""
        if size < 0 or not -1 <= link < self.n_links or gradient < 0:
            raise ValueError(f"unit of {size} bytes for link {link}, gradient {gradient}: out of range")
        cdef int64_t urgency = gradient if rank is None else rank
        index = self.add(size, link, gradient, urgency, order_of(self.policy, urgency, size), -gradient if position is None else position)
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
            if self.take_steps(len(step_of), steps, len(due), dues) < 0:
                raise MemoryError()
        finally:
            free(steps)
            free(dues)

    def set_sizes(self, int64_t unit, int64_t message=0) -> None:
        """Take the size of the layout's slices (bytes), which the windows and blocks are measured in; 0: derive it from the rate; and the
        bytes that a link carries in the time that a server takes for a message. ValueError while something is unanswered."""
        check_taken(self.take_unit(unit, message), unit, message)

    def set_places(self, places) -> None:
        """For each (unit, rank, position): change the unit's urgency, from its next request on, and its position in the total order, at
        once."""
        for unit, rank, position in places:
            self.need_unit(unit)
            self.move(unit, rank, order_of(self.policy, rank, self.units[unit].bytes), position)

    def set_unlimited(self, bint unlimited) -> None:
        """Whether the lead limit is off."""
        self.limits.unlimited = unlimited

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
        cdef int n = self.choose_all(t, &wake)
        return [self.out[i] for i in range(n)], wake

    def sending(self, double t) -> float:
        """Seconds until now in which any link had bytes in flight."""
        return sending_until(&self.activity, t)

    def link_state(self, int link) -> dict:
        self.need_link(link)
        cdef LinkState state = self.state_of(link)
        return as_dict(&state)

    def unit_state(self, int unit) -> str:
        self.need_unit(unit)
        return ("idle", "ready", "sent")[<int>self.units[unit].state]

    def check(self) -> None:
        """Verify every invariant; AssertionError with the state if one fails."""
        cdef const char* what = broken(self)
        if what != NULL:
            raise AssertionError(f"{what.decode()}; links {[self.link_state(i) for i in range(self.n_links)]}; "
                                 f"sent {[i for i in range(self.count) if self.units[i].state == SENT]}")
