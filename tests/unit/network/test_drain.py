"""Which connections lead to the servers, and how drained bytes are counted where TCP_INFO is not used: by the interface's counters or by
prediction."""

import socket
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest

from prophet_mx import Config
from prophet_mx.network import drain
from prophet_mx.network.drain import LinkMonitor

ROOT = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}


class Driver:
    """Notes how the monitor feeds it."""

    def __init__(self):
        self.by = []

    def use_fed(self):
        self.by.append("fed")

    def use_predicted(self):
        self.by.append("predicted")

    def feed_drained(self, server, drained):
        pass


@pytest.mark.parametrize(
    "interface, source, by", [("lo", "nic", "fed"), ("nosuch0", "predicted", "predicted"), (None, "predicted", "predicted")]
)
def test_without_tcp_info_the_next_best_is_taken_and_the_log_says_which_and_why(interface, source, by, monkeypatch, caplog):
    monkeypatch.setattr(drain, "server_sockets", lambda: [])  # as over another transport
    monkeypatch.setattr(drain, "interface_name", lambda: interface)
    driver, errors = Driver(), []
    monitor = LinkMonitor(driver, Config(), 1, lambda *error: errors.append(error))
    try:
        assert monitor.attach(lambda server: True) == monitor.source == source
    finally:
        monitor.close()
    assert driver.by == [by] and errors == []
    [record] = caplog.records
    assert record.levelname == "WARNING" and "0 TCP connection(s) to 1 server(s) were found" in record.getMessage()
    assert ("interface lo" if source == "nic" else "predicted") in record.getMessage()


@pytest.mark.parametrize(
    "environ, name",
    [
        ({"DMLC_INTERFACE": "lo", "DMLC_PS_ROOT_URI": "203.0.113.7"}, "lo"),
        ({"DMLC_INTERFACE": "nosuch0", **ROOT}, "lo"),
        (ROOT, "lo"),
        ({"DMLC_PS_ROOT_URI": "no.such.host.invalid"}, None),
        ({**ROOT, "DMLC_PS_ROOT_PORT": "none"}, None),
    ],
)
def test_the_interface_is_the_one_that_leads_to_the_scheduler(environ, name):
    assert drain.interface_name(environ) == name


@pytest.mark.parametrize("source", ["nic", "predicted"])
def test_a_drain_that_was_chosen_is_taken_though_tcp_info_would_work(source, monkeypatch):
    monkeypatch.setattr(drain, "interface_name", lambda: "lo")
    monkeypatch.setattr(drain, "server_sockets", lambda: pytest.fail("nobody asked for TCP_INFO"))
    monitor = LinkMonitor(Driver(), Config(drain=source), 1, lambda *error: None)
    try:
        assert monitor.attach(lambda server: True) == source
    finally:
        monitor.close()


def tcp(fd, local, remote=None, status=psutil.CONN_ESTABLISHED):
    """A connection as psutil shows it."""
    ends = [SimpleNamespace(ip=ip, port=port) for ip, port in (local, remote or ("", 0))]
    return SimpleNamespace(fd=fd, status=status, laddr=ends[0], raddr=ends[1] if remote else ())


def test_connections_to_servers_are_told_from_those_to_the_scheduler_and_to_the_worker_itself(monkeypatch):
    """This worker listens on port 7000, as do others on their machines."""
    monkeypatch.setenv("DMLC_PS_ROOT_PORT", "9091")
    here, scheduler, server, other = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"
    connections = [
        tcp(3, (here, 7000), status=psutil.CONN_LISTEN),
        tcp(4, (here, 40001), (scheduler, 9091)),
        tcp(9, (here, 40002), (server, 7001)),
        tcp(6, (here, 40003), (other, 7000)),  # a server that has the same port
        tcp(7, (here, 40004), (here, 7000)),  # to itself, and the other end of that
        tcp(8, (here, 7000), (here, 40004)),
        tcp(5, (here, 7000), (server, 50001)),
        tcp(10, (here, 40005), (server, 7002), psutil.CONN_CLOSE_WAIT),
        tcp(-1, (here, 40006), (server, 7003)),
    ]
    monkeypatch.setattr(drain, "tcp_connections", lambda: connections)
    assert drain.server_sockets() == [6, 9]


@pytest.mark.parametrize(
    "writes_on, connections, order",
    [
        ([1, 0, 2], 3, [1, 0, 2]),
        ([2, None, 0], 3, [2, 1, 0]),  # of the second server nothing can be asked
        ([0, 0], 2, None),  # one connection cannot be that of two servers
        ([0], 1, [0]),
        ([1, None], 3, None),  # which of two is the other server's, nothing tells
    ],
)
def test_a_connection_is_that_of_the_server_to_which_a_request_makes_it_write(writes_on, connections, order):
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends = [stack.enter_context(socket.create_connection(listening.getsockname())) for _ in range(connections)]

        def ask(server):
            if writes_on[server] is not None:
                ends[writes_on[server]].sendall(b"x" * 100)
            return writes_on[server] is not None

        fds = [end.fileno() for end in ends]
        assert drain.match_servers(fds, len(writes_on), ask) == (None if order is None else [fds[place] for place in order])


def test_what_an_interface_has_sent_is_shared_out_among_the_links_once(monkeypatch, caplog):
    """Of two servers. Counters that are set back tell nothing, and one that is gone ends it."""
    readings = iter([1000, 1600, 1600, 100, 500, None])

    def counters(pernic):
        sent = next(readings)
        return {} if sent is None else {"eth1": SimpleNamespace(bytes_sent=sent)}

    monkeypatch.setattr(drain.psutil, "net_io_counters", counters)
    monkeypatch.setattr(drain, "NIC_PERIOD", 0.001)
    driver, errors, fed = Driver(), [], []
    driver.feed_drained = lambda link, fresh: fed.append((link, fresh))
    monitor = LinkMonitor(driver, Config(), 2, lambda *error: errors.append(error))
    monitor._feed("eth1")
    assert fed == [(0, 300), (1, 300), (0, 0), (1, 0), (0, 0), (1, 0), (0, 200), (1, 200)]
    assert driver.by == ["predicted"] and errors == [] and "interface eth1 is gone" in caplog.text
