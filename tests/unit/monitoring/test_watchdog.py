"""What the watchdog makes of what it sees; tests/jobs/test_faults.py shows it in jobs."""

from unittest.mock import Mock

import pytest

from prophet_mx import Config
from prophet_mx.monitoring import watchdog as watchdog_module
from prophet_mx.monitoring.watchdog import LISTED, WaitWatch, Watchdog, link_line, parameters
from prophet_mx.network.connections import Health

SENT, KEPT = (0, 1, "sent", 70.0, True), (1, 1, "sent", 65.0, False)
READY = (2, 1, "ready", 60.0, None)


@pytest.mark.parametrize(
    "units, state, counts, verdict",
    [
        ([SENT, READY], Health(""), "1 in flight, 1 ready", "another worker has not sent its part"),
        ([SENT, KEPT], Health(""), "2 in flight, 0 ready", "the bytes of 1 have not left: the server is not reading"),
        (
            [KEPT],
            Health("", True),
            "1 in flight, 0 ready",
            "the bytes of 1 are resent and not acknowledged: the network to the server is cut",
        ),
        ([SENT, KEPT], Health("its state is CLOSE"), "2 in flight, 0 ready", "the connection is lost (its state is CLOSE)"),
        ([READY], Health(""), "0 in flight, 1 ready", "nothing is on its way to this server"),
        ([(0, 1, "sent", 70.0, None)], None, "1 in flight, 0 ready", "it is not known here"),
    ],
)
def test_where_the_bytes_are_tells_who_is_to_blame(units, state, counts, verdict):
    line = link_line(1, units + [(9, 0, "sent", 1.0, True)], None, state)
    assert line.startswith(f"server 1: {counts}; ") and verdict in line


def test_parameters_are_listed_longest_first_and_not_all_of_them():
    units = [(i, 0, "sent", 90.0 - i, i > 0) for i in range(LISTED + 3)]
    texts = parameters(units + [(100, 0, "ready", 1.0, None)], lambda unit: f"fc{max(1, unit)}_weight")
    assert texts[0] == "fc1_weight (2 units in flight for 90 s, 1 not drained)"
    assert texts[1] == "fc2_weight (1 unit in flight for 88 s)"
    assert len(texts) == LISTED + 1 and texts[-1] == "and 3 more"


@pytest.mark.parametrize("told, ended", [("", []), ("an update failed", [1])])
def test_a_worker_that_waits_for_others_ends_once_it_knows_that_the_servers_have_failed(told, ended, monkeypatch):
    class Driver:
        def progress(self):
            return 1, 0, ""  # a request waits, and none is ever answered

        def waiting(self):
            return []

    codes = []
    monkeypatch.setattr(Watchdog, "_end", lambda self: codes.append(self._code))
    watchdog = Watchdog(Driver(), Config.read(stall_warn=None)[0], 0, str, None)
    watchdog.close()  # its thread: here, time passes faster
    watchdog.listen(lambda: told)
    for _ in range(100):
        if not codes:
            watchdog._look(1.0)
    assert codes == ended


def test_of_what_is_not_sent_yet_nothing_is_said_to_have_not_drained():
    units = [(0, 0, "ready", 3.0, None), (1, 0, "sent", 2.0, False), (2, 0, "sent", 1.0, None)]
    assert parameters(units, lambda unit: f"fc{unit}") == [
        "fc0 (1 unit ready for 3 s)",
        "fc1 (1 unit in flight for 2 s, 1 not drained)",
    ] + ["fc2 (1 unit in flight for 1 s)"]


def test_a_wait_goes_on_to_be_told_after_one_within_it(monkeypatch, caplog):
    """As of a signal's handler."""
    clock = Mock()
    monkeypatch.setattr(watchdog_module, "time", clock)
    watch = WaitWatch(10.0, 3, "it is slow")

    def look(now):
        clock.monotonic.return_value = now
        watch._look(1.0)

    clock.monotonic.return_value = 100.0
    with watch.noted(lambda: "the outer one"):
        look(101.0)
        with watch.noted(lambda: "the inner one"):
            look(110.0)
        look(115.0)
    look(130.0)
    assert [record.getMessage() for record in caplog.records] == [
        "rank 3 has waited 15 s for the outer one: it is slow",
        "rank 3 continues after a wait of 15 s",
    ]
