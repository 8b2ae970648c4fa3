"""The block scheduler: decides when each unit goes onto the wire. It does no I/O and reads no clock. Each part is a file of scheduler/:

    unit, link, steps    units, links and steps as data, with the functions that keep them
    block                Prophet's gradient block, and where the paper's objects are here
    policy               limits on what is in flight and unanswered
    decisions            what leaves when: the theory, the proof, the functions
    block_scheduler      the state machine, its settings, and the lock that guards it; a driver is one
    invariants           what must always hold of it
    pyscheduler          one whose events come from Python: for the simulator and the tests

A .pxd file declares what others may use, a .pyx file is compiled into this extension alone.
"""
include "scheduler/policy.pyx"
include "scheduler/block_scheduler.pyx"
include "scheduler/decisions.pyx"
include "scheduler/invariants.pyx"
include "scheduler/pyscheduler.pyx"
