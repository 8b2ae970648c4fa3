"""The command ``prophet-mx report``: a page that shows what a trace says about a job, or how two traces differ."""

import argparse
import os
import sys

from ..errors import ConfigError
from ..monitoring.trace import load_trace
from ..profiling.profile_file import replace_text

_EPILOG = """\
example, two traces compared:
  prophet-mx report fifo-0.json prophet-0.json -o report.html

They come from jobs such as these:
  PROPHET_TIMELINE=fifo.json PROPHET_POLICY=fifo prophet-mx launch -n 2 -s 1 -- python train.py
  PROPHET_TIMELINE=prophet.json prophet-mx launch -n 2 -s 1 -- python train.py

The page is one file without anything to load from elsewhere. To make it takes the
extra 'report': pip install 'prophet_mx[report]'.

exit codes:
  0  the page is written
  1  the page cannot be written
  2  wrong argument; the extra is not installed; or a file is damaged, is no trace of prophet_mx, or shows no whole iteration"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand ``report``."""
    parser = subparsers.add_parser(
        "report",
        help="show what a trace says about a job, as a page",
        epilog=_EPILOG,
        description="Writes an HTML page about a trace that PROPHET_TIMELINE made a job write.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", help="the trace of a worker")
    parser.add_argument("other", nargs="?", help="another one, to compare it with")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (default: report.html)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ..monitoring.report_page import page
    from ..monitoring.trace_figures import figures

    paths = [arguments.trace] + ([arguments.other] if arguments.other else [])
    if os.path.realpath(arguments.output) in map(os.path.realpath, paths):
        raise ConfigError(f"--output {arguments.output!r} is not allowed: it is a trace; allowed: another file")
    text = page([figures(load_trace(path)) for path in paths])
    try:
        replace_text(arguments.output, text)
    except OSError as error:
        print(f"prophet-mx report: error: {arguments.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"written: {arguments.output}")
    return 0
