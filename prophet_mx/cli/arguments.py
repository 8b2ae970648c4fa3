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
link_rate = number(parse_rate, 1e3, 1e13, "a rate from 8 kbit/s to 80 Tbit/s such as " + RATE_EXAMPLES)
duration = number(parse_time, 0, math.inf, "a positive number of seconds such as 90, or a time such as 500ms")
cost_seconds = number(partial(parse_time, zero=True), 0, 1e3, "a time from 0 to 1000 s such as 50us, 0.2ms or 0.001")
compute_seconds = number(parse_time, 1e-9, 1e6, "a time from 1 ns to 1e6 s such as 300ms")
message_bytes = number(partial(parse_size, zero=True), 0, 1e6, "a size from 0 to 1 MB such as 200")


def compute_time(text: str) -> float:
    """A compute time with its unit: a number alone may be meant in milliseconds as well as in seconds."""
    seconds = compute_seconds(text)
    if text.strip()[-1:].isalpha():
        return seconds
    raise argparse.ArgumentTypeError(not_allowed(repr(text), f"a time with its unit, such as {text.strip()}ms or {text.strip()}s"))


def listed(convert: Callable[[str], T]) -> Callable[[str], List[T]]:
    """Values with commas between them."""
    return lambda text: [convert(part.strip()) for part in text.split(",")]


def choice(names: Sequence[str]) -> Callable[[str], str]:
    """One of the names."""

    def convert(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(not_allowed(repr(text), ", ".join(names)) + meant(text, names))
        return text

    return convert


def new_file(text: str) -> str:
    """The path of a file that can be there: an error now rather than after minutes."""
    if os.path.isdir(text) or not os.path.isdir(os.path.dirname(os.path.abspath(text))):
        raise argparse.ArgumentTypeError(not_allowed(repr(text), "a file in a folder that exists"))
    return text
