"""How drained bytes are counted where TCP_INFO is not used: by the interface's counters or by prediction, in a job and by choice."""
import re

import pytest

from prophet_mx import Config
from prophet_mx.network import drain
from prophet_mx.network.drain import LinkMonitor
from support.cluster import run_cluster

ITERATIONS = 40
ROOT = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}

# Two devices per worker, whose gradients the wrapper has to sum up as the store would; the keys of some parameters were there before.
JOB = """
import logging, os
import mxnet as mx
import numpy as np
from prophet_mx import KVStoreError, ScheduledKVStore

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
plain = mx.kv.create(os.environ["STORE"])
plain.init("early", mx.nd.zeros((5,)))
kv = ScheduledKVStore(plain)
shapes = {"a": (3,), "b": (100, 30), "c": (7,), "d": (700,)}
for key, shape in shapes.items():
    kv.init(key, mx.nd.zeros(shape))
for step in range(ITERATIONS):
    outs = {key: [mx.nd.zeros(shape, ctx=mx.cpu(device)) for device in range(2)] for key, shape in shapes.items()}
    for i, (key, shape) in reversed(list(enumerate(shapes.items()))):
        grads = [mx.nd.full(shape, (step + i + device) * (kv.rank + 1), ctx=mx.cpu(device)) for device in range(2)]
        kv.pushpull(key, grads, out=outs[key], priority=-i)
    for i, (key, pair) in enumerate(outs.items()):
        for out in pair:
            assert (out.asnumpy() == 3 * (2 * (step + i) + 1)).all(), (step, key, out)
    if step == 20:
        try:
            kv.pushpull("early", mx.nd.ones((5,)), out=mx.nd.zeros((5,)))
        except KVStoreError as error:
            print("refused:", error)
stats = kv.stats()
print(f"{kv.type} {stats['drain']} {stats['units']} failure '{stats['failure']}'")
""".replace("ITERATIONS", str(ITERATIONS))


@pytest.mark.cluster
def test_a_job_is_scheduled_to_its_end_by_the_interfaces_counters_and_by_prediction():
    """Also: both names of MXNet's store that sums up on devices are scheduled, and a key from before the store was wrapped is refused
    where others came after, without harm to the job."""
    result = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "2000"}, role_env={
        "worker 0": {"PROPHET_DRAIN": "nic", "STORE": "dist_sync_device"},
        "worker 1": {"PROPHET_DRAIN": "predicted", "STORE": "dist_device_sync"}})
    slices = ITERATIONS * (1 + 6 + 1 + 1)          # 12 kB in units of 2 kB, and three that are whole
    for worker, store, source, said in zip(result.workers, ("dist_sync_device", "dist_device_sync"), ("nic", "predicted"), (
            "drain is read from the counters of interface ", "drain is predicted from the measured rate")):
        assert f"{store} {source} {slices} failure ''" in worker.output, result.logs()
        assert len(re.findall(f"^WARNING {said}", worker.output, re.MULTILINE)) == 1, result.logs()
        assert len(re.findall("^refused: key 'early' was not initialised through this store", worker.output, re.MULTILINE)) == 1


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


@pytest.mark.parametrize("interface, source, by", [("lo", "nic", "fed"), ("nosuch0", "predicted", "predicted"),
                                                   (None, "predicted", "predicted")])
def test_without_tcp_info_the_next_best_is_taken_and_the_log_says_which_and_why(interface, source, by, monkeypatch, caplog):
    monkeypatch.setattr(drain, "server_sockets", lambda: [])        # as over another transport
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


@pytest.mark.parametrize("environ, name", [
    ({"DMLC_INTERFACE": "lo", "DMLC_PS_ROOT_URI": "203.0.113.7"}, "lo"), ({"DMLC_INTERFACE": "nosuch0", **ROOT}, "lo"), (ROOT, "lo"),
    ({"DMLC_PS_ROOT_URI": "no.such.host.invalid"}, None), ({**ROOT, "DMLC_PS_ROOT_PORT": "none"}, None)])
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
