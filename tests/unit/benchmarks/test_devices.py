"""Cells on emulated GPUs, and what their tables say."""

import pytest

from benchmarks.comparison.summaries import summarise
from benchmarks.comparison.trainings import table
from benchmarks.devices import DeviceCell, cores_percent
from prophet_mx.errors import ConfigError
from support.results import job

CELL = "resnet50_v1,batch=64,device=m60,script=gluon,workers=2,servers=1,rate=1Gbit"
VALUES = {"bound_ms": None, "images": 128, "compute_ms": 400.0, "cpu_percent": 70.0, "server_cpu_percent": 40.0}


def test_a_cell_is_read_and_written():
    cell = DeviceCell.parse("resnet50_v1, batch=64, device=m60, rate=1Gbit, script=gluon")
    assert (cell.batch, cell.device, cell.script, cell.cluster.rate) == (64, "m60", "gluon", 125e6)
    assert DeviceCell.parse(str(cell)) == cell and str(cell) == CELL


@pytest.mark.parametrize(
    "setting, said",
    [
        ("device=k80", "device=k80 is not allowed; allowed: m60, v100, a100"),
        ("script=keras", "allowed: module, gluon"),
        ("batch=0", "batch=0 is not allowed; allowed: a whole number from 1"),
        ("rho=1", "compute and sizes are the network's"),
        ("speed=1", "'speed=1' is not allowed"),
    ],
)
def test_a_cell_that_is_not_allowed_is_named(setting, said):
    with pytest.raises(ConfigError, match="vgg16") as refused:
        DeviceCell.parse(f"vgg16,{setting}")
    assert said in str(refused.value)


@pytest.mark.parametrize("share, warns", [(79.0, False), (81.0, True)])
def test_a_cell_whose_processes_need_most_of_the_cores_says_so(share, warns):
    rows = [job(name, 500, cell=CELL, **VALUES, cores_percent=share)._replace(kind="gpu") for name in ("pushpull", "prophet")]
    [cell] = summarise(rows, ())
    text = table(cell, rows[0])
    assert f"took {share:.0f}% to {share:.0f}% of the cores" in text and ("over 80%" in text) == warns
    assert "no arithmetic" in text and "**others**" not in text


def test_the_share_is_that_of_all_workers_and_servers(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert cores_percent(job("prophet", 500, **VALUES), 2) == 90.0
