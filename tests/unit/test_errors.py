"""The hierarchy of errors."""

import prophet_mx
from prophet_mx import ProphetError


def test_every_error_is_in_the_hierarchy():
    for name in prophet_mx.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(prophet_mx, name), ProphetError)
