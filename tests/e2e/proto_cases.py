"""Bytes that no field of a gRPC message should get: made from the messages' descriptors."""

import struct

from google.protobuf.descriptor import FieldDescriptor

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MIB = 1 << 20


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def tagged(field, wire, payload):
    """The field as it stands in a message; texts and messages get their length."""
    size = varint(len(payload)) if wire == BYTES else b""
    return varint(field.number << 3 | wire) + size + payload


INTEGERS = {
    "-1": -1,
    "2^31-1": 2**31 - 1,
    "-2^31": -(2**31),
    "2^63": 2**63,
    "2^64-1": 2**64 - 1,
}
FLOATS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "-1": -1.0,
    "3e38": 3e38,
    "1e-45": 1e-45,
}
TEXTS = {
    "nonsense": b"nonsense",
    "no text": b"",
    "a NUL": b"a\0b",
    "1 MiB": b"x" * MIB,
    "JSON with a key twice": b'{"a":1,"a":2}',
    "JSON of 40 levels": b"[" * 40 + b"]" * 40,
    "JSON with NaN": b'{"a":NaN}',
    "JSON with 1e309": b'{"a":1e309}',
}
# Bytes that protobuf itself refuses.
UNREADABLE = "unreadable"


def of_number(field, wire):
    if wire == FIXED32:
        for what, value in FLOATS.items():
            yield what, tagged(field, FIXED32, struct.pack("<f", value)), value
    else:
        for what, value in INTEGERS.items():
            yield what, tagged(field, VARINT, varint(value)), value
        yield "two of it", tagged(field, VARINT, varint(1)) * 2, None


def of_bytes(field):
    if field.type == FieldDescriptor.TYPE_STRING:
        for what, value in TEXTS.items():
            yield what, tagged(field, BYTES, value), None
        yield "no UTF-8", tagged(field, BYTES, b"\xff"), UNREADABLE
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        yield "an empty message", tagged(field, BYTES, b""), None
        yield "unknown members", tagged(field, BYTES, varint(999 << 3) + b"\1"), None
        yield "no message", tagged(field, BYTES, b"\x0a\xff"), UNREADABLE
        yield "2,000 of it", tagged(field, BYTES, b"") * 2000, None
    else:  # numbers in one piece
        for what, value in INTEGERS.items():
            yield what, tagged(field, BYTES, varint(value)), None
        yield "66,000 entries", tagged(field, BYTES, b"\0" * 66000), None
        yield "half a number", tagged(field, BYTES, b"\xff"), UNREADABLE


def cases(message):
    """(field, what, bytes, value) for each field; value: the number, UNREADABLE, or None."""
    for field in message.DESCRIPTOR.fields:
        is_float = field.type == FieldDescriptor.TYPE_FLOAT
        is_repeated = field.label == FieldDescriptor.LABEL_REPEATED
        if is_repeated or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            rows = of_bytes(field)
        else:
            rows = of_number(field, FIXED32 if is_float else VARINT)
        for what, data, value in rows:
            yield field, what, data, value
        # Another kind of bytes is a field that the message does not have: it is skipped.
        yield field, "of another kind", tagged(field, FIXED64, b"\xff" * 8), None
