"""Exported models as C calls them, and models for it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from superopt.compilation.cpu.c_compiler import COMPILER_NAMES
from superopt.report.compilation.compile_report import ExportReport
from tests.support.compilation.models import F, I, model, net, picture

node = helper.make_node
OK, NO_FILE, OTHER_FILE, DAMAGED, NO_PROCESSOR, NO_MEMORY, _, NO_TENSOR, NO_CODE = range(9)
(OTHER_SHAPE, UNEQUAL_SIZES, UNRELATED_SIZES, SIZE_RANGE, INDIVISIBLE_SIZE, UNIT_SIZE,
 VALUE_RANGE) = range(9, 16)  # fmt: skip


class InC:
    """An exported model that is open, called as C would."""

    def __init__(self, e: ExportReport, weights: str = "") -> None:
        lib = ctypes.CDLL(e.files[0][0], mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        self.e, self.lib, error = e, lib, ctypes.c_int(-1)
        self._run, self._close = (getattr(lib, f"{e.name}_{f}") for f in ("run", "close"))
        self.words = getattr(lib, f"{e.name}_error")
        opened = getattr(lib, f"{e.name}_open")
        opened.restype, self.words.restype = ctypes.c_void_p, ctypes.c_char_p
        self._run.argtypes = [ctypes.c_void_p] * 3  # the sizes follow, if there are any
        self._message = getattr(lib, f"{e.name}_message")
        self._message.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._close.argtypes, self._close.restype = [ctypes.c_void_p], None
        self.at = opened((weights or e.files[2][0]).encode(), ctypes.byref(error))
        self.error = error.value

    def run(self, feeds: Mapping[str, np.ndarray], *sizes: int) -> dict[str, np.ndarray]:
        """Each tensor lies where no larger alignment holds than its element's. sizes: the values of
        symbolic sizes."""
        given = [None if p.name not in feeds else _apart(feeds[p.name]) for p in self.e.inputs]
        shapes = [self.shape(n, sizes) if sizes else p.shape for n, p in enumerate(self.e.outputs)]
        kinds = [p.dtype for p in self.e.outputs]
        out = [_apart(np.zeros(s, kind)) for s, kind in zip(shapes, kinds, strict=True)]
        assert self.call(given, out, sizes) == OK
        return {p.name: a for p, a in zip(self.e.outputs, out, strict=True)}

    def call(
        self,
        given: list[np.ndarray | None],
        out: list[np.ndarray | None],
        sizes: Sequence[int] = (),
    ) -> int:
        tables = ((ctypes.c_void_p * len(t))(*map(_address, t)) for t in (given, out))
        return int(self._run(self.at, *tables, size_array(sizes)))

    def shape(self, output: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an output at these sizes, as the library computes it."""
        p = self.e.outputs[output]
        shape, size = (ctypes.c_int64 * len(p.shape))(), ctypes.c_size_t()
        found = getattr(self.lib, f"{self.e.name}_output_shape")
        assert found(output, size_array(sizes), shape, ctypes.byref(size)) == OK
        out = tuple(shape)
        assert size.value == np.zeros(out, p.dtype).nbytes
        return out

    def message(self, at: int | None = None) -> str:
        """Return why the last call failed. at: of another handle."""
        handle = at or self.at
        size = self._message(handle, None, 0) + 1
        text = ctypes.create_string_buffer(size)
        assert self._message(handle, text, size) == size - 1
        return text.value.decode()

    def infer_sizes(self, shapes: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """Return the code, and the sizes of inputs of these shapes."""
        found = getattr(self.lib, f"{self.e.name}_infer_sizes")
        found.argtypes = [ctypes.c_void_p] * 3
        sizes = size_array([-1] * len(self.e.symbols))
        rows = [size_array(shape) for shape in shapes]
        table = (ctypes.c_void_p * len(rows))(*map(ctypes.addressof, rows))
        return int(found(self.at, table, sizes)), [*sizes]

    def close(self) -> None:
        self._close(self.at)


def size_array(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(len(sizes), 1))(*sizes)


def _address(a: np.ndarray | None) -> int | None:
    return None if a is None else a.ctypes.data


def _apart(a: np.ndarray) -> np.ndarray:
    """A copy that begins one element past a multiple of 64 bytes."""
    room = np.zeros(a.nbytes + 128, np.uint8)
    begin = -room.ctypes.data % 64 + a.itemsize
    out = room[begin : begin + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def floats(*shape: int, of: type = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(of)


def typed(kind: int, of: type) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    m = model([node("Mul", ["x", "x"], ["a"]), node("Add", ["a", "x"], ["y"])],
              {"x": (kind, [5, 3])}, ["y"])  # fmt: skip
    return m, {"x": (10 * floats(5, 3)).astype(of)}


def constants() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An output twice, an input and constants as outputs; one has no elements."""
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["x"], ["z"]),
             node("Identity", ["w"], ["v"]), node("Identity", ["y"], ["again"]),
             node("Identity", ["none"], ["nothing"])]  # fmt: skip
    w = {"w": np.arange(3, dtype=np.int64), "none": np.zeros((0, 2), np.float32)}
    return model(nodes, {"x": (F, [2, 3])}, ["y", "z", "v", "again", "nothing"], w), {
        "x": floats(2, 3)
    }


def only_constants() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    m = model([node("Identity", ["w"], ["y"])], {"x": (F, [1])}, ["y"], {"w": floats(3)})
    return m, {"x": floats(1)}


def library_functions() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Of libm: one by one, and in vectors of doubles."""
    nodes = [node("Exp", ["x"], ["a"]), node("Erf", ["x"], ["b"]), node("Sin", ["x"], ["c"]),
             node("Mod", ["a", "k"], ["d"], fmod=1), node("Sum", ["a", "b", "c", "d"], ["y"]),
             node("Asinh", ["z"], ["u"])]  # fmt: skip
    m = model(nodes, {"x": (TensorProto.DOUBLE, [37]), "z": (F, [])}, ["y", "u"],
              {"k": np.array(0.7)})  # fmt: skip
    return m, {"x": floats(37, of=np.float64), "z": np.array(0.3, np.float32)}


def by_default() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An input that need not be given."""
    m = model([node("Add", ["x", "b"], ["y"])], {"x": (F, [4, 3]), "b": (F, [3])}, ["y"],
              {"b": floats(3)})  # fmt: skip
    return m, {"x": floats(4, 3)}


def strange_names() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    x, y = 'x */ "?" \\n\n', "größe /* ??/"
    return model([node("Neg", [x], [y])], {x: (F, [7])}, [y]), {x: floats(7)}


def scalars() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    nodes = [node("ReduceSum", ["x"], ["y"], keepdims=0), node("Size", ["x"], ["n"]),
             node("Greater", ["y", "s"], ["b"])]  # fmt: skip
    m = model(nodes, {"x": (F, [4, 5]), "s": (F, [])}, ["y", "n", "b"])
    return m, {"x": floats(4, 5), "s": np.array(0.5, np.float32)}


def empty() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    m = model([node("Relu", ["x"], ["y"]), node("ReduceSum", ["x"], ["s"], keepdims=0)],
              {"x": (F, [0, 4])}, ["y", "s"])  # fmt: skip
    return m, {"x": np.zeros((0, 4), np.float32)}


def booleans() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    nodes = [node("Not", ["p"], ["q"]), node("Where", ["p", "i", "j"], ["k"])]
    m = model(nodes, {"p": (TensorProto.BOOL, [9]), "i": (I, [9]), "j": (I, [1])}, ["q", "k"])
    i = np.arange(9, dtype=np.int64)
    return m, {"p": i % 3 == 0, "i": i << 40, "j": np.array([-1])}


CASES: dict[str, Callable[[], tuple[onnx.ModelProto, dict[str, np.ndarray]]]] = {
    "net": lambda: (net(9), {"x": picture(2, 9)}),
    "constants": constants,
    "only constants": only_constants,
    "libm": library_functions,
    "default": by_default,
    "names": strange_names,
    "scalars": scalars,
    "empty": empty,
    "booleans": booleans,
    "float16": lambda: typed(TensorProto.FLOAT16, np.float16),
    "bfloat16": lambda: typed(TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "float64": lambda: typed(TensorProto.DOUBLE, np.float64),
    "int8": lambda: typed(TensorProto.INT8, np.int8),
    "uint16": lambda: typed(TensorProto.UINT16, np.uint16),
    "int64": lambda: typed(I, np.int64),
}


CC = next((c for c in COMPILER_NAMES if shutil.which(c)), None)
HERE = sys.platform == "linux" and platform.machine() == "x86_64"
