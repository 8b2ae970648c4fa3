"""Log lines, the Prometheus endpoint and TensorBoard scalars of a real job, and that nothing of them outlives it."""
import logging
import re
import socket
import struct
import threading

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import Config, ConfigError, ScheduledKVStore
from prophet_mx.launcher.launch import free_port
from prophet_mx.monitoring.metrics import Metrics, Sample, ScalarLogger, between, line, set_up_logging
from support.cluster import run_cluster

prometheus = pytest.importorskip("prometheus_client")
tensorboard = pytest.importorskip("tensorboardX")

JOB = """
    import os, sys, time, urllib.request
    import mxnet as mx
    from prophet_mx import ScheduledKVStore
    from prophet_mx.metrics import ScalarLogger
    from tensorboardX import SummaryWriter

    port, logs = int(sys.argv[1]), sys.argv[2]
    kv = ScheduledKVStore(mx.kv.create("dist_sync"), metrics_port=port, log_every=10)
    writer = SummaryWriter(os.path.join(logs, str(kv.rank)))
    scalars = ScalarLogger(kv, writer, every=10)
    keys, shape = [str(i) for i in range(5)], (20000,)
    values = {key: mx.nd.ones(shape) for key in keys}
    for key in keys:
        kv.init(key, values[key])
    for step in range(41):
        for i, key in enumerate(keys):
            kv.pushpull(key, values[key], priority=-i)
        mx.nd.waitall()
        scalars()
        time.sleep(0.02)
    writer.close()
    text = urllib.request.urlopen(f"http://127.0.0.1:{port + kv.rank}/metrics", timeout=10).read().decode()
    for entry in text.splitlines():
        if entry.startswith("prophet_mx_"):
            print("scraped", entry)
    print("released", kv.stats()["bytes"])
"""


def scalars_in(folder):
    """(tag, step, value) of all scalars in a folder's event files: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            [length] = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12:at + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            at += 16 + length
    return found


def test_a_job_shows_its_statistics_in_all_three_ways_and_ends(tmp_path):
    port = free_port()
    result = run_cluster(JOB, 2, 1, args=[port, tmp_path], timeout=60, grace=20)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()
    for worker in result.workers:
        logged = re.findall(r"prophet_mx INFO: iterations (\d+) to (\d+): ([\d.]+) ms each, ([\d.]+) MB in (\d+) units",
                            worker.output)
        assert [(int(a), int(b)) for a, b, *_ in logged] == [(1, 11), (11, 21), (21, 31)], result.logs()
        for _, _, milliseconds, megabytes, units in logged:
            assert float(milliseconds) >= 20 and float(megabytes) == pytest.approx(0.4, abs=0.09) and 4 <= int(units) <= 6
        scraped = dict(re.findall(r"scraped (\w+)\{[^}]*\} (\S+)", worker.output))
        assert float(scraped["prophet_mx_iterations_total"]) > 5
        assert 0 < float(scraped["prophet_mx_bytes_total"]) <= float(re.search(r"released (\d+)", worker.output).group(1))
        assert float(scraped["prophet_mx_iteration_seconds"]) >= 0.02
        assert float(scraped["prophet_mx_link_rate_bytes_per_second"]) > 0
    ranks = {re.search(r'scraped prophet_mx_units_total\{policy="prophet",rank="(\d)"', worker.output).group(1)
             for worker in result.workers}
    assert ranks == {"0", "1"}
    for rank in ranks:
        scalars = scalars_in(tmp_path / rank)
        assert sorted(step for tag, step, _ in scalars if tag == "prophet_mx/iteration_seconds") == [11, 21, 31, 41]
        sent = [value for tag, _, value in scalars if tag == "prophet_mx/bytes"]
        assert sent == pytest.approx([5 * 80000] * 4, rel=0.01)


def state(**changes):
    values = dict.fromkeys(("units", "bytes", "blocks", "wait_seconds", "inverted_bytes", "first_seconds", "first_answers"), 0)
    return {**values, "links": [{"rate": 1e6, "backlog_seconds": 0.0, "backlog_bytes": 0}], **changes}


def test_what_happened_between_two_samples():
    earlier = Sample(10.0, 5, state(bytes=1000, units=10, first_seconds=1.0, first_answers=5))
    later = Sample(12.0, 15, state(bytes=21000, units=30, blocks=10, wait_seconds=0.4, first_seconds=1.5, first_answers=15,
                                   links=[{"rate": 2e6, "backlog_seconds": 0.5, "backlog_bytes": 750000}]))
    assert between(earlier, later) == pytest.approx({
        "iteration_seconds": 0.2, "bytes": 2000, "units": 2, "blocks": 1, "unit_wait_seconds": 0.02, "first_wait_seconds": 0.05,
        "utilisation": 0.75, "link_rate": 2e6})
    shown = line(earlier, later)
    assert shown.startswith("iterations 5 to 15: 200.0 ms each, 0.00 MB in 2 units and 1 blocks")
    assert shown.endswith("link 75% used, 16 Mbit/s to a server")


@given(st.integers(0, 3), st.floats(0, 1e3), st.floats(0, 1e9))
def test_any_two_samples_make_a_line(iterations, seconds, drained):
    later = Sample(seconds, iterations, state(links=[{"rate": 1e6, "backlog_seconds": seconds, "backlog_bytes": drained}]))
    assert 0 <= between(Sample(0.0, 0, state()), later)["utilisation"] <= 1
    assert "\n" not in line(Sample(0.0, 0, state()), later)


def test_nothing_is_asked_where_nothing_is_wanted():
    metrics = Metrics(Config(), 0)
    for number in range(100):
        metrics.iteration(number, None)         # there is no driver to ask
    metrics.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prophet_mx-metrics"]


@pytest.mark.alone                               # so that nobody else takes the port that is free again
def test_silent_and_rude_clients_do_not_keep_the_endpoint_from_closing(monkeypatch, capfd):
    monkeypatch.setattr("prophet_mx.monitoring.metrics._QuietHandler.timeout", 0.5)
    port, threads = free_port(), set(threading.enumerate())
    metrics = Metrics(Config(metrics_port=port - 3), 3)         # the rank is added
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.send(b"GET /metr")
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))       # resets the connection
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""                            # is given up; the rude one was before it
    with socket.create_connection(("127.0.0.1", port)):
        metrics.close()
        assert set(threading.enumerate()) <= threads
    metrics.close()
    assert capfd.readouterr() == ("", "")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)     # fails only if somebody listens
        again.bind(("127.0.0.1", port))


@pytest.mark.parametrize("settings, address", [({}, "127.0.0.1"), ({"metrics_host": "127.0.0.2"}, "127.0.0.2"),
                                               ({"metrics_host": "0.0.0.0"}, "0.0.0.0")])
def test_the_endpoint_listens_on_the_loopback_unless_told_otherwise(settings, address):
    port = free_port()
    metrics = Metrics(Config(metrics_port=port, **settings), 0)
    try:
        process = psutil.Process()
        connections = getattr(process, "net_connections", process.connections)(kind="inet")
        assert [connection.laddr for connection in connections if connection.laddr.port == port] == [(address, port)]
    finally:
        metrics.close()


def test_a_port_that_is_taken_names_the_setting():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port={port - 1} is not allowed: rank 1 cannot listen on 127.0.0.1:{port}"):
            Metrics(Config(metrics_port=port - 1), 1)
    with pytest.raises(ConfigError, match="rank 1 cannot listen"):
        Metrics(Config(metrics_port=65535), 1)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"metrics_port=9100 .*prophet_mx\[metrics\]"):
        Metrics(Config(metrics_port=9100), 0)


def test_log_level(monkeypatch, capsys):
    mine, root = logging.getLogger("prophet_mx"), logging.getLogger()
    for logger in (mine, root):
        monkeypatch.setattr(logger, "handlers", [])     # pytest has put its own on the root
    monkeypatch.setattr(mine, "level", logging.NOTSET)
    set_up_logging(Config())
    assert not mine.handlers and mine.level == logging.NOTSET      # the program's own business
    set_up_logging(Config(log_level="warning"))
    set_up_logging(Config(log_level="warning"))
    mine.info("not shown")
    mine.warning("shown once")
    err = capsys.readouterr().err
    assert err.count("shown once") == 1 and "prophet_mx WARNING: shown once" in err and "not shown" not in err
    root.addHandler(logging.NullHandler())       # now the program has set up logging itself
    mine.warning("twice")
    assert "twice" not in capsys.readouterr().err
    set_up_logging(Config(log_every=5))
    assert mine.level == logging.INFO
    mine.setLevel(logging.NOTSET)       # forgets what it has cached of levels


def test_a_callback_of_an_unscheduled_store_still_has_the_time(tmp_path):
    mx = pytest.importorskip("mxnet")
    store = ScheduledKVStore(mx.kv.create("local"))
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        callback = ScalarLogger(store, writer, every=2)
        for _ in range(5):
            callback()
    assert [(tag, step) for tag, step, _ in scalars_in(tmp_path)] == [("prophet_mx/iteration_seconds", step) for step in (3, 5)]
    with pytest.raises(ConfigError, match="every=0"):
        ScalarLogger(store, writer, every=0)
