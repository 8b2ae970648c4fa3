"""A changed set of pushed parameters is said in the log, and only so often."""

import logging

from prophet_mx.monitoring.key_sets import LINES, KeySets


def run(sets):
    record = KeySets()
    for iteration, names in enumerate(sets):
        record.iteration_ends(iteration, set(names))


def test_a_frozen_and_a_new_parameter_are_named(caplog):
    with caplog.at_level(logging.INFO, "prophet_mx"):
        run([["a", "b", "c"], ["a", "b", "c"], ["a", "c", "late"], ["c", "late", "a"]])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "iteration 2 pushed 3" in lines[0] and "1 no longer (b)" in lines[0] and "1 that it did not push before (late)" in lines[0]


def test_a_job_with_buckets_does_not_flood_the_log(caplog):
    with caplog.at_level(logging.INFO, "prophet_mx"):
        run([[f"{i % 2}-{k}" for k in range(10)] for i in range(50)])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES
    assert "..." in lines[0] and "further changes are not logged" in lines[-1]
