"""Errors of a store that are also instances of what MXNet raises for the same call: a script's ``except mx.MXNetError`` keeps working.

They are :class:`~prophet_mx.KVStoreError`\\ s and stand apart from ``prophet_mx/errors.py``, which is imported where MXNet must not be.
"""

import pickle

from mxnet.base import MXNetError

from ..errors import KVStoreError


class KVStoreMXNetError(KVStoreError, MXNetError):
    """What MXNet's library refuses: an unknown key, one that is already initialised, a wrong shape, size or parameter."""


class KVStoreTypeError(KVStoreError, AssertionError, TypeError):
    """An argument of a wrong type, or lists that do not belong together. MXNet asserts or raises a TypeError, depending on the value."""


class KVStoreOverflowError(KVStoreError, OverflowError):
    """A number of more than 32 bits."""


class KVStoreAttributeError(KVStoreError, AttributeError):
    """An object that is not an optimizer."""


class KVStorePicklingError(KVStoreError, pickle.PicklingError, AttributeError, TypeError):
    """An optimizer that cannot be pickled. Pickle raises one of these, depending on what cannot be pickled."""
