"""The parameters of a rule in one attempt: element types, shapes and values."""

from random import Random

import numpy as np
import pytest

from superopt.ir.graph import Constant, Input
from superopt.ir.op import Attr
from superopt.rules.lang.functions import Result
from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import Absent, Fill, Name, Number, Scalar, Var
from superopt.rules.trial.sample.draw import Draw, PartialShape, RejectedChoice, Shape, Style
from superopt.rules.trial.sample.parameters import FLOAT_VALUES, INTEGER_VALUES, Parameters
from superopt.rules.trial.sample.request import ABSENT
from superopt.te.expr.dtype import BOOL, F32, F64, I32, I64, U8, DType
from superopt.te.expr.tensor import TensorType

SEEDS = range(200)
ADD = "Add(x, y) => Add(y, x)"
PLAIN = f"x: f, y: f): {ADD}"
DEFAULT_STYLE = Style()


def parameters(
    text: str = PLAIN, seed: int = 0, style: Style = DEFAULT_STYLE, **given: object
) -> Parameters:
    (rule,) = parse_rules(f"r({text}")
    return Parameters(rule, Draw(Random(seed), style), **given)  # type: ignore[arg-type]


# --- element types and numbers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("f", [F64, F32]),
        ("g", [F64, F32]),
        ("i", [I64, I32]),
        ("num", [F64, I64, F32]),
        ("t", [F64, F32, I64, BOOL]),
        ("bool", [BOOL]),
        ("i32", [I32]),
    ],
)
def test_element_types_are_any_that_the_kind_allows(kind: str, types: list[DType]) -> None:
    """The first is drawn most often."""
    found = [parameters(seed=seed).element_type(kind) for seed in SEEDS]
    assert set(found) == set(types)
    counts = [found.count(t) for t in types]
    assert counts[0] == max(counts)
    if kind in ("f", "i"):
        assert 0.6 < counts[0] / len(found) < 0.8


def test_a_kind_has_one_element_type_in_an_attempt() -> None:
    for seed in SEEDS:
        one = parameters(seed=seed)
        assert len({one.element_type("num") for _ in range(9)}) == 1


def test_numbers_have_the_element_type_of_their_siblings() -> None:
    one = parameters("x: bool, y: f32, z: i64): Where(x, y, Cast(z, to=f32)) => Where(x, y, y)")
    assert one.sibling_dtype([Var("x"), Number(1), Var("y")]) == F32
    assert one.sibling_dtype([Var("x"), Number(1)]) == BOOL
    assert one.sibling_dtype([Input("a", TensorType(I32, ())), Var("y")]) == I32
    assert one.sibling_dtype([Number(1)]) == one.element_type("f")


def test_natural_and_likely_attributes() -> None:
    text = (
        "x: f, *, k: nat, a: likely((0,), (1,))):"
        " ReduceSum(Mul(x, lit(k)), axes=a) => Mul(ReduceSum(x, axes=a), lit(k))"
    )
    some = [parameters(text, seed) for seed in SEEDS]
    naturals = [one.names["k"] for one in some]
    assert set(naturals) == {1, 2, 3}
    assert 0.4 < naturals.count(2) / len(naturals) < 0.6
    assert {one.likely_value("a") for one in some} == {(0,), (1,)}
    assert {one.likely_value("k") for one in some} == {None}


def test_a_parameter_is_found_by_its_name_or_that_of_its_run() -> None:
    one = parameters("y: f, *xs: f): Add(Concat(*xs, axis=k), y) => Add(y, Concat(*xs, axis=k))")
    assert one.find_param("xs.2").name == "xs"
    assert one.find_param("y").name == "y"
    with pytest.raises(RejectedChoice, match="z is not a parameter"):
        one.find_param("z")


# --- shapes ---------------------------------------------------------------------------------------


def test_partial_shapes_of_operands() -> None:
    one = parameters(f"x: f[n, 2, *s], y: f): {ADD}", names={"n": 5, "s": (7, 8)})
    assert one.partial_shape(Absent()) is ABSENT
    assert one.partial_shape(Fill("zeros", ())) is None
    assert one.partial_shape(Var("x")) == (5, 2, 7, 8)
    assert one.partial_shape(Var("y")) is None
    assert one.partial_shape(Input("a", TensorType(F32, (3, 4)))) == (3, 4)
    for number in (Number(1), Scalar(Name("n"))):
        assert {parameters(seed=n).partial_shape(number) for n in SEEDS} == {(), None}


@pytest.mark.parametrize(
    ("declared", "names", "shapes"),
    [
        ("[n, m]", {"n": 3}, {(3, None)}),
        ("[2 * n]", {"n": 3}, {(6,)}),
        ("[2 * n]", {}, {(None,)}),
        ("[*s, n]", {"n": 3}, {(3,), (None, 3), (None, None, 3)}),
        ("[*s]", {"s": (4, 5)}, {(4, 5)}),
        ("[n]", {"n": "no size"}, {(None,)}),
    ],
)
def test_declared_shapes_as_far_as_they_are_known(
    declared: str, names: dict[str, Result], shapes: set[PartialShape]
) -> None:
    found = set()
    for seed in SEEDS:
        one = parameters(f"x: f{declared}, y: f[*t, n]): {ADD}", seed, names=dict(names))
        found.add(one.partial_shape(Var("x")))
    assert found == shapes


def test_sizes_are_likely_ones() -> None:
    text = "x: f[n, *s], *, n: likely(3, 5), s: likely((2,), (2, 4))): Add(x, x) => Mul(x, 2)"
    found = {parameters(text, seed).partial_shape(Var("x")) for seed in SEEDS}
    assert found == {(n, *s) for n in (3, 5) for s in ((2,), (2, 4))}


@pytest.mark.parametrize(
    ("rank", "others", "lengths"),
    [(None, 0, {0, 1, 2}), (3, 1, {2}), (1, 2, {0}), (4, 0, {3}), (0, 0, {0})],
)
def test_the_length_of_a_spread(rank: int | None, others: int, lengths: set[int]) -> None:
    found = set()
    for seed in SEEDS:
        one = parameters(seed=seed, style=Style(rank=rank))
        found.add(one.spread_length("s", others))
        assert one.spread_length("s", 9) == one.spread_length("s", others)
    assert found == lengths


def test_a_spread_is_mostly_of_one_axis() -> None:
    found = [parameters(seed=seed).spread_length("s", 0) for seed in SEEDS]
    assert 0.4 < found.count(1) / len(found) < 0.6


def reused(shapes: tuple[PartialShape, ...], past: list[Shape]) -> list[tuple[PartialShape, ...]]:
    return [parameters(seed=n, past_shapes=past).reuse_past_shape(shapes, 0) for n in SEEDS]


@pytest.mark.parametrize(
    ("shapes", "past"),
    [(((5,), None), [(2, 3)]), ((None, (5,)), [(2, 3)]), ((None, None), []), (((),), [(2, 3)])],
    ids=["is known", "depends on another", "no past shape", "is a scalar"],
)
def test_a_shape_stays(shapes: tuple[PartialShape, ...], past: list[Shape]) -> None:
    assert set(reused(shapes, past)) == {shapes}


@pytest.mark.parametrize("other", [None, (), ABSENT])
def test_an_unknown_shape_is_often_a_past_one(other: PartialShape) -> None:
    found = reused((None, other), [(2, 3)])
    assert {o for _, o in found} == {other}
    shapes = [shape for shape, _ in found]
    assert set(shapes) == {None, (2, 3), (1, 3), (2, 1), (None, 3), (2, None)}
    assert 0.35 < shapes.count((2, 3)) / len(shapes) < 0.55
    assert 0.05 < shapes.count(None) / len(shapes) < 0.25
    assert shapes.count((1, 3)) + shapes.count((2, 1)) < shapes.count((None, 3)) + shapes.count(
        (2, None)
    )


def test_any_operand_may_have_a_past_shape() -> None:
    found = {
        parameters(seed=n, past_shapes=[(2,), (4, 5)]).reuse_past_shape((None, None, ()), 1)
        for n in SEEDS
    }
    assert {(None, (2,), ()), (None, (4, 5), ()), (None, None, ())} <= found
    assert {(a, c) for a, _, c in found} == {(None, ())}


# --- operands -------------------------------------------------------------------------------------


def test_an_operand_is_an_input_with_the_declared_type() -> None:
    one = parameters(f"x: f32[n, 3], y: f): {ADD}")
    made = one.make_operand(Var("x"), (2, 3), F64)
    assert isinstance(made, Input)
    assert (made.name, made.type) == ("x", TensorType(F32, (2, 3)))
    assert one.inputs == [made]
    assert one.names == {"x": made, "n": 2}
    assert one.terms == {Var("x"): made}
    assert one.past_shapes == [(2, 3)]
    one.make_operand(Var("y"), (), F64)
    assert one.past_shapes == [(2, 3)]  # scalars are not worth another try


def test_numbers_are_constants() -> None:
    one = parameters(names={"k": 5})
    for t, dtype, expected in ((Number(7), I32, 7), (Scalar(Name("k")), F32, 5)):
        made = one.make_operand(t, (2,), dtype)
        assert isinstance(made, Constant)
        assert made.type == TensorType(dtype, (2,))
        assert made.load().tolist() == [expected] * 2
    with pytest.raises(RejectedChoice, match="300 is no u8"):
        one.make_operand(Number(300), (), U8)
    with pytest.raises(RejectedChoice, match="no operand"):
        one.make_operand(Absent(), (), F32)


@pytest.mark.parametrize(("dtype", "numbers"), [(F32, FLOAT_VALUES), (I64, INTEGER_VALUES)])
def test_an_open_number_of_the_left_side_is_drawn_once(
    dtype: DType, numbers: tuple[float, ...]
) -> None:
    drawn = set()
    for seed in SEEDS:
        one = parameters(seed=seed)
        made = one.make_scalar(Name("k"), (), dtype)
        again = one.make_scalar(Name("k"), (2,), dtype)
        assert isinstance(made, Constant)
        assert isinstance(again, Constant)
        assert again.load().tolist() == [made.load().item()] * 2
        drawn.add(made.load().item())
    assert drawn == set(numbers)


def test_numbers_are_exact_of_both_signs_zero_and_one() -> None:
    for numbers in (FLOAT_VALUES, INTEGER_VALUES):
        assert {0, 1, 2, 3} <= set(numbers)
        assert min(numbers) < 0
        assert all(np.float32(n) == n for n in numbers)
    assert all(isinstance(n, int) for n in INTEGER_VALUES)


@pytest.mark.parametrize(("kind", "numbers"), [("f32", FLOAT_VALUES), ("i64", INTEGER_VALUES)])
def test_an_operand_whose_number_matters_is_a_uniform_constant(
    kind: str, numbers: tuple[float, ...]
) -> None:
    text = f"x: {kind}, c: {kind}): Mul(x, c) => Mul(c, x) where value(c) > 0"
    drawn = set()
    for seed in SEEDS:
        one = parameters(text, seed)
        made = one.make_operand(Var("c"), (2,), F32)
        assert isinstance(made, Constant)
        assert len(set(made.load().tolist())) == 1
        assert (one.inputs, one.past_shapes) == ([], [])
        drawn |= set(made.load().tolist())
    assert drawn == set(numbers)


def test_likely_numbers_of_an_operand() -> None:
    text = (
        "x: f, c: i64, *, c_value: likely((1, 2))):"
        " Gather(x, c, axis=0) => Gather(x, c, axis=0) where items(c) == (1, 2)"
    )
    made = parameters(text).make_operand(Var("c"), (2,), I64)
    assert isinstance(made, Constant)
    assert made.load().tolist() == [1, 2]
    with pytest.raises(RejectedChoice, match=r"2 numbers, not \(3,\)"):
        parameters(text).make_operand(Var("c"), (3,), I64)


def test_operands_that_must_be_constant_are_so_if_wanted() -> None:
    text = "x: f, c: f32): Mul(x, c) => Mul(c, x) where const(c)"
    given = parameters(text, constants=True)
    made = given.make_operand(Var("c"), (64,), F32)
    assert isinstance(made, Constant)
    assert set(made.load().tolist()) == {abs(v) for v in FLOAT_VALUES}  # as a variance must be
    assert given.past_shapes == [(64,)]
    given.make_operand(Var("x"), (), F32)
    assert [i.name for i in given.inputs] == ["x"]
    assert isinstance(parameters(text).make_operand(Var("c"), (2,), F32), Input)


@pytest.mark.parametrize(
    ("text", "shape", "fits"),
    [
        (PLAIN, (64, 128), True),
        (PLAIN, (64, 129), False),
        (PLAIN, (0, 3), True),
        (PLAIN, (-1, 3), False),
        ("x: f[64, 64, n]): Add(x, x) => Mul(x, 2)", (64, 64, 4), True),
        ("x: f[64, 64, n]): Add(x, x) => Mul(x, 2)", (64, 64, 5), False),
        ("x: f[1024, 1024, n]): Add(x, x) => Mul(x, 2)", (1024, 1024, 4), True),
        ("x: f[1024, 1025, n]): Add(x, x) => Mul(x, 2)", (1024, 1025, 1), False),
    ],
)
def test_operands_are_small_unless_a_rule_states_large_sizes(
    text: str, shape: Shape, fits: bool
) -> None:
    one = parameters(text)
    if fits:
        assert one.make_operand(Var("x"), shape, F32).type.shape == shape
    else:
        with pytest.raises(RejectedChoice, match="is too large"):
            one.make_operand(Var("x"), shape, F32)


@pytest.mark.parametrize(
    ("declared", "known", "shape", "names"),
    [
        ("[n, m]", {}, (2, 3), {"n": 2, "m": 3}),
        ("[n, m]", {"m": 3}, (2, 3), {"n": 2, "m": 3}),
        ("[n, m]", {"m": 4}, (2, 3), None),
        ("[n, m]", {}, (2,), None),
        ("[n, m]", {}, (2, 3, 4), None),
        ("[n, n]", {}, (2, 3), None),
        ("[n, 2 * n]", {}, (2, 4), {"n": 2}),
        ("[n, *s]", {}, (2, 3, 4), {"n": 2, "s": (3, 4)}),
        ("[n, *s]", {}, (2,), {"n": 2, "s": ()}),
        ("[n, *s, m]", {}, (2, 3, 4), {"n": 2, "s": (3,), "m": 4}),
        ("[*s, n, m]", {}, (2, 3, 4), {"n": 3, "s": (2,), "m": 4}),
        ("[n, *s, m]", {}, (2,), None),
        ("[*s]", {"s": (2, 3)}, (2, 4), None),
        ("", {}, (2, 3), {}),
    ],
)
def test_names_of_a_declared_shape_are_bound(
    declared: str, known: dict[str, Attr], shape: Shape, names: dict[str, Attr] | None
) -> None:
    one = parameters(f"x: f{declared}, y: f): {ADD}", names=dict(known))
    (p, _) = one.rule.params
    assert isinstance(p, Param)
    if names is None:
        with pytest.raises(RejectedChoice):
            one.bind_shape(p, shape)
    else:
        one.bind_shape(p, shape)
        assert one.names == names
