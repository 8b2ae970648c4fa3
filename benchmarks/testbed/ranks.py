"""A job of PyTorch ranks in a testbed: one process per worker's namespace, which reduce among themselves over the shaped links."""

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from prophet_mx.profiling.gradient_profile import GradientProfile

from .job import plain_environment, read_results, run_processes
from .network import Testbed

_PORT = 29500  # of the rendezvous; a namespace has all its ports to itself


@dataclass(frozen=True)
class RankTask:
    """What a rank does (benchmarks/jobs/collectives.py).

    Attributes
    ----------
    profile : path of the profile whose model is emulated; "" for real training.
    device : whether the compute is that of an emulated device, beside which the host runs ahead, or all is on the processor.
    scheduled : ScheduledOptimizer, or else DistributedDataParallel.
    bucket : bytes of DistributedDataParallel's buckets; None for its default.
    bf16 : whether DistributedDataParallel compresses gradients to bfloat16.
    iterations : in all.
    slowdown : by rank, the factor on its compute times; empty if all are alike.
    jitter : every operation's compute time is drawn between 1 - jitter and 1 + jitter times its own.
    clip : whether gradients are clipped before the step, as programs do that train transformers.
    """

    profile: str
    device: bool
    scheduled: bool
    bucket: Optional[int]
    bf16: bool
    iterations: int
    slowdown: Tuple[float, ...] = ()
    jitter: float = 0.0
    clip: bool = False

    @classmethod
    def load(cls, path: str) -> "RankTask":
        with open(path) as file:
            return cls(**json.load(file))


def rank_environment(bed: Testbed, rank: int) -> Dict[str, str]:
    """The environment of a rank's process, as torchrun would make it."""
    env = plain_environment()
    env.update(
        RANK=str(rank),
        LOCAL_RANK="0",
        WORLD_SIZE=str(bed.workers),
        MASTER_ADDR=bed.nodes["w0"],
        MASTER_PORT=str(_PORT),
        GLOO_SOCKET_IFNAME="eth0",
    )
    return env


def run_ranks(
    bed: Testbed, profile: Optional[GradientProfile], task: RankTask, env: Mapping[str, str], timeout: float
) -> List[Dict[str, Any]]:
    """Run ``task`` with ``profile`` (None for real training) on every worker of ``bed``; the results by rank, see train() of the job.

    ``env`` is added to every process's environment; ``timeout`` in seconds. Raises TestbedError, with every process's output, if a rank
    failed or the time was up.
    """
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        if profile is not None:
            profile.save(os.path.join(folder, "profile.json"))
            task = replace(task, profile=os.path.join(folder, "profile.json"))
        with open(os.path.join(folder, "task.json"), "w") as file:
            json.dump(asdict(task), file)
        results = [os.path.join(folder, f"w{rank}.json") for rank in range(bed.workers)]
        commands = {
            f"w{rank}": (
                f"w{rank}",
                [sys.executable, "-m", "benchmarks.jobs.collectives", os.path.join(folder, "task.json"), results[rank]],
                {**rank_environment(bed, rank), **env},
            )
            for rank in range(bed.workers)
        }
        run_processes(bed, commands, folder, timeout)
        return read_results(results)
