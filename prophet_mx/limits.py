"""Limits that several modules keep."""

MAX_BYTES = 2**40  # 1 TiB: of a window, a lead or a trace; says "no limit"
MAX_PORT = 65535
