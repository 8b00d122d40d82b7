"""Rules that are true are proved, false ones refuted, at the sizes at which they are."""

from dataclasses import replace
from functools import cache

import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import library_records
from superopt.rules.trial.cases import Cases
from superopt.rules.trial.instances import instance_of_names
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.rules.trial.try_rule import try_on_instances, try_rule
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved, Refuted, Unknown, Verdict
from tests.support.verifier.mutants import mutants

TRUE = """
relu-concat(x: f, y: f): Relu(Concat(x, y, axis=k)) => Concat(Relu(x), Relu(y), axis=k)
concat-swap-add(x: f[*s], y: f[*s]): Add(x, y) => Add(y, x)
matmul-assoc(x: f[n, k], y: f[k, m], z: f[m, p]): MatMul(MatMul(x, y), z) => MatMul(x, MatMul(y, z))
matmul-blocks(x: f[n, k], y: f[n, l], v: f[k, m], w: f[l, m]):
    Add(MatMul(x, v), MatMul(y, w)) => MatMul(Concat(x, y, axis=1), Concat(v, w, axis=0))
transpose-twice(x: any): Transpose(Transpose(x, perm=p), perm=inverse(p)) => x
reshape-twice(x: any): Reshape(Reshape(x, shape=u), shape=t) => Reshape(x, shape=t)
reshape-relu(x: f): Reshape(Relu(x), shape=t) => Relu(Reshape(x, shape=t))
heads(x: f[n, s, h, d]):
    Reshape(Transpose(Transpose(x, perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3)), shape=(n, s, h * d))
    => Reshape(x, shape=(n, s, h * d))
conv-merge(x: f, v: f, w: f):
    Concat(Conv(x, v, group=1, **a), Conv(x, w, group=1, **a), axis=1)
    => Conv(x, Concat(v, w, axis=0), group=1, **a)
conv-linear(x: f, v: f[*s], w: f[*s]):
    Add(Conv(x, v, **a), Conv(x, w, **a))
    => Conv(x, Add(v, w), **a)
conv-pad(x: f[n, c, h], w: f[o, c, k]):
    Conv(Pad(x, pads=(0, 0, 1, 0, 0, 2)), w) => Conv(x, w, pads=(1, 2))
conv-enlarged(x: f[n, c, h], w: f[o, c, k]):
    Conv(x, w) => Conv(x, Pad(w, pads=(0, 0, 1, 0, 0, 1)), pads=(1, 1))
pool-concat(x: f, y: f):
    Concat(MaxPool(x, **a), MaxPool(y, **a), axis=1)
    => MaxPool(Concat(x, y, axis=1), **a)
pool-relu(x: f): Relu(MaxPool(x, **a)) => MaxPool(Relu(x), **a)
pool-max(x: f[c, 1, 1], y: f[n, c, h, w]): Max(x, MaxPool(y, **a)) => MaxPool(Max(y, x), **a)
softmax-shift(x: f[n, m], y: f[n, 1]): Softmax(Add(x, y), axis=1) => Softmax(x, axis=1)
softmax-parts(x: f[n, m]):
    Div(Exp(x), ReduceSum(Exp(x), axes=(1,), keepdims=1)) => Softmax(x, axis=1)
norm-shift(x: f[n, m], y: f[n, 1], z: f[m]):
    LayerNormalization(Add(x, y), z, axis=-1, epsilon=e)[0]
    => LayerNormalization(x, z, axis=-1, epsilon=e)[0]
mean-split(x: f[n, m]): ReduceMean(Concat(x, x, axis=1), axes=(1,)) => ReduceMean(x, axes=(1,))
where-min(x: f, y: f): Where(Less(x, y), x, y) => Min(x, y)
leaky-prelu(x: f): LeakyRelu(x, alpha=0.5) => PRelu(x, 0.5)
not-not(x: bool): Not(Not(x)) => x
lattice(x: f, y: f, z: f): Max(Min(x, y), Min(x, z)) => Min(x, Max(y, z))
pads-apart(x: f[n, c, h], w: f[o, c, k]):
    Conv(x, w, pads=p)
    => Conv(Pad(x, pads=(0, 0, p[0], 0, 0, p[1])), w) where p[0] >= 1, p[1] >= p[0]
eye-matmul(x: f[n, m]): MatMul(x, eye(m)) => x
slice-concat(x: any, y: any):
    Slice(Concat(x, y, axis=1), axes=(0,), starts=b, ends=e, steps=(1,))
    => Concat(Slice(x, axes=(0,), starts=b, ends=e, steps=(1,)),
              Slice(y, axes=(0,), starts=b, ends=e, steps=(1,)), axis=1)
slices-of-two(x: any[n, m], y: any[p, m]):
    Concat(Slice(x, axes=q, starts=b, ends=e, steps=s), Slice(y, axes=q, starts=b, ends=e, steps=s),
           axis=k)
    => Slice(Concat(x, y, axis=k), axes=q, starts=b, ends=e, steps=s)
softmax-one(x: f[n, m], y: f[n, m]): Softmax(ReduceMax(Add(x, y), axes=(k,), keepdims=1), axis=k)
    => Softmax(Mul(y, 0), axis=k)
reshaped-ones(x: f[n, m], y: f[p, q, 1, 1]): Mul(Reshape(x, shape=t), Reshape(y, shape=t))
    => Reshape(Mul(x, y), shape=t)
doubled-rows(x: f[n, k], y: f[k, k]): Reshape(MatMul(x, Concat(y, y, axis=-1)), shape=t)
    => MatMul(Reshape(Concat(x, x, axis=-1), shape=t), y)
div-of-div(x: f, y: f): Div(1, Div(x, Sub(y, x))) => Sub(Div(y, x), 1)
conv-broadcast(x: f, y: f, z: f[d, c, 1, 1]):
    AveragePool(Conv(x, Mul(y, z), group=1, **a), kernel_shape=(1, 1), strides=(1, 1))
    => Conv(x, Mul(y, z), group=1, **a)
leaky-parts(x: f): LeakyRelu(x, alpha=a) => Add(Relu(x), Mul(Min(x, 0), lit(a)))
abs-product(x: f, y: f): Abs(Mul(x, y)) => Mul(Abs(x), Abs(y))
scaled-max(x: f, y: f, c: f[]): Max(Mul(x, c), Mul(y, c)) => Mul(Max(x, y), c) where value(c) > 0
sigmoid-neg(x: f): Sub(1, Sigmoid(x)) => Sigmoid(Neg(x))
softplus(x: f): Log(Add(Exp(x), 1)) => Softplus(x)
log-softmax(x: f): Log(Softmax(x, axis=k)) => LogSoftmax(x, axis=k)
root-of-square(x: f): Sqrt(Mul(x, x)) => Abs(x)
log-of-root(x: f): Log(Sqrt(x)) => Mul(Log(x), 0.5)
power-of-exp(x: f, y: f): Pow(Exp(x), y) => Exp(Mul(x, y))
root-of-inverse(x: f): Sqrt(Reciprocal(x)) => Reciprocal(Sqrt(x))
near-a-third(x: f): Mul(x, 0.3333333333333333) => Div(x, 3)
gather-concat(x: f[n], y: f[m], i: i64[b], j: i64[c]):
    (Gather(x, i, axis=0), Gather(y, j, axis=0))
    => Split(Gather(Concat(x, y, axis=0),
                    Concat(Mod(i, lit(n)), Add(Mod(j, lit(m)), lit(n)), axis=0), axis=0),
             axis=0, split=(b, c))
gather-is-slice(x: any, i: i[]): Gather(x, i, axis=0)
    => Squeeze(Slice(x, starts=(value(i),), ends=(value(i) + 1,), axes=(0,)), axes=(0,))
    where value(i) >= 0
slices-are-split(x: any): (Slice(x, starts=(0,), ends=b, axes=(0,)),
                           Slice(x, starts=b, ends=(size(x, 0),), axes=(0,)))
    => Split(x, axis=0, split=(b[0], size(x, 0) - b[0]))
no-pads(x: f[n, m]): Pad(x, pads=p) => x where min(p) == 0, max(p) == 0
rows-of-parts(x: any[n, d], y: any[m, d]):
    Reshape(Concat(x, y, axis=0), shape=(n * d + m * d,))
    => Concat(Reshape(x, shape=(n * d,)), Reshape(y, shape=(m * d,)), axis=0)
one-or-other(x: f): Transpose(x, perm=p) => x where is_identity(p), rank(x) == 1 or rank(x) == 2
sum-of-merged(x: f[*s, n, m]): ReduceSum(x, axes=(-2, -1), keepdims=0)
    => ReduceSum(Reshape(x, shape=s + (n * m,)), axes=(-1,), keepdims=0)
max-of-merged(x: f[n, m]): ReduceMax(Reshape(x, shape=(n * m,)), axes=(0,), keepdims=0)
    => ReduceMax(x, axes=(0, 1), keepdims=0)
product-of-merged(x: f[b, n, k], y: f[b, k, m]):
    MatMul(Reshape(Transpose(x, perm=(1, 0, 2)), shape=(n, b * k)), Reshape(y, shape=(b * k, m)))
    => ReduceSum(MatMul(x, y), axes=(0,), keepdims=0)
sum-of-product(x: f[n, k], y: f[k, m]):
    ReduceSum(MatMul(x, y), axes=(1,)) => MatMul(x, ReduceSum(y, axes=(1,)))
sum-flat(x: f[n, c, r]): ReduceSum(x, axes=(1, 2), keepdims=0)
    => ReduceSum(Reshape(x, shape=(n, c * r)), axes=(1,), keepdims=0)
max-exp(x: f, y: f): Max(Exp(x), Exp(y)) => Exp(Max(x, y))
max-sigmoid(x: f): ReduceMax(Sigmoid(x), axes=a, keepdims=0)
    => Sigmoid(ReduceMax(x, axes=a, keepdims=0))
min-tanh(x: f, y: f): Min(Tanh(x), Tanh(Neg(y))) => Tanh(Min(x, Neg(y)))
max-erf(x: f, y: f): Max(Erf(x), Neg(Erf(y))) => Erf(Max(x, Neg(y)))
max-falls(x: f, y: f): Max(Reciprocal(Add(Exp(x), 1)), Reciprocal(Add(Exp(y), 1)))
    => Reciprocal(Add(Exp(Min(x, y)), 1))
tanh-exp(x: f): Div(Sub(Exp(x), Exp(Neg(x))), Add(Exp(x), Exp(Neg(x)))) => Tanh(x)
root-twice(x: f): Mul(Sqrt(x), Sqrt(x)) => x
power-minus-half(x: f): Pow(x, -0.5) => Reciprocal(Sqrt(x))
round-of-floor(x: f): Ceil(Add(Floor(x), Round(x))) => Add(Floor(x), Round(x))
remainder(x: i, y: i): Add(Mod(x, y, fmod=1), Mul(Div(x, y), y)) => x
remainder-again(x: i, y: i): Mod(Mod(x, y, fmod=1), y, fmod=1) => Mod(x, y, fmod=1)
quotients(x: i, a: i, b: i): Div(Div(x, a), b) => Div(x, lit(value(a) * value(b)))
    where value(a) > 0, value(b) > 0
sign-twice(x: num): Sign(Sign(x)) => Sign(x)
choice-of-one(c: bool, d: bool, x: f, y: f): Where(And(c, d), x, y) => Where(c, x, y)
    where value(d) == 1
one-by-one(x: any): Tile(x, repeats=r) => x where all(n == 1 for n in r)
bit(c: bool, x: f): Mul(x, Cast(Cast(c, to=i64), to=f32)) => Mul(x, Cast(c, to=f32))
modulo-again(x: i, y: i): Mod(Mod(x, y), y) => Mod(x, y)
cos-of-difference(x: f, y: f): Mul(Cos(Sub(x, y)), Cosh(y)) => Mul(Cosh(Neg(y)), Cos(Sub(y, x)))
ceil-and-floor(x: f, y: f): Ceil(Sub(x, y)) => Neg(Floor(Sub(y, x)))
round-of-difference(x: f, y: f): Round(Sub(x, y)) => Neg(Round(Sub(y, x)))
sign-of-difference(x: num, y: num): Sign(Sub(x, y)) => Neg(Sign(Sub(y, x)))
axes-from-both-ends(x: f): ReduceMean(Concat(x, Neg(x), axis=-2), axes=(1, 2), keepdims=d)
    => ReduceSum(Concat(x, Neg(x), axis=-2), axes=(1, 2), keepdims=d) where rank(x) <= 4
"""

# What is wrong is seen at the sizes in the comment.
FALSE = """
conv-broadcast-kernel(x: f, v: f, w: f):
    Add(Conv(x, v, **a), Conv(x, w, **a))
    => Conv(x, Add(v, w), **a)
matmul-commutes(x: f[n, n], y: f[n, n]): MatMul(x, y) => MatMul(y, x)
transpose-relabelled(x: f[n, n]): Transpose(x, perm=(1, 0)) => x
reshape-is-transpose(x: f[n, m]): Transpose(x, perm=(1, 0)) => Reshape(x, shape=(m, n))
relu-sub(x: f[n], y: f[n]): Relu(Sub(x, y)) => Sub(Relu(x), Relu(y))
concat-mixed-ranks(x: f, y: f, z: f, w: f):
    Concat(Add(x, y), Add(z, w), axis=k) => Add(Concat(x, z, axis=k), Concat(y, w, axis=k))
conv-order(x: f[n, c, h], w: f[c, c, 2], v: f[c, c, 2]): Conv(Conv(x, w), v) => Conv(Conv(x, v), w)
pool-pads(x: f[n, c, h]):
    MaxPool(x, kernel_shape=(3,), pads=(1, 1))
    => MaxPool(Pad(x, pads=(0, 0, 1, 0, 0, 1)), kernel_shape=(3,))
pool-leaves-out(x: f): Max(x, MaxPool(Relu(x), **a)) => MaxPool(Relu(x), **a)
pool-of-nothing(x: f, y: f): MaxPool(Max(x, y), **a) => Max(MaxPool(x, **a), MaxPool(y, **a))
average-border(x: f[n, c, h]):
    AveragePool(x, kernel_shape=(3,), pads=(1, 1), count_include_pad=0)
    => AveragePool(x, kernel_shape=(3,), pads=(1, 1), count_include_pad=1)
merged-otherwise(x: f[n, m], y: f[m, n]):
    ReduceSum(Mul(Reshape(x, shape=(n * m,)), Reshape(y, shape=(n * m,))), axes=(0,), keepdims=0)
    => ReduceSum(Mul(x, Transpose(y, perm=(1, 0))), axes=(0, 1), keepdims=0)
max-of-one-axis(x: f[n, m]): ReduceMax(Reshape(x, shape=(n * m,)), axes=(0,), keepdims=1)
    => Reshape(ReduceMax(Slice(x, axes=(0,), starts=(0,), ends=(1,)), axes=(1,), keepdims=1),
               shape=(1,))
softmax-other-axis(x: f[n, n]): Softmax(x, axis=0) => Softmax(x, axis=1)
mean-of-means(x: f[n, m], y: f[n, p]):
    ReduceMean(Concat(x, y, axis=1), axes=(1,))
    => Mul(Add(ReduceMean(x, axes=(1,)), ReduceMean(y, axes=(1,))), 0.5)
max-needs-relu(x: f[n, m]): ReduceMax(Relu(x), axes=(1,)) => ReduceMax(x, axes=(1,))
leaky-is-relu(x: f): LeakyRelu(x, alpha=0.5) => Relu(x)
where-flipped(x: f, y: f): Where(Less(x, y), x, y) => Max(x, y)
int-div(x: i64, y: i64, z: i64): Mul(Div(x, y), z) => Div(Mul(x, z), y)
other-epsilon(x: f[n, m], y: f[n, m], z: f[m]):
    Add(LayerNormalization(x, z, epsilon=a)[0], LayerNormalization(y, z, epsilon=b)[0])
    => Add(LayerNormalization(x, z, epsilon=b)[0], LayerNormalization(y, z, epsilon=a)[0])
other-alpha(x: f, y: f): Add(Elu(x, alpha=a), Elu(y, alpha=b))
    => Add(Elu(x, alpha=b), Elu(y, alpha=a))
doubled-rows-shifted(x: f[n, k], y: f[k, k]): Reshape(MatMul(x, Concat(y, y, axis=-1)), shape=t)
    => MatMul(Reshape(Concat(x, x, axis=0), shape=t), y)
div-of-div-off(x: f, y: f): Div(1, Div(x, Sub(y, x))) => Sub(Div(x, y), 1)
scaled-max-any(x: f, y: f, c: f[]): Max(Mul(x, c), Mul(y, c)) => Mul(Max(x, y), c)
root-is-not-x(x: f): Sqrt(Mul(x, x)) => x
not-so-near(x: f): Mul(x, 0.33333) => Div(x, 3)
gather-concat-mixed(x: f[n], y: f[n], i: i64[b]): Add(Gather(x, i, axis=0), Gather(y, i, axis=0))
    => Mul(Gather(Concat(x, y, axis=0), Add(i, lit(n)), axis=0), 2)
numbers-are-apart(x: f, y: f): Add(Mul(x, 2), Mul(y, 2)) => Mul(Add(x, y), 3)
expanded-part(x: num, y: num, c: num, d: num):
    Concat(Add(x, c), Add(y, d), axis=k)
    => Add(Concat(x, y, axis=k),
           Concat(Expand(c, shape=shape(x)), Expand(d, shape=shape(y)), axis=k))
slice-shifted(x: f[n]):
    Slice(x, axes=(0,), starts=(0,), ends=(2,), steps=(1,))
    => Slice(x, axes=(0,), starts=(1,), ends=(3,), steps=(1,))
max-reciprocal(x: f, y: f): Max(Reciprocal(x), Reciprocal(y)) => Reciprocal(Min(x, y))
max-falls-not(x: f, y: f): Max(Reciprocal(Add(Exp(x), 1)), Reciprocal(Add(Exp(y), 1)))
    => Reciprocal(Add(Exp(Max(x, y)), 1))
max-sin(x: f, y: f): Max(Sin(x), Sin(y)) => Sin(Max(x, y))
max-erf-sign(x: f, y: f): Max(Erf(x), Neg(Erf(y))) => Erf(Max(x, y))
max-unknown-sign(x: f, y: f, z: f): Max(Div(Exp(x), Add(Exp(x), z)), Div(Exp(y), Add(Exp(y), z)))
    => Div(Exp(Max(x, y)), Add(Exp(Max(x, y)), z))
round-of-half(x: f): Floor(Mul(Floor(x), 0.5)) => Mul(Floor(x), 0.5)
quotients-apart(x: i64, y: i64, z: i64): Div(Div(x, y), z) => Div(x, Div(y, z))
all-of-one(x: f[*s], y: f[*s]): Add(x, y) => x where all(n == 1 for n in s)
remainder-mixed(x: i64, y: i64): Add(Mod(x, y), Mul(Div(x, y), y)) => x
pool-max-depth(x: f[c, 1, 1], y: f): Max(x, MaxPool(y, **a)) => MaxPool(Max(y, x), **a)
cos-is-even(x: f): Cos(Neg(x)) => Neg(Cos(x))
floor-is-not-odd(x: f): Floor(Neg(x)) => Neg(Floor(x))
axes-at-rank-five(x: f): ReduceMean(Concat(x, Neg(x), axis=-2), axes=(1, 2), keepdims=d)
    => ReduceSum(Concat(x, Neg(x), axis=-2), axes=(1, 2), keepdims=d)
channels-at-rank-five(x: f, y: f[*s, 1, c, 1, 1], z: f): Conv(Mul(x, y), z, **a)
    => Conv(x, Mul(z, y), **a)
"""


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rule", parse_rules(TRUE), ids=lambda r: r.name)
def test_true_rules_are_proved(rule: Rule) -> None:
    verdict = prove(rule)
    assert isinstance(verdict, Proved), str(verdict)
    assert verdict.scope.instances > 0
    assert verdict.obligations > 0


FALSE_RULES = parse_rules(FALSE)


@cache
def verdict_on_false(name: str) -> Verdict:
    """Of a rule of FALSE: two tests look at it."""
    return prove(next(r for r in FALSE_RULES if r.name == name))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rule", FALSE_RULES, ids=lambda r: r.name)
def test_false_rules_are_refuted(rule: Rule) -> None:
    verdict = verdict_on_false(rule.name)
    assert isinstance(verdict, Refuted), str(verdict)
    assert verdict.left != verdict.right


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rule", FALSE_RULES, ids=lambda r: r.name)
def test_a_refutation_is_an_instance_of_the_rule(rule: Rule) -> None:
    """What its names stand for there makes the graphs of both sides, which differ."""
    verdict = verdict_on_false(rule.name)
    assert isinstance(verdict, Refuted), str(verdict)
    drawn = (
        instance_of_names(rule, verdict.names, n) for n in range(20)
    )  # the shapes of numbers are
    one = next(one for one in drawn if one is not None)
    for i in one.inputs:
        assert verdict.names[i.name].type == i.type  # type: ignore[union-attr]
    wide = replace(rule, float_class="E3")
    tried = (try_on_instances(wide, Cases(1, [one], ()), seed) for seed in range(100))
    assert any(isinstance(t, Differs) for t in tried), str(verdict)


def test_what_is_known_of_low_ranks_is_not_proved_again() -> None:
    (rule,) = parse_rules(
        "a(x: f, y: f): ReduceMax(Concat(x, y, axis=k), axes=(k,)) => ReduceMax(Concat(y, x,"
        " axis=k), axes=(k,))"
    )
    whole, rest = prove(rule), prove(rule, known_rank=2)
    assert isinstance(whole, Proved)
    assert isinstance(rest, Proved)
    assert whole.scope.instances == rest.scope.instances
    assert whole.obligations > rest.obligations


def test_what_a_rule_needs_is_said_without_what_both_sides_have() -> None:
    (rule,) = parse_rules(
        "a(x: f, y: f, z: f, w: f): Add(Concat(x, y, axis=-1), Concat(z, w, axis=-1))"
        " => Add(Concat(x, w, axis=-1), Concat(z, y, axis=-1))"
    )
    verdict = prove(rule)
    assert isinstance(verdict, Proved)
    assert verdict.derived == ("x0 == z0",)


def test_what_a_rule_needs_is_derived() -> None:
    (rule,) = parse_rules(
        "r(x: f[n, c, h], y: f[n, d, h], v: f[o, c, k], w: f[o, d, l]):"
        " Add(Conv(x, v, **a, group=1), Conv(y, w, **a, group=1))"
        " => Conv(Concat(x, y, axis=1), Concat(v, w, axis=1), **a, group=1)"
    )
    verdict = prove(rule)
    assert isinstance(verdict, Proved), str(verdict)
    assert any(d in ("k == l", "l == k") for d in verdict.derived), verdict.derived


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("r(x: f): Trilu(x, k=b) => Trilu(x, k=b)", "Trilu with any k"),
        ("r(x: f[n, 3], y: f[4, m]): MatMul(x, y) => MatMul(x, y)", "no instance"),
    ],
)
def test_what_is_not_known_says_why(text: str, why: str) -> None:
    (rule,) = parse_rules(text)
    verdict = prove(rule)
    assert isinstance(verdict, Unknown)
    assert why in str(verdict)


def test_what_goes_round_in_circles_is_stopped_by_its_work() -> None:
    """Sizes that are said by each other, again and again: hundreds of them after a minute."""
    (rule,) = parse_rules(
        "a(x: any, y: any): Slice(Slice(Concat(x, y, axis=k), axes=(k,), starts=b, ends=e,"
        " steps=s), axes=(k,), starts=b, ends=d, steps=s)"
        " => Slice(Slice(Pad(x, pads=(0, 0, 0, 1)), axes=(k,), starts=b, ends=e, steps=s),"
        " axes=(k,), starts=b, ends=d, steps=s) ; float=E0"
    )
    verdict = prove(rule, Limits(seconds=60, work=5_000))
    assert isinstance(verdict, Unknown)
    assert verdict.reason.startswith("5,000 units of work are done")


def test_time_runs_out_with_a_verdict() -> None:
    (rule,) = parse_rules(
        "r(x: f, y: f, z: f): Concat(Add(x, y), Add(z, y), axis=k) => Add(Concat(x, z, axis=k), y)"
    )
    verdict = prove(rule, Limits(seconds=0.02))
    assert isinstance(verdict, Unknown)
    assert "seconds" in str(verdict)


SOME = (
    "mod-concat",
    "gemm-merge",
    "relu-scale",
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SOME)
def test_no_wrong_mutant_is_proved(name: str) -> None:
    rule = next((r for r in load_library() if r.name == name), None)
    if rule is None:
        pytest.skip(f"{name} is not in the library")
    refused = 0
    for mutant in mutants(rule):
        verdict = prove(mutant, Limits(seconds=2))
        if isinstance(verdict, Proved):
            assert not isinstance(try_rule(mutant, count=8), Differs), f"{mutant}: {verdict}"
        else:
            refused += 1
    assert refused >= 2


def test_conditions_are_said_in_the_rules_own_sizes() -> None:
    """What the prover replaced (w by v + w' - 1) is told by what was there; and nothing is said
    that holds of all sizes."""
    (rule,) = parse_rules(
        "r(x: f[1, c, h, w], y: f[1, c, h, v], k: f[o, c, 1, 3]):"
        " Concat(Conv(x, k, pads=(0, 1, 0, 1)), Conv(y, k, pads=(0, 1, 0, 1)), axis=3) => Concat("
        "Slice(Conv(Concat(x, y, axis=3), k, pads=(0, 1, 0, 1)), axes=(3,), ends=(w - 1,),"
        " starts=(0,)), Conv(Slice(x, axes=(3,), ends=(w,), starts=(w - 2,)), k,"
        " pads=(0, 0, 0, 1)),"
        " Conv(Slice(y, axes=(3,), ends=(2,), starts=(0,)), k, pads=(0, 1, 0, 0)),"
        " Slice(Conv(Concat(x, y, axis=3), k, pads=(0, 1, 0, 1)), axes=(3,), ends=(w + v,),"
        " starts=(v + 1,)), axis=3) where w > 1, v > 1, v <= w"
    )
    found = prove(rule)
    assert isinstance(found, Proved)
    assert found.derived == ("w >= 2", "v + 2 == w + min(v, 2)")


def test_what_the_library_needs_is_said_so() -> None:
    assert not [c for p in library_records().proof.values() for c in p.conditions if "'" in c]
