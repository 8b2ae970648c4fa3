"""What 16 bits on the wire do to a training: the same convnet on few, noisy digits, from several seeds, with 32 bits and with 16.

    python -m benchmarks.accuracy --seeds 5

Two workers and a server on this machine; no network is slowed down, and no time is measured. One of the variants multiplies its gradients
by 10,000, as a large batch or a loss scale do, and the learning rate takes that back: numbers of 16 bits end at 65,504. The table has the
accuracy on images that were not trained on, by epoch: the mean over the seeds and their standard deviation. The distance is that of the
weights in the end from those of the same seed with 32 bits, relative to their size.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from prophet_mx.cli.arguments import count
from prophet_mx.launcher.launch import run_job

JOB = Path(__file__).parent / "jobs" / "accuracy.py"
VARIANTS = {"32 bits": ("off", "1"), "16 bits": ("fp16", "1"), "16 bits, gradients times 10,000": ("fp16", "10000")}
SHOWN = (1, 2, 4, 8, 16, 32, 64)  # epochs with a column; and the last


def train(seed: int, variant: str, epochs: int, folder: str) -> Dict[str, Any]:
    """What one job tells, with its ``weights``. RuntimeError, with its logs, if it failed."""
    compress, factor = VARIANTS[variant]
    file = os.path.join(folder, f"{seed}-{compress}-{factor}.json")
    env = {"OMP_NUM_THREADS": "1"}
    job = run_job([sys.executable, str(JOB), str(seed), compress, str(epochs), factor, file], 2, 1, env=env, timeout=600)
    if job.exit_code:
        raise RuntimeError(job.logs())
    return {**json.loads(Path(file).read_text()), "weights": np.load(file + ".npy")}


def table(found: Dict[str, List[Dict[str, Any]]], epochs: int) -> str:
    """The jobs of each variant, in the order of their seeds, in Markdown."""
    shown = [epoch for epoch in SHOWN if epoch < epochs] + [epochs]
    lines = [
        "| | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " | last loss | distance | saturated |",
        "|---" * (len(shown) + 4) + "|",
    ]
    for variant, jobs in found.items():
        cells = []
        for epoch in shown:
            values = [100 * job["accuracies"][epoch - 1] for job in jobs]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}%")
        cells.append(f"{statistics.fmean(job['losses'][-1] for job in jobs):.4f}")
        distances = [
            float(np.linalg.norm(job["weights"] - other["weights"]) / np.linalg.norm(other["weights"]))
            for job, other in zip(jobs, found["32 bits"])
        ]
        cells += [f"{max(distances):.1e}", str(sum(job["saturated"] for job in jobs))]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=count, default=5, help="trainings of each variant (default 5)")
    parser.add_argument("--epochs", type=count, default=30, help="epochs of each (default 30)")
    options = parser.parse_args(arguments)
    found: Dict[str, List[Dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        for seed in range(options.seeds):
            for variant, jobs in found.items():
                jobs.append(train(seed, variant, options.epochs, folder))
                print(f"seed {seed}, {variant}: {100 * jobs[-1]['accuracies'][-1]:.2f}%", flush=True)
    print("\n" + table(found, options.epochs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
