"""What is pushed onto MXNet's engine, and the driver of the scheduler there. Each part is a file of engine/:

    mxapi        MXNet's C functions
    measured     a scheduler with a drain and a recorder, and what is read of it
    driver       one that the engine's ops drive
    ops          the native ops around a request
    copies       between a caller's arrays and ours
    half         a unit that travels in 16 bits
    gathering    the rounds of a group
    group        a group of small parameters that travel in one message
    parameter    the data path of one parameter
    arrival      whether an array has been written
"""
include "engine/mxapi.pyx"
include "engine/gathering.pyx"
include "engine/measured.pyx"
include "engine/driver.pyx"
include "engine/ops.pyx"
include "engine/copies.pyx"
include "engine/half.pyx"
include "engine/group.pyx"
include "engine/parameter.pyx"
include "engine/arrival.pyx"
