"""Families of matrices: products, reductions, elementwise functions, softmax, normalization."""

from __future__ import annotations

from dataclasses import replace

from superopt.generate.family import ANY, MANY, Family, each, fitting, of_variables, parts, use
from superopt.ir.op import Attr


def matrices() -> Family:
    """TASO's operators on square matrices (Jia et al., SOSP 2019, table 1)."""
    n = 3
    return Family(
        "matrices",
        {**dict.fromkeys("xyzw", (n, n)), "s": ()},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=0, split=(n, n)),
            *parts("Split", 2, axis=1, split=(n, n)),
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
            use("MatMul", 2),
            *of_variables(
                use("Add", 2),
                use("Sub", 2),
                use("Mul", 2),
                use("Neg", 1),
                use("Transpose", 1, perm=(1, 0)),
            ),
        ),
        n * n,
        whole=3,
    )


def reductions() -> Family:
    """Sums, means and maxima along rows and columns, with broadcasts along them.

    No two sizes are equal: in a square a mean of columns has the shape of one of rows; and on few
    samples a maximum is positive by chance. Products have a contraction: an outer product is
    elementwise.
    """
    n, m, k = 3, 5, 4
    names = ("ReduceSum", "ReduceMax", "ReduceMean")
    rows = (fitting(use(name, 1, axes=(1,), keepdims=1), (MANY,)) for name in names)
    columns = (fitting(use(name, 1, axes=(0,), keepdims=1), (MANY, ANY)) for name in names)
    return Family(
        "reductions",
        {**dict.fromkeys("xy", (n, m)), "w": (m, k), "r": (n, 1), "c": (1, m)},
        {},
        (
            fitting(use("MatMul", 2), (ANY, MANY), (MANY, ANY)),
            use("Add", 2),
            use("Mul", 2),
            use("Relu", 1),
            *rows,
            *columns,
            use("Transpose", 1, perm=(1, 0)),
            *(fitting(u, (n, m), (n, m)) for u in each("Concat", 2, "axis", (0, 1))),
        ),
        2 * m * m,
        samples=24,
        whole=3,
    )


def batches() -> Family:
    """Batched products beside plain ones: stacks of matrices, one weight for all of them."""
    b, n = 2, 3
    return Family(
        "batches",
        {**dict.fromkeys("xyz", (b, n, n)), "w": (n, n), "v": (n, n)},
        {},
        (
            use("MatMul", 2),
            use("Add", 2),
            use("Relu", 1),
            use("Transpose", 1, perm=(0, 2, 1)),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1, 2)),
            use("Reshape", 1, shape=(b * n, n)),
            use("Reshape", 1, shape=(b, n, n)),
        ),
        2 * b * n * n,
        samples=4,
        whole=3,
    )


def activations() -> Family:
    """Elementwise functions commute with data movement."""
    n = 3
    return Family(
        "activations",
        {**dict.fromkeys("xy", (n, n)), "s": ()},
        {},
        (
            *(use(name, 1) for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Neg")),
            use("Add", 2),
            use("Mul", 2),
            use("Transpose", 1, perm=(1, 0)),
            *each("Concat", 2, "axis", (0, 1)),
            *parts("Split", 2, axis=1, split=(n, n)),
            use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), steps=(1,)),
            use("Reshape", 1, shape=(n * n,)),
        ),
        2 * n * n,
        whole=3,
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
            use("MatMul", 2),
            use("Add", 2),
            fitting(use("Sub", 2), (n, m), (n, 1)),
            fitting(use("Div", 2), (n, m), (n, 1)),
            use("Exp", 1),
            use("ReduceSum", 1, **along),
            use("ReduceMax", 1, **along),
            use("Softmax", 1, axis=1),
        ),
        n * m,
        whole=3,
    )


def norms() -> Family:
    """Normalization of rows and its parts."""
    n, m = 2, 5
    along: dict[str, Attr] = {"axes": (1,), "keepdims": 1}
    normal = use("LayerNormalization", 2, axis=1, epsilon=0.5)
    return Family(
        "norms",
        {**dict.fromkeys("xy", (n, m)), "r": (n, 1), "g": (m,), "h": (m,)},
        {"2": ("twos", ())},
        (
            fitting(use("Sub", 2), (n, m), (n, 1)),
            use("Mul", 2),
            fitting(use("Div", 2), (n, m), (n, 1)),
            fitting(use("Sqrt", 1), (n, 1)),
            fitting(use("Pow", 2), (n, m), ()),
            use("ReduceMean", 1, **along),
            fitting(replace(normal, many=True), (n, m), (m,)),
            fitting(use("RMSNormalization", 2, axis=1, epsilon=0.5), (n, m), (m,)),
        ),
        n * m,
        samples=4,
        whole=3,
    )
