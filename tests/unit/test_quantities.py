"""Numbers with units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.quantities import format_rate, parse_rate, parse_size, parse_time

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tb": 10**12, "tib": 2**40}
PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def any_case(texts):
    return st.sampled_from(sorted(texts)).flatmap(lambda text: st.sampled_from([text, text.upper(), text.capitalize()]))


@given(st.integers(1, 10**6), any_case(SIZES), st.sampled_from(["", " ", "  "]))
def test_size_is_number_times_unit(number, unit, space):
    assert parse_size(f"{number}{space}{unit}") == number * SIZES[unit.lower()]


@given(
    st.integers(1, 10**6),
    any_case(PREFIXES),
    st.sampled_from(["b", "b/s", "bps", "bit", "Bit", "BIT", "bit/s"]),
    st.sampled_from(["", " "]),
)
def test_a_lower_case_b_in_a_rate_is_bits(number, prefix, word, space):
    assert parse_rate(f"{number}{space}{prefix}{word}") == pytest.approx(number * PREFIXES[prefix.lower()] / 8, rel=1e-12)


@given(st.integers(1, 10**6), any_case({**PREFIXES, **BINARY}), st.sampled_from(["B", "B/s", "Bps"]), st.sampled_from(["", " "]))
def test_an_upper_case_b_in_a_rate_is_bytes(number, prefix, word, space):
    factor = {**PREFIXES, **BINARY}[prefix.lower()]
    assert parse_rate(f"{number}{space}{prefix}{word}") == pytest.approx(number * factor, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "10G",
        "10g",
        "10000M",
        "10Gb",
        "10Gbps",
        "10Gbit",
        "10Gbit/s",
        "10Gb/s",
        "1.25GB",
        "1.25GB/s",
        "1.25GBps",
        "1250MB",
        "1.25e9",
        "1.25e3 MB/s",
        "10 Gbit/s",
        "0.01Tb",
    ],
)
def test_one_rate_in_all_its_forms(text):
    assert parse_rate(text) == pytest.approx(1.25e9, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["10GBPS", "10Gi", "10Gib", "10Gibit", "10Gbytes", "10G/s", "10/s", "10Gbps/s", "10bpsG", "10Gbit/h", "10B/"]
)
def test_what_may_be_bits_or_bytes_is_no_rate(text):
    with pytest.raises(ValueError):
        parse_rate(text)


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_what_is_shown_of_a_rate_is_a_rate(rate):
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=5.1e-4)


@pytest.mark.parametrize(
    "rate, text",
    [
        (1.25e9, "10 Gbit/s"),
        (125e6, "1 Gbit/s"),
        (119.5e6, "956 Mbit/s"),
        (11676712, "93.41 Mbit/s"),
        (1e3, "8 kbit/s"),
        (1e12, "8 Tbit/s"),
        (1, "8 bit/s"),
        (0, "0 bit/s"),
    ],
)
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
