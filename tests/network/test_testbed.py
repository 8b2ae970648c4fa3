"""The testbed: what it gives, a short job on it, and that it leaves nothing behind, however it ends."""

import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.testbed import Testbed, TestbedError, measure, network
from benchmarks.testbed.emulated import Task
from benchmarks.testbed.job import run_job
from benchmarks.testbed.network import Shape
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from support.paths import ROOT

pytestmark = pytest.mark.alone

CELL = [
    "-m",
    "benchmarks.run",
    "--cell",
    "{profile},scale=1,compute=0.2,workers=2,servers=1,rate=200Mbit",
    "--methods",
    "pushpull",
    "--repeats",
    "1",
    "--warmup",
    "2",
]


def small_profile(path=None):
    sizes = [4_000, 100_000, 40_000, 400_000, 1_000_000, 20_000]
    gradients = [Gradient(f"p{i}", size, 0.01, 0.02) for i, size in enumerate(sizes)]
    profile = GradientProfile("small", gradients, ((4, 5), (2, 3), (0, 1)))
    if path is not None:
        profile.save(str(path))
    return profile


def namespaces_of(pid):
    listed = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{network.PREFIX}-{pid}-")]


def host_links():
    listed = subprocess.run(["ip", "-o", "link"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return sorted(line.split(":")[1] for line in listed.splitlines())


def alive(pid):
    return network._start_time(pid) is not None


def start_cell(tmp_path, *more):
    """A comparison as a process of its own, returned once its workers run, with the pids in its namespaces."""
    small_profile(tmp_path / "small.json")
    command = [sys.executable] + [part.format(profile=tmp_path / "small.json") for part in CELL] + list(more)
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 90
    inside = []
    while len(inside) < 4:  # scheduler, server, two workers
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.1)
        inside = [pid for name in namespaces_of(process.pid) for pid in network._pids(name)]
    return process, inside


def test_links_give_their_rate_both_ways_and_queue_little():
    before = host_links()
    with Testbed(workers=2, servers=1, rate=25e6) as bed:
        assert len(namespaces_of(os.getpid())) == 4  # one per node, one for the bridge
        assert host_links() == before
        goodput = measure(bed, seconds=1.5)
    assert 0.7 * 25e6 < goodput.up <= 25e6 and 0.7 * 25e6 < goodput.down <= 25e6
    assert namespaces_of(os.getpid()) == [] and host_links() == before


def test_with_more_servers_than_workers_the_workers_links_are_the_limit():
    with Testbed(workers=1, servers=2, rate=25e6) as bed:
        goodput = measure(bed, seconds=1)
    assert 0.7 * 25e6 < goodput.link <= 25e6


@pytest.mark.parametrize("held", [False, True])
def test_what_ports_and_hosts_drop_and_tcp_sends_again_is_told(held):
    """Two workers fill a port that holds ten packets. Hosts whose queues are as short drop as well, unless they hold back."""
    port = replace(Shape.for_rate(2.5e6), limit=15_140)
    with Testbed(2, 1, 2.5e6, port, hosts=port.holding() if held else None) as bed:
        before = bed.losses()
        measure(bed, seconds=0.5, settle=0.5)
        lost = bed.losses().since(before)
    assert lost.ports > 0 and (lost.hosts > 0) != held
    assert 0 < lost.resent < lost.sent and lost.sent > 1e6


def test_a_short_cell_reports_checked_values_and_leaves_nothing(tmp_path):
    before = host_links()
    process, inside = start_cell(tmp_path, "--iterations", "5", "--name", "short", "--results", str(tmp_path))
    code = process.wait(timeout=120)
    log = (tmp_path / "log").read_text()
    assert code == 0, log
    with open(tmp_path / "short.csv", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if not row["aside"]]  # on a busy machine a job may be set aside
    assert row["method"] == "pushpull" and row["wrong"] == "0" and int(row["iterations"]) == 10
    assert float(row["time_ms"]) >= 200  # it computes for 0.2 s
    assert 0 < float(row["server_cpu_percent"]) < 200 and 20 < float(row["memory_mb"]) < 2000
    assert float(row["time_over_bound"]) == pytest.approx(float(row["time_ms"]) / float(row["bound_ms"]), abs=0.01)
    assert "| pushpull |" in (tmp_path / "short.md").read_text() and "benchmarks.run" in (tmp_path / "short.md").read_text()
    assert namespaces_of(process.pid) == [] and host_links() == before
    assert not [pid for pid in inside if alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_cell_leaves_nothing(tmp_path, number):
    before = host_links()
    process, inside = start_cell(tmp_path, "--iterations", "1000")
    process.send_signal(number)
    code = process.wait(timeout=60)
    assert code == 128 + number, (tmp_path / "log").read_text()
    assert namespaces_of(process.pid) == [] and host_links() == before
    assert not [pid for pid in inside if alive(pid)]


def test_what_a_killed_testbed_left_is_removed_by_the_next_start(tmp_path):
    process, inside = start_cell(tmp_path, "--iterations", "1000")
    process.kill()
    process.wait(timeout=60)
    assert namespaces_of(process.pid)  # nobody could clean up
    with Testbed(workers=1, servers=1, rate=25e6):
        assert namespaces_of(process.pid) == []
        assert not [pid for pid in inside if alive(pid)]
        assert len(namespaces_of(os.getpid())) == 3  # a living testbed is left alone by another start
        assert subprocess.run([sys.executable, "-m", "benchmarks.testbed", "clean"], cwd=ROOT).returncode == 0
        assert len(namespaces_of(os.getpid())) == 3
    assert namespaces_of(os.getpid()) == []


def test_a_failing_worker_ends_the_job_with_its_output():
    with Testbed(workers=2, servers=1, rate=25e6) as bed, pytest.raises(TestbedError, match="PROPHET_NONSENSE"):
        run_job(bed, small_profile(), Task("", 2, wrap=True), {"PROPHET_NONSENSE": "1"}, timeout=90)


def test_the_network_is_removed_when_building_it_fails(monkeypatch):
    real = network._run

    def fail_late(*command):
        if command[0] == "tc":
            raise TestbedError("tc failed")
        real(*command)

    monkeypatch.setattr(network, "_run", fail_late)
    with pytest.raises(TestbedError, match="tc failed"), Testbed(workers=1, servers=1, rate=25e6):
        pass
    assert namespaces_of(os.getpid()) == []
