"""Families of data movement."""

from __future__ import annotations

from superopt.generate.families.family import Family, attribute_uses, operator_use
from superopt.ir.op import Attr


def layouts() -> Family:
    """Data movement: all permutations of three axes, merged and split axes, parts, padding."""
    perms = [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    return Family(
        "layouts",
        {**dict.fromkeys("xy", (2, 3, 4)), "z": (6, 4)},
        {},
        (
            *attribute_uses("Transpose", 1, "perm", [*perms, (1, 0)]),
            *attribute_uses("Reshape", 1, "shape", [(6, 4), (2, 12), (24,), (2, 3, 4)]),
            *attribute_uses("Unsqueeze", 1, "axes", [(0,), (1,)]),
            *attribute_uses("Squeeze", 1, "axes", [(0,), (1,)]),
            *attribute_uses("Concat", 2, "axis", [0, 1, 2]),
            operator_use("Relu", 1),
            operator_use("Add", 2),
        ),
        48,
        samples=2,
        finds_partial=True,
        complete_ops=3,
    )


def volumes() -> Family:
    """Permutations, merges and splits of four axes, as in attention."""
    perms = [(0, 2, 1, 3), (0, 1, 3, 2), (0, 2, 3, 1), (1, 0, 2, 3), (0, 3, 1, 2)]
    return Family(
        "volumes",
        {"x": (2, 3, 2, 3), "y": (2, 2, 3, 3), "z": (2, 3, 6)},
        {},
        (
            *attribute_uses("Transpose", 1, "perm", [*perms, (0, 2, 1)]),
            *attribute_uses("Reshape", 1, "shape", [(2, 3, 6), (6, 6), (2, 3, 2, 3), (2, 6, 3)]),
            *attribute_uses("Concat", 2, "axis", [0, 1]),
            operator_use("Relu", 1),
            operator_use("Add", 2),
            operator_use("MatMul", 2),
        ),
        72,
        samples=2,
        complete_ops=3,
    )


UNIT_STEPS: dict[str, Attr] = {"steps": (1,)}
ROW_SLICES = (
    operator_use("Slice", 1, axes=(0,), starts=(0,), ends=(2,), **UNIT_STEPS),
    operator_use("Slice", 1, axes=(0,), starts=(2,), ends=(4,), **UNIT_STEPS),
)
COLUMN_SLICES = (
    operator_use("Slice", 1, axes=(1,), starts=(0,), ends=(2,), **UNIT_STEPS),
    operator_use("Slice", 1, axes=(1,), starts=(1,), ends=(3,), **UNIT_STEPS),
)
PAD_USES = (operator_use("Pad", 1, pads=(1, 0, 1, 0)), operator_use("Pad", 1, pads=(0, 0, 0, 2)))
OTHER_USES = (
    operator_use("Transpose", 1, perm=(1, 0)),
    *attribute_uses("Concat", 2, "axis", (0, 1)),
    operator_use("MatMul", 2),
    operator_use("Add", 2),
    operator_use("Mul", 2),
    operator_use("Relu", 1),
)


def slices() -> Family:
    """Slices and what commutes with them, including slices of joins."""
    n = 4
    return Family(
        "slices",
        {**dict.fromkeys("xy", (n, n)), **dict.fromkeys("vw", (2, n))},
        {},
        (*ROW_SLICES, *COLUMN_SLICES, *OTHER_USES),
        2 * n * n,
        samples=4,
        complete_ops=3,
    )


def pads() -> Family:
    """Zero padding, and what commutes with it."""
    n = 3
    return Family(
        "pads",
        dict.fromkeys("xy", (n, n)),
        {},
        (*PAD_USES, *OTHER_USES),
        2 * n * n,
        samples=4,
        complete_ops=3,
    )


def pieces() -> Family:
    """Slices and pads of each other: most equalities are partial, and the others belong to these
    very slices."""
    n = 4
    return Family(
        "pieces",
        {**dict.fromkeys("xy", (n, n)), "w": (2, n)},
        {},
        (*ROW_SLICES, *COLUMN_SLICES, *PAD_USES, *OTHER_USES),
        2 * n * n,
        samples=4,
        finds_partial=True,
        makes_rules=False,
        max_ops=3,
    )
