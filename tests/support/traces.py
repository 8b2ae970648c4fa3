"""Traces whose times are known."""

import json


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def made(names=("first", "second"), iterations=5, policy="prophet", rank=0, late=0, own=0):
    """A trace as the timeline writes it. Every iteration takes 100 ms: 'second' is ready at 0 ms and takes the wire until 40, 'first' is
    ready at 30, goes out from 40 to 50, is answered at 55 and unpacked at 56; 'second' is answered at 60, unpacked at 65. Both leave as
    one block. Answers come ``late`` ms later than that, as do the iterations' ends, and 'first' becomes ready ``own`` ms later."""
    events = [
        {
            "ph": "M",
            "name": "prophet_mx",
            "pid": 1,
            "args": {
                "format": "prophet_mx timeline 1",
                "rank": rank,
                "workers": 2,
                "servers": 1,
                "policy": policy,
                "started": "2026-01-01T00:00:00Z",
            },
        }
    ]
    for unit, (name, size) in enumerate(zip(names, (1_000_000, 4_000_000))):
        events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": 2,
                "tid": unit + 1,
                "args": {"name": name, "parameter": name, "unit": unit, "gradient": unit, "bytes": size, "link": 0, "rank": unit},
            }
        )
    for number in range(iterations):

        def add(name, row, begin, end, process=1, **args):
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "pid": process,
                    "tid": row,
                    "ts": (100_000 + 1000 * late) * number + 1000 * begin,
                    "dur": 1000 * (end - begin),
                    "args": {"iteration": number, **args},
                }
            )

        for row, name, ready, released, drained, answered, landed, step in (
            (2, names[1], 0, 0, 40, 60 + late, 65 + late, 0),
            (1, names[0], 30 + own, 35 + own, 50 + own, 55 + late, 56 + late, 1),
        ):
            add("wait", row, ready, released, 2, step=step)
            add("wire", row, released, drained, 2, block=number)
            add("answer", row, drained, answered, 2)
            add(name, 10, max(released, 40 if row == 1 else 0), drained)
            add("unpack", row, answered, landed, 2)
            if row == 2 and number:
                add("compute gap", 3, -40, 0)
            add("step", 2, ready, ready, step=step, units=1, bytes=1_000_000 if row == 1 else 4_000_000)
        add("block", 10, 0, 50 + own, block=number, units=2, bytes=5_000_000, step=0, predicted=6_000_000)
        if number + 1 < iterations:
            add("iteration", 1, 0, 100 + late)
    return events


def straggling(folder, late=20):
    """The files of a job of two workers. Worker 1 computes for ``late`` ms longer until its last gradient, and worker 0 waits for it."""
    jobs = made(rank=0, late=late), made(rank=1, late=late, own=late)
    return [written(folder / f"job-{rank}.json", events) for rank, events in enumerate(jobs)]


def written(path, events):
    path.write_text(events if isinstance(events, str) else json.dumps(events))
    return path


def drawn(units, end, iterations=5, rank=0, clock=0.0, workers=2, rate=0.0):
    """A trace of iterations that are alike and take ``end`` ms. ``units``, most urgent first: bytes, and ms when the unit is ready,
    released, drained, answered and unpacked; the first ready one is so at 0. The worker's clock is ``clock`` ms ahead of the job's.
    ``rate`` in bytes/s is what the trace says of its link."""
    head = {**made()[0]["args"], "rank": rank, "workers": workers}
    process = 2 * rank + 1
    events = [{"ph": "M", "name": "prophet_mx", "pid": process, "args": head}]
    for unit, (size, *_) in enumerate(units):
        name = f"layer{unit}"
        facts = {"name": name, "parameter": name, "unit": unit, "gradient": unit, "bytes": size, "link": 0, "rank": unit}
        events.append({"ph": "M", "name": "thread_name", "pid": process + 1, "tid": unit + 1, "args": facts})
    for number in range(iterations):
        rows = [("iteration", process, 1, 0, end, {})] if number + 1 < iterations else []
        for unit, (_, ready, released, drained, answered, landed) in enumerate(units):
            row = process + 1, unit + 1
            rows += [("wait", *row, ready, released, {"step": unit}), ("wire", *row, released, drained, {})]
            rows += [("answer", *row, drained, answered, {}), ("unpack", *row, answered, landed, {})]
            rows.append((f"layer{unit}", process, 10, released, drained, {}))
        for name, pid, tid, begin, until, args in rows:
            times = {"ts": 1000 * (end * number + begin + clock), "dur": 1000 * (until - begin)}
            events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": {"iteration": number, **args}})
    if rate:
        events.append({"ph": "C", "name": "link 0", "pid": process, "ts": 1000, "args": {"rate": rate}})
    return events
