"""Sizes at run time: attributes that ONNX wants as tensors, symbolic ones computed by nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import Attr
from superopt.te.dtype import DType, to_numpy
from superopt.te.expr import Dim, TensorType
from superopt.te.node import Apply, Const, Expr, Size

Emit = Callable[..., oir.Value]
INT64_MAX = 2**63 - 1


def reshape_target(shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """A Reshape's target with as few symbolic sizes as 0 (keep) and -1 (the rest) allow."""
    out = list(target)
    if 0 in out:
        return target
    for n, d in enumerate(out):
        if isinstance(d, Expr) and n < len(shape) and shape[n] == d:
            out[n] = 0
    left = [n for n, d in enumerate(out) if isinstance(d, Expr)]
    if left and -1 not in out:
        out[left[0]] = -1
    return tuple(out)


def as_operand(value: Attr, n: g.Node, key: str) -> np.ndarray | None:
    """`value` as the tensor that ONNX wants, None where it has symbolic sizes."""
    if isinstance(value, Expr):
        return None
    if isinstance(value, tuple):
        if any(isinstance(v, Expr) for v in value):
            return None
        kind = np.float32 if any(isinstance(v, float) for v in value) else np.int64
        return np.array(value, kind)
    if n.op.name == "Range":
        return np.array(value, to_numpy(n.types[0].dtype))  # type: ignore[arg-type]
    first = n.inputs[0] if n.inputs else None
    if isinstance(value, float):
        dtype = first.type.dtype if first is not None else None
        return np.array(
            value, to_numpy(dtype) if isinstance(dtype, DType) and dtype.is_float else np.float32
        )
    if isinstance(value, (bool, int)):
        scalar = n.op.name not in ("TopK",)
        return np.array(value if scalar else [value], np.int64)
    raise TypeError(f"{n.op.name}.{key} = {value} is no tensor")


class Runtime:
    """Emits nodes that compute symbolic sizes from the shapes of values already there."""

    def __init__(self, emit: Emit, literal: Callable[[np.ndarray, str], oir.Value]) -> None:
        self._emit = emit
        self._literal = literal
        self._where: dict[str, tuple[oir.Value, int]] = {}
        self._sizes: dict[Dim, oir.Value] = {}
        self._shapes: dict[oir.Value, oir.Value] = {}

    def available(self, t: TensorType, value: oir.Value) -> None:
        """Sizes of `t` may be read off `value` from here on."""
        for axis, d in enumerate(t.shape or ()):
            if isinstance(d, Size):
                self._where.setdefault(d.name, (value, axis))

    def tensor(self, value: Dim | tuple[Dim, ...]) -> oir.Value:
        """`value` as an int64 tensor computed at run time."""
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
                value, axis = self._where[name]
                if value not in self._shapes:
                    self._shapes[value] = self._emit("Shape", [value])
                at = self._literal(np.array([axis], np.int64), "axis")
                return self._emit("Gather", [self._shapes[value], at], axis=0)
            case Apply("floordiv", (a, b), _):
                return self._emit("Div", [self._size(a), self._size(b)])  # sizes are not negative
            case Apply("mod", (a, b), _):
                return self._emit("Mod", [self._size(a), self._size(b)])
            case Apply(("min" | "max") as fn, (a, b), _):
                return self._emit(fn.capitalize(), [self._size(a), self._size(b)])
            case Apply(("add" | "mul") as fn, args, _):
                out = self._size(args[0])
                for a in args[1:]:
                    out = self._emit(fn.capitalize(), [out, self._size(a)])
                return out
        raise TypeError(f"{d} is not a size")
