"""What the writer and the reader of a trace have to agree on. The compiled recorder (``timeline/events.pyx``) owns the rows.

A trace is a JSON array in Chrome's trace event format. Its first event, HEAD, has facts about the job as arguments. A worker has two
processes: the first with the rows below, the second, by one higher, with a row for each unit.
"""

from .._core import GAP_ROW, ITERATION_ROW, LABEL_MAX, LINK_ROW, STEP_ROW

__all__ = ["FORMAT", "GAP_ROW", "HEAD", "ITERATION_ROW", "LABEL_MAX", "LINK_COUNTERS", "LINK_ROW", "LOST", "STAGES", "STEP_ROW"]

FORMAT = "prophet_mx timeline 1"
HEAD = "prophet_mx"
STAGES = ("wait", "wire", "answer", "unpack")  # of a unit: the slices of its row
LINK_COUNTERS = "link "  # before a link's number: its counters
LOST = " events lost"  # behind their number
