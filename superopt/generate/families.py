"""The families that a default run enumerates, as data.

Sizes are as small as laws allow: squares of 2 by 2 matrices obey more of them than matrices do, and
two rows are a sum of one more. The rules that come of equations are tried on other sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from superopt.generate.family import Family, of_variables, use
from superopt.generate.image_families import borders, groups, images, kernels, means, pools, scales
from superopt.generate.layout_families import layouts, pads, pieces, slices, volumes
from superopt.generate.matrix_families import (
    activations,
    attention,
    batches,
    linear,
    matrices,
    norms,
    reductions,
)
from superopt.generate.passing_families import chains, edges, filters, rows, windows


def sums() -> Family:
    """Sums and products of elements."""
    return Family(
        "sums",
        dict.fromkeys("xyzw", (2,)),
        {"0": ("zeros", (2,)), "1": ("ones", (2,))},
        (use("Add", 2), use("Mul", 2)),
        2,
        samples=32,
        whole=3,
    )


def arithmetic() -> Family:
    """Sums and products of elements, their inverses, and exp, which turns one into the other."""
    return Family(
        "arithmetic",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,)), "1": ("ones", (2,))},
        (
            *of_variables(use("Add", 2), use("Mul", 2)),
            use("Sub", 2),
            use("Div", 2),
            *of_variables(use("Neg", 1), use("Exp", 1), use("Sqrt", 1)),
        ),
        2,
        samples=32,
        whole=3,
    )


def order() -> Family:
    """Max and min, which are Relu where one of them is 0. What mixes them with sums of anything but
    themselves is not searched: the field's order is none of sums."""
    return Family(
        "order",
        dict.fromkeys("xyz", (2,)),
        {"0": ("zeros", (2,))},
        (
            *(use(name, 2) for name in ("Max", "Min")),
            *of_variables(use("Relu", 1), use("Mul", 2), use("Add", 2)),
        ),
        2,
        samples=32,
        whole=3,
    )


# In the order in which they are closed, up to three at once, which do not see each other's rules:
# what leans on another one stands three places behind it, or two among few of them. Constants of
# one size come after what they are special cases of: as a convolution by means of 3x3, average
# pooling is linear at 3x3 only.
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
