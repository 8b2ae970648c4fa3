"""The launcher's number of a worker, and its rank."""

import pytest

from prophet_mx.launcher.hosts import Placed, by_rank
from prophet_mx.place import VARIABLE, index_here, other_name, port_here, value_of, worker_name


@pytest.mark.parametrize(
    "value, rank, mine, others",
    [
        (None, 1, "worker 1", "worker 2"),  # no launcher: ranks are all that is known
        ("1:23456", 1, "worker 1", "worker 2"),
        ("0:23456", 1, "rank 1 (process worker 0)", "rank 2"),
        ("nonsense", 1, "worker 1", "worker 2"),
    ],
)
def test_a_message_names_the_process_where_numbers_differ(value, rank, mine, others):
    environ = {} if value is None else {VARIABLE: value}
    assert worker_name(rank, environ) == mine and other_name(2, rank, environ) == others


def test_what_the_launcher_says_is_understood():
    environ = {VARIABLE: value_of(12, 23456)}
    assert (index_here(environ), port_here(environ)) == (12, 23456)
    assert (index_here({}), port_here({})) == (None, None)


def test_workers_are_numbered_by_addresses_as_texts_the_greatest_first():
    placed = [Placed("server", 0, 1)] + [Placed("worker", index, host) for index, host in enumerate([0, 1, 2, 0])]
    found = by_rank(placed, ["10.0.0.9", "10.0.0.10", "9.0.0.1"])
    assert [(one.role, one.index, one.host) for one in found] == [
        ("server", 0, 1),
        ("worker", 0, 2),
        ("worker", 1, 0),
        ("worker", 2, 0),
        ("worker", 3, 1),
    ]
