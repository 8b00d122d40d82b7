"""Constants that are given by their shape, as tensor expressions of symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from superopt.rules.lang.fills import Content, shape_and_content
from superopt.rules.lang.functions import Result, as_number, as_tuple
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX, DType
from superopt.te.expr.node import Const, Expr
from superopt.te.expr.tensor import Dim, Tensor, cast, compute, conjunction, const, product, select
from superopt.verifier.instances.attributes import Unsupported


def fill_tensor(fill: str, args: Sequence[Result], kind: DType) -> Tensor:
    """Return zeros, ones, full, eye, dirac, means or table as a tensor expression."""

    def dims(r: Result) -> tuple[Dim, ...]:
        return tuple(d for d in as_tuple(r) if isinstance(d, (int, Expr)))

    zero, one = const(0, kind), const(1, kind)

    def same(i: Expr, j: Dim) -> Expr:
        return index.apply("eq", (i, index.as_index(j)), BOOL)

    match fill:
        case "zeros" | "ones":
            value = zero if fill == "zeros" else one
            return compute(dims(args[0]), lambda *i: value, name=fill)
        case "full":
            given = args[1]
            if isinstance(given, Expr):
                size = cast(given, kind)
                return compute(dims(args[0]), lambda *i: size, name=fill)
            element = const(
                float(as_number(given)) if kind.is_float else int(as_number(given)), kind
            )
            return compute(dims(args[0]), lambda *i: element, name=fill)
        case "eye":
            n = args[0]
            assert isinstance(n, (int, Expr))
            return compute((n, n), lambda i, j: select(same(i, j), one, zero), name=fill)
        case "dirac":
            shape = dims(args[0])

            def centre(o: Expr, c: Expr, *k: Expr) -> Expr:
                half = [index.floordiv(index.as_index(d), Const(2, INDEX)) for d in shape[2:]]
                return select(
                    conjunction(same(o, c), *(same(a, h) for a, h in zip(k, half, strict=True))),
                    one,
                    zero,
                )

            return compute(shape, centre, name=fill)
        case "means":
            shape = dims(args[0])
            count = cast(index.as_index(product(shape[2:])), kind)
            return compute(shape, lambda o, c, *k: select(same(o, c), one / count, zero), name=fill)
        case "table":
            extents, rows = shape_and_content(fill, args)

            def cell(*i: Expr) -> Expr:
                """Return one guarded addend for each nonzero number: a sum over them selects what
                it needs."""
                out: Expr = zero
                for at, n in _nonzero_cells(rows):
                    here = [same(a, k) for a, k in zip(i, at, strict=True)]
                    out = out + select(conjunction(*here), const(n, kind), zero)
                return out

            return compute(dims(extents), cell, name=fill)
        case _:
            raise Unsupported(fill)


def _nonzero_cells(rows: Content) -> Iterator[tuple[tuple[int, ...], int | float | Fraction]]:
    """Yield the nonzero numbers of a table with their indices."""
    if not isinstance(rows, tuple):
        if rows:
            yield (), rows
        return
    for k, row in enumerate(rows):
        for at, n in _nonzero_cells(row):
            yield (k, *at), n
