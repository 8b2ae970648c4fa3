"""Files that MXNet writes: whether they are whole. MXNet does not check that its last bytes have reached the disk, and says nothing if that
is full, so a file is looked at before it counts. Its values are not read: that takes as long for a large model as for a small one.
"""

import json
import os
import struct
from contextlib import contextmanager
from math import prod

import mxnet as mx

LIST = 0x112  # the first word of a file of arrays
ARRAY = (0xF993FAC9, 0xF993FACA)  # the first word of an array, without and with NumPy's shapes
DENSE = 0
ITEM = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 12: 2}  # bytes of an element by MXNet's number of its type


class _IncompleteError(Exception):
    pass


class _OtherFormatError(Exception):
    pass


class _Words:
    """Reads numbers from a file, and passes over what is between them."""

    def __init__(self, file):
        self._file = file
        self.left = os.fstat(file.fileno()).st_size

    def take(self, layout):
        layout = "<" + layout
        size = struct.calcsize(layout)
        self._need(size)
        return struct.unpack(layout, self._file.read(size))

    def skip(self, size):
        self._need(size)
        self._file.seek(size, os.SEEK_CUR)

    def _need(self, size):
        if size > self.left:
            raise _IncompleteError
        self.left -= size


def _check_arrays(words):
    """Go through a file as mx.nd.save writes it: its head, each array, and their names."""
    first, _, count = words.take("QQQ")
    if first != LIST:
        raise _OtherFormatError
    for _ in range(count):
        word, storage, dimensions = words.take("IiI")
        if word not in ARRAY or storage != DENSE or dimensions > 32:
            raise _OtherFormatError
        if dimensions:
            *shape, _, _, type_ = words.take(f"{dimensions}qiii")
            if type_ not in ITEM or min(shape) < 0:
                raise _OtherFormatError
            words.skip(prod(shape) * ITEM[type_])
    (count,) = words.take("Q")
    for _ in range(count):
        words.skip(*words.take("Q"))


def damage(path):
    """What is wrong with a file of a checkpoint, in words; None if nothing is. Its ending says what is in it: ``.params`` (arrays),
    ``.states`` (a pickle), ``.json``."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            words = _Words(file)
            size = words.left
            if path.endswith(".params"):
                _check_arrays(words)
            elif path.endswith(".states"):
                words.skip(max(1, size) - 1)
                if words.take("c") != (b".",):  # the end of every pickle
                    raise _IncompleteError
            elif path.endswith(".json"):
                json.load(file)
    except FileNotFoundError:
        return f"{name} does not exist"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    except (_IncompleteError, ValueError):
        return f"{name} is incomplete: {size} bytes"
    except _OtherFormatError:
        return _loaded(path)
    return None


def _loaded(path):
    """As :func:`damage`, for arrays that MXNet itself has to read, such as sparse ones."""
    try:
        mx.nd.load(path)
    except (mx.base.MXNetError, ValueError):
        return f"{os.path.basename(path)} is damaged"
    return None


def on_disk(path, size=None):
    """Wait until a file's bytes are on the disk. OSError if they are not all there, by its format or its ``size`` in bytes."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        found = os.fstat(file.fileno()).st_size
    wrong = damage(path) or (size is not None and found != size and f"{os.path.basename(path)} is incomplete: {found} of {size} bytes")
    if wrong:
        raise OSError(wrong)


@contextmanager
def writing(what, error):
    """An ``error`` in one line if what is written to ``what`` in the block does not get onto the disk."""
    try:
        yield
    except (OSError, mx.base.MXNetError) as reason:
        words = getattr(reason, "strerror", None) or str(reason).strip().splitlines()[-1]
        raise error(f"{what} cannot be written ({words}); is the disk full?") from None
