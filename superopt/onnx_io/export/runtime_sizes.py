"""Compute symbolic sizes at run time: emit nodes that derive them from shapes of available
values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as oir

from superopt.onnx_io.import_.schema import NotExpressible
from superopt.te.expr.node import Apply, Const, Expr, Size
from superopt.te.expr.tensor import Dim, TensorType

# The opsets since which Shape takes one axis, Min and Max take int64, and Mod exists.
SHAPE_SLICE_SINCE_OPSET, INT64_MIN_MAX_SINCE_OPSET, MOD_SINCE_OPSET = 15, 12, 10


class EmitNode(Protocol):
    """Emits a node of an ONNX operator and returns its result."""

    def __call__(self, op_type: str, inputs: Sequence[oir.Value], **attrs: int) -> oir.Value: ...


EmitConstant = Callable[[np.ndarray, str], oir.Value]


class SizeEmitter:
    """Emits nodes that compute sizes. A size may be 0 if the model runs on empty tensors."""

    def __init__(self, opset: int, emit: EmitNode, literal: EmitConstant) -> None:
        self._opset = opset
        self._emit = emit
        self._literal = literal
        self._sources: dict[str, tuple[oir.Value, int]] = {}
        self._sizes: dict[Dim, oir.Value] = {}
        self._shapes: dict[oir.Value, oir.Value] = {}

    def add_source(self, t: TensorType, value: oir.Value) -> None:
        """Let sizes of `t` be read from the shape of `value` from here on."""
        for axis, d in enumerate(t.shape or ()):
            if isinstance(d, Size):
                self._sources.setdefault(d.name, (value, axis))

    def size_tensor(self, value: Dim | tuple[Dim, ...]) -> oir.Value:
        """Return `value` as an int64 tensor, of rank 0 for a size and rank 1 for a tuple of sizes.

        Raises NotExpressible for a size that no value has, or that the opset cannot compute.
        """
        if not isinstance(value, tuple):
            one = self._size(value)
            return self._emit("Reshape", [one, self._literal(np.array([], np.int64), "scalar")])
        parts: list[oir.Value] = []
        run: list[int] = []
        for d in (*value, None):
            if isinstance(d, int):
                run.append(d)
                continue
            if run:
                parts.append(self._literal(np.array(run, np.int64), "sizes"))
                run = []
            if d is not None:
                parts.append(self._size(d))
        return parts[0] if len(parts) == 1 else self._emit("Concat", parts, axis=0)

    def _size(self, d: Dim) -> oir.Value:
        """One size as an int64[1]."""
        made = self._sizes.get(d)
        if made is None:
            made = self._emit_size(d)
            self._sizes[d] = made
        return made

    def _emit_size(self, d: Dim) -> oir.Value:
        match d:
            case int():
                return self._literal(np.array([d], np.int64), "size")
            case Const(v):
                return self._literal(np.array([int(v)], np.int64), "size")
            case Size(name):
                return self._emit_symbol(name)
            case Apply("floordiv" | "mod" as fn, (a, b), _):
                return self._emit_division(fn, a, b)
            case Apply("min" | "max" as fn, (a, b), _):
                return self._emit_extreme(fn, self._size(a), self._size(b))
            case Apply("add" | "mul" as fn, args, _):
                out = self._size(args[0])
                for a in args[1:]:
                    out = self._emit(fn.capitalize(), [out, self._size(a)])
                return out
        raise NotExpressible(f"{d} is not a size")

    def _emit_symbol(self, name: str) -> oir.Value:
        if name not in self._sources:
            raise NotExpressible(
                f"the size {name} is in the shape of no input and no earlier result"
            )
        value, axis = self._sources[name]
        if self._opset >= SHAPE_SLICE_SINCE_OPSET:
            return self._emit("Shape", [value], start=axis, end=axis + 1)
        if value not in self._shapes:
            self._shapes[value] = self._emit("Shape", [value])
        at = self._literal(np.array([axis], np.int64), "axis")
        return self._emit("Gather", [self._shapes[value], at], axis=0)

    def _emit_division(self, fn: str, a: Expr, b: Expr) -> oir.Value:
        """Emit a floor division, while ONNX's Div truncates. The divisor is never 0, which would
        end the process."""
        left, right = self._size(a), self._size(b)
        if not isinstance(b, Const):
            right = self._emit_extreme("max", right, self._size(1))
        if fn == "floordiv" and is_non_negative(a):
            return self._emit("Div", [left, right])
        if self._opset < MOD_SINCE_OPSET:
            raise NotExpressible(f"{fn} of {a} and {b} has no words in opset {self._opset}")
        rest = self._emit("Mod", [left, right])
        return rest if fn == "mod" else self._emit("Div", [self._emit("Sub", [left, rest]), right])

    def _emit_extreme(self, fn: str, a: oir.Value, b: oir.Value) -> oir.Value:
        if self._opset >= INT64_MIN_MAX_SINCE_OPSET:
            return self._emit(fn.capitalize(), [a, b])
        both = self._emit("Concat", [a, b], axis=0)
        return self._emit(f"Reduce{fn.capitalize()}", [both])  # over all axes, keeping rank 1


def is_non_negative(e: Expr) -> bool:
    """True if `e` is at least 0 even if sizes are 0. (Elsewhere sizes are assumed to be at least
    1.)"""
    match e:
        case Const(v):
            return v >= 0
        case Size():
            return True
        case Apply("max", args, _):
            return any(map(is_non_negative, args))
        case Apply("add" | "mul" | "floordiv" | "mod" | "min", args, _):
            return all(map(is_non_negative, args))
        case _:
            return False
