"""The replay of a certificate: the rewrites that it lists, made again one round after the other.

The checker is told everything: which rule, where, and what each name stands for. It compares the
rule's left side with the graph, evaluates the conditions, builds the right side, compares types,
and puts it in place. Sound whatever the certificate says: each value is replaced by one that a rule
of the library says is equal, or the replay stops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from superopt.check.certificate.instance import Instance
from superopt.check.identical import Refused, check_folded, compare
from superopt.ir import graph as g
from superopt.ir.op import InferError
from superopt.ir.substitute import Cycle, substituted
from superopt.ir.syntax import Malformed, expression, parse_attr, show_type
from superopt.onnx_io.alike import different_surroundings
from superopt.onnx_io.model import Model
from superopt.report.certificate import Application, Certificate
from superopt.rules.functions import NotKnown, Result
from superopt.rules.make import Unsafe, make
from superopt.rules.rule import Rule, bound_names
from superopt.rules.stated import statement, tier
from superopt.rules.syntax import Param

_REFUSALS = (
    Refused, NotKnown, Unsafe, Malformed, ValueError, TypeError, LookupError, ArithmeticError,
    AssertionError, RecursionError,
)  # fmt: skip
_FRACTION = re.compile(r"-?\d+/\d+")
_VALUE = re.compile(r"v(\d{1,9})(?:\[(\d{1,9}):(\d{1,9})\])?")


@dataclass(slots=True)
class State:
    """A graph on the way, and its values by number; `numbers` is the same the other way round."""

    graph: g.Graph
    values: list[g.Value]
    numbers: dict[g.Value, int]

    def add(self, roots: Sequence[g.Value]) -> None:
        """Number the values that `roots` need and that have no number, operands first."""
        stack = list(reversed(roots))
        while stack:
            v = stack[-1]
            n = g.producer(v)
            new = [] if n is None else [i for i in n.inputs if i is not None]
            new = [i for i in new if i not in self.numbers]
            if v not in self.numbers and new and not all(isinstance(i, g.Constant) for i in new):
                stack += reversed([i for i in new if not isinstance(i, g.Constant)])
                continue
            stack.pop()
            for i in (*new, *((v,) if n is None else g.results(n))):
                if i not in self.numbers:
                    self.numbers[i] = len(self.values)
                    self.values.append(i)

    def find(self, text: str) -> g.Value:
        """The value that `v7` names, or `v7[1:3]`."""
        m = _VALUE.fullmatch(text)
        if m is None or int(m[1]) >= len(self.values):
            raise Refused(f"{text} names no value: there are v0 to v{len(self.values) - 1}")
        v = self.values[int(m[1])]
        if m[2] is None:
            return v
        some = v.inputs[int(m[2]) : int(m[3])] if isinstance(v, g.Node) else ()
        if not isinstance(v, g.Node) or len(some) != int(m[3]) - int(m[2]) or len(some) < 2:
            raise Refused(f"{text}: v{m[1]} does not have these operands")
        try:
            return g.node(v.op, some, **dict(v.attrs))
        except InferError as e:
            raise Refused(f"{text}: {e}") from None

    def name(self, v: g.Value) -> str:
        """What `v` is called."""
        return f"v{self.numbers[v]}" if v in self.numbers else "a value without a number"

    def typed(self, text: str) -> g.Value:
        """The value that `v3: f32[2, 4]` names, which is of that type."""
        name, _, kind = text.partition(": ")
        v = self.find(name)
        if show_type(v.type) != kind:
            raise Refused(f"{name} is {show_type(v.type)}, not {kind}")
        return v


def check(
    c: Certificate, original: Model, optimized: Model, rules: Mapping[str, Rule], library: str
) -> None:
    """Raise Refused unless the certificate leads from `original` to `optimized`.

    rules: those that may be applied, by name; library: the digest of the rule library.
    """
    for what, stated, found in (
        ("original model", c.original, original.source.sha256),
        ("optimized model", c.optimized, optimized.source.sha256),
        ("rule library", c.library, library),
    ):
        if stated != found:
            raise Refused(f"it is for another {what}: it names {stated}, this is {found}")
    for r in c.rules:
        rule = rules.get(r.name)
        if rule is None:
            raise Refused(f"rule {r.name} is not in the library, nor among the rules given")
        known = (statement(rule), tier(rule), rule.float_class)
        if (r.text, r.tier, r.float_class) != known:
            raise Refused(f"rule {r.name} is {known}, not {(r.text, r.tier, r.float_class)}")
    used = {a.rule for some in c.rounds for a in some}
    if sorted(used) != sorted(r.name for r in c.rules):
        raise Refused("the rules that it lists are not those that it applies")
    state = started(original.graph)
    for k, some in enumerate(c.rounds):
        try:
            play(state, some, rules)
        except Refused as e:
            raise Refused(f"round {k}: {e}") from None
    if different := different_surroundings(original, optimized):
        raise Refused(f"the optimized model is another: {different}")
    folded = {state.find(f.value): f for f in c.folded}
    left = set(folded)

    def fold(v: g.Value, constant: g.Constant) -> None:
        if v not in folded:
            raise Refused(f"{state.name(v)} is a constant there, and is not among the folded")
        check_folded(folded[v], v, constant)
        left.discard(v)

    compare(state.graph, optimized.graph, fold, state.name)
    if left or len(folded) != len(c.folded):
        raise Refused(f"{', '.join(map(state.name, left))} folded: not so in the optimized model")


def started(graph: g.Graph) -> State:
    """The state before the first round: the values of `graph` numbered."""
    state = State(graph, [], {})
    state.add((*graph.inputs, *graph.outputs))
    return state


def play(state: State, some: Sequence[Application], rules: Mapping[str, Rule]) -> None:
    """Apply a round to the state. Refused where an application of it is none."""
    if not some:
        raise Refused("it is empty")
    change: dict[g.Value, g.Value] = {}
    made: list[g.Value] = []
    for a in some:
        try:
            more = rewrite(state, a, rules)
        except _REFUSALS as e:
            raise Refused(f"{a.rule} at {', '.join(a.at)}: {e}") from None
        if set(more) & set(change):
            raise Refused(f"{a.rule} at {', '.join(a.at)}: another one replaces that, too")
        change |= more
        made += more.values()
    state.add(made)
    try:
        state.graph, done = substituted(state.graph, change, inside=len(some) > 1)
    except Cycle:
        raise Refused("its applications need each other's results: a cycle") from None
    for k, v in enumerate(state.values):
        w = done.get(v, v)
        if w is not v:
            state.values[k] = w
            if state.numbers.get(v) == k:
                del state.numbers[v]
            state.numbers.setdefault(w, k)


def rewrite(state: State, a: Application, rules: Mapping[str, Rule]) -> dict[g.Value, g.Value]:
    """What an application replaces by what."""
    rule = rules.get(a.rule)
    if rule is None:
        raise Refused("there is no such rule")
    at = [state.find(t) for t in a.at]
    part = _VALUE.fullmatch(a.at[0]) if len(a.at) == 1 and a.at[0].endswith("]") else None
    here = instance(state, a, rule, at)
    said = here.left()
    if said != at:
        raise Refused(f"its left side says {said} with these bindings, the graph has {at}")
    for p in rule.params:
        if isinstance(p, Param) and not here.typed(p):
            raise Refused(f"{p} is {', '.join(show_type(v.type) for v in here.run(p.name))}")
    for condition in rule.where:
        if not here.holds(condition):
            raise Refused(f"its condition {here.read(condition)} does not hold")
    where = tuple(here.read(c) for c in rule.where)
    if a.where != where:
        raise Refused(f"its conditions read {', '.join(where)}, not {', '.join(a.where)}")
    operands = [v for p in rule.params if isinstance(p, Param) for v in here.run(p.name)]
    if len(at) > 1 and g.depends(operands, at):
        raise Refused("an operand needs a result: the graph would have a cycle")
    new = here.right(at[0].type.dtype)
    if [v.type for v in at] != [v.type for v in new]:
        types = " and ".join(", ".join(show_type(v.type) for v in some) for some in (at, new))
        raise Refused(f"its sides have the types {types}")
    if part is None:
        return dict(zip(at, new, strict=True))
    n = state.values[int(part[1])]
    assert isinstance(n, g.Node)
    operands_ = (*n.inputs[: int(part[2])], new[0], *n.inputs[int(part[3]) :])
    return {n: make(n.op, operands_, dict(n.attrs))}


def instance(state: State, a: Application, rule: Rule, at: Sequence[g.Value]) -> Instance:
    """The rule with what the application says that its names stand for."""
    stated = {b[0]: b[1:] for b in a.bound if b}
    wanted = bound_names(rule)
    if set(stated) != wanted or len(stated) != len(a.bound):
        raise Refused(f"it binds {', '.join(stated)}; the rule's names are {', '.join(wanted)}")
    params = {p.name: p for p in rule.params if isinstance(p, Param)}
    given: dict[str, Result] = {}
    for name, texts in stated.items():
        if name in params and params[name].run:
            given[name] = tuple(state.typed(t) for t in texts)
        elif len(texts) != 1:
            raise Refused(f"{name} stands for {len(texts)} things, not one")
        elif name in params:
            given[name] = state.typed(texts[0])
        elif _FRACTION.fullmatch(texts[0]):
            given[name] = Fraction(texts[0])
        else:
            given[name] = parse_attr(expression(texts[0]))  # type: ignore[assignment]

    def there(n: g.Node) -> bool:
        return any(v in state.numbers or v in at for v in g.results(n))

    def unread(v: g.Value, readers: set[g.Node | None]) -> bool:
        users = g.users(state.graph)
        return v not in state.graph.outputs and set(users.get(v, ())) <= readers

    return Instance(rule, given, [state.typed(t) for t in a.constants], there, unread)
