"""The connections to the servers: when one is broken."""

import os
import resource
import socket

import pytest

from prophet_mx.network.connections import Connection, Health


@pytest.fixture
def ends():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    yield near, far
    near.close()
    far.close()


def test_a_connection_is_broken_from_the_moment_the_other_end_closes_it(ends):
    near, far = ends
    connection = Connection(near.fileno(), 1)
    assert connection.name == "server 1 ({}:{})".format(*far.getsockname())
    assert connection.health() == Health("", False)
    far.close()
    near.recv(1)  # waits for the end
    assert connection.health().broken == "its state is CLOSE_WAIT"
    assert near.send(b"x") == 1  # looking at a connection does not close it


def test_another_socket_in_its_place_is_not_taken_for_the_connection(ends):
    near, _far = ends
    fd = near.fileno()
    connection = Connection(fd, 0)
    with socket.socket() as other:
        os.dup2(other.fileno(), fd)
        assert connection.health().broken == "the socket was closed"
    near.close()
    assert connection.health().broken == "the socket was closed"


def test_a_program_that_has_used_up_its_descriptors_has_not_lost_its_connections(ends):
    near, far = ends
    connection, limits = Connection(near.fileno(), 0), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(near.fileno())
        assert connection.health() == Health("")
        assert Connection(near.fileno(), 1).peer == connection.peer
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert near.send(b"x") == 1 and far.recv(1) == b"x"
