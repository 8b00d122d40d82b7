"""Write attributes that ONNX passes as tensors in the form with the fewest computed sizes."""

from __future__ import annotations

import numpy as np

from superopt.ir import graph
from superopt.ir.op import Attr
from superopt.onnx_io.import_.schema import FormalOperand, NotExpressible
from superopt.ops.movement.slicing import onnx_bound
from superopt.ops.shared.sizes import integer_tuple
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32, F64, I32, I64, DType, to_numpy
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.tensor import Dim

ALLOWZERO_SINCE_OPSET, NUM_OUTPUTS_SINCE_OPSET = (
    14,
    18,
)  # the opsets in which Reshape and Split got these


def attribute_forms(n: graph.Node, opset: int) -> dict[str, Attr]:
    """Return the attributes of `n` as `opset` writes them.

    The meaning is the same, but fewer are symbolic: ONNX can express "keep this size" (0 in a
    Reshape, 1 in an Expand), "the rest" (-1) and "to the end". Raises NotExpressible if only a
    newer opset can express them.
    """
    attrs = dict(n.attrs)
    shape = n.inputs[0].type.shape if n.inputs and n.inputs[0] is not None else None
    if shape is None:
        return attrs
    match n.op.name:
        case "Reshape":
            target, zeros = reshape_form(shape, _as_tuple(attrs["shape"]), opset)
            attrs |= {"shape": target, "allowzero": zeros}
        case "Expand":
            attrs["shape"] = _expand_form(shape, _as_tuple(attrs["shape"]))
        case "Split":
            attrs |= _split_form(_as_tuple(attrs["split"]), opset)
        case "Slice":
            for key in ("starts", "ends"):
                cut = zip(_as_tuple(attrs[key]), integer_tuple(attrs["axes"], "axes"), strict=True)
                attrs[key] = tuple(onnx_bound(v, shape[a]) for v, a in cut)
    return attrs


def _as_tuple(value: Attr) -> tuple[Dim, ...]:
    assert isinstance(value, tuple)
    return value  # type: ignore[return-value]


def reshape_form(
    source: tuple[Dim, ...], target: tuple[Dim, ...], opset: int
) -> tuple[tuple[Dim, ...], int]:
    """Return the shape operand and `allowzero` of a Reshape from `source` to `target`.

    The form is valid for empty tensors, too: -1 beside a size that may be 0 fails at run time, and
    a computed 0 means "keep" unless `allowzero` is set.
    """
    kept = [n < len(source) and source[n] == d for n, d in enumerate(target)]
    symbolic = [n for n, d in enumerate(target) if isinstance(d, Expr)]
    zeros = [n for n, d in enumerate(target) if d == 0]
    if zeros:
        if all(kept[n] for n in zeros) and all(kept[n] for n in symbolic):
            return tuple(0 if kept[n] else d for n, d in enumerate(target)), 0
        if opset >= ALLOWZERO_SINCE_OPSET:
            return target, 1
        if len(zeros) == 1 and not symbolic:
            return _replace_dim(target, zeros[0], -1), 0
        raise NotExpressible(f"Reshape to {target} has no words in opset {opset}")
    short = tuple(0 if isinstance(d, Expr) and kept[n] else d for n, d in enumerate(target))
    left = [n for n in symbolic if not kept[n]]
    if not left:
        return short, 0
    rest = [n for n in left if _is_quotient(target[n])]
    if len(symbolic) == 1 or rest:  # a quotient comes from a -1 in the file: it was as safe there
        return _replace_dim(short, rest[0] if rest else left[0], -1), 0
    return (target, 1) if opset >= ALLOWZERO_SINCE_OPSET else (short, 0)


def _replace_dim(dims: tuple[Dim, ...], at: int, d: Dim) -> tuple[Dim, ...]:
    return (*dims[:at], d, *dims[at + 1 :])


def _is_quotient(d: Dim) -> bool:
    """True if `d` is a division by a size that may be 0."""
    match d:
        case Apply("floordiv", (_, b), _):
            return bool(index.symbols(b))
        case _:
            return False


def _expand_form(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[Dim, ...]:
    lead = len(target) - len(source)
    return tuple(
        1 if isinstance(d, Expr) and n >= lead and source[n - lead] == d else d
        for n, d in enumerate(target)
    )


def _split_form(parts: tuple[Dim, ...], opset: int) -> dict[str, Attr]:
    """Equal parts need no sizes. Newer opsets require `num_outputs` then, which fails at size 0."""
    equal = isinstance(parts[0], Expr) and all(p == parts[0] for p in parts)
    return {
        "split": None if equal and opset < NUM_OUTPUTS_SINCE_OPSET else parts,
        "num_outputs": None,
    }


def operand_dtype(n: graph.Node, formal: FormalOperand) -> DType:
    """Return the element type in which operand `formal` of `n` is written."""
    if n.op.name == "Range":
        assert n.types[0].dtype is not None
        return n.types[0].dtype
    for word, dtype in (
        ("int64", I64),
        ("int32", I32),
        ("bool", BOOL),
        ("float", F32),
        ("double", F64),
    ):
        if f"tensor({word})" in formal.types:
            return dtype
    raise NotExpressible(
        f"{n.op.name}: no element type for {formal.name} among {sorted(formal.types)}"
    )


def constant_array(value: Attr, dtype: DType) -> np.ndarray | None:
    """Return `value` as an array of rank 0 or 1, or None if it has symbolic sizes."""
    many = value if isinstance(value, tuple) else (value,)
    if any(isinstance(v, Expr) for v in many):
        return None
    if not all(isinstance(v, (bool, int, float)) for v in many):
        raise NotExpressible(f"{value} is not a tensor")
    array = np.array(many).astype(to_numpy(dtype))
    return array if isinstance(value, tuple) else array.reshape(())
