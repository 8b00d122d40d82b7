"""Sizes at which an operator accepts operands that it refuses for symbolic sizes.

Operands refused at every size are no instance. Operands accepted at some sizes are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from random import Random

from superopt.ir.op import Attr, InferError, Op, Types, _canonical_attrs
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Const, Expr
from superopt.te.expr.tensor import Dim, Tensor
from superopt.verifier.instances.size_equations import holds_at

MAX_TRIES = 12
MAX_TRIES_UNMATCHED = 200  # if none of these satisfies the hypotheses
MAX_REFUSALS = 4  # refused sizes before giving up


def accepted_sizes(
    op: Op,
    operands: Sequence[Tensor | None],
    attrs: Sequence[tuple[str, Attr]],
    hypotheses: Iterable[Expr],
) -> Mapping[str, int] | None:
    """Return sizes at which the operator accepts the operands, None if none were found."""
    types = tuple(None if o is None else o.type for o in operands)
    kinds = tuple(_type_key(v) for _, v in attrs)
    return _accepted_sizes(op, types, tuple(attrs), kinds, tuple(hypotheses))


def _type_key(v: Attr) -> object:
    """Return a key that distinguishes 1 from 1.0 and True."""
    return tuple(map(_type_key, v)) if isinstance(v, tuple) else type(v)


@lru_cache(maxsize=1 << 13)
def _accepted_sizes(
    op: Op,
    types: Types,
    attrs: tuple[tuple[str, Attr], ...],
    kinds: object,
    hypotheses: tuple[Expr, ...],
) -> Mapping[str, int] | None:
    """Return the accepted sizes. Cached: instances of one rule, and of the next, ask the same."""
    names: set[str] = set()
    for o in types:
        for d in () if o is None or o.shape is None else o.shape:
            names |= index.symbols(d)
    for _, v in attrs:
        for x in v if isinstance(v, tuple) else (v,):
            if isinstance(x, Expr):
                names |= index.symbols(x)
    if not names:
        return None
    for h in hypotheses:
        names |= index.symbols(h)
    rng = Random(5)
    order = sorted(names)
    refused = 0
    boundary = sorted(
        {k + d for h in hypotheses for k in _literals(h) for d in (-1, 0, 1, 2) if k + d > 0}
    )
    for n in range(MAX_TRIES_UNMATCHED):
        if n >= MAX_TRIES and refused:
            break
        sizes = {name: n + 1 if n < 2 else rng.randint(1, 4) for name in order}
        if n >= MAX_TRIES and boundary:  # hypotheses may need large sizes
            sizes = {name: rng.choice((sizes[name], *boundary)) for name in order}
        if not all(holds_at(h, sizes) for h in hypotheses):
            continue
        if _accepts(op, types, attrs, sizes):
            return sizes
        refused += 1
        if refused == MAX_REFUSALS:
            return None
    return None


def _literals(h: Expr) -> Iterator[int]:
    """Yield the integers in an expression."""
    match h:
        case Const(v):
            yield int(v)
        case Apply(_, args, _):
            for a in args:
                yield from _literals(a)
        case _:
            return


def _accepts(
    op: Op, given: Types, attrs: Sequence[tuple[str, Attr]], sizes: dict[str, int]
) -> bool:
    def at(d: Dim) -> int:
        return index.evaluate(d, sizes)

    try:
        fixed = tuple((k, _attribute_at(v, sizes)) for k, v in attrs)
        operands = [
            None
            if t is None or t.dtype is None or t.shape is None
            else Tensor(f"a{n}", t.dtype, tuple(map(at, t.shape)))
            for n, t in enumerate(given)
        ]
        if any(n < 1 for t in operands if t is not None for n in t.shape if isinstance(n, int)):
            return False
        types = tuple(None if t is None else t.type for t in operands)
        full = dict(_canonical_attrs.__wrapped__(op, types, fixed))
        assert op.compute is not None
        out = op.compute(*operands, **full)
    except (
        InferError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        ZeroDivisionError,
        AssertionError,
    ):
        return False
    tensors = out if isinstance(out, tuple) else (out,)
    return all(isinstance(d, int) and d >= 1 for t in tensors for d in t.shape)


def _attribute_at(v: Attr, sizes: dict[str, int]) -> Attr:
    if isinstance(v, tuple):
        return tuple(_attribute_at(x, sizes) for x in v)
    return index.evaluate(v, sizes) if isinstance(v, Expr) else v
