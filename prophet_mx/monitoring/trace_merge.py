"""The traces of all workers of a job as one trace for Perfetto, on the clock of the first one."""

import json
from typing import Any, Dict, Iterator, List

from ..errors import TraceError
from .trace_file import HEAD
from .trace_jobs import TracedJob

MERGED = HEAD + " merged"  # its first event: the report reads the traces themselves


def merged(job: TracedJob) -> str:
    """The trace, a JSON text. Each worker has its own processes there already.

    Raises TraceError if nothing in the traces says how the workers' clocks differ.
    """
    clocks = job.clocks
    if clocks is None:
        raise TraceError(f"{job.name}: no unit was answered in all of these traces: nothing says how the workers' clocks differ")
    earliest = min(0.0, *(clock.common(0.0) for clock in clocks.each)) if len(clocks.each) > 1 else 0.0
    facts = {"traces": [worker.trace.path for worker in job.workers], "accuracy_seconds": clocks.accuracy}
    events: List[Dict[str, Any]] = [{"ph": "M", "name": MERGED, "pid": 0, "args": facts}]
    for worker, clock in zip(job.workers, clocks.each):
        for event in _events(worker.trace.path):
            if isinstance(event.get("ts"), (int, float)):
                event["ts"] = round(1e6 * (clock.common(1e-6 * event["ts"]) - earliest), 3)
            events.append(event)
    return "[\n" + ",\n".join(json.dumps(event, separators=(",", ":")) for event in events) + "\n]\n"


def _events(path: str) -> Iterator[Dict[str, Any]]:
    """The events of a trace that has been read before."""
    try:
        with open(path, encoding="utf-8") as file:
            yield from json.load(file)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: can no longer be read ({error})") from None
