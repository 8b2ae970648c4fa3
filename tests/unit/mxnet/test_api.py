"""MXNet's C functions: of which versions and libraries they are used."""

import types

import mxnet as mx
import pytest

from prophet_mx import UnsupportedMXNetError
from prophet_mx.mxnet import api


@pytest.mark.parametrize("version", ["1.8.0", "1.10.0", "1.90", "2.0.0b1"])
def test_only_the_series_whose_engine_is_known_is_used(version, monkeypatch):
    monkeypatch.setattr(api, "_bound", False)
    monkeypatch.setattr(mx, "__version__", version)
    with pytest.raises(UnsupportedMXNetError, match=f"MXNet {version} is installed"):
        api.bind()


def test_a_library_that_lacks_a_function_is_refused(monkeypatch):
    monkeypatch.setattr(api, "_bound", False)
    monkeypatch.setattr(mx.base, "_LIB", types.SimpleNamespace(_name="/lib/libmxnet.so"))
    with pytest.raises(UnsupportedMXNetError, match="the MXNet library at /lib/libmxnet.so lacks a function: .*MX"):
        api.bind()
