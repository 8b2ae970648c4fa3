"""Runs the same training job without and with scheduling on this machine, and prints the speed-up.

    python benchmark.py -n 2 -s 1
    python benchmark.py -n 2 -s 1 --policies off,priority,prophet -- python train_gluon.py --kv-store dist_sync --benchmark 1 ...

After '--' comes a training command; its script must take --policy and print MXNet's Speedometer lines. Jobs run one
after the other, and again in the same order with --repeats, so that a machine that becomes slower slows down all policies.
"""

import argparse
import re
import statistics
import sys

from prophet_mx.errors import LaunchError
from prophet_mx.launcher.launch import run_job
from prophet_mx.policies import settings

SPEED = re.compile(r"Speed: ([0-9.]+) samples/sec")
DEFAULT = (
    "python train_imagenet.py --network resnet --num-layers 18 --num-classes 10 --image-shape 3,32,32 --kv-store dist_sync "
    "--benchmark 1 --batch-size 8 --num-examples 800 --num-epochs 1 --disp-batches 10"
).split()


def speed_of(result, skip):
    """Images per second of a job: each worker's median over its lines without the first ``skip``, added up.

    ValueError if a worker printed too few lines.
    """
    total = 0.0
    for worker in result.workers:
        speeds = [float(speed) for speed in SPEED.findall(worker.output)][skip:]
        if not speeds:
            raise ValueError(
                f"{worker.label} printed no more than {skip} Speedometer lines: train on more batches, or print more "
                "often with --disp-batches"
            )
        total += statistics.median(speeds)
    return total


def measure(args):
    """Speeds of each policy, a list with one per repeat."""
    speeds = {policy: [] for policy in args.policies}
    for repeat in range(args.repeats):
        for policy in args.policies:
            result = run_job(args.command + ["--policy", policy], args.workers, args.servers, timeout=args.timeout, signals=True)
            if result.exit_code:
                print(result.logs(), file=sys.stderr)
                sys.exit(result.exit_code)
            try:
                speed = speed_of(result, args.skip)
            except ValueError as error:
                sys.exit(f"benchmark.py: error: {error}")
            print(f"run {repeat + 1} of {args.repeats}, {policy}: {speed:.1f} images/s", flush=True)
            speeds[policy].append(speed)
    return speeds


def report(speeds):
    """A table: medians over the repeats, compared with the first policy."""
    first = statistics.median(next(iter(speeds.values())))
    lines = [f"{'policy':<16}{'images/s':>10}{'lowest':>10}{'highest':>10}{'speed-up':>10}"]
    for policy, own in speeds.items():
        median = statistics.median(own)
        lines.append(f"{policy:<16}{median:>10.1f}{min(own):>10.1f}{max(own):>10.1f}{median / first:>9.2f}x")
    return "\n".join(lines)


def policies(text):
    names = text.split(",")
    if len(set(names)) != len(names) or not set(names) <= set(settings()):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: different ones of {', '.join(settings())}")
    return names


def count(low):
    def parse(text):
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number of at least {low}")
        return int(text)

    return parse


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="exit codes: 0 done, 1 the jobs ran but printed too little, 2 wrong argument, or the command cannot be started, "
        "else that of the first job that failed (124: it took longer than --timeout)",
    )
    parser.add_argument("-n", "--workers", type=count(1), default=2, help="workers of a job")
    parser.add_argument("-s", "--servers", type=count(1), default=1, help="servers of a job")
    parser.add_argument("--policies", type=policies, default="off,prophet", help="to compare, each with the first")
    parser.add_argument("--repeats", type=count(1), default=1, help="jobs of each policy")
    parser.add_argument("--skip", type=count(0), default=1, help="Speedometer lines of each worker to leave out: the job warms up")
    parser.add_argument("--timeout", type=count(1), default=3600, help="seconds that a job may take")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="training command after '--' (default: " + " ".join(DEFAULT) + ")")
    args = parser.parse_args()
    args.command = (args.command[1:] if args.command[:1] == ["--"] else args.command) or DEFAULT
    return args


def main():
    args = parse_args()
    print("command:", " ".join(args.command))
    try:
        print(report(measure(args)))
    except LaunchError as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
