"""Which optimizers are known to be exact on slices, and to depend on the order of updates."""

import mxnet as mx
import pytest

from prophet_mx.mxnet.slice_optimizer import order_matters, slicing_allowed


@pytest.mark.parametrize("name", ["nadam", "lars", "lbsgd", "sgld"])
def test_what_depends_on_the_order_of_updates_is_known_and_what_is_derived_from_it_too(name):
    made = mx.optimizer.create(name)
    derived = type("Own", (type(made),), {})()
    assert order_matters(made) and order_matters(derived) and not slicing_allowed(made) and not slicing_allowed(derived)
