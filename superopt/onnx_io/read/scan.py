"""What decides how a model is opened, read from a file's bytes without parsing them: this takes
milliseconds, and imports neither onnx nor onnx_ir."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from superopt.onnx_io.read import wire

# Numbers of fields, by messages of onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTION, _FUNCTION_NODE = 7, 25, 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT = 1, 5, 11
_NODE_OP_TYPE, _TENSOR_NAME, _VALUE_NAME, _VALUE_TYPE = 4, 8, 1, 2
_TYPE_TENSOR, _TENSOR_SHAPE, _SHAPE_DIM, _DIM_VALUE, _DIM_NAME = 1, 2, 1, 1, 2
MAX_SCANNED_NODES: Final = 20_000  # scanning these takes a tenth of a second


@dataclass(frozen=True, slots=True)
class ModelScan:
    """op_types: of the graph's nodes and of local functions. symbols: the names of the sizes of
    inputs that are not fixed, "" for those without a name."""

    op_types: frozenset[str]
    symbols: frozenset[str]


def scan_model(path: Path) -> ModelScan | None:
    """Return what a model file has; None if it cannot be read, is not a model, or has too many
    nodes."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return _scan(view)
    except (OSError, ValueError):  # wire.Malformed is a ValueError
        return None


def _scan(data: memoryview) -> ModelScan | None:
    op_types, symbols, initializers = set[str](), dict[str, frozenset[str]](), set[str]()
    count = 0
    for top in _messages(data, 0, len(data), _MODEL_GRAPH, _MODEL_FUNCTION):
        is_graph = top.number == _MODEL_GRAPH
        node = _GRAPH_NODE if is_graph else _FUNCTION_NODE
        kinds = (node, _GRAPH_INITIALIZER, _GRAPH_INPUT) if is_graph else (node,)
        for each in _messages(data, top.start, top.end, *kinds):
            if each.number == node:
                count += 1
                if count > MAX_SCANNED_NODES:
                    return None
                op_types.update(_texts(data, each, _NODE_OP_TYPE))
            elif each.number == _GRAPH_INITIALIZER:
                initializers.update(_texts(data, each, _TENSOR_NAME))
            else:
                name = "".join(_texts(data, each, _VALUE_NAME))
                symbols[name] = frozenset(_symbols(data, each))
    given = (found for name, found in symbols.items() if name not in initializers)
    return ModelScan(frozenset(op_types), frozenset().union(*given))


def _symbols(data: memoryview, value: wire.Field) -> Iterator[str]:
    """Yield the names of the sizes of an input that are not fixed."""
    found = [value]
    for number in (_VALUE_TYPE, _TYPE_TENSOR, _TENSOR_SHAPE, _SHAPE_DIM):
        found = [m for f in found for m in _messages(data, f.start, f.end, number)]
    for dim in found:
        if not any(f.number == _DIM_VALUE for f in wire.message_fields(data, dim.start, dim.end)):
            yield "".join(_texts(data, dim, _DIM_NAME))


def _messages(data: memoryview, start: int, end: int, *numbers: int) -> Iterator[wire.Field]:
    fields = wire.message_fields(data, start, end)
    return (f for f in fields if f.wire == wire.BYTES and f.number in numbers)


def _texts(data: memoryview, message: wire.Field, number: int) -> Iterator[str]:
    for f in _messages(data, message.start, message.end, number):
        yield bytes(data[f.start : f.end]).decode(errors="replace")
