"""The replay of a certificate: apply its rewrites again, round by round.

The certificate states which rule applies, where, and each binding. The checker compares the rule's
left side with the graph, evaluates the conditions, builds the right side, compares types, and
substitutes it. It is sound for any certificate: each value is replaced by one that a rule of the
library states to be equal, or the replay stops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from superopt.check.certificate.rule_instance import RuleInstance
from superopt.check.graph_identity import CertificateRefused, check_all_folded, compare_graphs
from superopt.ir import graph
from superopt.ir.substitute import ReplacementCycle
from superopt.ir.syntax import MalformedText, expression, parse_attr, show_attr, show_type
from superopt.ir.value_numbers import ValueNumbering, number_values
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.import_.model_difference import interface_difference
from superopt.onnx_io.read.source import page_releaser
from superopt.report.data.certificate import Application, Certificate
from superopt.rules.lang.functions import NotKnown, Result
from superopt.rules.lang.interpreter import as_bool
from superopt.rules.lang.rule import Rule, bound_names
from superopt.rules.lang.syntax import Param
from superopt.rules.library.records import statement, tier
from superopt.rules.match.node_builder import NARY_OPS, Unsafe, make_node

_REFUSAL_ERRORS = (CertificateRefused, NotKnown, Unsafe, MalformedText, ValueError, TypeError,
                   LookupError, ArithmeticError, AssertionError, AttributeError,
                   RecursionError)  # fmt: skip
_FRACTION = re.compile(r"-?[1-9][0-9]*/[1-9][0-9]*")
_VALUE = re.compile(r"v(N)(?:\[(N):(N)\])?".replace("N", "0|[1-9][0-9]{0,8}"))


def check_certificate(
    certificate: Certificate,
    original: Model,
    optimized: Model,
    rules: Mapping[str, Rule],
    library: str,
) -> None:
    """Raise CertificateRefused unless the certificate leads from `original` to `optimized`.

    rules: those that may be applied, by name; library: the digest of the rule library.
    """
    for what, stated, actual in (
        ("original model", certificate.original, original.source.sha256),
        ("optimized model", certificate.optimized, optimized.source.sha256),
        ("rule library", certificate.library, library),
    ):
        if stated != actual:
            raise CertificateRefused(
                f"it is for another {what}: it names {stated}, this is {actual}"
            )
    for r in certificate.rules:
        if (rule := rules.get(r.name)) is None:
            raise CertificateRefused(
                f"rule {r.name} is neither in the library nor among the rules given"
            )
        own = {"text": statement(rule), "tier": tier(rule), "float_class": rule.float_class}
        for what, known in own.items():
            if (stated := getattr(r, what)) != known:
                raise CertificateRefused(
                    f"rule {r.name}: {what.replace('_', ' ')} is {known}, not {stated}"
                )
    used = {a.rule for some in certificate.rounds for a in some}
    if sorted(used) != [r.name for r in certificate.rules]:
        raise CertificateRefused("the listed rules are not the applied ones")
    state = number_values(original.graph)
    for k, some in enumerate(certificate.rounds):
        if not some:
            raise CertificateRefused(f"round {k} is empty")
        try:
            apply_round(state, some, rules)
        except CertificateRefused as e:
            raise CertificateRefused(f"round {k}: {e}") from None
    if different := interface_difference(original, optimized):
        raise CertificateRefused(f"the interface of the optimized model differs: {different}")
    folded = {f.value: f for f in certificate.folded}
    release = page_releaser(original.source, optimized.source)
    found = compare_graphs(state.graph, optimized.graph, state.name, release)
    folded_names = list(dict.fromkeys(state.name(v) for v, _ in found))
    if folded_names != [f.value for f in certificate.folded]:
        raise CertificateRefused(
            f"folded constants: the graph has {', '.join(folded_names)}, "
            f"the certificate lists {', '.join(folded)}"
        )
    check_all_folded([(folded[state.name(v)], v, constant) for v, constant in found])


def apply_round(
    state: ValueNumbering, applications: Sequence[Application], rules: Mapping[str, Rule]
) -> None:
    """Apply a round to the state. Raises CertificateRefused for an invalid application."""
    change: dict[graph.Value, graph.Value] = {}
    for a in applications:
        try:
            more = apply_rule(state, a, rules[a.rule])
        except _REFUSAL_ERRORS as e:
            raise CertificateRefused(f"{a.rule} at {', '.join(a.at)}: {e}") from None
        if set(more) & set(change):
            raise CertificateRefused(
                f"{a.rule} at {', '.join(a.at)}: another application replaces the same value"
            )
        change |= more
    try:
        state.replace(change, recursive=len(applications) > 1)
    except ReplacementCycle:
        raise CertificateRefused("its applications depend on each other: a cycle") from None


def apply_rule(state: ValueNumbering, a: Application, rule: Rule) -> dict[graph.Value, graph.Value]:
    """Return the replacements of an application."""
    at = [find_value(state, t) for t in a.at]
    instance = bind_rule(state, a, rule, at)
    if (left_values := instance.left_values()) != at:
        raise CertificateRefused(
            f"its left side is {left_values} with these bindings, the graph has {at}"
        )
    for p in rule.params:
        if isinstance(p, Param) and not instance.has_declared_type(p):
            raise CertificateRefused(
                f"{p} is {', '.join(show_type(v.type) for v in instance.operand_values(p.name))}"
            )
    for condition in rule.where:
        if not as_bool(instance.evaluate(condition)):
            raise CertificateRefused(
                f"its condition {instance.condition_text(condition)} does not hold"
            )
    if a.where != (where := tuple(instance.condition_text(c) for c in rule.where)):
        raise CertificateRefused(
            f"its conditions read {', '.join(where)}, not {', '.join(a.where)}"
        )
    operands = [
        v for p in rule.params if isinstance(p, Param) for v in instance.operand_values(p.name)
    ]
    if len(at) > 1 and graph.depends_on(operands, at):
        raise CertificateRefused("an operand depends on a result: the graph would have a cycle")
    new = instance.right_values(at[0].type.dtype)
    if [v.type for v in at] != [v.type for v in new]:
        types = " and ".join(", ".join(show_type(v.type) for v in some) for some in (at, new))
        raise CertificateRefused(f"its sides have the types {types}")
    k, i, j = _parse_reference(a.at[0])
    if i is None:
        return dict(zip(at, new, strict=True))
    n = state.values[k]
    assert isinstance(n, graph.Node)
    return {n: make_node(n.op, [*n.inputs[:i], new[0], *n.inputs[j:]], dict(n.attrs))}


def find_value(state: ValueNumbering, text: str) -> graph.Value:
    """Return the value that `v7` names, or `v7[1:3]`: operands 1 and 2 of an n-ary operator as
    one."""
    k, i, j = _parse_reference(text)
    if k >= len(state.values) or state.numbers.get(v := state.values[k]) != k:
        last = f"v{len(state.values) - 1}"
        raise CertificateRefused(
            f"{text} names no value: the last is {last}; or its value was merged with another"
        )
    if i is None or j is None:
        return v
    if not isinstance(v, graph.Node) or v.op.name not in NARY_OPS or not i + 1 < j <= len(v.inputs):
        raise CertificateRefused(f"{text}: v{k} does not have these operands")
    return graph.node(v.op, v.inputs[i:j], **dict(v.attrs))


def _parse_reference(text: str) -> tuple[int, int | None, int | None]:
    if (m := _VALUE.fullmatch(text)) is None:
        raise CertificateRefused(f"{text} is not a value name such as v7")
    return (int(m[1]), None, None) if m[2] is None else (int(m[1]), int(m[2]), int(m[3]))


def _typed_value(state: ValueNumbering, text: str) -> graph.Value:
    """Return the value that `v3: f32[2, 4]` names, after checking its type."""
    name, _, kind = text.partition(": ")
    v = find_value(state, name)
    if show_type(v.type) != kind:
        raise CertificateRefused(f"{name} is {show_type(v.type)}, not {kind}")
    return v


def _parse_attribute(text: str) -> Result:
    """Parse a size or an attribute, which must be in canonical form."""
    v = Fraction(text) if _FRACTION.fullmatch(text) else parse_attr(expression(text))
    if (said := str(v) if isinstance(v, Fraction) else show_attr(v)) != text:
        raise CertificateRefused(f"{text} must be written {said}")
    return v  # type: ignore[return-value]


def bind_rule(
    state: ValueNumbering, a: Application, rule: Rule, at: Sequence[graph.Value]
) -> RuleInstance:
    """Return the rule with the application's bindings."""
    params = {p.name: p for p in rule.params if isinstance(p, Param)}
    stated = {b[0]: b[1:] for b in a.bound if b}
    wanted = sorted(bound_names(rule), key=lambda name: (name not in params, name))
    if list(stated) != wanted or len(stated) != len(a.bound):
        raise CertificateRefused(
            f"it binds {', '.join(stated)}; the rule's names are {', '.join(wanted)}"
        )
    given: dict[str, Result] = {}
    for name, texts in stated.items():
        if name in params and params[name].is_run:
            given[name] = tuple(_typed_value(state, t) for t in texts)
        elif len(texts) != 1:
            raise CertificateRefused(f"{name} is bound to {len(texts)} things, not one")
        else:
            given[name] = (
                _typed_value(state, texts[0]) if name in params else _parse_attribute(texts[0])
            )

    def there(n: graph.Node) -> int:
        return max(2 * (v in at) + (v in state.numbers) for v in graph.results(n))

    def unread(v: Result, readers: set[graph.Node | None]) -> bool:
        users: Mapping[Result, list[graph.Node]] = graph.users(state.graph)  # type: ignore[assignment]
        return v not in state.graph.outputs and set(users.get(v, ())) <= readers

    return RuleInstance(rule, given, [_typed_value(state, t) for t in a.constants], there, unread)
