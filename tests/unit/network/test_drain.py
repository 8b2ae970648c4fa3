"""How drained bytes are counted where TCP_INFO is not used: by the interface's counters or by prediction."""

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
