"""The timeline: a trace of every unit, step, block and iteration of a running job, for Perfetto, Chrome and ``prophet-mx report``.

The compiled recorder keeps events in a buffer of fixed size; a thread, which exists only while the timeline is on, turns them into text
and writes them four times a second. The file's size is limited: the more of it is used, the fewer iterations are written.

=================== ===============================================
of the limit used    iterations that are written
=================== ===============================================
up to 1/2            all
up to 3/4            one in 10
up to 7/8            one in 100
...                  one in ten times as many for each half of the rest, at most one in a million
=================== ===============================================

When each iteration began is written a hundred times as often as an iteration's units: of all, or of one in so many. The trace
therefore shows a job's start as a whole, and samples of the rest, however long it runs. Where a part of the limit is used up, the events
that have come since the last write may not fit: of these only the iterations are written.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Union

from ..config import Config
from ..errors import ConfigError, KVStoreError, not_allowed
from ..runtime import start_thread
from .trace_file import FORMAT, GAP_ROW, HEAD, ITERATION_ROW, LABEL_MAX, LINK_ROW, LOST, STEP_ROW, TraceFile

logger = logging.getLogger("prophet_mx")

PERIOD = 0.25  # seconds between two writes
MAX_STAGE = 6
RESERVE = 4096  # bytes kept for the last words
ROWS = ((ITERATION_ROW, "iterations"), (STEP_ROW, "steps"), (GAP_ROW, "compute gaps"))


class Recorder(Protocol):
    """Keeps events until they are asked for; ``lost`` counts those that did not fit."""

    lost: int

    def keep(self, every: int, iterations_every: int) -> None:
        """Record one iteration in ``every``, and of the others when one in ``iterations_every`` began."""

    def now_us(self) -> int:
        """The time of an event that happens now."""


class Recorded(Protocol):
    """What is recorded: a :class:`prophet_mx._core.Driver`, or a :class:`~prophet_mx.monitoring.rounds.RoundCounters`."""

    def record_timeline(self, recorder: Any) -> None:
        """Tell this recorder everything that happens; None: nobody."""

    def drain_timeline(self, recorder: Any, labels: List[bytes], last: bool = False) -> bytes:
        """The recorder's new events as JSON objects, each with ``,\\n`` before it. ``labels`` are the units' names."""

    def unit_facts(self, unit: int) -> Dict[str, Any]:
        """The fixed facts about a unit: ``bytes``, ``rank`` and others."""


def wanted(path: str, limit: Union[int, str, None], usual: Config) -> Config:
    """The settings of a timeline that a program asks for, with the limit of the ``usual`` ones unless it names one.

    Raises ConfigError if path or limit is not allowed.
    """
    size: Any = usual.timeline_limit if limit is None else limit
    config = Config(timeline=path, timeline_limit=size)
    if config.timeline is None:
        raise ConfigError(not_allowed(f"timeline={path!r}", "the path of a file, in a folder that exists"))
    return config


def rank_path(path: str, rank: int) -> str:
    """The file of one worker: ``{rank}`` is replaced, or the rank put before the extension.

    >>> rank_path("/tmp/trace.json", 1)
    '/tmp/trace-1.json'
    >>> rank_path("/tmp/{rank}.json", 1)
    '/tmp/1.json'
    """
    if "{rank}" in os.path.basename(path):
        return os.path.join(os.path.dirname(path), os.path.basename(path).replace("{rank}", str(rank)))
    root, extension = os.path.splitext(path)
    return f"{root}-{rank}{extension}"


class Timeline:
    """Records to a file from now until :meth:`stop`.

    Parameters
    ----------
    source : what is recorded.
    make_recorder : makes the recorder that it tells, for a number of links and the number of the worker's process in the trace.
    path : of the file; the rank is put into its name.
    limit : bytes that it may take.
    rank, workers : of the job.
    links : what its links are called.
    gradients : the units' gradients, by unit; may grow.
    names : the parameters' names, by gradient; may grow.
    about : further facts for the trace's head.

    Attribute ``asked``: ``path`` and ``limit``.

    Raises ConfigError if the file cannot be created, and KVStoreError if its thread cannot be started.
    """

    def __init__(
        self,
        source: Recorded,
        make_recorder: Callable[[int, int], Recorder],
        path: str,
        limit: int,
        *,
        rank: int,
        workers: int,
        links: Sequence[str],
        gradients: List[int],
        names: Mapping[int, str],
        about: Optional[Dict[str, Any]] = None,
    ) -> None:
        self.asked = path, limit
        self._source = source
        self._limit = limit
        self._process = 2 * rank + 1  # of the worker's rows; its units' rows are in a process of their own, the next
        self._gradients = gradients
        self._names = names
        self._labels: List[bytes] = []  # by unit
        self._parts = 0  # of the latest gradient in _labels
        self._lost = 0
        self._stage = 0
        self._recorder: Optional[Recorder] = make_recorder(len(links), self._process)
        head = {
            "format": FORMAT,
            "rank": rank,
            "workers": workers,
            "servers": len(links),
            "limit": limit,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "pid": os.getpid(),
            **(about or {}),
        }
        self.path = rank_path(path, rank)
        try:
            self._file = TraceFile(self.path, _json({"ph": "M", "name": HEAD, "pid": self._process, "args": head}))
            self._file.append(self._rows(rank, links))
        except OSError as error:
            raise ConfigError(not_allowed(f"timeline={self.path!r}", "a file that can be written", f" ({error.strerror})")) from None
        self._stop = threading.Event()
        source.record_timeline(self._recorder)
        self._notes: List[bytes] = []  # for the file
        try:
            self._thread = start_thread("timeline", self._run)
        except KVStoreError:
            self._end()
            raise
        logger.info("timeline: writing %s, at most %d MB", self.path, limit // 10**6)

    def note(self, text: str) -> None:
        """Mark this moment. Called from any thread."""
        recorder = self._recorder
        if recorder is not None:
            self._notes.append(_event("i", text, self._process, ts=recorder.now_us(), s="p"))

    def stop(self) -> None:
        """Write what is left, and end. May be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._recorder is not None:
            self._guarded(lambda: self._flush(last=True))
            self._end()
            logger.info(
                "timeline: %s is complete, %.1f MB%s",
                self.path,
                self._file.bytes / 1e6,
                f"; {self._lost} events were lost" if self._lost else "",
            )

    @property
    def writing(self) -> bool:
        """Whether events are still taken: not after stop(), a failed write, or at the limit."""
        return self._recorder is not None

    def _end(self) -> None:
        self._source.record_timeline(None)
        self._recorder = None
        self._file.close()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._recorder is not None and not self._stop.wait(PERIOD):
            self._guarded(self._flush)

    def _guarded(self, write: Callable[[], None]) -> None:
        """An error in the trace must not stop training."""
        try:
            write()
        except Exception as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else repr(error)
            logger.error("timeline: %s cannot be written (%s); it is turned off, and training continues", self.path, reason)
            self._end()

    def _flush(self, last: bool = False) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        head = self._new_units()
        while self._notes:
            head += self._notes.pop(0)
        text = self._source.drain_timeline(recorder, self._labels, last)
        if recorder.lost > self._lost:
            fresh = recorder.lost - self._lost
            head += _event("i", f"{fresh}{LOST}", self._process, ts=recorder.now_us(), s="p")
            self._lost = recorder.lost
        room = self._room(self._stage) - len(head)
        used_up = len(text) > room
        if used_up:
            whole = _fitting(text, room)
            text = whole + _fitting(_iterations(text[len(whole) :]), self._room(self._stage + 1) - len(head) - len(whole))
        if self._file.bytes + len(head) + RESERVE > self._limit or (used_up and self._stage == MAX_STAGE):
            self._file.append(_event("i", "limit reached", self._process, ts=recorder.now_us(), s="p"))
            logger.warning("timeline: %s has reached its limit of %d bytes and ends here", self.path, self._limit)
            self._end()
            return
        if head or text:
            self._file.append(head + text)
        if used_up:
            self._stage += 1
            recorder.keep(10**self._stage, 10 ** max(0, self._stage - 2))
            logger.info("timeline: from now on, one iteration in %d is written", 10**self._stage)

    def _room(self, stage: int) -> int:
        """Bytes that may still be written in a stage."""
        return int(self._limit * (1 - 0.5 ** (stage + 1))) - self._file.bytes

    # -- what does not change -----------------------------------------------------------------------------------------------

    def _rows(self, rank: int, links: Sequence[str]) -> bytes:
        """The names of the worker's rows."""
        events = []
        for offset, name in enumerate((f"worker {rank}", f"worker {rank}: units, most urgent first")):
            events += [
                _event("M", "process_name", self._process + offset, args={"name": name}),
                _event("M", "process_sort_index", self._process + offset, args={"sort_index": self._process + offset}),
            ]
        rows = ROWS + tuple((LINK_ROW + i, link) for i, link in enumerate(links))
        events += [_event("M", "thread_name", self._process, tid=row, args={"name": name}) for row, name in rows]
        events += [_event("M", "thread_sort_index", self._process, tid=row, args={"sort_index": row}) for row, _ in rows]
        return b"".join(events)

    def _new_units(self) -> bytes:
        """The rows of units that have come since the last call. A parameter's units come together, and its name after them."""
        if len(self._labels) == len(self._gradients):
            return b""
        events = []
        gradients = list(self._gradients)
        parts = Counter(gradients)
        for unit in range(len(self._labels), len(gradients)):
            gradient = gradients[unit]
            if gradient not in self._names:
                break
            facts = self._source.unit_facts(unit)
            self._parts = self._parts + 1 if unit and gradients[unit - 1] == gradient else 0
            label = self._names[gradient] + (f"[{self._parts}]" if parts[gradient] > 1 else "")
            self._labels.append(_label(label))
            row = {"name": label, "parameter": self._names[gradient], "unit": unit, **facts}
            events += [
                _event("M", "thread_name", self._process + 1, tid=unit + 1, args=row),
                _event("M", "thread_sort_index", self._process + 1, tid=unit + 1, args={"sort_index": facts["rank"]}),
            ]
        return b"".join(events)


def _event(phase: str, name: str, process: int, **fields: Any) -> bytes:
    """An event behind others in the file."""
    return b",\n" + _json({"ph": phase, "name": name, "pid": process, **fields})


def _json(value: Any) -> bytes:
    """Strict JSON: a lone surrogate, which a name can have in Python, becomes '?', because most readers refuse it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _fitting(text: bytes, room: int) -> bytes:
    """The first events of ``text``, as many as fit into ``room`` bytes."""
    return text if len(text) <= room else text[: max(0, text.rfind(b",\n", 0, max(0, room)))]


def _iterations(text: bytes) -> bytes:
    """The events of ``text`` that tell when an iteration began and ended."""
    return b"".join(b",\n" + event for event in text.split(b",\n")[1:] if b'"name":"iteration"' in event)


def _label(name: str) -> bytes:
    """A name as a JSON text that is not too long for the recorder."""
    text = _json(name)
    while len(text) > LABEL_MAX:
        name = name[:-1]
        text = _json(name + "...")
    return text
