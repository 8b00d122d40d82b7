"""Constants that are given by their shape, as tensor expressions of symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from superopt.rules.fills import Content, meant
from superopt.rules.functions import Result, number, sequence
from superopt.te import index as ix
from superopt.te.dtype import BOOL, INDEX, DType
from superopt.te.expr import Dim, Tensor, both, cast, compute, const, product, select
from superopt.te.node import Const, Expr
from superopt.verifier.attributes import Unsupported


def filled(what: str, args: Sequence[Result], kind: DType) -> Tensor:
    """Return zeros, ones, full, eye, dirac, means or table as a tensor expression."""

    def dims(r: Result) -> tuple[Dim, ...]:
        return tuple(d for d in sequence(r) if isinstance(d, (int, Expr)))

    zero, one = const(0, kind), const(1, kind)

    def same(i: Expr, j: Dim) -> Expr:
        return ix.apply("eq", (i, ix.as_index(j)), BOOL)

    match what:
        case "zeros" | "ones":
            value = zero if what == "zeros" else one
            return compute(dims(args[0]), lambda *i: value, name=what)
        case "full":
            given = args[1]
            if isinstance(given, Expr):
                size = cast(given, kind)
                return compute(dims(args[0]), lambda *i: size, name=what)
            some = const(float(number(given)) if kind.is_float else int(number(given)), kind)
            return compute(dims(args[0]), lambda *i: some, name=what)
        case "eye":
            n = args[0]
            assert isinstance(n, (int, Expr))
            return compute((n, n), lambda i, j: select(same(i, j), one, zero), name=what)
        case "dirac":
            shape = dims(args[0])

            def centre(o: Expr, c: Expr, *k: Expr) -> Expr:
                half = [ix.floordiv(ix.as_index(d), Const(2, INDEX)) for d in shape[2:]]
                return select(
                    both(same(o, c), *(same(a, h) for a, h in zip(k, half, strict=True))),
                    one,
                    zero,
                )

            return compute(shape, centre, name=what)
        case "means":
            shape = dims(args[0])
            count = cast(ix.as_index(product(shape[2:])), kind)
            return compute(shape, lambda o, c, *k: select(same(o, c), one / count, zero), name=what)
        case "table":
            extents, rows = meant(what, args)

            def cell(*i: Expr) -> Expr:
                """Return one guarded addend for each nonzero number: a sum over them selects what
                it needs."""
                out: Expr = zero
                for at, n in _cells(rows):
                    here = [same(a, k) for a, k in zip(i, at, strict=True)]
                    out = out + select(both(*here), const(n, kind), zero)
                return out

            return compute(dims(extents), cell, name=what)
        case _:
            raise Unsupported(what)


def _cells(rows: Content) -> Iterator[tuple[tuple[int, ...], int | float | Fraction]]:
    """Yield the nonzero numbers of a table with their indices."""
    if not isinstance(rows, tuple):
        if rows:
            yield (), rows
        return
    for k, row in enumerate(rows):
        for at, n in _cells(row):
            yield (k, *at), n
