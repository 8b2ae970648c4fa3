"""Variables of ByteScheduler: what becomes a setting, and that each is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import prophet_mx
from prophet_mx.bytescheduler import NOT_NEEDED, translate
from prophet_mx.config import Config


@pytest.mark.parametrize(
    "environ, settings",
    [
        ({}, {}),
        ({"BYTESCHEDULER_PARTITION": "512000", "BYTESCHEDULER_CREDIT": "4096000"}, {"unit": 2048000, "lead": 16384000}),
        ({"BYTESCHEDULER_CREDIT": "4e6"}, {"lead": 16000000}),  # it is read as a float there
        ({"BYTESCHEDULER_PARTITION": "160000000"}, {"unit": 64000000}),  # "do not cut"
        ({"BYTESCHEDULER_PARTITION": "512000", "PROPHET_UNIT": "1MB"}, {"unit": 1000000}),  # the own variable wins
        ({"BYTESCHEDULER_PARTITION": "-1", "BYTESCHEDULER_CREDIT": "inf"}, {}),
    ],
)
def test_partition_and_credit_with_the_policy_credit(environ, settings):
    assert Config.from_env({"PROPHET_POLICY": "credit", **environ}) == Config(policy="credit", **settings)


def test_a_keyword_wins():
    assert Config.from_env({"BYTESCHEDULER_PARTITION": "1000"}, policy="credit", unit=8000).unit == 8000


def test_values_tuned_for_bytescheduler_do_not_slow_down_the_default():
    config, notes = Config.read({"BYTESCHEDULER_PARTITION": "512000", "BYTESCHEDULER_CREDIT": "4096000"})
    assert config == Config()
    assert [note.split()[0] for note in notes] == ["BYTESCHEDULER_CREDIT", "BYTESCHEDULER_PARTITION"]
    assert all("not needed" in note and "measured" in note for note in notes)


def test_timeline_and_debug_become_settings_where_there_are_such():
    environ = {"BYTESCHEDULER_TIMELINE": "/tmp/t.json", "BYTESCHEDULER_DEBUG": "1"}
    assert translate(environ, "prophet", {"timeline", "log_level"}).settings == {"timeline": "/tmp/t.json", "log_level": "DEBUG"}
    assert translate({**environ, "BYTESCHEDULER_DEBUG": "0"}, "prophet", {"log_level"}).settings == {}
    assert translate(environ, "prophet", {"timeline"}, given={"timeline"}).settings == {}


def test_a_value_that_is_no_setting_does_no_harm_and_is_named():
    config, [note] = Config.read({"BYTESCHEDULER_TIMELINE": "/no/such/folder/t.json"})
    assert config == Config()
    assert note.startswith("BYTESCHEDULER_TIMELINE=/no/such/folder/t.json is not used: PROPHET_TIMELINE=")
    assert "its folder does not exist" in note


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(sorted(NOT_NEEDED) + ["BYTESCHEDULER_NEW", "OTHER"]), st.text(max_size=8)),
    st.sampled_from(["prophet", "credit"]),
)
def test_each_variable_is_named_once_and_no_number_is_an_error(environ, policy):
    mapped, notes = translate(environ, policy, {"unit", "lead"})
    Config.from_env({f"PROPHET_{name.upper()}": value for name, value in mapped.items()})  # raises for what is not allowed
    found = sorted(name for name in environ if name.startswith("BYTESCHEDULER_"))
    assert [note.split()[0].partition("=")[0] for note in notes] == found
    for note in notes:
        assert ("not known" in note) == note.startswith("BYTESCHEDULER_NEW")


def test_a_wrong_guess_of_the_name_leads_to_the_right_one():
    for guess in ("KVStore", "ScheduledKVstore", "ProphetKVStore"):
        with pytest.raises(AttributeError, match=f"no attribute '{guess}'; did you mean 'ScheduledKVStore'"):
            getattr(prophet_mx, guess)
