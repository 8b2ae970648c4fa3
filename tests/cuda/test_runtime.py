"""The emulated runtime by itself: nothing that it does not know succeeds, and what a real device refuses, it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster import package_env

CONTRACTS = Path(__file__).parent / "scripts" / "contracts.py"

ERRORS = """
import mxnet as mx

def refused(call, word):
    try:
        call()
        mx.nd.waitall()
    except mx.MXNetError as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word} was not refused")

matrix = mx.nd.ones((4, 4), ctx=mx.gpu(0))
refused(lambda: mx.nd.linalg.potrf(matrix), "CUSOLVER_STATUS_SUCCESS")  # of this library MXNet asks no text
refused(lambda: mx.nd.erf(matrix), "erf, 1>, float*, float*>(int, float*, float*) is not emulated")
refused(lambda: mx.nd.ones((1 << 28,), ctx=mx.gpu(1)), "memory is full")
assert (matrix.asnumpy() == 1).all()
assert mx.context.num_gpus() == 2
"""

TOUCH = """
import ctypes
import mxnet as mx

matrix = mx.nd.ones((4, 4), ctx=mx.gpu(0))
pointer = ctypes.c_void_p()
assert mx.base._LIB.MXNDArrayGetData(matrix.handle, ctypes.byref(pointer)) == 0
print("read", flush=True)
ctypes.string_at(pointer, 4)
"""


def run(code, env):
    return subprocess.run([sys.executable, "-c", code], env=package_env(env), capture_output=True, text=True, timeout=60)


@pytest.mark.alone
@pytest.mark.parametrize("work", ["late", "early"])
def test_streams_events_and_copies_keep_what_cuda_promises(emulated, work):
    slow = {"EMULATED_CUDA_COPY_TO": "655360", "EMULATED_CUDA_COPY_FROM": "655360", "EMULATED_CUDA_WORK": work}
    done = subprocess.run(
        [sys.executable, str(CONTRACTS)], env=package_env({**emulated, **slow}), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_is_not_emulated_is_an_error_that_names_it(emulated):
    done = run(ERRORS, {**emulated, "EMULATED_CUDA_MEMORY": "500e6"})
    assert done.returncode == 0, done.stderr
    assert "emulated CUDA: cusolverDnSpotrf_bufferSize is not emulated" in done.stderr


def test_the_host_cannot_read_device_memory(emulated):
    done = run(TOUCH, emulated)
    assert done.stdout == "read\n" and "Segmentation fault" in done.stderr, (done.returncode, done.stderr)


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("DEVICE", "k80", "v100, m60, a100"),
        ("COPY_TO", "fast", "a number above 0"),
        ("LAUNCH", "-1", "a number above 0"),
        ("COUNT", "two", "a whole number from 0 to 16"),
        ("ARITHMETIC", "1", "no, yes"),
        ("FAULT", "copy", "copy:N, wait:N or swap:N"),
        ("WORK", "late early", "late, early"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(emulated, name, value, allowed):
    done = run(
        "import ctypes; ctypes.CDLL('libcudart.so.11.0').cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))",
        {**emulated, f"EMULATED_CUDA_{name}": value},
    )
    assert done.returncode == 2, done.stderr
    assert f"EMULATED_CUDA_{name}={value} is not allowed; allowed: {allowed}" in done.stderr
