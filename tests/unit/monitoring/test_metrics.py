"""Log lines, also of other parameters than before, the Prometheus endpoint and TensorBoard scalars; and that nothing outlives a store."""

import logging
import socket
import struct
import threading
import time
import urllib.request
from contextlib import ExitStack
from unittest.mock import Mock, patch

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import Config, ConfigError, KVStoreError, ScheduledKVStore
from prophet_mx.launcher.launch import free_port
from prophet_mx.monitoring import endpoint_server
from prophet_mx.monitoring.metrics import SET_LINES, KeySets, Metrics, PlainIterations, Sample, ScalarLogger, between, line, set_up_logging
from support.scalars import scalars_in

prometheus = pytest.importorskip("prometheus_client")
tensorboard = pytest.importorskip("tensorboardX")


def state(**changes):
    values = dict.fromkeys(
        ("units", "bytes", "blocks", "wait_seconds", "inverted_bytes", "first_seconds", "first_answers", "first_ahead"), 0
    )
    return {**values, "links": [{"rate": 1e6, "backlog_seconds": 0.0, "backlog_bytes": 0}], **changes}


def test_what_happened_between_two_samples():
    earlier = Sample(10.0, 5, state(bytes=1000, units=10, first_seconds=1.0, first_answers=5))
    later = Sample(
        12.0,
        15,
        state(
            bytes=21000,
            units=30,
            blocks=10,
            wait_seconds=0.4,
            first_seconds=1.5,
            first_answers=15,
            first_ahead=200_000,
            links=[{"rate": 2e6, "backlog_seconds": 0.5, "backlog_bytes": 750000}],
        ),
    )
    assert between(earlier, later) == pytest.approx(
        {
            "iteration_seconds": 0.2,
            "bytes": 2000,
            "units": 2,
            "blocks": 1,
            "unit_wait_seconds": 0.02,
            "first_wait_seconds": 0.05,
            "first_ahead_bytes": 20_000,
            "utilisation": 0.75,
            "link_rate": 2e6,
        }
    )
    shown = line(earlier, later)
    assert shown.startswith("iterations 5 to 15: 200.0 ms each, 0.00 MB in 2 units and 1 blocks")
    assert shown.endswith("links 75% used, 16 Mbit/s each")


def test_a_caller_that_runs_ahead_does_not_change_the_time_of_an_iteration(caplog):
    """Its iteration number says how many it has asked for, not how many have passed."""
    caplog.set_level(logging.INFO, "prophet_mx")
    metrics, clock = Metrics(Config(log_every=10), 0), Mock()
    ahead = {1: (0.0, 0), 11: (0.02, 2), 17: (0.8, 15), 27: (0.81, 16), 31: (1.5, 29)}  # caller's iteration: when, iterations that began
    for number, (seconds, passed) in ahead.items():
        clock.monotonic.return_value = seconds
        with patch("prophet_mx.monitoring.metrics.time", clock):
            metrics.iteration(number, Mock(snapshot=lambda passed=passed: state(iterations=passed)))
    lines = [record.message.partition(" each")[0] for record in caplog.records]
    assert lines == ["iterations 1 to 17: 53.3 ms", "iterations 17 to 31: 50.0 ms"]


def test_a_line_of_the_log_is_of_as_many_iterations_as_are_asked_for(caplog):
    caplog.set_level(logging.INFO, "prophet_mx")
    metrics = Metrics(Config(log_every=10), 0)
    for number in range(1, 35):
        metrics.iteration(number, Mock(snapshot=lambda number=number: state(iterations=number)))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "iterations 1 to 11",
        "iterations 11 to 21",
        "iterations 21 to 31",
    ]


def test_iterations_of_a_store_that_schedules_nothing_are_timed(caplog):
    caplog.set_level(logging.INFO, "prophet_mx")
    plain, clock = PlainIterations(5), Mock()
    with patch("prophet_mx.monitoring.metrics.time", clock):
        for step in range(12):
            for place, key in enumerate(("a", 3, "b") if step % 2 else ("b", 3, "a")):
                clock.monotonic.return_value = 0.25 * step + 0.01 * place
                plain.pushed(key)
    assert [record.message for record in caplog.records] == [
        "iterations 1 to 6: 250.0 ms each, not scheduled",
        "iterations 6 to 11: 250.0 ms each, not scheduled",
    ]


@given(st.integers(0, 3), st.floats(0, 1e3), st.floats(0, 1e9))
def test_any_two_samples_make_a_line(iterations, seconds, drained):
    later = Sample(seconds, iterations, state(links=[{"rate": 1e6, "backlog_seconds": seconds, "backlog_bytes": drained}]))
    assert 0 <= between(Sample(0.0, 0, state()), later)["utilisation"] <= 1
    assert "\n" not in line(Sample(0.0, 0, state()), later)


def test_nothing_is_asked_where_nothing_is_wanted():
    metrics = Metrics(Config(), 0)
    for number in range(100):
        metrics.iteration(number, None)  # there is no driver to ask
    metrics.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prophet_mx-metrics"]


@pytest.mark.alone  # so that nobody else takes the port that is free again
def test_silent_and_rude_clients_do_not_keep_the_endpoint_from_closing(monkeypatch, capfd):
    monkeypatch.setattr("prophet_mx.monitoring.endpoint_server.REQUEST_SECONDS", 0.5)
    port, threads = free_port(), set(threading.enumerate())
    metrics = Metrics(Config(metrics_port=port - 3), 3)  # the rank is added
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.send(b"GET /metr")
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""  # is given up; the rude one was before it
    with socket.create_connection(("127.0.0.1", port)):
        metrics.close()
        assert set(threading.enumerate()) <= threads
    metrics.close()
    assert capfd.readouterr() == ("", "")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # fails only if somebody listens
        again.bind(("127.0.0.1", port))


def drip(connection, stop):
    """Send the beginning of a request, then a byte from time to time and never its end, until ``stop`` is set or the server hangs up."""
    try:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        while not stop.wait(0.05):
            connection.sendall(b"a")
    except OSError:
        pass


def answers(port):
    """Whether a client that comes now is answered at once."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=3) as answer:
        return answer.status == 200


@pytest.mark.alone  # it measures time
def test_a_client_that_goes_on_talking_delays_neither_others_nor_the_end(monkeypatch):
    port, threads, stop = free_port(), set(threading.enumerate()), threading.Event()
    metrics = Metrics(Config(metrics_port=port), 0)
    with ExitStack() as stack:
        stack.callback(metrics.close)

        def talk():
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            talking = threading.Thread(target=drip, args=(connection, stop))
            stack.callback(talking.join)
            stack.callback(stop.set)
            talking.start()
            return connection, talking

        monkeypatch.setattr(endpoint_server, "REQUEST_SECONDS", 1.0)
        began, (_, talking) = time.monotonic(), talk()
        assert answers(port)
        talking.join(10)
        assert not talking.is_alive() and 0.9 < time.monotonic() - began < 5, "its time counts from its first byte, not from its last"

        monkeypatch.setattr(endpoint_server, "REQUEST_SECONDS", 60.0)
        talkers = [talk() for _ in range(endpoint_server.MAX_CLIENTS + 1)]
        assert answers(port)
        (first, _), (_, last) = talkers[0], talkers[-1]
        assert first.recv(1) == b"" and last.is_alive()  # the oldest made room
        began = time.monotonic()
        metrics.close()
        assert time.monotonic() - began < 5
        for _, talking in talkers:
            talking.join(5)
    assert set(threading.enumerate()) <= threads


def test_a_client_for_which_there_is_no_thread_is_turned_away(monkeypatch):
    port = free_port()
    metrics = Metrics(Config(metrics_port=port), 0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(endpoint_server, "start_thread", Mock(side_effect=KVStoreError("no room for it")))
            with pytest.raises(OSError):
                answers(port)
        assert answers(port)
    finally:
        metrics.close()


@pytest.mark.parametrize(
    "settings, address", [({}, "127.0.0.1"), ({"metrics_host": "127.0.0.2"}, "127.0.0.2"), ({"metrics_host": "0.0.0.0"}, "0.0.0.0")]
)
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


def test_without_its_package_the_endpoint_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"metrics_port=9100 .*pip install .prometheus_client"):
        Metrics(Config(metrics_port=9100), 0)


def test_log_level(monkeypatch, capsys):
    mine, root = logging.getLogger("prophet_mx"), logging.getLogger()
    for logger in (mine, root):
        monkeypatch.setattr(logger, "handlers", [])  # pytest has put its own on the root
    monkeypatch.setattr(mine, "level", logging.NOTSET)
    set_up_logging(Config())
    assert not mine.handlers and mine.level == logging.NOTSET  # the program's own business
    set_up_logging(Config(log_level="warning"))
    set_up_logging(Config(log_level="warning"))
    mine.info("not shown")
    mine.warning("shown once")
    err = capsys.readouterr().err
    assert err.count("shown once") == 1 and "prophet_mx WARNING: shown once" in err and "not shown" not in err
    root.addHandler(logging.NullHandler())  # now the program has set up logging itself
    mine.warning("twice")
    assert "twice" not in capsys.readouterr().err
    set_up_logging(Config(log_every=5))
    assert mine.level == logging.INFO
    mine.setLevel(logging.NOTSET)  # forgets what it has cached of levels


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


def pushed(sets):
    record = KeySets()
    for iteration, names in enumerate(sets):
        record.iteration_ends(iteration, set(names))


def test_a_frozen_and_a_new_parameter_are_named(caplog):
    with caplog.at_level(logging.INFO, "prophet_mx"):
        pushed([["a", "b", "c"], ["a", "b", "c"], ["a", "c", "late"], ["c", "late", "a"]])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "iteration 2 pushed 3" in lines[0] and "1 no longer (b)" in lines[0] and "1 that it did not push before (late)" in lines[0]


def test_a_job_with_buckets_does_not_flood_the_log(caplog):
    with caplog.at_level(logging.INFO, "prophet_mx"):
        pushed([[f"{i % 2}-{k}" for k in range(10)] for i in range(50)])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == SET_LINES
    assert "..." in lines[0] and "further changes are not logged" in lines[-1]
