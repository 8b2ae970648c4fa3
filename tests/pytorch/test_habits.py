"""What a program does with gradients between backward and ``step()``, as its last iterations show."""

from types import SimpleNamespace

import pytest

from prophet_mx.torch.habits import LAST, Habits, all_read
from prophet_mx.torch.tracked import IDLE, STEPPING, SUMMING


def parameters(*states):
    """Parameters whose gradients are read, hidden, or not there."""
    return [SimpleNamespace(hidden=state == "hidden", stage=IDLE if state == "none" else SUMMING) for state in states]


READ, LEFT = parameters("read", "none"), parameters("read", "hidden")


def test_all_gradients_are_read_if_none_is_left_in_the_flat_buffer_and_one_has_a_sum():
    assert all_read(READ) and not all_read(LEFT) and not all_read(parameters("none", "none"))
    assert not all_read([SimpleNamespace(hidden=False, stage=STEPPING)])


@pytest.mark.parametrize(
    "steps, waits, clips",
    [
        ("", False, False),
        ("r", True, False),
        ("l", False, False),
        ("rlr", False, False),  # in some iterations, as to log the norm
        ("lrrr", True, False),
        ("rrrl", False, False),
        ("cll", False, True),
        ("clll", False, False),
        ("lcl", False, True),
    ],
)
def test_a_program_waits_if_it_reads_all_in_every_iteration_and_clips_if_it_does_in_some(steps, waits, clips):
    """Of the last three: r reads all gradients, l leaves some, c clips."""
    assert LAST == 3
    habits = Habits()
    for step in steps:
        habits.clipping = step == "c"
        habits.step_begins(READ if step == "r" else LEFT)
        assert not habits.clipping
    assert (habits.waits, habits.clips) == (waits, clips)
