"""Settings: every wrong value is an error that names the variable, the value and what is allowed."""

import dataclasses
import math

import pytest

from prophet_mx import Config, ConfigError, ProphetError
from prophet_mx.config import DRAINS
from prophet_mx.policies import settings as policies
from prophet_mx.sizes import MAX_COLLECTIVE_UNIT, MAX_LONE_UNIT


def test_defaults():
    assert Config.from_env({}) == Config(
        policy="prophet",
        drain="auto",
        bandwidth=None,
        unit=None,
        window=None,
        lead=None,
        profile=None,
        warmup=3,
        stall_warn=60.0,
        stall_abort=None,
    )


@pytest.mark.parametrize(
    "variable, text, field, value",
    [
        ("PROPHET_POLICY", "fifo", "policy", "fifo"),
        ("PROPHET_POLICY", " OFF ", "policy", "off"),
        ("PROPHET_DRAIN", "nic", "drain", "nic"),
        ("PROPHET_BANDWIDTH", "10Gbit", "bandwidth", 1.25e9),
        ("PROPHET_BANDWIDTH", "1.25e9", "bandwidth", 1.25e9),
        ("PROPHET_BANDWIDTH", "auto", "bandwidth", None),
        ("PROPHET_BANDWIDTH", "10kB", "bandwidth", 1e4),
        ("PROPHET_BANDWIDTH", "10Gb", "bandwidth", 1.25e9),
        ("PROPHET_MESSAGE_COST", "250us", "message_cost", 0.00025),
        ("PROPHET_MESSAGE_COST", "auto", "message_cost", None),
        ("PROPHET_WINDOW", "512 KiB", "window", 524288),
        ("PROPHET_WINDOW", "Auto", "window", None),
        ("PROPHET_LEAD", "1", "lead", 1),
        ("PROPHET_UNIT", "256KiB", "unit", 262144),
        ("PROPHET_UNIT", "4", "unit", 4),
        ("PROPHET_UNIT", "4MB", "unit", 4000000),
        ("PROPHET_UNIT", "32MB", "unit", MAX_LONE_UNIT),  # what 'auto' may choose with one server
        ("PROPHET_UNIT", "64MB", "unit", MAX_COLLECTIVE_UNIT),  # and with PyTorch
        ("PROPHET_PROFILE", "/tmp/../tmp/profile.json", "profile", "/tmp/profile.json"),
        ("PROPHET_COMPRESS", "BF16", "compress", "bf16"),
        ("PROPHET_COMPRESS", "off", "compress", None),
        ("PROPHET_WARMUP", "1", "warmup", 1),
        ("PROPHET_WARMUP", "1000", "warmup", 1000),
        ("PROPHET_LOG_LEVEL", "Debug", "log_level", "debug"),
        ("PROPHET_LOG_EVERY", "100", "log_every", 100),
        ("PROPHET_METRICS_PORT", "9400", "metrics_port", 9400),
        ("PROPHET_METRICS_HOST", "0.0.0.0", "metrics_host", "0.0.0.0"),
        ("PROPHET_STALL_WARN", "off", "stall_warn", None),
        ("PROPHET_STALL_WARN", "2.5", "stall_warn", 2.5),
        ("PROPHET_STALL_ABORT", "600s", "stall_abort", 600.0),
    ],
)
def test_a_variable_sets_its_field_and_no_other(variable, text, field, value):
    assert Config.from_env({variable: text, "HOME": "/"}) == dataclasses.replace(Config(), **{field: value})


@pytest.mark.parametrize("names, field", [(policies(), "policy"), (DRAINS, "drain")])
def test_every_name_is_accepted(names, field):
    for name in names:
        assert getattr(Config.from_env({f"PROPHET_{field.upper()}": name}), field) == name


def test_an_empty_variable_is_not_set():
    assert Config.from_env({"PROPHET_POLICY": "", "PROPHET_WARMUP": "  "}) == Config()


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("PROPHET_POLICY", "priority")
    assert Config.from_env().policy == "priority"


def test_a_keyword_wins_over_the_environment():
    assert Config.from_env({"PROPHET_POLICY": "fifo", "PROPHET_WARMUP": "7"}, policy="priority") == Config(policy="priority", warmup=7)
    assert Config.from_env({"PROPHET_WINDOW": "1MB"}, window=None).window is None
    assert Config.from_env({}, bandwidth=1.25e8, window=65536, lead="1MiB", warmup=5) == Config(
        bandwidth=1.25e8, window=65536, lead=2**20, warmup=5
    )


WRONG = [
    ("policy", "fastest", "one of " + ", ".join(policies())),
    ("profile", "/no/such/folder/profile.json", "the path of a file"),
    ("profile", "/tmp", "the path of a file"),
    ("drain", "udp", "one of auto, tcp, nic, predicted"),
    ("bandwidth", "fast", "10Gbit"),
    ("bandwidth", "-1Gbit", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "0", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "9999", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "2e12", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "1e999", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "inf", "80 kbit/s to 8 Tbit/s"),
    ("bandwidth", "nan", "80 kbit/s to 8 Tbit/s"),
    ("groups", "on", "'auto'"),
    ("fallback", "on", "'auto'"),
    ("clipping", "never", "'overlap'"),
    ("compress", "int8", "'off', bf16, fp16"),
    ("message_cost", "often", "200us"),
    ("message_cost", "0", "0.1us to 1s"),
    ("message_cost", "2s", "0.1us to 1s"),
    ("bandwidth", "10GBPS", "b is bits, B is bytes"),
    ("window", "0", "1 byte to 1 TiB"),
    ("window", "1.5", "1 byte to 1 TiB"),
    ("window", "10Mbit", "512KiB"),
    ("window", "1025GiB", "1 byte to 1 TiB"),
    ("lead", "lots", "1MiB"),
    ("lead", "-5", "1 byte to 1 TiB"),
    ("unit", "3", "4 bytes to 64 MB"),
    ("unit", "64MiB", "4 bytes to 64 MB"),
    ("unit", "one", "256KiB"),
    ("warmup", "0", "from 1 to 1000"),
    ("warmup", "1001", "from 1 to 1000"),
    ("warmup", "2.5", "from 1 to 1000"),
    ("warmup", "three", "from 1 to 1000"),
    ("log_level", "loud", "debug, info, warning, error"),
    ("log_every", "-1", "from 0 (no lines) to 1000000"),
    ("log_every", "1e3", "from 0 (no lines) to 1000000"),
    ("metrics_port", "0", "from 1 to 65535"),
    ("metrics_port", "65536", "from 1 to 65535"),
    ("metrics_host", "localhost", "an IPv4 address"),
    ("metrics_host", "::1", "an IPv4 address"),
    ("timeline", "/no/such/folder/trace.json", "a folder that exists"),
    ("timeline", "/tmp", "a folder that exists"),
    ("timeline_limit", "999kB", "1 MB to 1 TiB"),
    ("timeline_limit", "auto", "1 MB to 1 TiB"),
    ("stall_warn", "0", "from 1 to 86400"),
    ("stall_warn", "5 min", "from 1 to 86400"),
    ("stall_warn", "auto", "'off'"),
    ("stall_abort", "86401", "from 1 to 86400"),
    ("stall_abort", "nan", "from 1 to 86400"),
    ("stall_abort", "-1", "'off'"),
]


@pytest.mark.parametrize("field, text, allowed", WRONG)
def test_a_wrong_variable_is_named_with_its_value_and_what_is_allowed(field, text, allowed):
    with pytest.raises(ConfigError) as caught:
        Config.from_env({f"PROPHET_{field.upper()}": text})
    message = str(caught.value)
    assert f"PROPHET_{field.upper()}={text!r}" in message and allowed in message.split("allowed:")[1]
    assert isinstance(caught.value, ProphetError) and isinstance(caught.value, ValueError)
    assert "\n" not in message


@pytest.mark.parametrize(
    "field, value",
    [(field, text) for field, text, _ in WRONG]
    + [
        ("policy", None),
        ("policy", 1),
        ("drain", None),
        ("bandwidth", True),
        ("bandwidth", math.inf),
        ("bandwidth", math.nan),
        ("bandwidth", []),
        ("bandwidth", 0),
        ("window", 0.5),
        ("window", -1),
        ("window", False),
        ("lead", {}),
        ("warmup", True),
        ("warmup", None),
        ("warmup", 2.5),
        ("warmup", 0),
    ],
)
def test_a_wrong_keyword_is_named_with_its_value(field, value):
    with pytest.raises(ConfigError) as caught:
        Config.from_env({}, **{field: value})
    assert str(caught.value).startswith(f"{field}={value!r}") and "allowed:" in str(caught.value)


@pytest.mark.parametrize("value", ["ten", "2.5", "", "1e3", True])
def test_what_is_no_whole_number_is_said_in_words(value):
    with pytest.raises(ConfigError, match=r"^warmup=.* is not allowed \(not a whole number\); allowed: a whole number from 1 to 1000"):
        Config(warmup=value)


def test_a_wrong_value_of_every_setting_is_tried_above():
    assert {field for field, _, _ in WRONG} == {field.name for field in dataclasses.fields(Config)}


def test_an_unknown_variable_is_an_error_that_lists_the_settings():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"PROPHET_SPEED": "1MB"})
    message = str(caught.value)
    assert "PROPHET_SPEED='1MB'" in message
    assert all(f"PROPHET_{field.name.upper()}" in message for field in dataclasses.fields(Config))


def test_an_unknown_keyword_is_an_error_that_lists_the_settings():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({}, speed="1MB")
    assert "speed='1MB'" in str(caught.value)
    assert all(field.name in str(caught.value) for field in dataclasses.fields(Config))


def test_where_one_setting_may_be_meant_the_others_are_not_listed():
    for environ, settings, near in (({"PROPHET_WINDOWS": "1MB"}, {}, "PROPHET_WINDOW"), ({}, {"windows": "1MB"}, "window")):
        with pytest.raises(ConfigError) as caught:
            Config.from_env(environ, **settings)
        assert str(caught.value) == f"{near}{'s' if settings else 'S'}='1MB' is not a setting of prophet_mx; did you mean '{near}'?"


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().policy = "fifo"


# --- numbers with units ---


def test_a_config_made_directly_is_checked_too():
    assert Config(unit="256KiB", bandwidth="1Gbit") == Config(unit=262144, bandwidth=1.25e8)
    for wrong in ({"policy": "best"}, {"unit": -1}, {"bandwidth": float("nan")}, {"profile": b"\0"}, {"warmup": 10**5000}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Config(**wrong)
