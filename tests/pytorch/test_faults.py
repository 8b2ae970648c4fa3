"""A rank that is killed, that raises, or that stops: the others end with an error of the package's, in the time that was set."""

import logging
import os
import re
import signal
import sys
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prophet_mx import ProphetError
from prophet_mx.torch import ScheduledOptimizer
from support.lines import Lines
from support.ranks import Ranks, on_ranks, run_script
from support.training import backward, batches, step

ABORT = 3  # seconds: PROPHET_STALL_ABORT here
LATE = 10  # seconds more that a busy machine may take

WIDTH = 24


class PlannedError(Exception):
    """What backward raises below."""


def kill(what, told):
    """``told``: a path at which there is a file once the other rank has seen it."""
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raises":
        raise PlannedError
    if what == "stops":
        while not told.exists():
            time.sleep(0.02)
        os._exit(1)


def until_the_fault(what, iteration, told, clip=False):
    """Train, and clip gradients if ``clip``; on rank 1, ``what`` happens in the middle of backward of this iteration. Returns on the others
    how long their last step took, and the error that it ended with."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=2, stall_abort=ABORT, clipping="overlap")
    for place, batch in enumerate(batches(50, 4, WIDTH)):
        if place == iteration and dist.get_rank() == 1:
            model[1].register_full_backward_hook(lambda *_: kill(what, told))
        began = time.monotonic()
        try:
            backward(model, optimizer, batch)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        except ProphetError as error:
            seconds = time.monotonic() - began
            told.touch()
            with suppress(ProphetError):
                optimizer.close()  # its threads end all the same
            return place, seconds, f"{type(error).__name__}: {error}"
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("iteration, clip", [(1, False), (8, False), (8, True)], ids=["in warm-up", "by the plan", "in halves"])
@pytest.mark.parametrize("what", ["killed", "raises", "stops"])
def test_the_others_end_with_an_error(what, iteration, clip, tmp_path):
    ranks, arguments = Ranks(2), {"what": what, "iteration": iteration, "told": tmp_path / "told", "clip": clip}
    try:
        answers, logs = ranks.attempt(__file__, "until_the_fault", arguments, timeout=ABORT + 2 * LATE, after=ABORT + LATE, together=False)
    finally:
        ranks.close()
    assert answers.get(0, (False,))[0], logs
    place, seconds, error = answers[0][1]
    assert iteration <= place <= iteration + 1, logs
    assert seconds < ABORT + LATE, logs
    assert error.startswith("CollectiveError: rank 0: "), logs


SCRIPT = """
    import logging, os, sys
    import torch, torch.distributed as dist
    from torch import nn
    from prophet_mx.torch import ScheduledOptimizer

    logging.basicConfig()
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20))
    optimizer = ScheduledOptimizer(model, torch.optim.Adam(model.parameters()), stall_abort=20)
    for iteration in range(12):
        if iteration == 8 and dist.get_rank() == 1 and "FAULT" in os.environ:
            def fault(*_):
                raise RuntimeError("as planned")
            model[1].register_full_backward_hook(fault)
        optimizer.zero_grad()
        model(torch.ones(2, 20)).square().mean().backward()
        optimizer.step()
    print("weights", [p.detach().double().sum().item() for p in model.parameters()] if "LOOK" in os.environ else "", flush=True)
    {end}
    """


# What PyTorch 2.13 says at the end of any script, with Python 3.13.
OF_PYTORCH = r"Exception ignored in: <finalize .*\nTraceback .*\n(?:  .*\n)*  File .*/torch/library\.py.*\n(?:    .*\n)*TypeError: .*\n"


def ended(script):
    """The exit codes of a script's ranks, and what they say. With Python 3.13 PyTorch aborts at times as a script ends, whether or not
    there is a ScheduledOptimizer: then it runs again."""
    for _ in range(5):
        results = [(code, re.sub(OF_PYTORCH, "", output)) for code, output in run_script(script)]
        if sys.version_info < (3, 13) or all(code != -signal.SIGABRT for code, _ in results):
            break
    return results


@pytest.mark.parametrize("end", ["", "dist.destroy_process_group()", "sys.exit(7)", "optimizer.close(); dist.destroy_process_group()"])
def test_a_script_ends_by_itself(end):
    """Whether or not it closes anything, after updates that nobody has waited for."""
    for code, output in ended(SCRIPT.format(end=end)):
        assert code == (7 if "exit" in end else 0), output
        assert "weights" in output and "Traceback" not in output and "terminate called" not in output, output


def test_an_exception_on_one_rank_ends_the_job():
    """Well before the time after which a rank that does not answer is given up: it is gone."""
    began = time.monotonic()
    (first, told), (second, other) = run_script(SCRIPT.format(end=""), env={"FAULT": "1"})
    assert second == 1 and "RuntimeError: as planned" in other, other
    assert first == 1 and re.search(r"^(\[rank0\]: )?prophet_mx\.errors\.CollectiveError: rank 0: ", told, re.MULTILINE), told
    assert time.monotonic() - began < 20 + LATE


@on_ranks(2)
def test_waiting_within_pytorch_is_told_as_well():
    """The buffers of rank 0 come in its own time: rank 1 says for what it waits, and later that it goes on."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    with Lines(logging.WARNING) as lines:
        optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), stall_warn=1)
        for place, batch in enumerate(batches(2, 4, WIDTH)):
            if place and dist.get_rank() == 0:
                time.sleep(3)
            step(model, optimizer, batch)
        optimizer.close()
    told = [line for line in lines.messages if "buffers of rank 0" in line or "continues" in line]
    if dist.get_rank() == 0:
        assert told == []
    else:
        assert "s for the buffers of rank 0: another rank is slow" in told[0] and "rank 1 continues after a wait of 3 s" in told[-1], told


def test_waiting_for_a_slow_rank_is_told():
    """Who is waited for, in the log of the rank that waits; when the other comes back, training goes on."""
    slow = SCRIPT.format(end="").replace(
        "optimizer.zero_grad()", "optimizer.zero_grad(); import time; time.sleep(3 if iteration == 8 and dist.get_rank() else 0)"
    )
    (first, told), (second, other) = run_script(slow, env={"PROPHET_STALL_WARN": "1", "LOOK": "1"})
    assert (first, second) == (0, 0), told + other
    assert re.search(r"ERROR:prophet_mx:rank 0 has waited \d+ s for .* another rank is slow", told), told
    assert told.splitlines()[-1] == other.splitlines()[-1], told + other
