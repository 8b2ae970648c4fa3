"""Trains on handwritten digits three times: over loopback, then over slow links, with plain dist_sync and with prophet_mx.

    python demo.py

Each job has one server and two workers, all on this machine. They run train_digits.py; slow_link.py slows down their connections.
"""

import argparse
import filecmp
import os
import re
import sys
import tempfile

import slow_link
from prophet_mx.launcher.console import Console
from prophet_mx.launcher.launch import run_job

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS, SERVERS = 2, 1
BATCH = 64  # images per worker and iteration
TRAINING = ["--batch-size", str(BATCH), "--lr", "0.03"]
# Settings of all three jobs, unless they are already set. They give this small network the conditions of a deep network on GPUs. By default
# MXNet would compute it in two steps, and on a CPU in the thread that also sends gradients.
SETTINGS = {"MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "3", "MXNET_CPU_WORKER_NTHREADS": "2", "OMP_NUM_THREADS": "1"}


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="exit codes: 0 done, 1 the weights differ, 2 wrong argument, else that of the job that failed",
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images; the first does not count for the speed")
    parser.add_argument("--scale", type=int, default=3, help="enlarge the images: messages take a smaller part of an iteration")
    parser.add_argument("--data-dir", default=".demo", help="folder for the images; created if missing")
    parser.add_argument("--require-accuracy", type=float, default=0.95, help="end with an error if a validation accuracy is lower")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f"--epochs {args.epochs}: at least 2")
    return args


def train(title, args, weights, policy, rate=None):
    """Run a job, and exit if it fails. Returns its images per second, and the validation accuracy of rank 0. ``weights`` is a file for the
    weights, ``rate`` the rate of the slow links, such as '73Mbit'."""
    script = os.path.join(HERE, "train_digits.py")
    slowed = [] if rate is None else [os.path.join(HERE, "slow_link.py"), rate]
    training = [*TRAINING, "--scale", str(args.scale), "--epochs", str(args.epochs), "--policy", policy]
    shown = " ".join(["python", *map(os.path.basename, slowed), "train_digits.py", *training])
    print(f"\n== {title} ==\nprophet-mx launch -n {WORKERS} -s {SERVERS} -- {shown}", flush=True)
    kept = ["--data-dir", args.data_dir, "--require-accuracy", str(args.require_accuracy), "--save", weights]
    result = run_job(
        [sys.executable, *slowed, script, *training, *kept],
        WORKERS,
        SERVERS,
        env={name: os.environ.get(name, value) for name, value in SETTINGS.items()},
        sink=Console(sys.stdout),
        signals=True,
    )
    if result.exit_code:
        sys.exit(result.exit_code)
    output = "\n".join(worker.output for worker in result.workers)
    speed, accuracy = re.search(r"^samples/s +(\S+)", output, re.MULTILINE), re.search(r"^rank 0: .* (\S+)$", output, re.MULTILINE)
    return float(speed.group(1).replace(",", "")), accuracy.group(1)


def slowed_to(speed, weights):
    """The rate, such as '73Mbit', at which sending an iteration's gradients takes as long as the iteration on loopback. None if the kernel
    slows nothing down. Prints the reason."""
    seconds = BATCH * WORKERS / speed
    size = os.path.getsize(weights)  # gradients are as large as weights
    print(f"\nOn loopback there is nothing to gain: an iteration takes {1e3 * seconds:.0f} ms, and its {size / 1e6:.1f} MB of gradients")
    print("are copied in memory. They wait only for the processors, and no order of sending reduces their work.")
    why = slow_link.refusal()
    if why:
        print(f"This kernel refuses to slow connections down ({why}): the links stay as they are, and the gain cannot be shown.")
        return None
    rate = f"{max(1, round(8 * size / seconds / 1e6))}Mbit"
    print(f"So the kernel slows each connection down to {rate}/s, both ways: sending then takes as long as computing (rho 1).")
    return rate


def table(rows):
    """Lines with a title, images per second and an accuracy each."""
    lines = [f"{'':<34}{'samples/s':>10}{'accuracy':>11}"]
    return "\n".join(lines + [f"{title:<34}{speed:>10,.0f}{accuracy:>11}" for title, (speed, accuracy) in rows.items()])


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="prophet-demo-") as folder:
        files = [os.path.join(folder, name) for name in ("loopback", "plain", "scheduled")]
        title = "loopback, prophet_mx"
        rows = {title: train(title, args, files[0], "prophet")}
        rate = slowed_to(rows[title][0], files[0])
        links = "loopback again" if rate is None else f"links of {rate}/s"
        names = f"{links}, plain dist_sync", f"{links}, prophet_mx"
        for name, file, policy in zip(names, files[1:], ("off", "prophet")):
            rows[name] = train(name, args, file, policy, rate)
        same = all(filecmp.cmp(files[0], file, shallow=False) for file in files[1:])
    plain, scheduled = (rows[name][0] for name in names)
    print(f"\n{table(rows)}\n")
    print(f"{links}: prophet_mx is {scheduled / plain:.2f} times as fast as plain dist_sync.")
    print(f"Weights: {'the same in all three trainings, bit for bit' if same else 'NOT the same'}.")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
