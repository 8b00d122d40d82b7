"""What each argument of the prover shows, and what is like it and false."""

from __future__ import annotations

import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved

TRUE = """
# factors outside of maxima
scaled-greatest(x: f, c: f[]): ReduceMax(Mul(x, Abs(c)), axes=a)
    => Mul(ReduceMax(x, axes=a), Abs(c))
abs-of-product(x: f[n], c: f[]): ReduceSum(Abs(Mul(x, c)), axes=(0,))
    => Mul(ReduceSum(Abs(x), axes=(0,)), Abs(c))
root-of-scaled(x: f[n], c: f[]): Sqrt(ReduceSum(Mul(Mul(x, x), Mul(c, c)), axes=(0,)))
    => Mul(Sqrt(ReduceSum(Mul(x, x), axes=(0,))), Abs(c))
lesser-slope(x: f, c: f[]): Max(x, Mul(x, c)) => Where(Less(x, 0), Mul(x, c), x) where value(c) <= 1
# comparisons
less-exp(x: f, y: f): Less(Exp(x), Exp(y)) => Less(x, y)
less-sigmoid(x: f, y: f): Less(Sigmoid(x), Sigmoid(y)) => Less(x, y)
half-of-sigmoid(x: f): Greater(Sigmoid(x), 0.5) => Greater(x, 0)
equal-tanh(x: f, y: f): Equal(Tanh(x), Tanh(y)) => Equal(x, y)
less-scaled(x: f, y: f, c: f[]): Less(Mul(x, c), Mul(y, c)) => Less(y, x) where value(c) < 0
arg-sigmoid(x: f): ArgMin(Sigmoid(x), axis=k) => ArgMin(x, axis=k)
# products
prod-of-prod(x: f[n, m]): ReduceProd(ReduceProd(x, axes=(0,), keepdims=0), axes=(0,), keepdims=0)
    => ReduceProd(x, axes=(0, 1), keepdims=0)
prod-flat(x: f[n, m]): ReduceProd(Reshape(x, shape=(n * m,)), axes=(0,), keepdims=0)
    => ReduceProd(x, axes=(0, 1), keepdims=0)
prod-of-mul(x: f[n, m], y: f[n, m]): ReduceProd(Mul(x, y), axes=(1,))
    => Mul(ReduceProd(x, axes=(1,)), ReduceProd(y, axes=(1,)))
# integers
mod-of-sum(i: i64, a: i64[]): Mod(Add(Mod(i, a), a), a) => Mod(i, a)
    where value(a) > 0, value(a) <= 1000
mod-by-part(i: i64): Mod(Mod(i, 12), 4) => Mod(i, 4)
# sizes
reshaped-parts(x: any[n, k], y: any[m, k]):
    Concat(Reshape(x, shape=a), Reshape(y, shape=b), axis=0)
    => Reshape(Concat(x, y, axis=0), shape=(a[0] + b[0],) + a[1:]) where a[1:] == b[1:]
halves(x: f[n]): ReduceSum(Reshape(x, shape=(2, n // 2)), axes=(0, 1), keepdims=0)
    => ReduceSum(x, axes=(0,), keepdims=0) where n % 2 == 0
conv-to-one(x: f[n, c, h], w: f[o, c, k], b: f[h]): Add(b, Conv(x, w)) => Add(Conv(x, w), b)
unit-or-not(x: any[n, m]): Transpose(x, perm=(1, 0)) => Reshape(x, shape=(m, n))
    where n == 1 or m == 1
# maxima over the same values
window-of-windows(x: f[n, c, h]): MaxPool(MaxPool(x, kernel_shape=(2,)), kernel_shape=(3,))
    => MaxPool(x, kernel_shape=(4,))
first-and-rest(x: f[n, m]): ReduceMax(x, axes=(1,), keepdims=0)
    => Max(Squeeze(Slice(x, starts=(0,), ends=(1,), axes=(1,)), axes=(1,)),
           ReduceMax(Slice(x, starts=(1,), ends=(m,), axes=(1,)), axes=(1,), keepdims=0))
    where m > 1
# types and constants
own-type(x: any): Cast(x, to=t) => x where t == dtype(x)
up-and-down(x: f16): Cast(Cast(x, to=f32), to=f16) => x
head-scale(q: f[b, h, n, d], k: f[b, h, m, d], v: f[b, h, m, w]):
    Attention(q, k, v, scale=1 / sqrt(d))[0] => Attention(q, k, v)[0]
run(x: any, i: i[n]): Gather(x, i, axis=k)
    => Slice(x, starts=(items(i)[0],), ends=(items(i)[-1] + 1,), axes=(k,))
    where items(i)[0] >= 0, contiguous(items(i))
"""

FALSE = """
scaled-by-any(x: f, c: f[]): ReduceMax(Mul(x, c), axes=a) => Mul(ReduceMax(x, axes=a), c)
scaled-by-one-below(x: f, c: f[]): ReduceMax(Mul(x, c), axes=a) => Mul(ReduceMax(x, axes=a), c)
    where value(c) <= 1
root-without-sign(x: f[n], c: f[]): Sqrt(ReduceSum(Mul(Mul(x, x), Mul(c, c)), axes=(0,)))
    => Mul(Sqrt(ReduceSum(Mul(x, x), axes=(0,))), c)
lesser-slope-any(x: f, c: f[]): Max(x, Mul(x, c)) => Where(Less(x, 0), Mul(x, c), x)
    where value(c) <= 2
less-reciprocal(x: f, y: f): Less(Reciprocal(x), Reciprocal(y)) => Less(y, x)
less-scaled-any(x: f, y: f, c: f[]): Less(Mul(x, c), Mul(y, c)) => Less(x, y)
equal-scaled-any(x: f, y: f, c: f[]): Equal(Mul(x, c), Mul(y, c)) => Equal(x, y)
equal-sine(x: f, y: f): Equal(Sin(x), Sin(y)) => Equal(x, y)
equal-root(x: f, y: f): Equal(Sqrt(x), Sqrt(y)) => Equal(x, y)
third-of-sigmoid(x: f): Greater(Sigmoid(x), 0.25) => Greater(x, 0)
arg-square(x: f): ArgMax(Mul(x, x), axis=k) => ArgMax(x, axis=k)
arg-scaled(x: f, c: f[]): ArgMax(Mul(x, c), **a) => ArgMax(x, **a) where value(c) >= 0
prod-of-number(x: f[n, m]): ReduceProd(Mul(x, 2), axes=(1,)) => Mul(ReduceProd(x, axes=(1,)), 2)
prod-of-sum(x: f[n], y: f[n]): ReduceProd(Add(x, y), axes=(0,))
    => Add(ReduceProd(x, axes=(0,)), ReduceProd(y, axes=(0,)))
prod-padded(x: f[n]): ReduceProd(Pad(x, pads=(0, 1)), axes=(0,)) => ReduceProd(x, axes=(0,))
prod-of-one(x: f[], y: f[n]): ReduceProd(Add(Sub(y, y), x), axes=(0,), keepdims=0) => x
mod-of-large-sum(i: i64, a: i64[]): Mod(Add(Mod(i, a), a), a) => Mod(i, a) where value(a) > 0
div-neg(x: i64, y: i64): Div(Neg(x), y) => Neg(Div(x, y))
mod-by-other(i: i64): Mod(Mod(i, 12), 5) => Mod(i, 5)
mod-range(i: i64, a: i64[], b: i64[]): Mod(Mod(i, a), b) => Mod(i, a)
    where value(a) > 0, value(a) <= value(b) + 1
mod-of-sum-off(i: i64, a: i64[], b: i64[]): Mod(Add(i, a), b) => Mod(i, b)
    where value(a) > 0, value(b) > 0, value(a) % value(b) <= 1
remainder-sign(x: i64, c: i64): Mod(x, c) => Mod(x, c, fmod=1) where value(c) > 0
reshaped-parts-other(x: any[n, k], y: any[m, k]):
    Concat(Reshape(x, shape=a), Reshape(y, shape=b), axis=0)
    => Reshape(Concat(y, x, axis=0), shape=(a[0] + b[0],) + a[1:]) where a[1:] == b[1:]
quarters(x: f[n]): ReduceSum(Reshape(x, shape=(2, n // 2)), axes=(0, 1), keepdims=0)
    => Mul(ReduceSum(x, axes=(0,), keepdims=0), lit(n % 4 + 1)) where n % 2 == 0
conv-never-one(x: f[n, c, h], w: f[o, c, k], b: f[2]): Add(b, Conv(x, w, strides=s))
    => Mul(Add(Conv(x, w, strides=s), b), lit(1 + (h - k) // s[0]))
unit-or-not-off(x: any[n, m]): Transpose(x, perm=(1, 0)) => Reshape(x, shape=(m, n))
    where n == 1 or m == 2
window-too-long(x: f[n, c, h]): MaxPool(MaxPool(x, kernel_shape=(2,)), kernel_shape=(3,))
    => MaxPool(x, kernel_shape=(4,), strides=(1,), dilations=(2,))
window-steps(x: f[n, c, h]):
    MaxPool(MaxPool(x, kernel_shape=(2,), strides=(2,)), kernel_shape=(3,), strides=(2,))
    => MaxPool(x, kernel_shape=(4,), strides=(4,))
first-and-later(x: f[n, m]): ReduceMax(x, axes=(1,), keepdims=0)
    => Max(Squeeze(Slice(x, starts=(0,), ends=(1,), axes=(1,)), axes=(1,)),
           ReduceMax(Slice(x, starts=(2,), ends=(m,), axes=(1,)), axes=(1,), keepdims=0))
    where m > 2
windows-twice(x: f[n, c, h, w]):
    GlobalAveragePool(AveragePool(AveragePool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1),
        count_include_pad=0), kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1))
    => GlobalAveragePool(AveragePool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1),
        count_include_pad=0))
own-type-but(x: any): Cast(Cast(x, to=f32), to=t) => x where t == dtype(x)
down-and-up(x: f32): Cast(Cast(x, to=f16), to=f32) => x
small-and-float(x: u8, y: u8, z: f): (Sub(x, y), Relu(z)) => (Neg(Sub(y, x)), Relu(z))
other-scale(q: f[b, h, n, d], k: f[b, h, m, d], v: f[b, h, m, w]):
    Attention(q, k, v, scale=1 / sqrt(w))[0] => Attention(q, k, v)[0]
run-shifted(x: any, i: i[n]): Gather(x, i, axis=k)
    => Slice(x, starts=(items(i)[0] + 1,), ends=(items(i)[-1] + 2,), axes=(k,))
    where items(i)[0] >= 0, contiguous(items(i))
run-broken(x: any, i: i[n]): Gather(x, i, axis=k)
    => Slice(x, starts=(items(i)[0],), ends=(items(i)[-1] + 1,), axes=(k,))
    where items(i)[0] >= 0, contiguous(items(i)[m:]), m == 1
sum-of-number(x: f, y: f): ReduceSum(Mul(Add(x, 1), y), axes=(-1,))
    => Mul(ReduceSum(Add(1, x), axes=(-1,)), y)
one-of-the-list(x: i64): Cast(Cast(x, to=t), to=i64) => x where t in (i64, i32)
"""


@pytest.mark.parametrize("rule", parse_rules(TRUE), ids=lambda r: r.name)
def test_it_is_proved(rule: Rule) -> None:
    verdict = prove(rule)
    assert isinstance(verdict, Proved), str(verdict)
    assert verdict.is_complete


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", parse_rules(FALSE), ids=lambda r: r.name)
def test_what_is_like_it_and_false_is_not(rule: Rule) -> None:
    assert not isinstance(prove(rule, Limits(seconds=10)), Proved)
