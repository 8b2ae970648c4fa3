"""What workers measure together at the first push, by a clock of the test: what a message takes, and how fast servers answer."""

from types import SimpleNamespace

import mxnet as mx
import pytest

from prophet_mx.mxnet import meeting
from prophet_mx.mxnet.keys import KeyBook, shape_of


class Plain:
    """A store whose calls take a time that is set, on a clock that nothing else moves."""

    def __init__(self, monkeypatch, rank=0, workers=2):
        self.rank, self.num_workers, self.now, self.meetings = rank, workers, 0.0, 0
        monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _barrier(self):
        self.meetings += 1


def test_what_a_message_takes_is_that_of_most_rounds_without_the_first(monkeypatch):
    """The first one makes memory and connections."""
    plain = Plain(monkeypatch)
    seconds = [30.0, *range(meeting.ROUNDS, 1, -1)]

    def pushpull(keys, values, outs):
        plain.now += seconds.pop(0)

    plain.pushpull = pushpull
    assert meeting.message_seconds(plain, list(range(8))) == pytest.approx((meeting.ROUNDS + 2) / 2 / 8) and not seconds


@pytest.mark.parametrize("rank, together, alone, rate", [(0, 80e6, 90e6, 40e6), (0, 60e6, 200e6, 50e6), (1, 60e6, 200e6, 30e6)])
def test_the_rate_is_that_from_one_server_while_all_pull_and_at_least_an_even_share_of_what_one_gets_alone(
    monkeypatch, rank, together, alone, rate
):
    """Of two servers, with four workers. Rank 0 pulls alone first, and all wait for that."""
    plain, book = Plain(monkeypatch, rank, 4), KeyBook(2, 10**9)
    value = mx.nd.zeros((meeting.RATE_FIRST,))
    for key in range(4):
        book.add(key, shape_of(value))

    def pull(keys, outs):
        plain.now += 4 * sum(out.size for out in outs) / (alone if plain.meetings == 1 else together)

    plain.pull = pull
    assert meeting.rate(plain, book, True) == pytest.approx(rate)
    assert plain.meetings == 2
