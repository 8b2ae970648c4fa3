"""The rounds of a group: which members a message carries, when it may leave, and what has to be sent once more. Neither clock nor I/O.

A group is several small gradients in one message. Workers need not agree on what a message carries. Behind the gradients it has a word
for each member: 1 if its gradient is in the message, 0 if not. The server adds up the words as it does the gradients. A member whose
words add up to the number of workers was sent by all of them, and is *done*. All else in the message has no effect, and whoever had sent
it sends it again. So a member that a worker does not push, or only once it has the value of another, is what it is in plain dist_sync.

  state of a member   event                  next      meaning
  ABSENT              called, then ready     READY     its gradient lies in the group's memory
  READY               close()                CARRIED   a message took it along
  CARRIED             answered, done         ABSENT    every worker had sent it
  CARRIED             answered, not done     READY     somebody had not: it goes once more
  ABSENT              called, then cancelled ABSENT    MXNet failed to compute its gradient, which plain dist_sync does not send either

Requests are numbered from 1. A call of a member needs a request that is not closed, and is later than that of the member's call before.
If there is none, the caller pushes one. A request carries what is READY of calls that need it or an earlier one. So no request is ever
left with nothing to carry: the call for which it was pushed is served by none before it. If that call is cancelled, the request may go
with nothing. What is READY after its request was closed is *stranded*, and a thread of ours pushes another one.

Nobody hangs who does not in plain dist_sync. Messages of a group pair up: the server answers the k-th when all workers have sent it.
Suppose all workers have pushed a member and it is not done. Each of them then has it on the way, or sends it in the end: an open request
closes when everything expected is there, or after a patience, and a stranded member gets a request of its own. A worker that has
sent nothing holds no other up that plain would not, as the other waits for a member that it has not pushed. So all send, and go on
sending, until a message of each carries the member.

A message waits for the members that are *expected*: those that the one before had, and those called since; one with something that was
stranded waits for nothing. The patience follows the time that lies between the first and the last of them. Where one member waits for the
value of another, as in a program that waits for each value before it pushes the next gradient, there would be a patience for each. Such a
group sends each member as it comes, for a number of iterations that doubles each time. Buckets use some members in one iteration and
others in the next: an irregular member, without which an iteration has gone, is waited for only briefly.
"""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

cdef double START_PATIENCE = 0.1    # seconds without a new member after which a message leaves without those that are missing
cdef double LEAST_PATIENCE = 0.02
cdef double MOST_PATIENCE = 1.0
cdef double BRIEFLY = 0.002         # the same, if only members are missing that iterations have gone without
cdef double SPREADS = 4             # patience, in times between the first and the last member
cdef int MOST_ALONE = 64            # iterations in which members leave as they come
cdef double AT_ONCE = 0.005         # a gradient that is ready so many seconds after an answer seems to have needed a value of that
cdef double FIRST_PAUSE = 0.0005    # seconds until a message is repeated of which nothing was done; doubles up to the last
cdef double LAST_PAUSE = 0.05

cdef enum MemberState:
    ABSENT = 0
    MEMBER_READY = 1
    CARRIED = 2

cdef struct Gathered:               # a member
    MemberState state
    int64_t due                     # the first request that may carry what is READY
    int64_t request                 # the first that may carry the gradient of the newest call
    int calls                       # of which the gradient is not ready
    int64_t iteration               # of what is READY or CARRIED
    bint expected
    bint irregular                  # an iteration has gone without it, and it came again
    int64_t missed                  # the iteration in which a message left without it, though it was expected; -1 none


cdef class Gathering:
    """The rounds of one group of ``count`` members.

    Contract: whoever owns it guards it with a lock, and makes all calls under it. Times are seconds on one clock.
    """
    cdef:
        Gathered* members
        int count
        int64_t pushed, closed, answered
        int64_t hollow              # up to this request, one may go with nothing
        int carried                 # members of the newest message
        bint opened                 # the request after the last closed one has its turn
        int64_t iteration           # of the newest call; the caller may be ahead of its gradients
        int64_t begun               # the iteration of which a member was ready first at `first`
        double first, latest        # and when anything last happened
        double patience
        int64_t alone_until         # iteration up to which members leave as they come
        int alone                   # iterations for which they did the last time
        double settled              # when the last answer came
        double pause, resumes       # after messages of which nothing was done: see stranded()

    def __cinit__(self, int count):
        if count < 1:
            raise ValueError(f"a group of {count} members")
        self.count = count
        self.members = <Gathered*>calloc(count, sizeof(Gathered))
        if self.members == NULL:
            raise MemoryError()
        for i in range(count):
            self.members[i].expected = True
            self.members[i].missed = -1
        self.patience = START_PATIENCE
        self.alone_until = -1
        self.iteration = -1
        self.begun = -1

    def __dealloc__(self):
        free(self.members)

    cdef int64_t call(self, int index, int64_t iteration, double t) noexcept nogil:
        """A member is pushed, and will be ready. Returns the first request that may carry it. If that is `pushed` + 1, the caller pushes
        it, and says so with push()."""
        cdef Gathered* member = &self.members[index]
        self.iteration = max(self.iteration, iteration)
        if member.missed == iteration:          # it comes after what left without it: perhaps because the caller waited for that
            self.leave_alone()
        elif member.missed >= 0:
            member.irregular = True
        elif self.iteration > self.alone_until + MOST_ALONE:
            self.alone = 0
        member.missed = -1
        member.expected = True
        member.request = max(self.closed, member.request) + 1
        member.calls += 1
        self.latest = t
        return member.request

    cdef void push(self) noexcept nogil:
        """One more request is on the engine."""
        self.pushed += 1

    cdef void ready(self, int index, int64_t request, int64_t iteration, double t) noexcept nogil:
        """The gradient of a call is there; `request` is what the call returned."""
        cdef Gathered* member = &self.members[index]
        if self.begun < iteration:
            self.begun = iteration
            self.first = t
        member.calls -= 1
        member.iteration = iteration
        member.state = MEMBER_READY
        member.due = request
        self.latest = t
        if request > self.closed:
            return
        if self.answered == self.closed and t < self.settled + AT_ONCE:
            self.leave_alone()
        else:                                   # it was on its way when the message left
            self.learn(t)

    cdef void cancel(self, int index, int64_t request, double t) noexcept nogil:
        """There is no gradient for a call."""
        self.members[index].calls -= 1
        self.hollow = max(self.hollow, request)
        self.latest = t

    cdef void leave_alone(self) noexcept nogil:
        """Members wait for one another's values: let them leave as they come."""
        self.alone = min(MOST_ALONE, max(1, 2 * self.alone))
        self.alone_until = self.iteration + self.alone

    cdef void learn(self, double t) noexcept nogil:
        """So much time may lie between the first and the last member."""
        self.patience = min(MOST_PATIENCE, max(self.patience, SPREADS * (t - self.first)))

    cdef void open(self) noexcept nogil:
        """The next request has its turn."""
        self.opened = True

    cdef int carriable(self, int64_t request) noexcept nogil:
        """How many members this request could carry now."""
        cdef int i, n = 0
        for i in range(self.count):
            n += self.members[i].state == MEMBER_READY and self.members[i].due <= request
        return n

    cdef bint may_close(self, bint hurry, double t, double* wake) noexcept nogil:
        """Whether the message may leave now; if not, *wake is brought forward to when it may. In a `hurry` it waits only for what was
        called."""
        cdef double leaves
        if not self.opened or (self.carriable(self.closed + 1) == 0 and self.closed >= self.hollow):
            return False
        leaves = self.latest + self.patience_for_missing(hurry)
        if t >= leaves or self.carriable(self.closed) > 0 or self.iteration <= self.alone_until:
            return True
        wake[0] = min(wake[0], leaves)
        return False

    cdef double patience_for_missing(self, bint hurry) noexcept nogil:
        """Seconds for which the next message waits for what is missing, from the last event on; negative if nothing is."""
        cdef Gathered* member
        cdef double seconds = -1
        cdef int i
        for i in range(self.count):
            member = &self.members[i]
            if member.state == MEMBER_READY and member.due <= self.closed + 1:
                continue
            if member.calls > 0 or (member.expected and not member.irregular and not hurry):
                return self.patience
            if member.expected and not hurry:
                seconds = BRIEFLY
        return seconds

    cdef int64_t close(self) noexcept nogil:
        """The message leaves, with what is CARRIED from now on. Returns the oldest iteration of that."""
        cdef Gathered* member
        cdef bint all_here = True
        cdef int64_t oldest = self.iteration
        cdef int64_t newest = -1
        cdef int i
        self.closed += 1
        self.opened = False
        self.carried = 0
        for i in range(self.count):
            member = &self.members[i]
            if member.state == MEMBER_READY and member.due <= self.closed:
                member.state = CARRIED
                self.carried += 1
                oldest = min(oldest, member.iteration)
                newest = max(newest, member.iteration)
        for i in range(self.count):
            member = &self.members[i]
            if member.state == CARRIED:
                continue
            all_here = False
            if member.expected and member.calls == 0 and member.state == ABSENT:
                member.expected = False
                member.missed = newest
        if all_here and self.iteration > self.alone_until:
            self.patience = max(LEAST_PATIENCE, self.patience * 7 / 8)
            self.learn(self.latest)
        return oldest

    cdef void settle(self, int index, bint done) noexcept nogil:
        """What the answer says of a CARRIED member."""
        self.members[index].state = ABSENT if done else MEMBER_READY

    cdef void answer(self, int settled, double t) noexcept nogil:
        """The answer is there, and so many members are done."""
        self.answered += 1
        self.latest = self.settled = t
        self.pause = 0 if settled > 0 else min(LAST_PAUSE, max(FIRST_PAUSE, 2 * self.pause))
        self.resumes = t + self.pause

    cdef bint stranded(self, double t, double* wake) noexcept nogil:
        """Whether something is READY that no request on the engine will carry, and is to get one now. If later, *wake is brought
        forward."""
        if self.pushed > self.closed or self.carriable(self.closed) == 0:
            return False
        if t >= self.resumes:
            return True
        wake[0] = min(wake[0], self.resumes)
        return False

    cdef bint idle(self) noexcept nogil:
        """Whether nothing is under way, nor waits for anything."""
        cdef int i
        for i in range(self.count):
            if self.members[i].state != ABSENT or self.members[i].calls > 0:
                return False
        return self.pushed == self.answered

    def check(self) -> None:
        """AssertionError if the state contradicts itself."""
        cdef int i
        assert 0 <= self.answered <= self.closed <= self.pushed, (self.answered, self.closed, self.pushed)
        assert self.closed - self.answered <= 1, "two messages under way"
        assert not self.opened or self.pushed > self.closed, "a request has its turn that was not pushed"
        for i in range(self.count):
            assert self.members[i].calls >= 0, i
            assert self.members[i].state != CARRIED or self.closed > self.answered, f"member {i} is carried by no message"
            assert self.members[i].calls == 0 or self.members[i].request <= self.pushed, f"no request will carry member {i}"

    # -- for a model of several workers --------------------------------------------------------------------------------------

    def member_called(self, int index, int64_t iteration, double t) -> tuple:
        """(the request that may carry it, whether it is a new one)."""
        cdef int64_t request = self.call(index, iteration, t)
        cdef bint new = request > self.pushed
        if new:
            self.push()
        return request, new

    def member_ready(self, int index, int64_t request, int64_t iteration, double t) -> None:
        self.ready(index, request, iteration, t)

    def member_cancelled(self, int index, int64_t request, double t) -> None:
        self.cancel(index, request, t)

    def request_opened(self) -> None:
        self.open()

    def try_close(self, bint hurry, double t) -> tuple:
        """(the members that the message carries or None, their oldest iteration, when to ask again)."""
        cdef double wake = INFINITY
        cdef int64_t iteration
        if not self.may_close(hurry, t, &wake):
            return None, -1, wake
        iteration = self.close()
        return [i for i in range(self.count) if self.members[i].state == CARRIED], iteration, wake

    def request_answered(self, done, double t) -> None:
        """``done``: whether each of the members is."""
        cdef int i, settled = 0
        for i in range(self.count):
            if self.members[i].state == CARRIED:
                settled += bool(done[i])
                self.settle(i, bool(done[i]))
        self.answer(settled, t)

    def try_again(self, double t) -> tuple:
        """(whether a stranded member got a request, when to ask again)."""
        cdef double wake = INFINITY
        cdef bint again = self.stranded(t, &wake)
        if again:
            self.push()
        return again, wake
