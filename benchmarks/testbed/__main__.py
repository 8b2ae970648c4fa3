"""The testbed from the command line; needs root.

    python -m benchmarks.testbed goodput --workers 2 --servers 1 --rate 1Gbit
    python -m benchmarks.testbed run --workers 2 --servers 1 --rate 1Gbit -- python train.py --kv-store dist_sync
    python -m benchmarks.testbed clean

``goodput`` builds a testbed, measures, and removes it. ``run`` does so around a job: the command runs as every worker, beside
a scheduler and servers; its exit code is the largest of the workers'. ``clean`` removes what killed testbeds left, which every
start does as well. Without root or without namespaces the exit code is 3.
"""

import argparse
import subprocess
import sys
from typing import List, Optional, Sequence

from prophet_mx.cli.arguments import count, link_rate
from prophet_mx.errors import ProphetError
from prophet_mx.quantities import format_rate

from .exits import exit_code
from .goodput import measure
from .job import node_environment
from .network import NeedsRoot, Testbed, clean_stale, needed_privileges


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testbed", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name, text in (("goodput", "measure what the shaped links give"), ("run", "run a job's workers on the testbed")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--workers", type=count, default=2)
        command.add_argument("--servers", type=count, default=1)
        command.add_argument("--rate", type=link_rate, default=125e6, help="rate of every link, such as 1Gbit (default)")
        if name == "run":
            command.add_argument("command", nargs=argparse.REMAINDER, help="the workers' command, after --")
    commands.add_parser("clean", help="remove what is left of testbeds that were killed")
    options = parser.parse_args(arguments)
    try:
        if options.what == "clean":
            reason = needed_privileges()
            if reason:
                raise NeedsRoot(reason)
            print("\n".join(clean_stale()) or "nothing to remove")
            return 0
        with Testbed(options.workers, options.servers, options.rate) as bed:
            goodput = measure(bed)
            print(f"{options.workers} workers, {options.servers} servers, links of {format_rate(options.rate)}: {goodput}", flush=True)
            if goodput.shortfall(options.rate):
                print(goodput.shortfall(options.rate), file=sys.stderr)
            return _run(bed, options.command) if options.what == "run" else 0
    except ProphetError as error:
        return exit_code(error)
    except KeyboardInterrupt:
        return 130


def _run(bed: Testbed, command: List[str]) -> int:
    """A job whose workers run ``command``; returns the largest of their exit codes."""
    command = command[1:] if command[:1] == ["--"] else command
    server = [sys.executable, "-c", "import mxnet"]
    bed.popen("s0", server, env=node_environment(bed, "s0", "scheduler"), stdin=subprocess.DEVNULL)
    for i in range(bed.servers):
        bed.popen(f"s{i}", server, env=node_environment(bed, f"s{i}", "server"), stdin=subprocess.DEVNULL)
    workers = [
        bed.popen(f"w{i}", command, env=node_environment(bed, f"w{i}", "worker"), stdin=subprocess.DEVNULL) for i in range(bed.workers)
    ]
    return max(worker.wait() % 256 for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
