"""Families of data movement."""

from __future__ import annotations

from superopt.generate.family import Family, each, use
from superopt.ir.op import Attr


def layouts() -> Family:
    """Data movement: all permutations of three axes, merged and split axes, parts, padding."""
    perms = [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return Family(
        "layouts",
        {**dict.fromkeys("xy", (2, 3, 4)), "z": (6, 4)},
        {},
        (
            *each("Transpose", 1, "perm", [*perms, (1, 0)]),
            *each("Reshape", 1, "shape", [(6, 4), (2, 12), (24,), (2, 3, 4)]),
            *each("Unsqueeze", 1, "axes", [(0,), (1,)]),
            *each("Squeeze", 1, "axes", [(0,), (1,)]),
            *each("Concat", 2, "axis", [0, 1, 2]),
            use("Relu", 1),
            use("Add", 2),
        ),
        48,
        samples=2,
        partial=True,
        whole=3,
    )


def volumes() -> Family:
    """Permutations, merges and splits of four axes, as in attention."""
    perms = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (1, 0, 2, 3), (0, 3, 1, 2)]
    return Family(
        "volumes",
        {"x": (2, 3, 2, 3), "y": (2, 2, 3, 3), "z": (2, 3, 6)},
        {},
        (
            *each("Transpose", 1, "perm", [*perms, (0, 2, 1)]),
            *each("Reshape", 1, "shape", [(2, 3, 6), (6, 6), (2, 3, 2, 3), (2, 6, 3)]),
            *each("Concat", 2, "axis", [0, 1]),
            use("Relu", 1),
            use("Add", 2),
            use("MatMul", 2),
        ),
        72,
        samples=2,
        whole=3,
    )


CUT: dict[str, Attr] = {"steps": (1,)}
ROWS = (
    use("Slice", 1, axes=(0,), starts=(0,), ends=(2,), **CUT),
    use("Slice", 1, axes=(0,), starts=(2,), ends=(4,), **CUT),
)
COLUMNS = (
    use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), **CUT),
    use("Slice", 1, axes=(1,), starts=(1,), ends=(3,), **CUT),
)
PADS = (use("Pad", 1, pads=(1, 0, 1, 0)), use("Pad", 1, pads=(0, 0, 0, 2)))
OTHERS = (
    use("Transpose", 1, perm=(1, 0)),
    *each("Concat", 2, "axis", (0, 1)),
    use("MatMul", 2),
    use("Add", 2),
    use("Mul", 2),
    use("Relu", 1),
)


def slices() -> Family:
    """Slices and what commutes with them, including slices of joins."""
    n = 4
    return Family(
        "slices",
        {**dict.fromkeys("xy", (n, n)), **dict.fromkeys("vw", (2, n))},
        {},
        (*ROWS, *COLUMNS, *OTHERS),
        2 * n * n,
        samples=4,
        whole=3,
    )


def pads() -> Family:
    """Zero padding, and what commutes with it."""
    n = 3
    return Family(
        "pads",
        dict.fromkeys("xy", (n, n)),
        {},
        (*PADS, *OTHERS),
        2 * n * n,
        samples=4,
        whole=3,
    )


def pieces() -> Family:
    """Slices and pads of each other: most equalities are partial, and the others belong to these
    very slices."""
    n = 4
    return Family(
        "pieces",
        {**dict.fromkeys("xy", (n, n)), "w": (2, n)},
        {},
        (*ROWS, *COLUMNS, *PADS, *OTHERS),
        2 * n * n,
        samples=4,
        partial=True,
        rules=False,
        top=3,
    )
