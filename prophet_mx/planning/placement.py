"""Where MXNet's dist_sync keeps a key (kvstore_dist.h, EncodeDefaultKey): on one server, or, if it is large, spread over all."""

FACTOR = 9973  # key number * FACTOR % servers is the server of a key that is not spread
BIGARRAY_VARIABLE = "MXNET_KVSTORE_BIGARRAY_BOUND"
BIGARRAY_BOUND = 10**6  # its default: elements from which on an array is spread
