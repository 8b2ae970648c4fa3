"""The command ``prophet-mx report``: what the traces of a job say about it, or how two jobs differ: a verdict, and a page that shows it."""

import argparse
import filecmp
import json
import os
import sys
from contextlib import suppress
from typing import Sequence

from ..errors import ConfigError, MissingPackageError, not_allowed
from ..monitoring.trace import load_trace
from ..profiling.profile_file import replace_text
from .arguments import new_file

HELP = "say what the traces of a job, or of two, show, and write an HTML page"
DESCRIPTION = "Say in some lines what the traces show that a job's workers wrote with PROPHET_TIMELINE, and write an HTML page."
PAGE = "report.html"
EPILOG = """\
example, all workers of a job:
  prophet-mx report trace-*.json -o report.html

example, two jobs, the second compared with the first:
  prophet-mx report fifo-*.json prophet-*.json

example, one trace of all workers on one clock, for Perfetto:
  prophet-mx report trace-*.json --merge all.json

Jobs such as these write the traces. A job of plain dist_sync writes none, but the
policy fifo sends in the same order, and writes them.
  PROPHET_TIMELINE=fifo.json PROPHET_POLICY=fifo prophet-mx launch -n 2 -s 1 -- python train.py
  PROPHET_TIMELINE=prophet.json prophet-mx launch -n 2 -s 1 -- python train.py

what the lines say:
  iteration     how long one takes
  stall         the part of it in which the next forward waits for its first layer's values
  later waits   the most that forward waits for later values: while they arrive, it may compute as well
  left to gain  the most by which another order of sending could shorten it, of the stall and these waits
  waited for    workers that compute longer than most others
  limit         what takes longer in an iteration: computing, or the bytes on the network
  next          what to do about it

The page is one file and loads nothing from elsewhere. It needs the extra 'report',
or jinja2 alone: pip install 'jinja2>=3'. The lines and --json do not.

exit codes:
  0  the lines were printed, and the page was written unless jinja2 is missing
  1  a file cannot be written
  2  wrong argument; the extra is not installed, and -o asks for a page; or a file is damaged,
     is not a trace of prophet_mx, is given twice, or shows no whole iteration"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="the traces of all workers of a job, or of two jobs")
    add("-o", "--output", type=new_file, metavar="FILE", help=f"the page to write (default: {PAGE}; with --json none)")
    add("--json", action="store_true", help="print the figures as JSON instead of lines")
    add("--merge", type=new_file, metavar="FILE", help="write the traces of one job as one trace for Perfetto, on one clock")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    from ..monitoring.report_page import page
    from ..monitoring.report_text import as_dict, text
    from ..monitoring.trace_figures import figures
    from ..monitoring.trace_jobs import jobs
    from ..monitoring.trace_merge import merged

    for option, path in (("--output", arguments.output), ("--merge", arguments.merge)):
        if path is not None and os.path.realpath(path) in map(os.path.realpath, arguments.traces):
            raise ConfigError(not_allowed(f"{option} {path!r}", "another file", ": it is a trace"))
    _need_different(arguments.traces)
    all_jobs = jobs([figures(load_trace(path)) for path in arguments.traces])
    if arguments.merge is not None and len(all_jobs) > 1:
        raise ConfigError(not_allowed("--merge", "the traces of one job", f" with the traces of {len(all_jobs)} jobs"))
    files = [(arguments.merge, merged(all_jobs[0]))] if arguments.merge is not None else []
    print(json.dumps(as_dict(all_jobs), indent=1) if arguments.json else text(all_jobs))
    if arguments.output is not None or not arguments.json:
        try:
            files.append((arguments.output or PAGE, page(all_jobs)))
        except MissingPackageError as error:
            if arguments.output is not None:
                raise
            print(f"no page was written: {error}")
    for path, content in files:
        try:
            replace_text(path, content)
        except OSError as error:
            print(f"prophet-mx report: error: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
            return 1
        if not arguments.json:
            print(f"written: {path}")
    return 0


def _need_different(paths: Sequence[str]) -> None:
    """ConfigError if one trace is given twice, by whatever path, or as a copy. What cannot be read is left to those that read it."""
    for place, path in enumerate(paths):
        for earlier in paths[:place]:
            with suppress(OSError):
                if os.path.samefile(path, earlier):
                    raise ConfigError(not_allowed(f"TRACE {path!r}", "each trace once", f": it is the same file as {earlier!r}"))
                if filecmp.cmp(path, earlier, shallow=False):
                    raise ConfigError(not_allowed(f"TRACE {path!r}", "each trace once", f": it is a copy of {earlier!r}"))
