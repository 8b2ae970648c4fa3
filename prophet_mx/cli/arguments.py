"""Types for the arguments of ``prophet-mx``'s commands: what a text means, or one line that says what is allowed."""
import argparse
from typing import Any, Callable, List

from ..quantities import RATE_EXAMPLES, parse_rate, parse_size
from ..simulation.simulator import POLICIES

_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def number(parse: Callable[[str], float], low: float, high: float, allowed: str) -> Callable[[str], float]:
    """What ``parse`` makes of a text, if it is within the limits."""
    def convert(text: str) -> float:
        try:
            value = parse(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: {allowed}")
        return value
    return convert


def whole(high: int) -> Callable[[str], int]:
    """A whole number from 1 to ``high``."""
    return number(int, 1, high, f"a whole number from 1 to {high}")


link_rate = number(parse_rate, 1e3, 1e13, "a rate from 8 kbit/s to 80 Tbit/s such as " + RATE_EXAMPLES)


def listed(convert: Callable[[str], Any]) -> Callable[[str], List[Any]]:
    """Values with commas between them."""
    return lambda text: [convert(part.strip()) for part in text.split(",")]


def policy_name(text: str) -> str:
    """A policy that can be simulated."""
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: {', '.join(POLICIES)}")
    return text


def time_seconds(text: str) -> float:
    """A number of seconds, or one with a unit; ValueError if it is neither.

    >>> time_seconds("300ms"), time_seconds("2")
    (0.3, 2.0)
    """
    for unit, size in _TIME_UNITS.items():
        if text.lower().endswith(unit):
            return float(text[:-len(unit)]) * size
    return float(text)


def bytes_or_zero(text: str) -> float:
    """A size in bytes, or 0."""
    return 0.0 if text.strip() == "0" else float(parse_size(text))
