"""MXNet's C functions, for other extensions; engine.pyx has the list of the engine's parts."""
include "engine/mxapi.pxd"
