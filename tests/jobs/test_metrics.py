"""Log lines, the Prometheus endpoint and TensorBoard scalars of a real job, and that nothing of them outlives it."""

import re

import pytest

from prophet_mx.launcher.launch import free_port
from support.cluster import run_cluster
from support.scalars import scalars_in

pytest.importorskip("prometheus_client")
pytest.importorskip("tensorboardX")

JOB = """
    import os, sys, time, urllib.request
    import mxnet as mx
    from prophet_mx import ScheduledKVStore
    from prophet_mx.metrics import ScalarLogger
    from tensorboardX import SummaryWriter

    port, logs = int(sys.argv[1]), sys.argv[2]
    kv = ScheduledKVStore(mx.kv.create("dist_sync"), metrics_port=port, log_every=10, unit=80000)      # no gradient is cut
    writer = SummaryWriter(os.path.join(logs, str(kv.rank)))
    scalars = ScalarLogger(kv, writer, every=10)
    keys, shape = [str(i) for i in range(5)], (20000,)
    values = {key: mx.nd.ones(shape) for key in keys}
    for key in keys:
        kv.init(key, values[key])
    for step in range(41):
        for i, key in enumerate(keys):
            kv.pushpull(key, values[key], priority=-i)
        mx.nd.waitall()
        scalars()
        time.sleep(0.02)
    writer.close()
    text = urllib.request.urlopen(f"http://127.0.0.1:{port + kv.rank}/metrics", timeout=10).read().decode()
    for entry in text.splitlines():
        if entry.startswith("prophet_mx_"):
            print("scraped", entry)
    print("released", kv.stats()["bytes"])
"""


def test_a_job_shows_its_statistics_in_all_three_ways_and_ends(tmp_path):
    port = free_port()
    result = run_cluster(JOB, 2, 1, args=[port, tmp_path], timeout=60, grace=20)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()
    for worker in result.workers:
        logged = re.findall(r"prophet_mx INFO: iterations (\d+) to (\d+): ([\d.]+) ms each, ([\d.]+) MB in (\d+) units", worker.output)
        assert [(int(a), int(b)) for a, b, *_ in logged] == [(1, 11), (11, 21), (21, 31)], result.logs()
        for _, _, milliseconds, megabytes, units in logged:
            assert float(milliseconds) >= 20 and float(megabytes) == pytest.approx(0.4, abs=0.09) and 4 <= int(units) <= 6
        scraped = dict(re.findall(r"scraped (\w+)\{[^}]*\} (\S+)", worker.output))
        assert float(scraped["prophet_mx_iterations_total"]) > 5
        assert 0 < float(scraped["prophet_mx_bytes_total"]) <= float(re.search(r"released (\d+)", worker.output).group(1))
        assert float(scraped["prophet_mx_iteration_seconds"]) >= 0.02
        assert float(scraped["prophet_mx_link_rate_bytes_per_second"]) > 0
    ranks = {
        re.search(r'scraped prophet_mx_units_total\{policy="prophet",rank="(\d)"', worker.output).group(1) for worker in result.workers
    }
    assert ranks == {"0", "1"}
    for rank in ranks:
        scalars = scalars_in(tmp_path / rank)
        assert sorted(step for tag, step, _ in scalars if tag == "prophet_mx/iteration_seconds") == [11, 21, 31, 41]
        sent = [value for tag, _, value in scalars if tag == "prophet_mx/bytes"]
        assert sent == pytest.approx([5 * 80000] * 4, rel=0.01)
