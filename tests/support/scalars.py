"""Reads what was written for TensorBoard."""

import struct


def scalars_in(folder):
    """(tag, step, value) of all scalars in a folder's event files: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            [length] = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            at += 16 + length
    return found
