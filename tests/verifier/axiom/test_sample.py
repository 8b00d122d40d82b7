"""A sample of rules as first-order formulas, and their proofs from themselves and the axioms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.verifier.axiom.chain import order_operands, term_size
from superopt.verifier.axiom.encode import encode_rule
from superopt.verifier.axiom.formulas import NotExpressible
from superopt.verifier.axiom.printer import show
from superopt.verifier.axiom.prove import Axioms, as_axiom, number_kind, operator_names
from superopt.verifier.axiom.theory import premises
from tests.support.rules.sample import GROUPS, check_golden, sample

MAX_LENGTH = 250  # of a formula that is compared in prefix notation, too


def formulas(rule: Rule) -> Iterator[str]:
    try:
        clause = encode_rule(rule)
    except NotExpressible as e:
        yield f"  {e}"
        return
    kind = number_kind(rule)
    yield f"  about {kind} of {' '.join(sorted(operator_names(rule)))}"
    for a, b in clause.sides:
        if len(f"{a!r}{b!r}") < MAX_LENGTH:
            yield f"  {a!r} = {b!r}"
        yield f"  {show(a)} = {show(b)}, sizes {term_size(a)} and {term_size(b)}"
        yield f"    {show(order_operands(a, frozenset(('Add', 'Mul', 'And'))))}"
    for p in sorted(premises(clause), key=repr):
        if len(f"{p!r}") < MAX_LENGTH:
            yield f"    if {p!r}"


@pytest.mark.parametrize("group", GROUPS)
def test_formulas(group: str) -> None:
    check_golden("formulas", group, (t for r in sample(group) for t in (r.name, *formulas(r))))


LAWS = """
add-comm(x: num, y: num): Add(x, y) => Add(y, x)
add-assoc(x: num, y: num, z: num): Add(Add(x, y), z) => Add(x, Add(y, z))
add-zero(x: num): Add(x, 0) => x
sub(x: num, y: num): Sub(x, y) => Add(x, Neg(y))
sub~(x: num, y: num): Add(x, Neg(y)) => Sub(x, y)
neg-neg(x: num): Neg(Neg(x)) => x
neg-add(x: num, y: num): Neg(Add(x, y)) => Add(Neg(x), Neg(y))
relu-relu(x: f): Relu(Relu(x)) => Relu(x)
transposes(x: any): Transpose(Transpose(x, perm=q), perm=p) => Transpose(x, perm=q[p])
transpose-none(x: any): Transpose(x, perm=p) => x where p == range(rank(x))
unsqueeze-squeeze(x: any): Squeeze(Unsqueeze(x, axes=a), axes=a) => x
sum-neg(x: num): ReduceSum(Neg(x), axes=a, keepdims=k) => Neg(ReduceSum(x, axes=a, keepdims=k))
"""
GOALS = """
three-neg(x: num): Neg(Neg(Neg(x))) => Neg(x)
relu-three(x: f): Relu(Relu(Relu(x))) => Relu(x)
sub-neg(x: num, y: num): Sub(x, Neg(y)) => Add(x, y)
neg-sub(x: num, y: num): Neg(Sub(x, y)) => Sub(y, x)
add-four(x: num, y: num, z: num): Add(x, Add(y, z)) => Add(z, Add(y, x))
sum-neg-neg(x: num): ReduceSum(Neg(x), axes=a, keepdims=0) => Neg(ReduceSum(x, axes=a, keepdims=0))
relu-neg(x: f): Relu(Neg(x)) => Neg(Relu(x))
relu-tanh(x: f): Relu(Tanh(x)) => Tanh(Relu(x))
swap-twice(x: any[n, m]): Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x
axes(x: any): Squeeze(Unsqueeze(x, axes=(0,)), axes=(0,)) => x
add-same-side(x: num, y: num): Add(x, y) => Sub(Add(x, Add(y, y)), y)
"""


def test_proofs_from_laws() -> None:
    """The axioms of each proof, and its chain where one is found; nothing else is proved."""
    laws = Axioms()
    for rule in parse_rules(LAWS):
        one = as_axiom(rule)
        assert one is not None, rule
        laws.add(one)
    lines = []
    for goal in parse_rules(GOALS):
        found = laws.prove(goal)
        lines.append(f"{goal.name}: {'not proved' if found is None else ' '.join(found.names)}")
        lines += [f"    {text}  {law}" for text, law in (found.chain_text() if found else ())]
    check_golden("laws", "proofs", lines)
