"""Jobs of benchmarks whose workers run the benchmark's own module, without a shaped network."""

import argparse
import sys
from typing import List, Sequence

from prophet_mx.launcher.launch import run_job


def reported(options: argparse.Namespace, module: str, kind: str, names: Sequence[str], mark: str) -> List[str]:
    """Run one job with a server, whose workers get ``--worker kind`` and the options of these names. Returns the rest of each line that
    begins with ``mark``. RuntimeError, with all outputs, if the job fails or prints none."""
    command = [sys.executable, "-m", module, "--worker", kind]
    for name in names:
        command += ["--" + name, str(getattr(options, name))]
    result = run_job(command, options.workers, 1, env={"OMP_NUM_THREADS": "1"}, timeout=options.timeout)
    lines = [line for process in result.processes for line in process.output.splitlines() if line.startswith(mark)]
    if result.exit_code != 0 or not lines:
        raise RuntimeError(f"the job ended with {result.exit_code}, and {len(lines)} results\n{result.logs()}")
    return [line[len(mark) :] for line in lines]
