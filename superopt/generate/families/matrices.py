"""Families of matrices: products, reductions, elementwise functions, softmax, normalization."""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.families.family import (
    ANY_SIZE,
    SIZE_ABOVE_1,
    Family,
    attribute_uses,
    operator_use,
    result_uses,
    with_operand_suffixes,
    without_constants,
)
from superopt.ir.op import Attr


def matrices() -> Family:
    """TASO's operators on square matrices (Jia et al., SOSP 2019, table 1)."""
    n = 3
    return Family(
        "matrices",
        {**dict.fromkeys("xyzw", (n, n)), "s": ()},
        {},
        (
            operator_use("MatMul", 2),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            operator_use("Transpose", 1, perm=(1, 0)),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *result_uses("Split", 2, axis=0, split=(n, n)),
            *result_uses("Split", 2, axis=1, split=(n, n)),
        ),
        2 * n * n,
    )


def linear() -> Family:
    """Matrix products with differences and signs; zero and the identity in products."""
    n = 3
    return Family(
        "linear",
        {**dict.fromkeys("xyz", (n, n)), "s": ()},
        {"0": ("zeros", (n, n)), "i": ("eye", (n, n))},
        (
            operator_use("MatMul", 2),
            *without_constants(
                operator_use("Add", 2),
                operator_use("Sub", 2),
                operator_use("Mul", 2),
                operator_use("Neg", 1),
                operator_use("Transpose", 1, perm=(1, 0)),
            ),
        ),
        n * n,
        complete_ops=3,
    )


def reductions() -> Family:
    """Sums, means and maxima along rows and columns, with broadcasts along them.

    No two sizes are equal: in a square a mean of columns has the shape of one of rows; and on few
    samples a maximum is positive by chance. Products have a contraction: an outer product is
    elementwise.
    """
    n, m, k = 3, 5, 4
    names = ("ReduceSum", "ReduceMax", "ReduceMean")
    rows = (
        with_operand_suffixes(operator_use(name, 1, axes=(1,), keepdims=1), (SIZE_ABOVE_1,))
        for name in names
    )
    columns = (
        with_operand_suffixes(
            operator_use(name, 1, axes=(0,), keepdims=1), (SIZE_ABOVE_1, ANY_SIZE)
        )
        for name in names
    )
    return Family(
        "reductions",
        {**dict.fromkeys("xy", (n, m)), "w": (m, k), "r": (n, 1), "c": (1, m)},
        {},
        (
            with_operand_suffixes(
                operator_use("MatMul", 2), (ANY_SIZE, SIZE_ABOVE_1), (SIZE_ABOVE_1, ANY_SIZE)
            ),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Relu", 1),
            *rows,
            *columns,
            operator_use("Transpose", 1, perm=(1, 0)),
            *(
                with_operand_suffixes(u, (n, m), (n, m))
                for u in attribute_uses("Concat", 2, "axis", (0, 1))
            ),
        ),
        2 * m * m,
        samples=24,
        complete_ops=3,
    )


def batches() -> Family:
    """Batched products beside plain ones: stacks of matrices, one weight for all of them."""
    b, n = 2, 3
    return Family(
        "batches",
        {**dict.fromkeys("xyz", (b, n, n)), "w": (n, n), "v": (n, n)},
        {},
        (
            operator_use("MatMul", 2),
            operator_use("Add", 2),
            operator_use("Relu", 1),
            operator_use("Transpose", 1, perm=(0, 2, 1)),
            operator_use("Transpose", 1, perm=(1, 0)),
            *attribute_uses("Concat", 2, "axis", (0, 1, 2)),
            operator_use("Reshape", 1, shape=(b * n, n)),
            operator_use("Reshape", 1, shape=(b, n, n)),
        ),
        2 * b * n * n,
        samples=4,
        complete_ops=3,
    )


def activations() -> Family:
    """Elementwise functions commute with data movement."""
    n = 3
    return Family(
        "activations",
        {**dict.fromkeys("xy", (n, n)), "s": ()},
        {},
        (
            *(
                operator_use(name, 1)
                for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Neg")
            ),
            operator_use("Add", 2),
            operator_use("Mul", 2),
            operator_use("Transpose", 1, perm=(1, 0)),
            *attribute_uses("Concat", 2, "axis", (0, 1)),
            *result_uses("Split", 2, axis=1, split=(n, n)),
            operator_use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), steps=(1,)),
            operator_use("Reshape", 1, shape=(n * n,)),
        ),
        2 * n * n,
        complete_ops=3,
    )


def attention() -> Family:
    """Softmax and its parts, along the rows of a matrix that is then multiplied. There are fewer
    columns than rows: with a column of ones, a square product would be a row sum.
    """
    n, m = 4, 3
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    return Family(
        "attention",
        {**dict.fromkeys("xy", (n, m)), "w": (m, m), "r": (n, 1)},
        {"1": ("ones", (n, 1))},
        (
            operator_use("MatMul", 2),
            operator_use("Add", 2),
            with_operand_suffixes(operator_use("Sub", 2), (n, m), (n, 1)),
            with_operand_suffixes(operator_use("Div", 2), (n, m), (n, 1)),
            operator_use("Exp", 1),
            operator_use("ReduceSum", 1, **along),
            operator_use("ReduceMax", 1, **along),
            operator_use("Softmax", 1, axis=1),
        ),
        n * m,
        complete_ops=3,
    )


def norms() -> Family:
    """Normalization of rows and its parts."""
    n, m = 2, 5
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    normal = operator_use("LayerNormalization", 2, axis=1, epsilon=0.5)
    return Family(
        "norms",
        {**dict.fromkeys("xy", (n, m)), "r": (n, 1), "g": (m,), "h": (m,)},
        {"2": ("twos", ())},
        (
            with_operand_suffixes(operator_use("Sub", 2), (n, m), (n, 1)),
            operator_use("Mul", 2),
            with_operand_suffixes(operator_use("Div", 2), (n, m), (n, 1)),
            with_operand_suffixes(operator_use("Sqrt", 1), (n, 1)),
            with_operand_suffixes(operator_use("Pow", 2), (n, m), ()),
            operator_use("ReduceMean", 1, **along),
            with_operand_suffixes(replace(normal, has_many_results=True), (n, m), (m,)),
            with_operand_suffixes(
                operator_use("RMSNormalization", 2, axis=1, epsilon=0.5), (n, m), (m,)
            ),
        ),
        n * m,
        samples=4,
        complete_ops=3,
    )
