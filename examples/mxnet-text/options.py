"""Options that both scripts have, and their log."""

import argparse
import logging
import os
import sys


def make_parser(about, text):
    """A parser with the options of both; ``text`` says what ``--text`` names."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", help=f"{text} (default: modules of Python)")
    parser.add_argument("--kv-store", default="local", help="dist_sync trains on several workers")
    parser.add_argument("--gpus", type=int, help="number of the GPU; without it the CPU")
    return parser


def parse(parser):
    """The options. Ends the script if there is no job for its store."""
    args = parser.parse_args()
    if args.kv_store.startswith("dist") and "DMLC_ROLE" not in os.environ:
        script = os.path.basename(sys.argv[0])
        parser.error(f"--kv-store dist_sync needs servers and workers: prophet-mx launch -n 2 -s 1 -- python {script} ...")
    return args


def log_as(rank):
    """Log lines that name the worker."""
    logging.basicConfig(level=logging.INFO, format=f"worker {rank}: %(message)s", stream=sys.stdout, force=True)
