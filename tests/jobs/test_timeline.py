"""The timeline: what it shows of real jobs, and that a trace is whole whatever happens to the job."""

import json
import mmap
import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter, defaultdict
from textwrap import dedent

import pytest

from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_file import END
from support.cluster import package_env, run_cluster
from support.commands import prophet_mx
from support.paths import SCRIPTS
from support.traces import load

JOB = SCRIPTS / "timeline.py"
TIMEOUT = 60  # seconds; a job takes 3 to 5 where it has two cores to itself
LAYERS, ELEMENTS = 8, 30_000
UNIT = 40_000  # bytes: 3 units a layer
UNITS = 3 * LAYERS


def run(folder, *args, expect=0, **env):
    settings = {"PROPHET_UNIT": str(UNIT), "PROPHET_BANDWIDTH": "100MB", "PROPHET_WARMUP": "2", **env}
    return run_cluster(JOB, 2, 1, env=settings, args=[folder, *args], timeout=TIMEOUT, expect=expect)


def slices(events, name=None):
    return [event for event in events if event["ph"] == "X" and name in (None, event["name"])]


def head_of(events):
    return next(event["args"] for event in events if event["name"] == "prophet_mx")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The traces of a job of 8 iterations by rank, from PROPHET_TIMELINE; the job's own count of blocks beside them."""
    folder = tmp_path_factory.mktemp("whole")
    result = run(folder, LAYERS, ELEMENTS, 8, "steps", PROPHET_TIMELINE=str(folder / "trace.json"))
    for worker in result.workers:  # ps-lite numbers them in an order of its own
        [line] = [line for line in worker.output.splitlines() if line.startswith("blocks of rank ")]
        rank, counted = line[len("blocks of rank ") :].split(maxsplit=1)
        (folder / f"blocks-{rank}").write_text(counted)
    assert sorted(path.name for path in folder.glob("*.json")) == ["trace-0.json", "trace-1.json"], result.logs()
    return [load(folder / f"trace-{rank}.json") for rank in range(2)], folder


def test_each_worker_writes_its_own_trace(whole):
    traces, folder = whole
    for rank, events in enumerate(traces):
        head = head_of(events)
        assert (head["rank"], head["workers"], head["servers"], head["policy"]) == (rank, 2, 1, "prophet")
        assert stat.S_IMODE((folder / f"trace-{rank}.json").stat().st_mode) == 0o600
    assert not {e["pid"] for e in traces[0]} & {e["pid"] for e in traces[1]}  # so that two can be shown as one


def test_every_unit_of_every_iteration_is_there(whole):
    for events in whole[0]:
        for name in ("wait", "wire", "answer", "unpack"):
            found = Counter((event["tid"], event["args"]["iteration"]) for event in slices(events, name))
            assert len(found) == UNITS * 8 and set(found.values()) == {1}, name
        labels = {e["args"]["name"] for e in events if e["name"] == "thread_name" and "parameter" in e["args"]}
        assert labels == {f"layer{layer}[{part}]" for layer in range(LAYERS) for part in range(3)}
        on_links = [event for event in slices(events) if event["name"] in labels]
        assert len(on_links) == 8 * UNITS


def test_parameters_have_their_names_where_keys_are_numbers_as_those_of_trainer(tmp_path):
    run(tmp_path, 3, ELEMENTS, 4, "numbers", PROPHET_TIMELINE=str(tmp_path / "trace.json"))
    rows = [event["args"] for event in load(tmp_path / "trace-0.json") if event["name"] == "thread_name"]
    assert {row["parameter"] for row in rows if "parameter" in row} == {f"conv{layer}_weight" for layer in range(3)}


def test_what_was_measured_at_the_start_is_marked(whole):
    for events in whole[0]:
        assert len([event for event in events if event["ph"] == "i" and "a message takes each of them" in event["name"]]) == 1


def test_gradient_blocks_are_those_of_the_statistics_and_fit_their_interval(whole):
    """From the profile on, gradients of the first half are sent while those of the second are due 60 ms later."""
    traces, folder = whole
    for rank, events in enumerate(traces):
        blocks = {event["args"]["block"]: event["args"] for event in slices(events, "block")}
        assert blocks and len(blocks) == len(slices(events, "block")), folder
        counted = [int(number) for number in (folder / f"blocks-{rank}").read_text().split()]
        assert counted == [len(blocks), sum(b["units"] for b in blocks.values()), sum(b["bytes"] for b in blocks.values())]
        wires = Counter(event["args"]["block"] for event in slices(events, "wire") if "block" in event["args"])
        assert wires == {number: block["units"] for number, block in blocks.items()}
        steps = max(event["args"]["step"] for event in slices(events, "step"))
        assert all(0 <= block["step"] < steps and block["predicted"] > 0 for block in blocks.values())  # the last one has no interval


def test_a_unit_waits_travels_is_answered_and_unpacked_in_that_order(whole):
    for events in whole[0]:
        stages = defaultdict(dict)
        for event in slices(events):
            if event["name"] in ("wait", "wire", "answer", "unpack"):
                stages[event["tid"], event["args"]["iteration"]][event["name"]] = (event["ts"], event["ts"] + event["dur"])
        for stage in stages.values():
            assert stage["wait"][1] == stage["wire"][0] and stage["wire"][1] == stage["answer"][0]
            assert stage["answer"][1] == stage["unpack"][0]
            assert all(end >= begin for begin, end in stage.values())


def test_slices_of_a_row_nest(whole):
    """Viewers need that: of two slices in one row, one contains the other, or they do not overlap."""
    for events in whole[0]:
        rows = defaultdict(list)
        for event in slices(events):
            rows[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
        for row in rows.values():
            open_until = []
            for begin, duration in sorted(row):
                while open_until and open_until[-1] <= begin:
                    open_until.pop()
                assert not open_until or begin - duration <= open_until[-1]
                open_until.append(begin - duration)


def test_iterations_steps_gaps_and_counters(whole):
    for events in whole[0]:
        iterations = slices(events, "iteration")
        assert [event["args"]["iteration"] for event in iterations] == list(range(7))  # the last one has no end
        assert all(a["ts"] + a["dur"] == b["ts"] for a, b in zip(iterations, iterations[1:]))
        # Warm-up is the iterations 1 and 2; from 4 or 5 on there are steps, of all units together.
        for iteration in (5, 6, 7):
            assert sum(e["args"]["units"] for e in slices(events, "step") if e["args"]["iteration"] == iteration) == UNITS
        # The job waits for all values before it pushes again: between two iterations nothing is to be sent.
        assert {event["args"]["iteration"] for event in slices(events, "compute gap")} >= set(range(1, 8))
        counters = [event["args"] for event in events if event["ph"] == "C"]
        assert max(counter["in flight"] for counter in counters) >= UNIT
        assert all(counter["rate"] > 0 and counter["window"] > 0 for counter in counters)


def test_start_and_stop_at_run_time_and_nothing_when_off(tmp_path):
    result = run(tmp_path, LAYERS, ELEMENTS, 4, "switch")
    for worker in result.workers:
        states = [line.split(" threads ")[1] for line in worker.output.splitlines() if " threads " in line]
        running = [state.startswith("['prophet_mx-timeline']") for state in states]
        assert running == [False, True, False, True, False], worker.output  # before, on, off, on, off
        assert states[0] == "[] files []"
    assert len(list(tmp_path.iterdir())) == 4
    for part in range(2):
        for rank in range(2):
            events = load(tmp_path / f"part{part}.{rank}.json")
            numbers = Counter(event["args"]["iteration"] for event in slices(events, "answer"))
            first = 4 + 6 * part  # 4 iterations, then 3 + 1 with it and 2 without
            assert numbers == {first: UNITS, first + 1: UNITS, first + 2: UNITS, first + 3: UNITS}, result.logs()
            assert Counter(event["args"]["iteration"] for event in slices(events, "unpack")) == numbers


def test_units_that_waited_when_it_was_started_begin_then(tmp_path):
    """Also those that a report reads. They became ready before the trace has a time for it."""
    result = run(tmp_path, LAYERS, ELEMENTS, 3, "waiting", PROPHET_LEAD=str(2 * UNIT))
    waits = slices(load(tmp_path / "waiting.0.json"), "wait")
    assert min(event["ts"] for event in waits) == 0, result.logs()
    assert load_trace(str(tmp_path / "waiting.0.json")).passages


def test_the_trace_of_a_killed_worker_is_whole(tmp_path):
    result = run(tmp_path, LAYERS, ELEMENTS, 1, "kill", expect=137, PROPHET_TIMELINE=str(tmp_path / "{rank}.trace"))
    for rank in range(2):  # the other one is ended by the launcher
        assert len(slices(load(tmp_path / f"{rank}.trace"), "answer")) > 5 * UNITS, result.logs()


def test_the_trace_of_a_job_that_was_ended_with_ctrl_c_is_whole(tmp_path):
    done = prophet_mx(
        "launch",
        "--timeout",
        TIMEOUT,
        "--",
        sys.executable,
        JOB,
        tmp_path,
        LAYERS,
        ELEMENTS,
        1,
        "interrupt",
        env={"PROPHET_TIMELINE": str(tmp_path / "t.json")},
        timeout=2 * TIMEOUT,
        merged=True,
        expect=130,
    )
    for rank in range(2):
        assert len(slices(load(tmp_path / f"t-{rank}.json"), "answer")) > 5 * UNITS, done.stdout


def test_a_trace_stays_under_its_limit_and_samples_a_long_job(tmp_path):
    result = run(tmp_path, 20, 8, 600, PROPHET_TIMELINE=str(tmp_path / "t.json"), PROPHET_TIMELINE_LIMIT="1MB", PROPHET_GROUPS="off")
    for rank in range(2):
        path = tmp_path / f"t-{rank}.json"
        assert 500_000 < path.stat().st_size <= 1_000_000
        events = load(path)
        found = Counter(event["args"]["iteration"] for event in slices(events, "answer"))
        numbers = sorted(number for number, units in found.items() if units == 20)
        assert numbers[:20] == list(range(20)), result.logs()  # the start of the job as a whole
        assert numbers[-1] >= 200 and numbers[-1] % 10 == 0 and len(numbers) < 200, numbers
        assert len(slices(events, "iteration")) > 500  # iteration times all the same


def test_a_full_disk_ends_the_timeline_and_not_the_job(tmp_path):
    result = run(tmp_path, LAYERS, ELEMENTS, 60, "full", PROPHET_TIMELINE=str(tmp_path / "t.json"))
    for rank, worker in enumerate(result.workers):
        assert worker.output.count("cannot be written") == 1, result.logs()
        assert "the last line was reached" in worker.output
        path = tmp_path / f"t-{rank}.json"
        assert path.stat().st_size <= 65536
        assert head_of(load(path))["rank"] == rank


def test_a_store_that_is_not_scheduled_says_so(tmp_path):
    result = run(tmp_path, 2, 10, 1, PROPHET_TIMELINE=str(tmp_path / "t.json"), PROPHET_POLICY="off")
    assert "no timeline is written" in result.logs()
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_killed_writer_is_whole(tmp_path):
    """Killed at any moment, many times. In the middle of a write the kernel stops at the end of a page: then what that wrote is cut."""
    code = dedent("""
        import sys
        from prophet_mx.monitoring.trace_file import TraceFile
        file = TraceFile(sys.argv[1], b'0')
        print('go', flush=True)
        while True:
            file.append(b',\\n' + b'1,' * 50 + b'2')
        """)
    for attempt in range(8):
        path = tmp_path / f"{attempt}.json"
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)], env={**os.environ, **package_env()}, stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"go\n"
        time.sleep(0.02 + 0.007 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        text = path.read_bytes()
        if not text.endswith(END):
            assert len(text) % mmap.PAGESIZE < len(END), text[-300:]
            text = text[: text.rindex(b",\n", 0, -len(END))] + END
        assert len(json.loads(text)) > 50
