"""Record the iteration that README shows: one of plain dist_sync, and one of prophet, in real jobs on the testbed; needs root.

    python -m benchmarks.pictures.record
    python -m benchmarks.plots                       draws it

Two jobs run, one after the other, as those of benchmarks.run: MXNet's traffic over shaped links is real, computing takes its time and no
processor. Recorded is worker w0. Its accelerator tells when each operation ran. Its link's counters are read each millisecond from
outside of the job. When a gradient's values are back, an operation on MXNet's engine tells. The plain job's store is MXNet's own, which
sends each gradient whole. The scheduled job writes its timeline, which tells in which order units were sent and came back. Of the measured
iterations that of median length is kept.

Writes benchmarks/pictures/traces/iteration.json, a minute and a half later.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError

from ..comparison.cells import Cell, Load
from ..comparison.metadata import describe
from ..comparison.methods import parse
from ..testbed import Testbed, measure
from ..testbed.emulated import Task
from ..testbed.exits import exit_code
from ..testbed.job import run_task
from .recordings import RECORDED, Told, drawn, save_recording, stored
from .spans import Count
from .speedups import NAMES

CELL = "resnet50_v1,rho=1,scale=1,update=servers,keys=names,rate=3Gbit"
PERIOD = 0.001  # seconds between two readings of the link's counters


class LinkCounter:
    """While it is entered, reads what the link of a worker has carried, on the hub's side: behind both of its shapers."""

    def __init__(self, bed: Testbed, node: str) -> None:
        self.counts: List[Count] = []
        self._stop = threading.Event()
        self._device = f"{node}:"
        self._thread = threading.Thread(target=lambda: bed.run_in("hub", self._read), name="counters")

    def _read(self) -> None:
        with open("/proc/thread-self/net/dev", "rb", buffering=0) as file:
            while not self._stop.is_set():
                text, at = os.pread(file.fileno(), 1 << 16, 0).decode(), time.monotonic()
                [numbers] = [line.split()[1:] for line in text.splitlines() if line.split()[:1] == [self._device]]
                self.counts.append(Count(at, int(numbers[0]), int(numbers[8])))
                time.sleep(PERIOD)

    def __enter__(self) -> "LinkCounter":
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stop.set()
        self._thread.join()


def run(bed: Testbed, cell: Cell, load: Load, name: str, options: argparse.Namespace, folder: str) -> Told:
    """Run a job whose files stay in ``folder``, and return what worker w0 has told. Raises TestbedError."""
    method = parse(name)
    task = Task(
        "",
        options.warmup + options.iterations + 1,  # one more, to see the end of the last one
        wrap=method.wrap,
        pushpull=method.pushpull,
        spans=True,
        sgd=cell.update == "servers",
        trainer=cell.keys == "names",
    )
    timeline = {"PROPHET_TIMELINE": os.path.join(folder, "trace.json")} if method.wrap else {}
    with LinkCounter(bed, "w0") as counter:
        env = {**load.env, **method.env, **timeline}
        results = run_task(bed, load.profile, task, env, options.timeout, folder, "benchmarks.pictures.watched")
    result = results[0]
    if any(each["wrong"] for each in results):
        raise ProphetError(f"{name}: a value was wrong")
    Path(folder, "counts.json").write_text(json.dumps(counter.counts))
    return Told(result, counter.counts, os.path.join(folder, f"trace-{result['rank']}.json") if method.wrap else "")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    methods: Dict[str, Any] = {}
    try:
        cell = Cell.parse(options.cell)
        about = describe("pictures.record", arguments)
        about.pop("code")
        with Testbed(cell.workers, cell.servers, cell.rate) as bed:
            goodput = measure(bed)
            load = cell.load(goodput.link)
            print(f"{cell}: goodput {goodput}, compute {load.profile.compute_seconds:.3f} s, bound {load.bound:.3f} s", flush=True)
            for name in NAMES:
                with _folder(options.keep, name) as folder:
                    told = run(bed, cell, load, name, options, folder)
                    one, seconds = drawn(told, load.profile, cell.rate, options.warmup)
                methods[name] = stored((one, seconds))
                print(f"  {name}: {one.seconds * 1e3:.1f} ms, of which {one.stalled * 1e3:.1f} ms stalled", flush=True)
    except ProphetError as error:
        return exit_code(error)
    about = {
        **about,
        "cell": str(cell),
        "gradients": len(load.profile.gradients),
        "megabytes": round(load.profile.total_bytes / 1e6, 1),
        "compute_ms": round(load.profile.compute_seconds * 1e3, 1),
        "bound_ms": round(load.bound * 1e3, 1),
        "goodput_gbit": round(goodput.link * 8 / 1e9, 4),
    }
    save_recording(options.out, about, methods)
    print(f"written: {options.out}")
    return 0


@contextmanager
def _folder(keep: Optional[Path], method: str) -> Iterator[str]:
    """Where a job's files are: they stay there only if that is asked for."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="prophet-record-") as folder:
            yield folder
        return
    (keep / method).mkdir(parents=True, exist_ok=True)
    yield str((keep / method).resolve())


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures.record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", default=CELL, help="as for benchmarks.run (default %(default)s)")
    parser.add_argument("--iterations", type=count, default=9, help="measured iterations per job (default %(default)s)")
    parser.add_argument("--warmup", type=count, default=14, help="iterations before them, until orders are exchanged (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a job may take (default %(default)s)")
    parser.add_argument("--out", type=Path, default=RECORDED, help="file (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep there all that the jobs have told, and their logs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
