"""Errors of wrong arguments that are also MXNet's."""

import copy
import pickle

import prophet_mx


def test_errors_that_are_also_mxnet_s_can_be_copied_and_pickled():
    from prophet_mx.mxnet import arguments

    kinds = [kind for kind in vars(arguments).values() if isinstance(kind, type) and kind.__module__ == arguments.__name__]
    assert len(kinds) == 5
    for kind in kinds:
        error = kind("key 'a' is already initialised")
        for made in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert type(made) is kind and isinstance(made, prophet_mx.KVStoreError) and str(made) == str(error)
