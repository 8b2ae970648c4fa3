"""Types for the arguments of all commands: what a text means, or one line that says what is allowed; and options that several have.

Commands that work without the compiled part use these: nothing of it is imported here.
"""

import argparse
import math
import os
from contextlib import suppress
from functools import partial
from typing import Callable, List, Optional, Sequence, TypeVar

from ..errors import ProphetError, meant, not_allowed
from ..machine import MAX_PORT
from ..quantities import RATE_EXAMPLES, parse_rate, parse_size, parse_time

T = TypeVar("T")
Number = TypeVar("Number", bound=float)


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse``, whose errors of prophet_mx say what is wrong with the argument."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ProphetError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def number(parse: Callable[[str], Number], low: float, high: float, allowed: str) -> Callable[[str], Number]:
    """``parse``, for values within the limits."""

    def convert(text: str) -> Number:
        value: Optional[Number] = None
        with suppress(ValueError):
            value = parse(text)
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(not_allowed(repr(text), allowed))
        return value

    return convert


def whole(high: int, low: int = 1) -> Callable[[str], int]:
    """A whole number within the limits."""
    return number(int, low, high, f"a whole number from {low} to {high}")


def factor(low: float, high: float) -> Callable[[str], float]:
    """A number within the limits."""
    return number(float, low, high, f"a number from {low:g} to {high:g}")


count = whole(10**6)
port = number(int, 1, MAX_PORT, f"a port from 1 to {MAX_PORT}")
link_rate = number(parse_rate, 125e3, 1e13, "a rate from 1 Mbit/s to 80 Tbit/s such as " + RATE_EXAMPLES)
duration = number(parse_time, 0, math.inf, "a positive number of seconds such as 90, or a time such as 500ms")
port_size = number(parse_size, 1500, 1e13, "a size from 1500 bytes to 10 TB such as 64KB")
message_bytes = number(partial(parse_size, zero=True), 0, 1e4, "a size from 0 to 10 kB such as 200")


def with_unit(convert: Callable[[str], float], small: str, large: str) -> Callable[[str], float]:
    """A time with its unit, but for 0: a number alone may be meant in the ``small`` unit as well as in the ``large`` one."""

    def checked_unit(text: str) -> float:
        word = text.strip()
        with suppress(ValueError):  # of what is no positive number
            if parse_time(word) and not word[-1:].isalpha():
                raise argparse.ArgumentTypeError(not_allowed(repr(text), f"a time with its unit, such as {word}{small} or {word}{large}"))
        return convert(text)

    return checked_unit


compute_time = with_unit(number(parse_time, 1e-9, 1e6, "a time in us, ms or s from 0.001us to 1e6s, such as 300ms"), "ms", "s")
cost_seconds = with_unit(
    number(partial(parse_time, zero=True), 0, 0.1, "a time in us, ms or s from 0 to 100ms, such as 50us or 0.2ms"), "us", "ms"
)


def listed(convert: Callable[[str], T]) -> Callable[[str], List[T]]:
    """Values with commas between them."""
    return lambda text: [convert(part.strip()) for part in text.split(",")]


def choice(names: Sequence[str]) -> Callable[[str], str]:
    """One of the names, in any case, as in settings."""

    def convert(text: str) -> str:
        name = text.lower()
        if name not in names:
            raise argparse.ArgumentTypeError(not_allowed(repr(text), ", ".join(names)) + meant(name, names))
        return name

    return convert


def new_file(text: str) -> str:
    """The path of a file that can be there: an error now rather than after minutes."""
    if not text or os.path.isdir(text) or not os.path.isdir(os.path.dirname(os.path.abspath(text))):
        raise argparse.ArgumentTypeError(not_allowed(repr(text), "a file in a folder that exists"))
    return text
