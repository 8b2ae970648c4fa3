"""The command ``prophet-mx``: one subcommand per module.

A module named in :data:`COMMANDS` has the texts ``HELP``, ``DESCRIPTION`` and ``EPILOG``, the function ``add_options(parser)``, and
``run(arguments)``, which returns the exit code. All of these modules are imported to print the help, so what is slow to import (MXNet,
matplotlib, ...) belongs inside ``run``.
"""

import argparse
import errno
import io
import os
import signal
import sys
from importlib import import_module
from typing import Any, List, NoReturn, Optional, Sequence, Tuple

from .. import __version__
from ..errors import ProphetError, meant
from ..runtime import EXIT_USAGE

COMMANDS = ("doctor", "predict", "launch", "compare", "report", "simulate")  # in the order in which a new user needs them

_EPILOG = """\
examples: check a machine, predict what a job would gain, run it, and measure what it gains
  prophet-mx doctor
  prophet-mx predict --model vgg16 --compute 250ms --bandwidth 10Gbit --workers 8
  prophet-mx launch -n 2 -s 1 -- python train.py
  prophet-mx compare -n 2 -s 1 -- python train.py

'prophet-mx COMMAND --help' explains each command."""

STDERR = 2  # the number of its file
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
EXIT_INTERRUPTED = 128 + signal.SIGINT
OUTPUT_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of writing


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that names the command, and what may have been meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} ('{self.prog} --help' explains)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Tuple[Any, List[str]]:
        """Each command refuses what it does not know: where the top parser does, as argparse has it, the error names no command."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            option = rest[0].partition("=")[0]
            if option.startswith("-"):
                self.error(f"unknown option {option!r}" + meant(option, self._option_string_actions))
            self.error(f"unexpected argument {rest[0]!r}")
        return known, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """The same for the name of a command."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if value in COMMANDS:
                self.error(f"{value!r} needs the compiled part of prophet_mx, which is missing: 'prophet-mx doctor' says how to install it")
            self.error(f"no command {value!r}" + (meant(value, action.choices) or f"; commands: {', '.join(action.choices)}"))
        super()._check_value(action, value)


def parser() -> Parser:
    """The parser of ``prophet-mx`` with all its subcommands."""
    top = Parser(
        prog="prophet-mx",
        description="Commands for training jobs whose gradients prophet_mx schedules.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", dest="command_name")
    for name in COMMANDS:
        try:
            module = import_module("." + name, __package__)
        except ImportError as error:
            if not (error.name or "").startswith("prophet_mx._core."):
                raise
            continue  # what needs no compiled module still works: above all 'doctor', which says how to get it
        texts = {"help": module.HELP, "description": module.DESCRIPTION, "epilog": module.EPILOG}
        command = subparsers.add_parser(name, **texts, formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_options(command)
        command.set_defaults(run=module.run)
    return top


def _open_streams() -> None:
    """Make the standard streams safe to use: one that is closed (``>&-``) is the null device, and output that cannot be encoded is '?'."""
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if closed:
        # The kernel gives out the lowest free number: without this, a log file or a pipe would be what other code writes to as stdout.
        number = 0
        while number <= STDERR:
            number = os.open(os.devnull, os.O_RDWR)
        os.close(number)
    for name in closed:
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115 (open to the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _write_no_more() -> None:
    """Make standard output the null device, so that the interpreter does not try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run ``prophet-mx`` with ``argv`` (default: the process's arguments) and return its exit code.

    Raises SystemExit after ``--help`` (0) and after a wrong argument (2).
    """
    _open_streams()
    top = parser()
    arguments = top.parse_args(argv)
    if arguments.command_name is None:
        top.print_help()
        return 0
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # nobody reads on, as in '| head'
        _write_no_more()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_LOST:
            raise
        _write_no_more()
        print(f"prophet-mx {arguments.command_name}: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ProphetError as error:
        print(f"prophet-mx {arguments.command_name}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
