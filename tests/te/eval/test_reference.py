"""The naive reading: symbolic sizes as elements, and what it cannot decide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from superopt.ir.op import canonical_attrs, expression
from superopt.ops import OPS
from superopt.te.eval.reference import Scalar, Undecided, _symbolic_division, reference_elements
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32, I64, INDEX
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compare,
    compute,
    const,
    gather,
    placeholder,
    reduction,
    select,
)

N, M = Size("n"), Size("m")
X = placeholder("x", TensorType(I64, (3,)))


def read(*values: Scalar) -> dict[str, Callable[[tuple[int, ...]], Scalar]]:
    return {"x": lambda i: values[i[0]]}


def listed(t: Tensor, *values: Scalar) -> list[Scalar]:
    found: list[Scalar] = reference_elements(t, read(*values)).reshape(-1).tolist()
    return found


def each(body: Callable[[Expr], Expr]) -> Tensor:
    return compute((3,), lambda i: body(X[i]))


def test_the_chain_from_a_shape_to_a_reshape() -> None:
    """Concat(Gather(Shape(t), [0]), [12, -1]): what exporters write for a batch."""
    t = placeholder("a0", TensorType(F32, (N, 3, 4)))
    (shape,) = expression(OPS["Shape"], (t.type,), canonical_attrs(OPS["Shape"], (t.type,), {}))
    sizes = reference_elements(shape, {})
    assert sizes.tolist() == [N, 3, 4]
    types = (TensorType(I64, (3,)), TensorType(I64, (1,)))
    attrs = canonical_attrs(OPS["Gather"], types, {})
    (picked,) = expression(OPS["Gather"], types, attrs)
    got = reference_elements(picked, {"a0": lambda i: sizes[i], "a1": lambda i: 0})
    assert got.tolist() == [N]
    types = (TensorType(I64, (1,)), TensorType(I64, (2,)))
    (joined,) = expression(OPS["Concat"], types, canonical_attrs(OPS["Concat"], types, {"axis": 0}))
    out = reference_elements(joined, {"a0": lambda i: got[i], "a1": lambda i: (12, -1)[i[0]]})
    assert out.tolist() == [N, 12, -1]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda e: e + 1, [index.as_index(N + 1), 13, index.as_index(N * M + 1)]),
        (lambda e: e * 2, [index.as_index(N * 2), 24, index.as_index(N * M * 2)]),
        (lambda e: e * 4 / 2, [index.as_index(N * 2), 24, index.as_index(N * M * 2)]),
        (lambda e: e / 5, [index.as_index(N // 5), 2, index.as_index((N * M) // 5)]),
        (lambda e: e % 1, [0, 0, 0]),
        (lambda e: apply("max", e, 1), [N, 12, index.as_index(N * M)]),
        (lambda e: select(compare("lt", 0, e), e, 7), [N, 12, index.as_index(N * M)]),
        (lambda e: apply("abs", e), [N, 12, index.as_index(N * M)]),
        (
            lambda e: cast(apply("floor", cast(e, F32) * 2), I64),
            [index.as_index(N * 2), 24, index.as_index(N * M * 2)],
        ),
        (
            lambda e: cast(cast(e, F32) / 5, I64),
            [index.as_index(N // 5), 2, index.as_index((N * M) // 5)],
        ),
    ],
)
def test_arithmetic_on_sizes(body: Callable[[Expr], Expr], expected: list[Scalar]) -> None:
    assert listed(each(body), N, 12, index.as_index(N * M)) == expected


@pytest.mark.parametrize(
    "body",
    [
        lambda e: select(compare("lt", e, 5), e, 5),
        lambda e: cast(cast(e, F32) * 0.3, I64),
        lambda e: (e - 5) / 2,
        lambda e: apply("pow", e, 2),
        lambda e: X[gather(e, 3)],
    ],
    ids=["order", "fraction", "sign", "power", "position"],
)
def test_what_is_undecided(body: Callable[[Expr], Expr]) -> None:
    with pytest.raises(Undecided, match=r"symbolic size|not an integer|signs"):
        listed(each(body), N, M, N)


def test_a_symbolic_shape_has_no_elements() -> None:
    t = compute((N,), lambda i: cast(i, I64))
    with pytest.raises(Undecided, match="symbolic size"):
        reference_elements(t, {})


def test_branches_not_taken_are_not_read() -> None:
    t = compute((5,), lambda i: select(compare("lt", i, const(3, INDEX)), X[i], 0))
    assert listed(t, 1, 2, 3) == [1, 2, 3, 0, 0]


def test_reductions_fold_from_the_first_and_of_nothing_give_the_unit() -> None:
    assert listed(compute((), lambda: reduction("max", 3, lambda k: X[k])), -3, -1, -2) == [-1]
    assert listed(compute((), lambda: reduction("sum", 3, lambda k: X[k])), N, 1, N) == [
        index.as_index(N * 2 + 1)
    ]
    empty = compute((), lambda: reduction("max", 0, lambda k: X[k]))
    assert listed(empty, 1, 1, 1) == [-(1 << 63)]
    every = compute((), lambda: reduction("all", 3, lambda k: compare("lt", X[k], 3)))
    assert listed(every, 1, 2, 3) == [0]
    assert every.dtype == BOOL


def test_integers_wrap_and_divide_toward_zero() -> None:
    assert listed(each(lambda e: e * 2), (1 << 63) - 1, -1, 0) == [-2, -2, 0]
    assert listed(each(lambda e: e / 2), -3, 3, -4) == [-1, 1, -2]
    assert np.isnan(
        reference_elements(compute((), lambda: cast(X[0], F32) / 0), read(0, 0, 0)).item()
    )


@pytest.mark.parametrize("by", [2, 4, 7])
@pytest.mark.parametrize("offset", [-5, -1, 0, 3])
def test_what_a_remainder_is_taken_from_is_divided_without_one(by: int, offset: int) -> None:
    """As models compute floor divisions: of any sign, by truncating division of a multiple."""
    p, n = index.as_index(Size("x")) + offset, const(by, INDEX)
    a = p - index.mod(p, n)
    found = _symbolic_division("div", a, n, I64)
    assert found == index.floordiv(p, n)
    assert _symbolic_division("mod", a, n, I64) == 0
    for x in range(1, 30):
        value = index.evaluate(index.dim(found), {"x": x})  # type: ignore[arg-type]
        assert value == (x + offset - (x + offset) % by) // by
    if offset < 0:  # else it is no less than 0, and floor division truncates
        with pytest.raises(Undecided):
            _symbolic_division("div", p - index.mod(p + 1, n), n, I64)
