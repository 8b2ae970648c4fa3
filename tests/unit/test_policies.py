"""The table of policies: a row is all that a policy needs, and a wrong row is refused."""

import json

import pytest

from prophet_mx import Config, ConfigError
from prophet_mx._core import Scheduler
from prophet_mx.mxnet.meeting import adopted, differences, encoded_settings
from prophet_mx.planning.unit_sizes import unit_bytes
from prophet_mx.policies import POLICIES, Policy, Window, add
from prophet_mx.sizes import LARGEST_UNIT, Traffic

TOY = Policy("toy", "a toy", lambda rank, size: size, 5000, Window.DRAIN)


@pytest.fixture
def toy(monkeypatch):
    """The toy in the table, for one test."""
    monkeypatch.setitem(POLICIES, "toy", TOY)


def test_units_leave_in_the_order_of_the_policy(toy):
    """Also after their ranks have changed, as they do when the profile is learned."""
    scheduler = Scheduler("toy", 1, 1, 10**9)
    sizes = [300, 100, 400, 200]
    for gradient, size in enumerate(sizes):
        scheduler.add_unit(size, 0, gradient)
        scheduler.set_places([(gradient, 10 - gradient, gradient)])
        scheduler.ready(gradient, 0, 0.0)
    left = []
    while len(left) < len(sizes):
        left += scheduler.decide(float(len(left)))[0]
        scheduler.drained(0, sum(sizes[unit] for unit in left), float(len(left)))
    assert [sizes[unit] for unit in left] == sorted(sizes)


def test_a_job_takes_an_added_policy_and_tells_a_worker_that_lacks_it(toy):
    config = Config(policy="toy")
    shared = encoded_settings(config)
    assert adopted(Config(), shared) == (config, None) and unit_bytes("toy", Traffic([1])) == 5000
    assert adopted(config, encoded_settings(Config(policy="off")))[0].policy == "off"
    del POLICIES["toy"]
    for own in ("fifo", "off"):
        until_it_ends, error = adopted(Config(policy=own), shared)
        assert until_it_ends.policy in POLICIES and type(error) is ConfigError
        assert "policy='toy', which rank 0 uses, is not known to this worker; it knows: fifo, priority," in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        TOY._replace(name="prophet"),
        TOY._replace(name="off"),
        TOY._replace(name="Toy"),
        TOY._replace(name=" "),
        TOY._replace(unit=-1),
        TOY._replace(lead=2**63),
    ],
)
def test_a_wrong_row_is_refused(wrong):
    before = dict(POLICIES)
    with pytest.raises(ConfigError, match="is not allowed; allowed: "):
        add(wrong)
    assert before == POLICIES


@pytest.mark.parametrize("unit", [None, 4, 2**24 + 1, LARGEST_UNIT - 1])
def test_a_worker_of_the_same_settings_is_told_of_no_difference(unit):
    config = Config(unit=unit)
    shared, error = adopted(config, json.loads(json.dumps(encoded_settings(config))))
    assert differences(config, shared) == "" and shared.unit == unit and error is None
