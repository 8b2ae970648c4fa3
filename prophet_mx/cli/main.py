"""The command ``prophet-mx``: one subcommand per module.

A module named in :data:`COMMANDS` has a function ``add_parser(subparsers)`` that adds its subcommand and sets the parser's default
``run`` to a function from the parsed arguments to an exit code. All of these modules are imported to print the help, so what is
slow to import (MXNet, matplotlib, ...) belongs inside that function.
"""

import argparse
import os
import signal
import sys
from importlib import import_module
from typing import NoReturn, Optional, Sequence

from .. import __version__
from ..errors import ProphetError
from ..exit_codes import EXIT_USAGE

COMMANDS = ("launch", "simulate", "predict", "doctor", "report")

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} ('{self.prog} --help' explains)\n")


def parser() -> Parser:
    """The parser of ``prophet-mx`` with all its subcommands."""
    top = Parser(
        prog="prophet-mx",
        description="Tools for MXNet dist_sync training scheduled by prophet_mx.",
        epilog="example: prophet-mx launch -n 2 -s 1 -- python train.py    ('prophet-mx COMMAND --help' explains each)",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", dest="command_name")
    subparsers.required = True
    for name in COMMANDS:
        try:
            module = import_module("." + name, __package__)
        except ImportError as error:
            if not (error.name or "").startswith("prophet_mx._core."):
                raise
            continue  # what needs no compiled module still works: above all 'doctor', which says how to get it
        module.add_parser(subparsers)
    return top


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``prophet-mx`` with ``argv`` (default: the process's arguments) and return its exit code.

    Raises
    ------
    SystemExit
        after ``--help`` (0) and after a wrong argument (2).
    """
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # nobody reads on, as in '| head'; keep the interpreter from writing to the pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except ProphetError as error:
        print(f"prophet-mx {arguments.command_name}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
