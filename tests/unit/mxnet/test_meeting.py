"""What workers measure together at the first push, on a clock of the test: what a message takes, and how fast the servers answer."""

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
    plain, seconds = Plain(monkeypatch), [3.0, 0.2, *[0.4] * meeting.ROUNDS]

    def pushpull(keys, values, outs):
        plain.now += seconds.pop(0)

    plain.pushpull = pushpull
    rounds = sorted(seconds[1 : meeting.ROUNDS])
    expected = rounds[len(rounds) // 2] if len(rounds) % 2 else (rounds[len(rounds) // 2 - 1] + rounds[len(rounds) // 2]) / 2
    assert meeting.message_seconds(plain, list(range(8))) == pytest.approx(expected / 8)


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
