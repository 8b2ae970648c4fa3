# cython: language_level=3
"""prophet_mx._core: the compiled part, one extension module made of the files below (each says what it is for)."""
include "mxapi.pyx"
include "scheduler.pyx"
include "tcpinfo.pyx"
include "engine.pyx"
include "parameter.pyx"
include "stream.pyx"
include "accelerator.pyx"
