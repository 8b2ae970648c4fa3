"""Sizes, rates and times as texts: what a number with a unit means, and how rates and times are shown. Sizes are bytes, rates bytes/s,
times seconds.

In a rate ``b`` is bits and ``B`` is bytes, as everywhere in networking. A size is never in bits, so its units may be in any case.
"""

import math
import re
from typing import Any, Callable, Optional

_NUMBER = re.compile(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_PREFIXES = {"": 1e0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
# 'GBPS' is neither: it may be meant as Gbps or as GBps.
_BITS = re.compile(r"([kmgtKMGT]?)(?:b(?i:ps|/s)?|(?i:bit(?:/s)?))|([kmgtKMGT])")
_BYTES = re.compile(r"((?:[kmgtKMGT][iI]?)?)B(?:ps|/[sS])?")
_SHOWN = (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3))

RATE_EXAMPLES = "10Gbit, 1.25GB/s or 1.25e9 (bytes/s); b is bits, B is bytes"


def scaled(value: Any, factor: Callable[[str], Optional[float]], zero: bool = False) -> float:
    """A number with an optional unit as a float; ``factor`` is what a unit multiplies by, None if it is not known.

    ValueError if it is not a number, the unit is not known, or the result is not finite or not positive (with ``zero``: negative).
    """
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        match = _NUMBER.fullmatch(str(value))
        size = factor(match.group(2)) if match else None
        if match is None or size is None:
            raise ValueError("not a number with a known unit")
        number = float(match.group(1)) * size
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError("not a positive, finite number")
    return number


def parse_size(value: Any, zero: bool = False) -> int:
    """A size in bytes from a number (bytes) or a text such as ``512KiB`` or ``4MB``; with ``zero`` also 0.

    >>> parse_size("64KiB")
    65536
    """
    size = scaled(value, lambda unit: _SIZE_UNITS.get(unit.lower()), zero)
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    return int(size)


def parse_rate(value: Any) -> float:
    """A rate in bytes/s from a number (bytes/s) or a text: ``10G``, ``10Gb``, ``10Gbps``, ``10Gbit/s`` are bits per second, ``1.25GB``,
    ``1.25GB/s``, ``1.25GBps``, ``1.25GiB/s`` bytes per second. Prefixes and the word ``bit`` may be in any case.

    >>> parse_rate("1Gbit"), parse_rate("100Mbps"), parse_rate("125MB/s")
    (125000000.0, 12500000.0, 125000000.0)
    """
    return scaled(value, _rate_factor)


def parse_time(value: Any, zero: bool = False) -> float:
    """A time in seconds from a number (seconds) or a text such as ``2s``, ``300ms`` or ``50us``; with ``zero`` also 0.

    >>> parse_time("300ms"), parse_time("2")
    (0.3, 2.0)
    """
    return scaled(value, lambda unit: _TIME_UNITS.get(unit.lower()), zero)


def format_rate(rate: float) -> str:
    """Bytes/s as bits per second, with four digits: a text that :func:`parse_rate` reads.

    >>> format_rate(1.25e9), format_rate(11_676_712)
    ('10 Gbit/s', '93.41 Mbit/s')
    """
    bits = 8 * rate
    unit, size = next((found for found in _SHOWN if bits >= found[1]), ("bit/s", 1.0))
    return f"{bits / size:.4g} {unit}"


def format_time(seconds: float) -> str:
    """Seconds with the unit that suits them: a text that :func:`parse_time` reads.

    >>> format_time(2), format_time(0.162614), format_time(0.00005)
    ('2s', '162.614ms', '50us')
    """
    unit, size = next((found for found in (("s", 1.0), ("ms", 1e-3)) if seconds >= found[1]), ("us", 1e-6))
    return f"{seconds / size:.6g}{unit}"


def _rate_factor(unit: str) -> Optional[float]:
    if not unit:
        return 1.0
    bits, whole = _BITS.fullmatch(unit), _BYTES.fullmatch(unit)
    if bits:
        return _PREFIXES[(bits.group(1) or bits.group(2) or "").lower()] / 8
    return _PREFIXES[whole.group(1).lower()] if whole else None
