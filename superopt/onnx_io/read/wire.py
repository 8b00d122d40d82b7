"""The bytes of an ONNX file with its large tensors taken out, and put back, without parsing them.

Parsing a 400 MB model through protobuf copies every weight; but all except a megabyte of it is
`raw_data`, which nobody needs in order to know the graph.  Protobuf nests messages as
(tag, length, bytes), so a walk over the few large ones finds the tensors:

    strip    file bytes -> a small *skeleton*, where each large tensor is an external-data stub,
             and the spans of the file where their bytes lie
    restore  skeleton -> the pieces of a file, with a slot where each tensor's bytes belong

Both rewrite locally: what is not a large tensor stays byte for byte what it was, repeated and
unknown fields included, so a skeleton is valid exactly where its model is.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from superopt import guard

# A location no exporter writes.  The leading '#' tells onnx's checker that the data is in memory.
STUB_PREFIX: Final = "#superopt/"

_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_MESSAGE_DEPTH = 100  # protobuf's own limit on nested messages
_DATA_FIELDS = {9: "raw_data", 4: "float_data", 10: "double_data"}  # little-endian, contiguous
_UNUSUAL_DATA_FIELDS = {3, 5, 6, 7, 11, 13, 14}  # segment, varint-coded data, external data
_FLOAT, _DOUBLE = 1, 11
# Consecutive entries of AttributeProto's floats (7, fixed32), ints (8, varint) and strings (9, of
# up to 127 bytes), each with its tag, as proto2 writes them. `*+` keeps no state for each entry.
_SHORT_STRING = b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(0x80))
_LIST_ENTRIES: Final = re.compile(
    rb"(?:\x3d.{4}|\x40[\x80-\xff]{0,9}[\x00-\x7f]|\x4a(?:" + _SHORT_STRING + rb"))*+", re.DOTALL
)


class Malformed(ValueError):
    """The bytes are not a protobuf message."""


@dataclass(frozen=True, slots=True)
class Span:
    """`size` bytes from `offset` in the stripped file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The position in a file of the `size` bytes of tensor `index`."""

    index: int
    size: int


Piece: TypeAlias = bytes | memoryview | Slot


class Field(NamedTuple):
    """A field of a message."""

    tag: int  # where the field begins
    number: int
    wire: int
    start: int  # where its value begins and ends
    end: int
    value: int  # of a varint, else 0


class _MessageKind(Enum):
    MODEL = auto()
    TRAINING = auto()
    GRAPH = auto()
    FUNCTION = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    TENSOR = auto()


# The fields through which tensors are reached, by onnx.proto's numbers.
_CHILDREN: Final[dict[_MessageKind, dict[int, _MessageKind]]] = {
    _MessageKind.MODEL: {
        7: _MessageKind.GRAPH,
        20: _MessageKind.TRAINING,
        25: _MessageKind.FUNCTION,
    },
    _MessageKind.TRAINING: {1: _MessageKind.GRAPH, 2: _MessageKind.GRAPH},
    _MessageKind.GRAPH: {1: _MessageKind.NODE, 5: _MessageKind.TENSOR},
    _MessageKind.FUNCTION: {7: _MessageKind.NODE, 11: _MessageKind.ATTRIBUTE},
    _MessageKind.NODE: {5: _MessageKind.ATTRIBUTE},
    _MessageKind.ATTRIBUTE: {
        5: _MessageKind.TENSOR,
        6: _MessageKind.GRAPH,
        10: _MessageKind.TENSOR,
        11: _MessageKind.GRAPH,
    },
}

_GRAPH, _NODE = 7, 1  # numbers of the fields ModelProto.graph and GraphProto.node
_Wanted: TypeAlias = Callable[[int, int], bool]
_Edit: TypeAlias = Callable[[int, int], list[Piece] | None]


def strip_tensors(
    data: memoryview, min_bytes: int, dtypes: Collection[int]
) -> tuple[bytes, list[Span]]:
    """Return the skeleton of a ModelProto's bytes, and where the data of each stub is.

    Tensors of `dtypes` (TensorProto.DataType codes) with at least `min_bytes` bytes become stubs;
    the i-th has the location STUB_PREFIX + str(i). Raises Malformed if a length exceeds its
    message.
    """
    spans: list[Span] = []

    def edit(start: int, end: int) -> list[Piece] | None:
        fields = []
        for field in message_fields(data, start, end):
            if field.number in _UNUSUAL_DATA_FIELDS:  # perhaps as many fields as there are strings
                return None  # unusual: left for protobuf and the checker to judge
            fields.append(field)
        stored = [f for f in fields if f.number in _DATA_FIELDS]
        dtype = [f.value for f in fields if f.number == 2]
        if len(stored) != 1 or len(dtype) != 1 or dtype[0] not in dtypes:
            return None
        (field,) = stored
        packed = {4: {_FLOAT}, 10: {_DOUBLE}}.get(field.number, {dtype[0]})
        if field.wire != BYTES or field.end - field.start < min_bytes or dtype[0] not in packed:
            return None
        stub = external_fields({"location": f"{STUB_PREFIX}{len(spans)}"})
        spans.append(Span(field.start, field.end - field.start))
        return [data[start : field.tag], data[field.end : end], stub]

    pieces = _rewrite(
        data, 0, len(data), _MessageKind.MODEL, lambda a, b: b - a >= min_bytes, edit, 0
    )
    if pieces is None:
        return bytes(data), []
    return b"".join(p for p in pieces if not isinstance(p, Slot)), spans


def count_nodes(data: memoryview, limit: int) -> int:
    """Count the nodes of the main graph in a ModelProto's bytes, without subgraphs; stop above
    `limit`. Raises Malformed as `strip_tensors` does."""
    count = 0
    for graph in message_fields(data, 0, len(data)):
        if graph.number != _GRAPH or graph.wire != BYTES:
            continue
        for field in message_fields(data, graph.start, graph.end):
            count += field.number == _NODE
            if count > limit:
                return count
    return count


def restore_tensors(skeleton: bytes, encode: Callable[[int], Sequence[Piece]]) -> list[Piece]:
    """Return the pieces of a ModelProto's bytes, made from a skeleton.

    `encode(i)` returns the fields that locate the data of stub i: `raw_fields` to inline it,
    `external_fields` to refer to another file.
    """
    data = memoryview(skeleton)
    marker = STUB_PREFIX.encode()

    def edit(start: int, end: int) -> list[Piece] | None:
        fields = list(message_fields(data, start, end))
        entries = [data[f.start : f.end].tobytes() for f in fields if f.number == 13]
        named = [entry.partition(marker)[2] for entry in entries if marker in entry]
        if not named:
            return None
        index = int(named[0])
        kept: list[Piece] = [data[f.tag : f.end] for f in fields if f.number not in (13, 14)]
        return [*kept, *encode(index)]

    def wanted(start: int, end: int) -> bool:
        return skeleton.find(marker, start, end) >= 0

    pieces = _rewrite(data, 0, len(data), _MessageKind.MODEL, wanted, edit, 0)
    return [data] if pieces is None else pieces


def raw_fields(index: int, size: int) -> list[Piece]:
    """TensorProto.raw_data, with the `size` bytes of tensor `index`."""
    return [_tag(9, BYTES) + _varint(size), Slot(index, size)]


def external_fields(entries: dict[str, str]) -> bytes:
    """TensorProto.external_data with these entries, and data_location = EXTERNAL."""
    fields = b""
    for key, value in entries.items():
        entry = _bytes_field(1, key.encode()) + _bytes_field(2, value.encode())
        fields += _bytes_field(13, entry)
    return fields + _tag(14, _VARINT) + _varint(1)


def total_size(pieces: Sequence[Piece]) -> int:
    """Return the size in bytes of the file that these pieces form."""
    return sum(p.size if isinstance(p, Slot) else len(p) for p in pieces)


def _rewrite(
    data: memoryview,
    start: int,
    end: int,
    kind: _MessageKind,
    wanted: _Wanted,
    edit: _Edit,
    depth: int,
) -> list[Piece] | None:
    """The message data[start:end] with `edit` applied to the tensors in it; None if unchanged."""
    if depth > _MAX_MESSAGE_DEPTH:
        raise Malformed(f"messages are nested more than {_MAX_MESSAGE_DEPTH} deep at byte {start}")
    guard.check_time("reading a model")
    children = _CHILDREN[kind]
    fields: Iterator[Field] = message_fields(data, start, end)
    if kind is _MessageKind.ATTRIBUTE:
        found = list(_attribute_fields(data, start, end))
        if sum(f.number == 5 for f in found) > 1:
            return None  # protobuf merges the two into one tensor: leave that to it
        fields = iter(found)
    pieces: list[Piece] = []
    kept = start
    for field in fields:
        child = children.get(field.number) if field.wire == BYTES else None
        if child is None or not wanted(field.start, field.end):
            continue
        if child is _MessageKind.TENSOR:
            new = edit(field.start, field.end)
        else:
            new = _rewrite(data, field.start, field.end, child, wanted, edit, depth + 1)
        if new is None:
            continue
        header = _tag(field.number, BYTES) + _varint(total_size(new))
        pieces += [data[kept : field.tag], header, *new]
        kept = field.end
    if not pieces:
        return None
    pieces.append(data[kept:end])
    return pieces


def _attribute_fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of an AttributeProto, in order, without the entries of its lists of numbers
    and short strings: a tree ensemble has millions of them."""
    at = start
    while at < end:
        if data[at] in b"\x3d\x40\x4a":
            run = _LIST_ENTRIES.match(data, at, end)
            assert run is not None  # it matches nothing, too
            if run.end() > at:
                at = run.end()
                continue
        field = _read_field(data, at, end)
        yield field
        at = field.end


def message_fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message data[start:end], in order. Raises Malformed."""
    at = start
    while at < end:
        field = _read_field(data, at, end)
        yield field
        at = field.end


def _read_field(data: memoryview, at: int, end: int) -> Field:
    """Read the field at `at`. Raises Malformed if it is invalid or ends after `end`."""
    tag = at
    key = data[at]
    if key < 0x80:
        at += 1
    else:
        key, at = _read_varint(data, at, end)
    number, wire = key >> 3, key & 7
    if number == 0:
        raise Malformed(f"a field at byte {tag} has number 0")
    value = 0
    begin = at
    match wire:
        case 0:
            value, at = _read_varint(data, at, end)
        case 1:
            at += 8
        case 2:
            if at < end and data[at] < 0x80:
                size, begin = data[at], at + 1
            else:
                size, begin = _read_varint(data, at, end)
            at = begin + size
        case 5:
            at += 4
        case _:
            raise Malformed(f"a field at byte {tag} has the unknown wire type {wire}")
    if at > end:
        needs, left = at - begin, max(0, end - begin)
        raise Malformed(f"a field at byte {tag} needs {needs} bytes, {left} are left")
    return Field(tag, number, wire, begin, at, value)


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Malformed(f"the number at byte {at} does not end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _tag(number, BYTES) + _varint(len(value)) + value
