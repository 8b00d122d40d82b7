"""The smallest ONNX models, encoded byte by byte.

They measure the fixed cost of running a model. Only `onnx_io` may import onnx, and a worker has no
other use for it; the encoding takes 20 lines.
"""

from itertools import pairwise

_IR_VERSION, _OPSET, _FLOAT = 8, 13, 1


def chain_model(length: int) -> bytes:
    """Return a model of `length` Neg nodes in a row, x: float[1] -> y: float[1].

    Neg and not Identity, which onnxruntime removes; it does not fuse pairs of Neg.
    """
    names = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    nodes = [
        _text(1, source) + _text(2, target) + _text(4, "Neg") for source, target in pairwise(names)
    ]
    port = _bytes(2, _bytes(1, _int(1, _FLOAT) + _bytes(2, _bytes(1, _int(1, 1)))))
    graph = b"".join(_bytes(1, node) for node in nodes) + _text(2, "chain")
    graph += _bytes(11, _text(1, "x") + port) + _bytes(12, _text(1, "y") + port)
    return _int(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _text(1, "") + _int(2, _OPSET))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
