"""Equalities that look right and are not: no chain of rules leads from one side to the other, and
there is one for the nearest right one."""

from collections.abc import Callable

import numpy as np
import pytest

from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.rules.library.load import load_library
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

BOUNDS = DeriveLimits(max_steps=6, max_growth=3, max_graphs=3000, max_seconds=float("inf"))
SAME = (1, 1, 1, 1)
Sides = tuple[graph.Value, graph.Value]


def inputs(*shapes: tuple[int, ...]) -> tuple[graph.Input, ...]:
    return tuple(graph.Input(f"x{n}", TensorType(F32, s)) for n, s in enumerate(shapes))


def op(name: str, *operands: graph.Value, **attrs: object) -> graph.Value:
    return graph.result(graph.node(OPS[name], operands, **attrs), 0)  # type: ignore[arg-type]


def merged(groups: int) -> tuple[tuple[graph.Input, ...], Sides]:
    """Two convolutions of one input as one: wrong when they have groups."""
    x, v, w = own = inputs((1, 4, 5, 5), (4, 4 // groups, 3, 3), (4, 4 // groups, 3, 3))
    attrs = {"pads": SAME, "group": groups}
    left = op("Concat", op("Conv", x, v, **attrs), op("Conv", x, w, **attrs), axis=1)
    return own, (left, op("Conv", x, op("Concat", v, w, axis=0), **attrs))


def enlarged(right: bool) -> tuple[tuple[graph.Input, ...], Sides]:
    """A kernel of 2 with a row and a column of zeros: SAME_UPPER at stride 2 pads it on the other
    side."""
    x, w = own = inputs((1, 2, 6, 6), (3, 2, 2, 2))
    left = op("Conv", x, w, strides=(2, 2), pads=(0, 0, 0, 0))
    before = 0 if right else 1
    grown = op("Pad", w, pads=(0, 0, before, before, 0, 0, 1 - before, 1 - before))
    return own, (left, op("Conv", x, grown, strides=(2, 2), pads=(0, 0, 1, 1)))


def averaged(included: bool) -> tuple[tuple[graph.Input, ...], Sides]:
    """A mean of 3 by 3 as a convolution: wrong where padding does not count."""
    (x,) = own = inputs((1, 2, 5, 5))
    kernel = np.zeros((2, 2, 3, 3), np.float32)
    kernel[[0, 1], [0, 1]] = np.float32(1 / 9)
    attrs = {"kernel_shape": (3, 3), "pads": SAME, "strides": (1, 1)}
    left = op("AveragePool", x, count_include_pad=int(included), **attrs)
    return own, (left, op("Conv", x, graph.constant(kernel), pads=SAME))


def added(alike: bool) -> tuple[tuple[graph.Input, ...], Sides]:
    """A sum of joined tensors as joined sums: wrong where a part is broadcast along an axis."""
    x, y, z, w = own = inputs((2, 3), (2, 3) if alike else (1, 3), (2, 3), (2, 3))
    if alike:
        left = op("Concat", op("Add", x, y), op("Add", z, w), axis=0)
        return own, (left, op("Add", op("Concat", x, z, axis=0), op("Concat", y, w, axis=0)))
    left = op("Concat", op("Add", x, y), op("Add", z, y), axis=0)
    joined = op("Concat", x, z, axis=0)
    return own, (left, op("Add", joined, op("ReduceMean", w, axes=(0,), keepdims=1)))


TRAPS: dict[str, Callable[[bool], tuple[tuple[graph.Input, ...], Sides]]] = {
    "convolutions in groups merged": lambda right: merged(1 if right else 2),
    "a kernel enlarged with SAME_UPPER at stride 2": enlarged,
    "a mean without its padding as a convolution": averaged,
    "broadcast through a join": added,
}


@pytest.fixture(scope="module")
def index() -> RuleIndex:
    """Of the library, most of which is generated: `means` and `kernels` among others."""
    rules = load_library()
    files = {r.source.split(":")[0] for r in rules}
    assert {"generated/means.rules", "generated/kernels.rules"} <= files
    return RuleIndex(rules)


def apart(own: tuple[graph.Input, ...], sides: Sides) -> float:
    """How far the sides are from each other on random inputs."""
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.standard_normal(tuple(i.type.shape or ())) for i in own}  # type: ignore[arg-type]
    left, right = evaluate(
        graph.Graph(own, sides), {n: v.astype(np.float32) for n, v in feeds.items()}
    )
    return float(np.abs(left - right).max())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_does_not_follow(name: str, index: RuleIndex) -> None:
    own, sides = TRAPS[name](False)
    assert apart(own, sides) > 0.1
    a, b = (graph.Graph(own, (s,)) for s in sides)
    assert not isinstance(derive(a, b, index, BOUNDS), Derived)


@pytest.mark.parametrize("name", TRAPS)
def test_what_is_right_beside_it_follows(name: str, index: RuleIndex) -> None:
    own, sides = TRAPS[name](True)
    assert apart(own, sides) < 1e-4
    a, b = (graph.Graph(own, (s,)) for s in sides)
    assert isinstance(derive(a, b, index, BOUNDS), Derived)
