"""The families of a default run, as data.

Sizes are as small as possible without accidental laws: 2 by 2 matrices obey more laws than matrices
in general, and two rows have a sum of only one more. The rules are tested at other sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from superopt.generate.families.family import Family, operator_use, without_constants
from superopt.generate.families.images import borders, groups, images, kernels, means, pools, scales
from superopt.generate.families.layouts import layouts, pads, pieces, slices, volumes
from superopt.generate.families.matrices import (
    activations,
    attention,
    batches,
    linear,
    matrices,
    norms,
    reductions,
)
from superopt.generate.families.pass_through import chains, edges, filters, rows, windows


def sums() -> Family:
    """Sums and products of elements."""
    return Family(
        "sums",
        dict.fromkeys("xyzw", (2,)),
        {"0": ("zeros", (2,)), "1": ("ones", (2,))},
        (operator_use("Add", 2), operator_use("Mul", 2)),
        2,
        samples=32,
        complete_ops=3,
    )


def arithmetic() -> Family:
    """Sums and products of elements, their inverses, and exp, which turns one into the other."""
    return Family(
        "arithmetic",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,)), "1": ("ones", (2,))},
        (
            *without_constants(operator_use("Add", 2), operator_use("Mul", 2)),
            operator_use("Sub", 2),
            operator_use("Div", 2),
            *without_constants(
                operator_use("Neg", 1), operator_use("Exp", 1), operator_use("Sqrt", 1)
            ),
        ),
        2,
        samples=32,
        complete_ops=3,
    )


def order() -> Family:
    """Max and min, which are Relu if one operand is 0. They are mixed only with themselves: the
    order of the prime field is not compatible with sums."""
    return Family(
        "order",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,))},
        (
            *(operator_use(name, 2) for name in ("Max", "Min")),
            *without_constants(
                operator_use("Relu", 1), operator_use("Mul", 2), operator_use("Add", 2)
            ),
        ),
        2,
        samples=32,
        complete_ops=3,
    )


# In the order in which they are processed, up to three at once, which do not see each other's
# rules: a family that depends on another one comes at least three places later, or two if few do.
# Families with constants of one size come after the general ones: average pooling is a convolution
# by means at 3x3 only.
FAMILIES: dict[str, Callable[[], Family]] = {
    f.__name__: f
    for f in (
        sums,
        order,
        images,
        matrices,
        arithmetic,
        kernels,
        reductions,
        activations,
        linear,
        means,
        batches,
        pools,
        norms,
        layouts,
        slices,
        scales,
        groups,
        chains,
        volumes,
        pads,
        attention,
        rows,
        edges,
        windows,
        filters,
        borders,
        pieces,
    )
}
