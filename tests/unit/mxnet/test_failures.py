"""What a worker knows of the optimizer on the servers."""

import mxnet as mx
import numpy as np

from prophet_mx.mxnet.failures import ELEMENTS, Failures, failure


class Servers:
    """A store whose keys hold a failure in words."""

    def __init__(self, words):
        self.words = words

    def pull(self, keys, arrays):
        for array in arrays:
            array[:] = np.array([*map(ord, self.words), *[0] * (ELEMENTS - len(self.words))])


def test_a_failure_is_read_from_the_hosts_memory_whatever_the_programs_device():
    """A program may make all of its arrays on a GPU. Their memory cannot be read from here, and this MXNet could not even make them."""
    servers = Servers("Adam failed")
    with mx.gpu(0):
        assert failure(servers, ["told"]) == "Adam failed"
        failures = Failures(servers, ["told"])
        servers.pull(failures.keys, failures._arrays)
    mx.nd.waitall()
    assert failures.found() == "Adam failed"
