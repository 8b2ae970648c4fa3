"""Cells, methods, the emulated job's plan and the report: what needs neither root nor a cluster."""

import pytest

from benchmarks.comparison.cells import Cell
from benchmarks.comparison.methods import METHODS, STANDARD
from benchmarks.comparison.rows import Attempt, MeasuredJob, iteration_times, make_row
from benchmarks.run import main
from benchmarks.testbed.emulated import Task, backward_steps, forward_groups, numbered, stamp, total
from benchmarks.testbed.goodput import Goodput
from prophet_mx.errors import ConfigError
from prophet_mx.planning.bound import lower_bound, rho, worker_rate
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile

GRADIENTS = [Gradient("a", 400, 0.0, 0.0), Gradient("b", 4000, 0.1, 0.3), Gradient("c", 800, 0.2, 0.4)]
PROFILE = GradientProfile("three", GRADIENTS, ((2,), (0, 1)))


def test_a_cell_is_parsed_and_written_back():
    cell = Cell.parse("resnet50_v1, rho=2, workers=4,servers=2,rate=500Mbit")
    assert cell == Cell("resnet50_v1", workers=4, servers=2, rate=62.5e6, rho=2.0)
    assert Cell.parse(str(cell)) == cell
    cell = Cell.parse("vgg16,rho=1,update=servers,keys=names")
    assert (cell.update, cell.keys) == ("servers", "names") and Cell.parse(str(cell)) == cell
    cell = Cell.parse("vgg16,rho=1,slowed=24,ports=62KB,hosts=hold,congestion=bbr")
    assert (cell.slowed, cell.ports, cell.hosts, cell.congestion) == (24, 62_000, "hold", "bbr") and Cell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    "text",
    [
        "x,rho=0",
        "x,rho=two",
        "x,speed=1",
        "x,rate=1Gbyte",
        "x,rho=1,scale=1,compute=1",
        "x,workers",
        "x,keys=a",
        "x,hosts=queue",
        "x,ports=0",
    ],
)
def test_bad_cells_are_refused(text):
    with pytest.raises(ConfigError):
        Cell.parse(text)


@pytest.mark.parametrize(
    "settings, compute, scale",
    [("rho=2", 1.0, None), ("rho=1,compute=0.5", 0.5, None), ("rho=1,scale=0.5", None, 0.5), ("compute=2,scale=0.25", 2.0, 0.25)],
)
def test_a_cell_scales_its_profile(settings, compute, scale):
    cell = Cell.parse("resnet50_v1,workers=4,servers=2,rate=1Gbit," + settings)
    load = cell.load(118e6)
    assert load.rate == worker_rate(118e6, 4, 2) == 59e6
    if cell.rho is not None:
        assert load.rho == pytest.approx(cell.rho, rel=1e-3) and rho(load.profile, 59e6) == load.rho
    if compute is not None:
        assert load.profile.compute_seconds == pytest.approx(compute)
    if scale is not None:
        assert load.profile.total_bytes == pytest.approx(scale * 102.2e6, rel=0.01)
    assert load.bound == lower_bound(load.profile, 59e6) >= load.profile.compute_seconds


def test_a_cell_that_is_slowed_down_keeps_its_shape():
    cell, slowed = (Cell.parse(f"resnet50_v1,workers=8,servers=8,rate=1.2Gbit,rho=1,compute=0.15{more}") for more in ("", ",slowed=24"))
    assert cell.link_rate == cell.rate == 24 * slowed.link_rate
    usual, slow = cell.load(140e6), slowed.load(140e6 / 24)
    assert slow.profile.compute_seconds == pytest.approx(24 * usual.profile.compute_seconds)
    assert slow.profile.total_bytes == pytest.approx(usual.profile.total_bytes, rel=1e-4) and slow.bound == pytest.approx(24 * usual.bound)


def test_arrays_split_over_servers_at_the_size_scaled_with_them():
    bound = "MXNET_KVSTORE_BIGARRAY_BOUND"
    assert Cell.parse("resnet50_v1,servers=2,scale=0.25").load(1e8).env[bound] == "250000"
    assert bound not in Cell.parse("resnet50_v1,servers=1,scale=0.25").load(1e8).env


def test_the_emulated_passes_have_the_profiles_times_and_arrays():
    assert forward_groups(PROFILE) == [([0, 1], 0.1), ([2], 0.2)]
    steps = backward_steps(PROFILE)
    assert [indices for indices, _ in steps] == [[2], [0, 1]]
    assert [seconds for _, seconds in steps] == pytest.approx([0.4, 0.3])


def test_trainer_numbers_parameters_by_their_sorted_names():
    names = ["conv2", "conv10", "bias"]
    profile = GradientProfile("names", [Gradient(name, 400, 0.1, 0.3) for name in names], ((0, 1, 2),))
    assert list(numbered(profile).items()) == [(2, 0), (1, 1), (0, 2)]


def test_stamps_differ_and_add_up():
    assert total(3, index=5, iteration=7) == sum(stamp(rank, 5, 7) for rank in range(3))
    assert total(2, 5, 7) != total(2, 5, 8) and total(2, 5, 7) != total(2, 6, 7)
    assert all(float(total(100, i, i)).is_integer() and total(100, i, i) < 2**24 for i in range(200))


@pytest.mark.parametrize("sgd", [False, True])
def test_wrong_values_are_counted_after_a_run(sgd):
    mx = pytest.importorskip("mxnet")
    from benchmarks.testbed.accelerator import Accelerator

    from benchmarks.testbed.emulated import Model, left
    from prophet_mx.mxnet.api import bind

    bind()
    with Accelerator() as accelerator:
        model = Model(PROFILE, accelerator, rank=0, left=left(2, len(PROFILE.gradients), 4, sgd))
        weights = [weight.reshape((-1,)) for weight in model.weights]
        for index, weight in enumerate(weights):
            weight[::1024] = model.left[3][index]
        assert model.wrong_at_end() == 0
        weights[1][1] = 5.0  # an element that carries no stamp
        weights[2][0] = 5.0
        assert model.wrong_at_end() == 2
        model.left.append(model.left[-1])
        model.forward(iteration=4)  # checks the stamps of iteration 3
        model.output.wait_to_read()
        assert accelerator.wrong == 1
        mx.nd.waitall()


def test_a_task_survives_its_file(tmp_path):
    task = Task("profile.json", 5, wrap=True, slowdown=(1.0, 1.3))
    task.save(str(tmp_path / "task"))
    loaded = Task.load(str(tmp_path / "task"))
    assert loaded.iterations == 5 and loaded.wrap and list(loaded.slowdown) == [1.0, 1.3]


def result(starts, wrong=0):
    return {
        "starts": starts,
        "call_seconds": [0.001] * len(starts),
        "cpu_seconds": 1.0,
        "wall_seconds": 10.0,
        "wrong": wrong,
        "server_cpu_seconds": 2.0,
        "memory_bytes": 3_000_000,
        "losses": {"ports": 7, "hosts": 1, "sent": 200_000, "resent": 1_000},
    }


def test_a_row_drops_the_warm_up_and_takes_the_median():
    assert iteration_times(result([0, 5, 6, 8]), warmup=1) == [1, 2]
    load = Cell.parse("resnet50_v1,rho=1").load(118e6)
    job = MeasuredJob([result([0, 9, 10, 12]), result([0, 9, 10, 13], wrong=3)])
    attempt = Attempt("pushpull", 2, job, Goodput(118e6, 119e6, 0.002), "")
    row = make_row("cell", "", load, 125e6, attempt, warmup=1)
    assert (row.round, row.time_ms, row.p10_ms, row.p90_ms, row.iterations, row.wrong) == (2, 1500, 1000, 3000, 4, 3)
    assert (row.cpu_percent, row.calls_ms, row.server_cpu_percent, row.memory_mb) == (10, 1, 20, 3)
    assert (row.port_drops, row.host_drops, row.resent_percent) == (7, 1, 0.5)
    assert row.time_over_bound == pytest.approx(1.5 / load.bound, abs=1e-3) and row.goodput_share == 0.944
    assert row.model_megabytes == pytest.approx(102.2, abs=0.1) and row.megabytes < 60


def test_a_bound_follows_the_links_and_the_slowest_worker():
    load = Cell.parse("resnet50_v1,rho=2,compute=0.15,slow=1.3").load(118e6)
    faster = load.at(load.rate * 1.1)
    assert faster.bound < load.bound and faster.profile is load.profile
    alike = Cell.parse("resnet50_v1,rho=2,compute=0.15").load(118e6)
    assert load.bound >= alike.bound == lower_bound(alike.profile, 59e6)
    slowest = Cell.parse("resnet50_v1,rho=2,compute=0.15,slow=3").load(118e6)
    compute = slowest.profile.compute_seconds
    assert slowest.bound == lower_bound(slowest.profile.scaled(compute=3 * compute), 118e6) > 3 * compute  # its own link


def test_the_standard_methods_are_those_of_the_comparison():
    assert set(STANDARD) <= set(METHODS)
    assert METHODS["p3"].env == {"DMLC_PS_VAN_TYPE": "p3"} and not METHODS["p3"].wrap
    assert METHODS["prophet"].env == {"PROPHET_POLICY": "prophet"} and METHODS["prophet"].wrap
    assert not METHODS["push+pull"].pushpull


def test_the_command_line_refuses_what_it_does_not_know(capsys):
    with pytest.raises(SystemExit):
        main(["--cell", "resnet50_v1", "--methods", "magic"])
    assert "no method 'magic'" in capsys.readouterr().err
    assert main(["--cell", "resnet50_v1,speed=3"]) == 1
    assert "speed=3" in capsys.readouterr().err
