"""Helpers of operator definitions: broadcasting, canonical axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superopt.ir.op import Attr, Canonical, InferError, Types
from superopt.te.analysis.size_oracle import are_sizes_broadcast_equal, has_size_oracle
from superopt.te.expr.node import Apply, Const, Expr
from superopt.te.expr.tensor import Dim, Tensor


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """numpy's broadcast of shapes. Sizes that are not equal as expressions do not broadcast.

    Except n with min(n, c), c > 1 (a table cut to a sequence's length): they broadcast only where
    they are equal, so the result has n in every run that does not fail.
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = []
    for axis in range(rank):
        size: Dim = 1
        for s in shapes:
            at = axis - rank + len(s)
            if at < 0 or s[at] == 1:
                continue
            if (
                size != 1
                and not has_size_oracle()
                and (kept := _uncut_size(size, s[at])) is not None
            ):
                size = kept
                continue
            if size != 1 and not are_sizes_broadcast_equal(size, s[at]):
                shown = " and ".join(str(tuple(s)) for s in shapes)
                raise InferError(f"shapes {shown} do not broadcast: {size} != {s[at]}")
            size = s[at]
        out.append(size)
    return tuple(out)


def _uncut_size(a: Dim, b: Dim) -> Dim | None:
    """Return n if the sizes are n and min(n, c) with a constant c > 1, else None."""
    for n, cut in ((a, b), (b, a)):
        limits = cut.args if isinstance(cut, Apply) and cut.fn == "min" else ()
        if n in limits and any(isinstance(c, Const) and c.value > 1 for c in limits):
            return n
    return None


def broadcast_element(x: Tensor, index: Sequence[Expr]) -> Expr:
    """Return the element of `x` that broadcasts to `index`."""
    tail = index[len(index) - x.rank :]
    return x[tuple(0 if n == 1 else i for n, i in zip(x.shape, tail, strict=True))]


def normalize_axis(axis: Attr, rank: int, name: str = "axis") -> int:
    """Return `axis` counted from 0. Raises InferError if it is out of range."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise InferError(f"{name} {axis} is not in [-{rank}, {rank})")
    return axis % rank if rank else 0


def rank_of(types: Types, operand: int = 0) -> int:
    t = types[operand]
    if t is None or t.shape is None:
        raise InferError(f"operand {operand} has no known rank")
    return len(t.shape)


def canonical_axis(operand: int = 0, key: str = "axis") -> Canonical:
    """Canonical form: attribute `key` counts from 0 in the rank of an operand."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        return attrs | {key: normalize_axis(attrs[key], rank_of(types, operand), key)}

    return canonical


def canonical_axes(operand: int = 0, key: str = "axes", all_if_none: bool = True) -> Canonical:
    """Canonical form: the axes sorted, from 0; None becomes all of them."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        rank = rank_of(types, operand)
        given = attrs[key]
        if given is None:
            return attrs | {key: tuple(range(rank))} if all_if_none else attrs
        if not isinstance(given, tuple):
            raise InferError(f"{key} {given} is one number: ({given},) is a list of one")
        axes = sorted(normalize_axis(a, rank, key) for a in given)
        if len(set(axes)) != len(axes):
            raise InferError(f"{key} {given} names an axis twice in rank {rank}")
        return attrs | {key: tuple(axes)}

    return canonical


def chain_canonical(*steps: Callable[[Types, dict[str, Attr]], dict[str, Attr]]) -> Canonical:
    """Apply canonical forms one after the other."""

    def canonical(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
        for step in steps:
            attrs = step(types, attrs)
        return attrs

    return canonical
