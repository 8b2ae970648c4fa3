"""What sizes of units are derived from. Gradients are cut, and the compiled scheduler's limits are measured, by the same numbers."""

UNIT_SECONDS = 0.004  # time on the wire of one unit; smaller ones cost more per message than they save in waiting
MIN_UNIT = 32_000  # bytes
MAX_UNIT = 4_000_000  # bytes
START_RATE = 125e6  # bytes/s where nothing was measured
