"""The axiom-level prover: axioms are proved, balanced, consistent; what is false is not shown."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from superopt.ir.graph import node
from superopt.ir.op import InferError
from superopt.ops import OPS
from superopt.rules.axioms.load import load_axioms, parse_axioms
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.library.records import find_proof
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.rules.trial.try_rule import try_rule
from superopt.verifier.axiom.balance import imbalance_reason
from superopt.verifier.axiom.encode import encode_rule
from superopt.verifier.axiom.formulas import NotExpressible
from superopt.verifier.axiom.operators import BROADCASTS, KEEPS_RANK, KEEPS_SHAPE
from superopt.verifier.axiom.prove import Axioms, as_axiom
from superopt.verifier.axiom.theory import Theory
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved
from tests.support.ops.build import example, made, operands
from tests.support.verifier.mutants import mutants


@cache
def axioms() -> Axioms:
    """Those written by hand."""
    out = Axioms()
    for rule in load_axioms():
        one = as_axiom(replace(rule, name=f"axiom {rule.name}"))
        assert one is not None, rule
        out.add(one)
    return out


def rule(text: str) -> Rule:
    return parse_rules(text)[0]


SAMPLE = load_axioms()[::40]  # all of them: scripts/prove_axioms.py


@pytest.mark.one_in(6)
@pytest.mark.parametrize("one", SAMPLE, ids=lambda r: r.name)
def test_axioms_are_proved_and_balanced(one: Rule) -> None:
    verdict = prove(one, Limits(seconds=60))
    assert isinstance(verdict, Proved), verdict
    assert verdict.is_complete
    assert imbalance_reason(one) == ""


def test_what_is_not_looked_through_is_not_balanced() -> None:
    one = rule("r(x: f, y: f, z: f): Add(Add(x, y), z) => Add(x, Add(y, z))")
    assert imbalance_reason(one) == ""
    assert "time is over" in imbalance_reason(one, seconds=0)


UNBALANCED = (
    "r(x: f, y: f): Sub(Add(x, y), y) => x",
    "r(x: f, y: f, z: f): Mul(y, Concat(x, z, axis=k)) => Concat(Mul(x, y), Mul(z, y), axis=k)",
    "r(x: f): ReduceSum(x, axes=a, keepdims=d) => x",
    "r(x: f, y: f): Div(x, Expand(y, shape=d)) => Div(x, y)",
)


@pytest.mark.parametrize("text", UNBALANCED)
def test_what_may_have_another_type_is_not_balanced(text: str) -> None:
    assert imbalance_reason(rule(text)) != ""


def test_axioms_for_many_operators_are_written_out() -> None:
    some = parse_axioms("each F: Relu Exp\ntwice-{F}(x: f): {F}(Identity(x)) <=> {F}(x)\n", "t")
    assert [r.name for r in some] == ["twice-Relu", "twice-Relu~", "twice-Exp", "twice-Exp~"]


PROVED = {
    "sub-of-sum(x: num, y: num, z: num): Sub(x, Sub(y, z)) => Add(Sub(x, y), z)": {
        "sub-as-add",
        "neg-add",
        "neg-neg",
        "add-assoc",
        "add-assoc~",
        "neg-add~",
        "sub-as-add~",
        "add-comm",
    },
    "relu-join(x: f, y: f): Concat(Relu(x), Relu(y), axis=k) => Relu(Concat(x, y, axis=k))": {
        "concat-Relu"
    },
    # the sizes of both sides say that y is 1 along the axis
    "mean(x: f, y: f): ReduceMean(Add(x, y), axes=(-1,), keepdims=1)"
    " => Add(y, ReduceMean(x, axes=(-1,), keepdims=1))": None,
    "pads(x: any, y: any): Concat(Pad(x, pads=(0, 1, 0, 0)), Pad(y, pads=(0, 1, 0, 0)), axis=k)"
    " => Pad(Concat(x, y, axis=k), pads=(0, 1, 0, 0))": {"concat-of-pads"},
}


@pytest.mark.parametrize("text", [t for t, names in PROVED.items() if names is not None])
def test_names_the_axioms_and_tells_a_chain(text: str) -> None:
    found = axioms().prove(rule(text))
    assert found is not None
    names = PROVED[text]
    assert names is not None
    assert {n.removeprefix("axiom ") for n in found.names} <= names
    shown = found.chain_text()
    assert shown[0][1] == ""
    assert all(name for _, name in shown[1:])
    used = {name.removeprefix("axiom ").removesuffix("~") for _, name in shown[1:]}
    assert used <= {n.removesuffix("~") for n in names}


def test_a_chain_reads_as_rules_do() -> None:
    found = axioms().prove(rule("r(x: num, y: num): Sub(x, Sub(0, y)) => Add(x, y)"))
    assert found is not None
    assert "\n".join(f"{term}  [{name}]" for term, name in found.chain_text()) == GOLDEN


GOLDEN = """\
Sub(x, Sub(0, y))  []
Sub(x, Add(0, Neg(y)))  [axiom sub-as-add]
Sub(x, Neg(y))  [axiom add-zero]
Add(x, Neg(Neg(y)))  [axiom sub-as-add]
Add(x, y)  [axiom neg-neg]"""

FALSE = (
    # the ancestor's axioms proved these two
    "one(x: f): Concat(x, x, axis=0) => x",
    "pool(x: f): MaxPool(x, kernel_shape=(2, 2)) => AveragePool(x, kernel_shape=(2, 2))",
    "swap(x: f, y: f): Sub(x, y) => Sub(y, x)",
    "joined(x: f, y: f): Concat(x, y, axis=k) => Concat(y, x, axis=k)",
    "wide(x: f, y: f, z: f): Mul(y, Concat(x, z, axis=k)) => Concat(Mul(x, y), Mul(x, z), axis=k)",
    "cut(x: f, y: f): Slice(Add(x, y), starts=(0,), ends=(1,), axes=(0,)) => Add(x, y)",
    "axis(x: f, y: f): Softmax(Concat(x, y, axis=k), axis=k)"
    " => Concat(Softmax(x, axis=k), Softmax(y, axis=k), axis=k)",
    "last(x: f, y: f): Softmax(Concat(x, y, axis=-1), axis=-1)"
    " => Concat(Softmax(x, axis=-1), Softmax(y, axis=-1), axis=-1)",
    "turn(x: f[n, n]): Transpose(x, perm=(1, 0)) => x",
    "twice(x: f): Add(x, x) => Mul(x, 3)",
    "sum(x: f): ReduceSum(x, axes=(0,), keepdims=1) => ReduceMean(x, axes=(0,), keepdims=1)",
    "pad(x: f, y: f): Concat(Pad(x, pads=(1, 0, 0, 0)), y, axis=0)"
    " => Pad(Concat(x, y, axis=0), pads=(0, 0, 1, 0))",
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", FALSE)
def test_what_is_false_is_not_proved(text: str) -> None:
    assert axioms().find_core(rule(text)) is None


@pytest.mark.one_in(0)
@pytest.mark.parametrize("every", [69, pytest.param(23, marks=pytest.mark.slow)])
def test_mutants_are_not_proved(every: int) -> None:
    """Changed rules that differ numerically do not follow from the axioms."""
    tried = 0
    for one in load_library()[::every]:
        some = list(mutants(one))
        Random(one.name).shuffle(some)
        for mutant in some[:2]:
            tried += 1
            if axioms().find_core(mutant) is not None:
                assert not isinstance(try_rule(mutant, seed=1, count=6), Differs), mutant
    assert tried > 2300 / every


@pytest.mark.one_in(2)
@pytest.mark.parametrize("one", load_library()[::30], ids=lambda r: r.name)
def test_what_is_given_of_a_rule_is_consistent(one: Rule) -> None:
    """Else everything would follow: the types' laws against rules that have instances."""
    if find_proof(one) is None:
        return
    try:
        goal = encode_rule(one)
    except NotExpressible:
        return
    theory = Theory()
    theory.add_type_laws()
    assert theory.is_consistent(goal, 300_000)


@pytest.mark.parametrize("name", sorted(KEEPS_RANK))
def test_what_keeps_a_rank_does(name: str) -> None:
    for text in OPS[name].example:
        one = made(name, text)
        shape, result = example(text)[0][0].shape, one.types[0].shape
        assert len(shape) == len(result)
        assert name not in KEEPS_SHAPE or shape == result


SHAPES = ((2, 3, 4), (1, 3, 1), (3, 4), (4,), (), (2, 1, 4), (5, 2, 3, 4))


@pytest.mark.parametrize("name", sorted(BROADCASTS))
def test_what_broadcasts_does(name: str) -> None:
    """The result's sizes are as the laws of `broadcast` say, from the end; others are refused."""
    types, attrs = example(OPS[name].example[0])
    for x in SHAPES:
        for y in SHAPES:
            rank = max(len(x), len(y))
            pairs = zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True)
            sizes = [(a, b) for a, b in pairs]
            given = operands(
                tuple(replace(t, shape=s) for t, s in zip(types, (x, y), strict=False))
            )
            if all(a == b or 1 in (a, b) for a, b in sizes):
                result = node(OPS[name], given, **attrs).types[0].shape
                assert result == tuple(b if a == 1 else a for a, b in sizes)
            else:
                with pytest.raises(InferError):
                    node(OPS[name], given, **attrs)
