"""The command ``prophet-mx report``: a page that shows what the traces of a job say about it, or how those of two jobs differ."""

import argparse
import os
import sys

from ..errors import ConfigError, not_allowed
from ..monitoring.trace import load_trace
from ..profiling.profile_file import replace_text
from .arguments import new_file

HELP = "turn the traces of a job, or of two, into an HTML page"
DESCRIPTION = "Write an HTML page from the traces that a job's workers wrote with PROPHET_TIMELINE."
EPILOG = """\
example, all workers of a job:
  prophet-mx report trace-*.json -o report.html

example, two jobs, the second compared with the first:
  prophet-mx report fifo-*.json prophet-*.json

Jobs such as these write the traces. A job of plain dist_sync writes none, but the
policy fifo sends in the same order, and writes them.
  PROPHET_TIMELINE=fifo.json PROPHET_POLICY=fifo prophet-mx launch -n 2 -s 1 -- python train.py
  PROPHET_TIMELINE=prophet.json prophet-mx launch -n 2 -s 1 -- python train.py

The page is one file and loads nothing from elsewhere. It needs the extra 'report',
or jinja2 alone: pip install 'jinja2>=3'.

exit codes:
  0  the page was written
  1  the page cannot be written
  2  wrong argument; the extra is not installed; or a file is damaged, is not a trace of
     prophet_mx, or shows no whole iteration"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="the traces of all workers of a job, or of two jobs")
    parser.add_argument(
        "-o", "--output", type=new_file, default="report.html", metavar="FILE", help="the page to write (default: report.html)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    from ..monitoring.report_page import page
    from ..monitoring.trace_figures import figures
    from ..monitoring.trace_jobs import jobs

    if os.path.realpath(arguments.output) in map(os.path.realpath, arguments.traces):
        raise ConfigError(not_allowed(f"--output {arguments.output!r}", "another file", ": it is a trace"))
    text = page(jobs([figures(load_trace(path)) for path in arguments.traces]))
    try:
        replace_text(arguments.output, text)
    except OSError as error:
        print(f"prophet-mx report: error: {arguments.output} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"written: {arguments.output}")
    return 0
