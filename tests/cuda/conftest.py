"""What the tests of this folder share: MXNet's CUDA build on the emulated runtime, in which kernels are computed."""

from typing import Dict

import pytest

from benchmarks.testbed.cuda import environment


@pytest.fixture(scope="session")
def emulated() -> Dict[str, str]:
    """The environment of a process. Fused operators are compiled as a program runs, and are not computed."""
    return {**environment(arithmetic="yes"), "MXNET_USE_FUSION": "0", "MXNET_ENABLE_GPU_P2P": "0"}
