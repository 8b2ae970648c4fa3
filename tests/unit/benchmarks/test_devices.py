"""Cells on emulated GPUs, and what their tables say."""

import argparse

import pytest

from benchmarks.comparison.methods import parse
from benchmarks.comparison.rows import cores_percent
from benchmarks.comparison.summaries import summarise
from benchmarks.comparison.trainings import table
from benchmarks.comparison.tuning import search
from benchmarks.devices import UNITS, DeviceCell, of_device, script
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
        ("side=big", "side=big is not allowed; allowed: a whole number from 1"),
        ("rho=1", "compute and sizes are the network's"),
        ("speed=1", "'speed=1' is not allowed"),
    ],
)
def test_a_cell_that_is_not_allowed_is_named(setting, said):
    with pytest.raises(ConfigError, match="vgg16") as refused:
        DeviceCell.parse(f"vgg16,{setting}")
    assert said in str(refused.value)


def test_images_have_the_networks_own_side_unless_the_cell_says_another():
    assert [DeviceCell.parse(name).side for name in ("vgg16", "inceptionv3", "vgg16,side=112")] == [224, 299, 112]
    smaller = DeviceCell.parse("vgg16,side=112")
    assert DeviceCell.parse(str(smaller)) == smaller and "side=112" in str(smaller) and "side" not in str(DeviceCell.parse("inceptionv3"))


@pytest.mark.parametrize("method, place", [("pushpull", "servers"), ("prophet", "servers"), ("p3:A=1", "workers"), (None, "workers")])
def test_servers_update_the_weights_except_with_p3(method, place):
    options = argparse.Namespace(warmup=1, iterations=2)
    for name, keys in (("gluon", "names"), ("module", ""), ("transformer", "")):
        words = script(DeviceCell.parse(f"bert_6_384,batch=8,script={name}"), parse(method) if method else None, options)
        assert words[words.index("--update-on") + 1] == place
        assert ("--policy" in words) == (method in ("pushpull", "p3:A=1"))
        assert words[words.index("--num-examples") + 1] == str(8 * 5 * (1 if method is None else 2))
        assert (words[words.index("--keys") + 1] if keys else "") == keys


@pytest.mark.parametrize("unit, number", [(250_000, 8), (1_000_000, 4), (2_000_000, 2)])
def test_a_search_finds_the_unit_and_then_the_credit(unit, number):
    tried = []

    def try_out(name):
        tried.append(name)
        found = dict(setting.split("=") for setting in name.split(":")[1:])
        size = int(found["PROPHET_UNIT"])
        return 100 + abs(size - unit) / 1e6 + abs(int(found["PROPHET_LEAD"]) / size - number) / 100

    assert search("credit", UNITS, try_out) == f"credit:PROPHET_UNIT={unit}:PROPHET_LEAD={unit * number}"
    assert len(tried) == len(set(tried)) == 6


def test_a_job_says_what_its_gradients_take_if_one_has_told():
    row = job("prophet", 500, **VALUES)
    cell = DeviceCell.parse("vgg16,batch=8")
    found = of_device(row, 0.4, 100_000_000, 125e6, cell)
    assert (found.rho, found.megabytes, found.images) == (2.0, 100.0, 16)
    assert of_device(row, 0.4, 0, 125e6, cell).megabytes == row.megabytes


@pytest.mark.parametrize("share, warns", [(79.0, False), (81.0, True)])
def test_a_cell_whose_processes_need_most_of_the_cores_says_so(share, warns):
    rows = [job(name, 500, cell=CELL, **VALUES, cores_percent=share)._replace(kind="gpu") for name in ("pushpull", "prophet")]
    [cell] = summarise(rows, ())
    text = table(cell, rows[0])
    assert f"took {share:.0f}% to {share:.0f}% of the cores" in text and ("over 80%" in text) == warns
    assert "no arithmetic" in text and "**others**" not in text
    assert "| of all cores |" in text and f"| {share:.0f}% |" in text


def test_the_share_is_that_of_all_workers_and_servers(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert cores_percent(job("prophet", 500, **VALUES), 2) == 90.0
