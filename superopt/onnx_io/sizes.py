"""Compute symbolic sizes at run time: emit nodes that derive them from shapes of available
values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as oir

from superopt.onnx_io.schema import Unsayable
from superopt.te.expr import Dim, TensorType
from superopt.te.node import Apply, Const, Expr, Size

# The opsets since which Shape takes one axis, Min and Max take int64, and Mod exists.
SHAPE_OF_AXIS, EXTREMES, MOD = 15, 12, 10


class Emit(Protocol):
    """Emits a node of an ONNX operator and returns its result."""

    def __call__(self, op_type: str, inputs: Sequence[oir.Value], **attrs: int) -> oir.Value: ...


Literal = Callable[[np.ndarray, str], oir.Value]


class Runtime:
    """Emits nodes that compute sizes. A size may be 0 if the model runs on empty tensors."""

    def __init__(self, opset: int, emit: Emit, literal: Literal) -> None:
        self._opset = opset
        self._emit = emit
        self._literal = literal
        self._where: dict[str, tuple[oir.Value, int]] = {}
        self._sizes: dict[Dim, oir.Value] = {}
        self._shapes: dict[oir.Value, oir.Value] = {}

    def available(self, t: TensorType, value: oir.Value) -> None:
        """Let sizes of `t` be read from the shape of `value` from here on."""
        for axis, d in enumerate(t.shape or ()):
            if isinstance(d, Size):
                self._where.setdefault(d.name, (value, axis))

    def tensor(self, value: Dim | tuple[Dim, ...]) -> oir.Value:
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
            made = self._compute(d)
            self._sizes[d] = made
        return made

    def _compute(self, d: Dim) -> oir.Value:
        match d:
            case int():
                return self._literal(np.array([d], np.int64), "size")
            case Const(v):
                return self._literal(np.array([int(v)], np.int64), "size")
            case Size(name):
                return self._read(name)
            case Apply("floordiv" | "mod" as fn, (a, b), _):
                return self._divided(fn, a, b)
            case Apply("min" | "max" as fn, (a, b), _):
                return self._extreme(fn, self._size(a), self._size(b))
            case Apply("add" | "mul" as fn, args, _):
                out = self._size(args[0])
                for a in args[1:]:
                    out = self._emit(fn.capitalize(), [out, self._size(a)])
                return out
        raise Unsayable(f"{d} is not a size")

    def _read(self, name: str) -> oir.Value:
        if name not in self._where:
            raise Unsayable(f"the size {name} is in the shape of no input and no earlier result")
        value, axis = self._where[name]
        if self._opset >= SHAPE_OF_AXIS:
            return self._emit("Shape", [value], start=axis, end=axis + 1)
        if value not in self._shapes:
            self._shapes[value] = self._emit("Shape", [value])
        at = self._literal(np.array([axis], np.int64), "axis")
        return self._emit("Gather", [self._shapes[value], at], axis=0)

    def _divided(self, fn: str, a: Expr, b: Expr) -> oir.Value:
        """Emit a floor division, while ONNX's Div truncates. The divisor is never 0, which would
        end the process."""
        left, right = self._size(a), self._size(b)
        if not isinstance(b, Const):
            right = self._extreme("max", right, self._size(1))
        if fn == "floordiv" and never_negative(a):
            return self._emit("Div", [left, right])
        if self._opset < MOD:
            raise Unsayable(f"{fn} of {a} and {b} has no words in opset {self._opset}")
        rest = self._emit("Mod", [left, right])
        return rest if fn == "mod" else self._emit("Div", [self._emit("Sub", [left, rest]), right])

    def _extreme(self, fn: str, a: oir.Value, b: oir.Value) -> oir.Value:
        if self._opset >= EXTREMES:
            return self._emit(fn.capitalize(), [a, b])
        both = self._emit("Concat", [a, b], axis=0)
        return self._emit(f"Reduce{fn.capitalize()}", [both])  # over all axes, keeping rank 1


def never_negative(e: Expr) -> bool:
    """True if `e` is at least 0 even if sizes are 0. (Elsewhere sizes are assumed to be at least
    1.)"""
    match e:
        case Const(v):
            return v >= 0
        case Size():
            return True
        case Apply("max", args, _):
            return any(map(never_negative, args))
        case Apply("add" | "mul" | "floordiv" | "mod" | "min", args, _):
            return all(map(never_negative, args))
        case _:
            return False
