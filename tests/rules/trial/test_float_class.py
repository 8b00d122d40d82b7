"""The float class of a rule, as its operations show it."""

import pytest

from superopt.ir.graph import Input, node
from superopt.ir.op import Attr, expression
from superopt.ops import OPS
from superopt.rules.lang.rule import FLOAT_CLASSES, parse_rules
from superopt.rules.library.load import library_files, load_library, parse_file
from superopt.rules.library.records import library_records, proof_key
from superopt.rules.trial.float_class import (
    _count_roundings,
    _rounding_site,
    class_on_instances,
    error_growth,
    float_class,
    with_computed_class,
)
from superopt.rules.trial.instances import instances
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.tensor import (
    TensorType,
    apply,
    compute,
    placeholder,
    reduce_max,
    reduce_sum,
)

# Nothing but which operations there are says what class a rule is in. Each is of its class by the
# definition in float_class.py, whatever a runtime makes of it.
CLASSES = {
    "E0": (
        "(x: f, y: f): Add(x, y) => Add(y, x)",
        "(x: f): Neg(Neg(x)) => x",
        "(x: f, y: f): Mul(Neg(x), y) => Neg(Mul(x, y))",
        "(x: f, y: f): Sub(x, y) => Neg(Sub(y, x))",
        "(x: f): Mul(x, 1) => x",
        "(x: f): Mul(x, 2) => Add(x, x)",
        "(x: f): Tanh(Neg(x)) => Neg(Tanh(x))",
        "(x: f): Relu(Relu(x)) => Relu(x)",
        "(x: f): Relu(Transpose(x, perm=p)) => Transpose(Relu(x), perm=p)",
        "(x: f, y: f): Concat(Exp(x), Exp(y), axis=k) => Exp(Concat(x, y, axis=k))",
        "(x: f): ReduceSum(x, axes=a, keepdims=0) => Squeeze(ReduceSum(x, axes=a, keepdims=1),"
        " axes=a)",
        "(x: f, y: f): Less(x, y) => Greater(y, x)",
        "(x: f[n, k], y: f[k, m]): Relu(Neg(Neg(MatMul(x, y)))) => Relu(MatMul(x, y))",
        "(x: f[n, 1], y: f[1, m]): MatMul(x, y) => Mul(x, y)",
        "(x: f): Min(x, Max(x, 0)) => x",
        "(x: f, y: f): Where(Less(x, y), x, x) => x where shape(x) == shape(Less(x, y))",
        "(x: f32, y: f64): Add(CastLike(CastLike(x, y), x), CastLike(y, x))"
        " => Add(x, CastLike(y, x))",
        "(x: f): Relu(Sigmoid(x)) => Sigmoid(x)",
        "(x: f): Abs(Mul(x, x)) => Mul(x, x)",
        "(x: f, y: f): Relu(Add(Relu(x), Relu(y))) => Add(Relu(x), Relu(y))",
        "(x: f): Abs(ReduceSum(Sqrt(x), axes=a, keepdims=1))"
        " => ReduceSum(Sqrt(x), axes=a, keepdims=1)",
        "(x: f): Clip(Tanh(x), -1, 1) => Tanh(x)",
        "(x: f, y: f, z: f): Max(Max(Tanh(x), y), z) => Max(Tanh(x), Max(z, y))",
        "(x: f, y: f): Less(Sub(x, y), 0) => Less(x, y)",
        "(x: f, y: f): Less(Tanh(x), Tanh(y)) => Greater(Tanh(y), Tanh(x))",
        "(x: f): Min(Max(Exp(x), 0), 6) => Min(Exp(x), 6)",
        "(c: bool, x: f): Where(c, x, 0) => Where(Not(c), 0, x)",
        "(x: f, y: f, z: f): Where(Less(Tanh(x), y), z, z) => z"
        " where shape(z) == shape(Where(Less(Tanh(x), y), z, z))",
        "(x: f[a, b]): ArgMax(Transpose(x, perm=(1, 0)), axis=0) => ArgMax(x, axis=1)",
        "(x: f): Ceil(Neg(x)) => Neg(Floor(x))",
        "(x: i32): Cast(Cast(x, to=f64), to=i32) => x",
    ),
    "E1": (
        "(x: f, y: f, z: f): Add(Add(x, y), z) => Add(x, Add(y, z))",
        "(x: f, y: f, z: f): Mul(Mul(x, y), z) => Mul(x, Mul(y, z))",
        "(x: f, y: f): Div(x, y) => Mul(x, Reciprocal(y))",
        "(x: f[n, k], a: f[k, m], b: f[k, p]): (MatMul(x, a), MatMul(x, b))"
        " => Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=(m, p))",
        "(x: f[n, k], y: f[k, m]): Transpose(MatMul(x, y), perm=(1, 0))"
        " => MatMul(Transpose(y, perm=(1, 0)), Transpose(x, perm=(1, 0)))",
        "(x: f, y: f): Tanh(Max(x, y)) => Max(Tanh(x), Tanh(y))",  # tanh may not be monotone
        "(x: f): Mul(x, Sigmoid(x)) => Swish(x)",
        "(x: f): Mul(x, Mul(x, x)) => Pow(x, 3)",
        "(x: f32, y: f64, z: f32): Add(CastLike(Add(CastLike(x, y), y), x), z)"
        " => Add(Add(x, CastLike(y, x)), z)",
        "(x: i64, y: i64): Cast(Add(x, y), to=f32) => Add(Cast(x, to=f32), Cast(y, to=f32))",
        "(x: f, y: f, a: f, b: f, c: f): Where(Less(Tanh(x), y), Add(Add(a, b), c), x)"
        " => Where(Less(Tanh(x), y), Add(a, Add(b, c)), x)",
    ),
    "E2": (
        "(x: f): Sqrt(x) => Pow(x, 0.5)",  # of -inf
        "(x: f, y: f, z: f): Max(Add(x, z), Add(y, z)) => Add(Max(x, y), z)",  # inf - inf
        "(x: f): Mul(Relu(x), Relu(x)) => Mul(x, Relu(x))",  # inf * 0
        "(x: f, y: f): Where(Less(x, y), y, x) => Max(x, y)",
        "(x: f, y: f): Div(1, Sub(x, y)) => Neg(Div(1, Sub(y, x)))",  # infinities' sign
        "(x: f, y: f): Abs(Add(Sub(Mul(x, x), Mul(2, Mul(x, y))), Mul(y, y)))"
        " => Add(Sub(Mul(x, x), Mul(2, Mul(x, y))), Mul(y, y))",  # may be less than 0, rounded
        "(x: f, y: f, z: f): Mul(x, Add(y, z)) => Add(Mul(x, y), Mul(x, z))",
        "(x: f): Add(Add(x, x), x) => Mul(x, 3)",
        "(x: f[n, k], y: f[k, m], c: f[]): MatMul(Mul(x, c), y) => Mul(MatMul(x, y), c)",
        "(x: f[n, k], y: f[k, l], z: f[l, m]): MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))",
        "(x: f, y: f, z: f): Div(Add(x, y), z) => Add(Div(x, z), Div(y, z))",
        "(x: f): Sub(1, Sigmoid(x)) => Sigmoid(Neg(x))",
        # what is no number in a column of zeros reaches what had none of it
        "(x: f[n, k], y: f[k, m]): Pad(MatMul(x, y), pads=(0, 0, 0, 1))"
        " => MatMul(x, Pad(y, pads=(0, 0, 0, 1)))",
    ),
    "E3": (
        # what is rounded, and compared
        "(x: f, y: f): Greater(Exp(x), Exp(y)) => Greater(x, y)",
        "(x: f, y: f): Equal(Tanh(x), Tanh(y)) => Equal(x, y)",
        "(x: f, y: f): Less(Div(x, 7), Div(y, 7)) => Less(x, y)",
        "(x: f, y: f): Where(Greater(Exp(x), Exp(y)), x, y) => Where(Greater(x, y), x, y)",
        "(x: f): Greater(Sigmoid(x), 0.5) => Greater(x, 0)",
        "(x: f[a, b]): ArgMax(Sigmoid(x), axis=1) => ArgMax(Tanh(x), axis=1)",
        "(x: f): ArgMax(Mul(x, 2), axis=0) => ArgMax(x, axis=0)",
        "(x: f, y: f): Floor(Add(Add(x, y), 1)) => Floor(Add(x, Add(y, 1)))",
        "(x: f): Floor(Add(x, 1)) => Add(Floor(x), 1)",
        "(x: f): IsInf(Exp(x)) => IsInf(Relu(x))",
        "(x: i64): Cast(Cast(x, to=f32), to=i64) => x",
        "(x: i64, y: i64): Greater(Cast(x, to=f32), Cast(y, to=f32)) => Greater(x, y)",
        "(x: f32): Cast(Cast(x, to=f16), to=bool) => Cast(x, to=bool)",
        "(x: f, y: f): Equal(Sub(x, y), 0) => Equal(x, y)",  # inf - inf
        "(x: f): Mul(x, Relu(x)) => Mul(Relu(x), Relu(x))",
        "(x: f): Div(Mul(x, x), x) => x",  # 0 / 0
        "(x: f, y: f, z: f): Where(LessOrEqual(Add(x, 1), x), z, y) => y"
        " where shape(y) == shape(Where(LessOrEqual(Add(x, 1), x), z, y))",
        "(x: f, y: f, z: f): Less(Add(x, z), Add(y, z)) => Less(x, y)",
        "(x: f32, y: f16): CastLike(CastLike(x, y), x) => x",  # 1e5 is infinite in float16
        "(x: f): Sub(x, x) => zeros(shape(x))",
        "(x: f): Mul(x, 0) => zeros(shape(x))",
        "(x: f, y: f): Sub(Add(x, y), y) => x where shape(x) == shape(Add(x, y))",
        "(x: f, y: f): Mul(Exp(x), Exp(y)) => Exp(Add(x, y))",
        "(x: f): Log(Exp(x)) => x",
        "(x: f): Exp(Neg(x)) => Reciprocal(Exp(x))",
        "(x: f): ReduceSum(Softmax(x, axis=k), axes=(k,))"
        " => ones(shape(ReduceSum(Softmax(x, axis=k), axes=(k,))))",
        "(x: f, y: f): Min(x, Max(x, y)) => x where shape(x) == shape(Max(x, y))",
    ),
}  # fmt: skip


RULES = [(wanted, text) for wanted, texts in CLASSES.items() for text in texts]


@pytest.mark.one_in(25)
@pytest.mark.parametrize(("wanted", "text"), RULES)
def test_the_class_of_a_rule_is_computed(wanted: str, text: str) -> None:
    (rule,) = parse_rules(f"r{text} ; float=E0")
    assert float_class(rule) == wanted
    assert with_computed_class(rule).float_class == wanted


@pytest.mark.parametrize(
    "text",
    [
        "(x: f[]): Sub(x, x) => 0",
        "(x: f[], y: f[]): Add(y, Mul(x, 0)) => y",
        "(x: f): Div(x, x) => 1",
    ],
)
def test_a_few_numbers_are_enough_to_see_what_cancels(text: str) -> None:
    (rule,) = parse_rules(f"r{text}")
    assert {float_class(rule, seed) for seed in range(4)} == {"E3"}


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("wanted", "text"), RULES)
def test_a_class_is_the_same_for_other_numbers(wanted: str, text: str) -> None:
    (rule,) = parse_rules(f"r{text}")
    assert float_class(rule, seed=5, count=3) == wanted


def test_a_rule_may_say_more_than_is_computed_and_not_less() -> None:
    (rule,) = parse_rules("r(x: f): Neg(Neg(x)) => x ; float=E3")
    assert with_computed_class(rule).float_class == "E3"


def test_a_rule_without_instances_is_exceptional() -> None:
    (rule,) = parse_rules("r(x: f[n]): Neg(Neg(x)) => x where n > 10 ** 9 ; float=E0")
    assert float_class(rule) is None
    assert with_computed_class(rule).float_class == "E3"


def test_the_library_says_what_was_computed() -> None:
    records = library_records()
    known, growth = records.float_class, records.error_growth
    for rule in (r for file in library_files() for r in parse_file(file)):
        computed = known[proof_key(rule)]
        assert computed in FLOAT_CLASSES, rule.name
        assert computed <= rule.float_class, rule.name
        assert computed == "E2" or proof_key(rule) not in growth, rule.name
    assert set(known) == {proof_key(r) for r in load_library()} > set(growth) > set()


@pytest.mark.one_in(10)
@pytest.mark.parametrize("rule", load_library()[::60], ids=lambda r: r.name)
def test_what_was_computed_is_computed_again(rule) -> None:  # type: ignore[no-untyped-def]
    found = float_class(rule)
    assert found is not None
    assert found <= library_records().float_class[proof_key(rule)]  # which is of more instances


def test_errors_grow_where_a_product_is_multiplied_out() -> None:
    (plain,) = parse_rules("r(x: f, y: f): Mul(Mul(x, y), y) => Mul(y, Mul(x, y))")
    (cancels,) = parse_rules(
        "r(x: f, y: f): Mul(Sub(x, y), Add(x, y)) => Sub(Mul(x, x), Mul(y, y))"
    )
    one, other = error_growth(plain), error_growth(cancels)
    assert one is not None
    assert other is not None
    assert 0.9 < one < 1.1 < other


def test_no_instance_has_no_class() -> None:
    (rule,) = parse_rules("r(x: f): Neg(Neg(x)) => x")
    assert class_on_instances([], 0) is None
    assert class_on_instances([next(instances(rule, 0))], 0) == "E0"


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "count"),
    [
        ("Neg", 1, {}, 0),
        ("Relu", 1, {}, 0),
        ("Add", 2, {}, 1),
        ("Exp", 1, {}, 1),
        ("MatMul", 2, {}, 1),  # the sum rounds its products
        ("ReduceSum", 1, {"axes": (0,)}, 1),
        ("ReduceMax", 1, {"axes": (0,)}, 0),
        ("ReduceProd", 1, {"axes": (0,)}, 1),
        ("ReduceSumSquare", 1, {"axes": (0,)}, 1),
        ("ReduceMean", 1, {"axes": (0,)}, 2),
    ],
)
def test_roundings_of_an_operator(
    op: str, operands: int, attrs: dict[str, Attr], count: int
) -> None:
    for dtype in (F32, I64) if op in ("Neg", "Add", "ReduceSum", "ReduceProd") else (F32,):
        x = Input("x", TensorType(dtype, (3, 3)))
        n = node(OPS[op], [x] * operands, **attrs)
        bodies = [t.body for t in expression(n.op, (x.type,) * operands, n.attrs)]
        found = sum(_count_roundings(b) for b in bodies if b is not None)
        assert found == (count if dtype is F32 else 0)
        assert (_rounding_site(n)[1] == op) is (found > 1)


def test_roundings_of_nested_expressions() -> None:
    x = placeholder("x", TensorType(F32, (4, 6)))
    squares = compute((4,), lambda i: reduce_sum(6, lambda k: x[i, k] * x[i, k]))
    for body, count in (
        (x[0, 1], 0), (x[0, 1] + x[0, 2], 1), (x[0, 1] * x[0, 2] + 1, 2),
        (apply("max", x[0, 1], x[0, 2]), 0), (apply("exp", x[0, 1] - x[0, 2]), 2),
        (reduce_sum(6, lambda k: x[0, k]), 1), (reduce_sum(6, lambda k: x[0, k] + 1), 2),
        (reduce_max(6, lambda k: x[0, k] + 1), 1), (squares.body, 1), (squares[0] * 2, 2),
    ):  # fmt: skip
        assert body is not None
        assert _count_roundings(body) == count, str(body)
