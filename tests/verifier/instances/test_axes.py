"""What is proved without the axes that no operator names is true with them."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from superopt.ir.evaluate import evaluate_node
from superopt.ops import OPS
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.te.expr.dtype import BOOL, to_numpy
from superopt.te.expr.tensor import TensorType
from superopt.verifier.instances.axes import AXIS_ATTRIBUTES, with_named_axes_only
from superopt.verifier.instances.instance import Ranks
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Refuted
from tests.support.ops.build import example

SWAPPED = (
    "ReduceSum(Mul(x, y), axes=({}), keepdims=1) => ReduceSum(Mul(y, x), axes=({}), keepdims=1)"
)
SPLIT = "Softmax(Split(x, axis={0}, split=(size(y, {0}), 1))[0], axis={1})"
PART = f"Concat({SPLIT}, y, axis={{1}}) => Concat({SPLIT}, y, axis={{1}})"
JOIN = "Concat(Add(x, y), z, axis={0}) => Concat(Add(y, x), z, axis={0})"
ZERO = "Mul(Max(x, 0), Min(x, 0)) => zeros(shape(Mul(Max(x, 0), Min(x, 0))))"
SHORTER = [
    (JOIN.format(-3), JOIN.format(-1), 1),
    (PART.format(-4, -2), PART.format(-2, -1), 2),
    (SWAPPED.format("-1, -3", "-3, -1"), SWAPPED.format("-1, -2", "-2, -1"), 2),
    (ZERO, ZERO, 1),
]


def rule(sides: str, kinds: str = "", where: str = "") -> Rule:
    used = sorted(set(re.findall(r"\b[w-z]\b", sides)))
    given = kinds or ", ".join(f"{n}: f" for n in used)
    (made,) = parse_rules(f"t({given}): {sides}{where and f' where {where}'} ; float=E2")
    return made


@pytest.mark.parametrize(("sides", "shorter", "most"), SHORTER)
def test_named_axes_become_the_last_ones(sides: str, shorter: str, most: int) -> None:
    assert with_named_axes_only(rule(sides)) == (rule(shorter), most)


@pytest.mark.parametrize(
    ("sides", "kinds", "where"),
    [
        ("Concat(x, y, axis=0) => Concat(x, y, axis=0)", "x: f, y: f", ""),
        ("Concat(x, y, axis=k) => Concat(x, y, axis=k)", "x: f, y: f", ""),
        (
            "ReduceSum(x, axes=(-1,), keepdims=0) => ReduceSum(x, axes=(-1,), keepdims=0)",
            "x: f",
            "",
        ),
        ("ReduceSum(x, axes=(-1,)) => ReduceSum(x, axes=(-1,))", "x: f", ""),
        ("MatMul(x, y) => MatMul(x, y)", "x: f, y: f", ""),
        ("Transpose(x, perm=p) => Transpose(x, perm=p)", "x: f", ""),
        ("Relu(x) => Relu(x)", "x: f[n]", ""),
        ("Relu(x) => Relu(x)", "x: f", "rank(x) == 2"),
        ("Relu(x) => Relu(x)", "x: f[*s]", "len(s) == 2"),
        ("Relu(x) => Relu(x)", "x: f", "shape(x)[0] == 2"),
        ("Relu(x) => Relu(x)", "x: f", "size(x, 0) == 2"),
        ("Softmax(x, **e) => Softmax(x, **e)", "x: f", ""),
        ("MatMul(x, eye(3)) => MatMul(x, eye(3))", "x: f", ""),
        ("Concat(*xs, axis=-1) => Concat(*xs, axis=-1)", "*xs: f", ""),
    ],
)
def test_what_may_speak_of_any_axis_is_left(sides: str, kinds: str, where: str) -> None:
    assert with_named_axes_only(rule(sides, kinds, where)) is None


def pointwise() -> Iterator[tuple[str, str]]:
    """Elementwise operators, and those of which `axes` says that they name their axes, on operands
    of which each has the rank of the result."""
    for name, op in OPS.items():
        if "elementwise" in op.laws and op.name not in AXIS_ATTRIBUTES:
            yield from ((name, e) for e in op.example)
    yield "Concat", "f32[2,3] f32[2,5] axis=-1"
    yield "Split", "f32[2,5] axis=-1 split=(2,3)"
    yield "Slice", "f32[2,6] axes=(-1,) starts=(4,) ends=(1,) steps=(-2,)"
    for name in AXIS_ATTRIBUTES:
        if name.startswith("Reduce"):
            yield name, "f32[2,5] axes=(-1,) keepdims=1"
        elif name.endswith("max"):
            yield name, "f32[2,5] axis=-1"


CASES = list(pointwise())


def test_every_named_operator_is_tried() -> None:
    assert {name for name, _ in CASES} >= set(AXIS_ATTRIBUTES)


def drawn(t: TensorType, seed: int) -> np.ndarray:
    assert t.dtype is not None
    rng = np.random.default_rng(seed)
    shape = tuple(int(d) for d in t.shape or () if isinstance(d, int))
    if t.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if t.dtype.is_float:
        return rng.uniform(0.2, 0.9, shape).astype(to_numpy(t.dtype))
    return rng.integers(1, 7, shape).astype(to_numpy(t.dtype))


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_further_axis_is_by_itself(name: str, text: str) -> None:
    """Two draws along one more axis in front give both their results along it."""
    types, attrs = example(text)
    full = max(len(t.shape or ()) for t in types)
    wide = [len(t.shape or ()) == full for t in types]
    one, two = (
        [drawn(t, n + 9 * (k and w)) for n, (t, w) in enumerate(zip(types, wide, strict=True))]
        for k in (0, 1)
    )
    both = [np.stack((a, b)) if w else a for a, b, w in zip(one, two, wide, strict=True)]
    kinds = tuple(t.dtype for t in types)
    found = evaluate_node(OPS[name], attrs, both, dtypes=kinds)
    parts = [evaluate_node(OPS[name], attrs, a, dtypes=kinds) for a in (one, two)]
    for whole, a, b in zip(found, *parts, strict=True):
        np.testing.assert_array_equal(whole, np.stack((a, b)))


INTO_PARTS = (
    "Concat(Add(x, y), Add(z, w), axis={0}) => Add(Concat(x, z, axis={0}), Concat(y, w, axis={0}))"
)
OUT_OF_SUM = (
    "ReduceSum(Mul(x, y), axes=(-3,), keepdims=1) => Mul(x, ReduceSum(y, axes=(-3,), keepdims=1))"
)
TRUE = [(INTO_PARTS.format(-4), ""), (OUT_OF_SUM, "size(x, -3) == 1")]
OF_SUM = (
    "ReduceSum(Add(x, y), axes=(-3,), keepdims=1)"
    " => Add(ReduceSum(x, axes=(-3,), keepdims=1), ReduceSum(y, axes=(-3,), keepdims=1))"
)
FALSE = [INTO_PARTS.format(0), OF_SUM]  # on axis 0, operands of fewer axes than their sum


@pytest.mark.parametrize(("sides", "where"), TRUE)
def test_proved_at_few_ranks(sides: str, where: str) -> None:
    verdict = prove(rule(sides, where=where), Limits(seconds=20))
    assert isinstance(verdict, Proved)
    assert "no operator names" in verdict.scope.ranks


@pytest.mark.parametrize("sides", FALSE)
def test_what_is_false_stays_false(sides: str) -> None:
    assert isinstance(prove(rule(sides), Limits(seconds=20)), Refuted)


LIBRARY = [r for r in load_library() if with_named_axes_only(r) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("known", LIBRARY[::7], ids=lambda r: r.name)
def test_the_full_ranks_agree(known: Rule) -> None:
    """Not refuted with all axes either."""
    if isinstance(prove(known, Limits(seconds=20)), Proved):
        assert not isinstance(prove(known, Limits(seconds=5), Ranks(0, 2)), Refuted)
