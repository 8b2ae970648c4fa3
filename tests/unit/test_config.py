"""Settings: every wrong value is an error that names the variable, the value and what is allowed."""
import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import Config, ConfigError, ProphetError
from prophet_mx.config import DRAINS
from prophet_mx.policies import settings as policies
from prophet_mx.quantities import format_rate, parse_rate, parse_size, parse_time

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tb": 10**12,
         "tib": 2**40}
PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def test_defaults():
    assert Config.from_env({}) == Config(policy="prophet", drain="auto", bandwidth=None, unit=None, window=None, lead=None, profile=None,
                                        warmup=3, stall_warn=60.0, stall_abort=None)


@pytest.mark.parametrize("variable, text, field, value", [
    ("PROPHET_POLICY", "fifo", "policy", "fifo"),
    ("PROPHET_POLICY", " OFF ", "policy", "off"),
    ("PROPHET_DRAIN", "nic", "drain", "nic"),
    ("PROPHET_BANDWIDTH", "10Gbit", "bandwidth", 1.25e9),
    ("PROPHET_BANDWIDTH", "1.25e9", "bandwidth", 1.25e9),
    ("PROPHET_BANDWIDTH", "auto", "bandwidth", None),
    ("PROPHET_BANDWIDTH", "10kB", "bandwidth", 1e4),
    ("PROPHET_BANDWIDTH", "10Gb", "bandwidth", 1.25e9),
    ("PROPHET_WINDOW", "512 KiB", "window", 524288),
    ("PROPHET_WINDOW", "Auto", "window", None),
    ("PROPHET_LEAD", "1", "lead", 1),
    ("PROPHET_UNIT", "256KiB", "unit", 262144),
    ("PROPHET_UNIT", "4", "unit", 4),
    ("PROPHET_UNIT", "4MB", "unit", 4000000),
    ("PROPHET_PROFILE", "/tmp/../tmp/profile.json", "profile", "/tmp/profile.json"),
    ("PROPHET_WARMUP", "1", "warmup", 1),
    ("PROPHET_WARMUP", "1000", "warmup", 1000),
    ("PROPHET_LOG_LEVEL", "Debug", "log_level", "debug"),
    ("PROPHET_LOG_EVERY", "100", "log_every", 100),
    ("PROPHET_METRICS_PORT", "9400", "metrics_port", 9400),
    ("PROPHET_METRICS_HOST", "0.0.0.0", "metrics_host", "0.0.0.0"),
    ("PROPHET_STALL_WARN", "off", "stall_warn", None),
    ("PROPHET_STALL_WARN", "2.5", "stall_warn", 2.5),
    ("PROPHET_STALL_ABORT", "600s", "stall_abort", 600.0),
])
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
    assert Config.from_env({"PROPHET_POLICY": "fifo", "PROPHET_WARMUP": "7"}, policy="priority") == Config(
        policy="priority", warmup=7)
    assert Config.from_env({"PROPHET_WINDOW": "1MB"}, window=None).window is None
    assert Config.from_env({}, bandwidth=1.25e8, window=65536, lead="1MiB", warmup=5) == Config(
        bandwidth=1.25e8, window=65536, lead=2**20, warmup=5)


WRONG = [
    ("policy", "fastest", "one of fifo, priority, prophet, credit, prophet-icpp21, off"),
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
    ("bandwidth", "10GBPS", "b is bits, B is bytes"),
    ("window", "0", "1 byte to 1 TiB"),
    ("window", "1.5", "1 byte to 1 TiB"),
    ("window", "10Mbit", "512KiB"),
    ("window", "1025GiB", "1 byte to 1 TiB"),
    ("lead", "lots", "1MiB"),
    ("lead", "-5", "1 byte to 1 TiB"),
    ("unit", "3", "4 bytes to 4 MB"),
    ("unit", "4MiB", "4 bytes to 4 MB"),
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


@pytest.mark.parametrize("field, value", [(field, text) for field, text, _ in WRONG] + [
    ("policy", None), ("policy", 1), ("drain", None), ("bandwidth", True), ("bandwidth", math.inf), ("bandwidth", math.nan),
    ("bandwidth", []), ("bandwidth", 0), ("window", 0.5), ("window", -1), ("window", False), ("lead", {}), ("warmup", True),
    ("warmup", None), ("warmup", 2.5), ("warmup", 0),
])
def test_a_wrong_keyword_is_named_with_its_value(field, value):
    with pytest.raises(ConfigError) as caught:
        Config.from_env({}, **{field: value})
    assert str(caught.value).startswith(f"{field}={value!r}") and "allowed:" in str(caught.value)


def test_a_wrong_value_of_every_setting_is_tried_above():
    assert {field for field, _, _ in WRONG} == {field.name for field in dataclasses.fields(Config)}


def test_an_unknown_variable_is_an_error_that_lists_the_settings():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"PROPHET_WINDOWS": "1MB"})
    message = str(caught.value)
    assert "PROPHET_WINDOWS='1MB'" in message
    assert all(f"PROPHET_{field.name.upper()}" in message for field in dataclasses.fields(Config))


def test_an_unknown_keyword_is_an_error_that_lists_the_settings():
    with pytest.raises(ConfigError) as caught:
        Config.from_env({}, windows="1MB")
    assert "windows='1MB'" in str(caught.value)
    assert all(field.name in str(caught.value) for field in dataclasses.fields(Config))


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().policy = "fifo"


# --- numbers with units ---

def any_case(texts):
    return st.sampled_from(sorted(texts)).flatmap(lambda text: st.sampled_from([text, text.upper(), text.capitalize()]))


@given(st.integers(1, 10**6), any_case(SIZES), st.sampled_from(["", " ", "  "]))
def test_size_is_number_times_unit(number, unit, space):
    assert parse_size(f"{number}{space}{unit}") == number * SIZES[unit.lower()]


@given(st.integers(1, 10**6), any_case(PREFIXES), st.sampled_from(["b", "b/s", "bps", "bit", "Bit", "BIT", "bit/s"]),
       st.sampled_from(["", " "]))
def test_a_lower_case_b_in_a_rate_is_bits(number, prefix, word, space):
    assert parse_rate(f"{number}{space}{prefix}{word}") == pytest.approx(number * PREFIXES[prefix.lower()] / 8, rel=1e-12)


@given(st.integers(1, 10**6), any_case({**PREFIXES, **BINARY}), st.sampled_from(["B", "B/s", "Bps"]), st.sampled_from(["", " "]))
def test_an_upper_case_b_in_a_rate_is_bytes(number, prefix, word, space):
    factor = {**PREFIXES, **BINARY}[prefix.lower()]
    assert parse_rate(f"{number}{space}{prefix}{word}") == pytest.approx(number * factor, rel=1e-12)


@pytest.mark.parametrize("text", ["10G", "10g", "10000M", "10Gb", "10Gbps", "10Gbit", "10Gbit/s", "10Gb/s", "1.25GB", "1.25GB/s",
                                  "1.25GBps", "1250MB", "1.25e9", "1.25e3 MB/s", "10 Gbit/s", "0.01Tb"])
def test_one_rate_in_all_its_forms(text):
    assert parse_rate(text) == pytest.approx(1.25e9, rel=1e-12)


@pytest.mark.parametrize("text", ["10GBPS", "10Gi", "10Gib", "10Gibit", "10Gbytes", "10G/s", "10/s", "10Gbps/s", "10bpsG", "10Gbit/h",
                                  "10B/"])
def test_what_may_be_bits_or_bytes_is_no_rate(text):
    with pytest.raises(ValueError):
        parse_rate(text)


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_what_is_shown_of_a_rate_is_a_rate(rate):
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=5.1e-4)


@pytest.mark.parametrize("rate, text", [(1.25e9, "10 Gbit/s"), (125e6, "1 Gbit/s"), (119.5e6, "956 Mbit/s"), (11676712, "93.41 Mbit/s"),
                                        (1e3, "8 kbit/s"), (1e12, "8 Tbit/s"), (1, "8 bit/s"), (0, "0 bit/s")])
def test_a_rate_is_shown_in_bits_per_second(rate, text):
    assert format_rate(rate) == text


@given(st.integers(1, 2**50))
def test_a_plain_number_is_bytes(number):
    assert parse_size(number) == parse_size(str(number)) == number
    assert parse_rate(number) == parse_rate(str(number)) == number


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_a_rate_survives_its_own_text(rate):
    assert parse_rate(repr(rate)) == rate


@given(st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.booleans(), st.none()))
def test_anything_else_is_a_value_error_and_never_a_wrong_number(value):
    for parse in (parse_rate, parse_size):
        try:
            number = parse(value)
        except ValueError:
            continue
        assert 0 < number < math.inf
        assert not isinstance(value, bool) and value is not None


@pytest.mark.parametrize("text", ["", " ", "MB", "1 M B", "0x10", "1,5MB", "1_000", "--1", "+-1", "1e", "\u0661MB", "1MB/h", "1e400MB"])
def test_texts_that_are_no_size_and_no_rate(text):
    for parse in (parse_rate, parse_size):
        with pytest.raises(ValueError):
            parse(text)


@pytest.mark.parametrize("text, seconds", [("2", 2.0), (" 300 ms", 0.3), ("50us", 5e-5), (".5S", 0.5), ("1e3", 1000.0)])
def test_times(text, seconds):
    assert parse_time(text) == pytest.approx(seconds, rel=1e-12)


def test_what_is_no_time():
    for text in ("", "0", "-1", "nan", "inf", "3h", "ms"):
        with pytest.raises(ValueError):
            parse_time(text)
    assert parse_time("0ms", zero=True) == 0


def test_a_rate_in_bits_is_no_size_and_a_fraction_of_a_byte_neither():
    for text in ("10Mbit", "10M", "10Mbps", "10MB/s", "0.5", "0.0001kB"):
        with pytest.raises(ValueError):
            parse_size(text)
    assert parse_size("0.5kB") == 500
