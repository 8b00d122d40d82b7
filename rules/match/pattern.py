"""A rule's left side compiled to a chain of steps.

The order of the steps is fixed at compile time, so each step knows which names are bound. A
condition or attribute formula becomes a step as soon as its names are bound; a condition on the
whole match (single_use) comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from superopt.ir.graph import results
from superopt.ir.op import REQUIRED, Attr, Op
from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.interpreter import Scope, required_names
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule, bound_names, definition
from superopt.rules.lang.syntax import LETTERS
from superopt.rules.lang.term import (
    AllResults,
    App,
    Call,
    Formula,
    Lit,
    Name,
    Number,
    OperandRun,
    Pick,
    Term,
    Var,
    free_names,
    walk,
)
from superopt.rules.match.check_steps import (
    attribute_formula_step,
    attributes_step,
    distinct_step,
    nearest_step,
    other_attributes_step,
    pick_step,
    same_value_step,
    users_step,
)
from superopt.rules.match.leaf_steps import match_leaf, operand_test
from superopt.rules.match.node_builder import NARY_OPS
from superopt.rules.match.operand_steps import (
    RESERVED_SLOTS,
    Cells,
    Continuation,
    Step,
    all_results_step,
    is_present,
    nary_step,
    operand_run_step,
    operands_step,
)
from superopt.rules.match.pattern_builder import END, PatternBuilder
from superopt.rules.match.symmetry import are_roots_interchangeable, is_swap_redundant

MAX_ROOT_DISTANCE = 4  # nodes of its operator on either side that are tried for an unconnected root


@dataclass(frozen=True, slots=True)
class Start:
    """Matching from one of the roots: its operator, its slot, and the depth of its term."""

    op: Op
    slot: int
    depth: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A compiled left side.

    size: of the environment. slots: of names. terms: of applications (their node) and picks. roots:
    slot and result number (None: all results). nodes: slots of matched nodes. ops: the operators
    that a graph must have. starts: one for each root. has_nary: True if nodes may be parts of n-ary
    ones.
    """

    rule: Rule
    size: int
    slots: Mapping[str, int]
    terms: Mapping[Term, int]
    roots: tuple[tuple[int, int | None], ...]
    nodes: tuple[int, ...]
    ops: frozenset[Op]
    starts: tuple[Start, ...]
    has_nary: bool


@lru_cache(maxsize=1 << 13)
def compile_pattern(rule: Rule) -> Pattern:
    """Return the pattern of `rule`."""
    scope = Scope()
    scope.cells.extend([None] * RESERVED_SLOTS)
    for name in sorted(_all_names(rule)):
        scope.slot(name)
    for side in rule.lhs:
        for p in walk(side):
            if isinstance(p, (App, Pick)) and p not in scope.terms:
                scope.terms[p] = scope.new_slot()
    letters = {k: scope.new_slot() for k in LETTERS}
    roots = tuple(_root_slot(t, scope, len(rule.lhs)) for t in rule.lhs)
    apps = [root_app(t) for t in rule.lhs]
    nodes = tuple(slot for t, slot in scope.terms.items() if isinstance(t, App))
    starts = []
    for first in range(len(rule.lhs)):
        steps = compile_steps(PatternBuilder(rule, scope, letters, nodes), first)
        app = apps[first]
        starts.append(Start(app.op, scope.terms[app], term_depth(app), steps))
    inside = {p for t in rule.lhs for p in walk(t) if isinstance(p, App)}
    return Pattern(
        rule,
        len(scope.cells),
        dict(scope.slots),
        dict(scope.terms),
        roots,
        nodes,
        frozenset(a.op for a in inside),
        tuple(starts),
        any(a.op.name in NARY_OPS for a in inside),
    )


def _all_names(rule: Rule) -> set[str]:
    found = {p.name for p in rule.params} | set(bound_names(rule))
    for part in (*rule.lhs, *rule.rhs, *rule.where):
        found |= free_names(part)
    return found


def root_app(t: Term) -> App:
    match t:
        case App():
            return t
        case Pick(app, _) | AllResults(app):
            return app
        case _:
            raise AssertionError(f"{show(t)} at a root")  # parse_rules refuses it


def _root_slot(t: Term, scope: Scope, count: int) -> tuple[int, int | None]:
    whole = isinstance(t, AllResults) or (isinstance(t, App) and count == 1)
    index = t.index if isinstance(t, Pick) else None if whole else 0
    return scope.terms[root_app(t)], index


def term_depth(t: Term) -> int:
    """Return the depth of nested operators in `t`."""
    inner = [term_depth(p) for p in _operands(t)]
    return (1 if isinstance(t, App) else 0) + max(inner, default=0)


def _operands(t: Term) -> tuple[Term, ...]:
    match t:
        case App(_, given, _, _):
            return given
        case Pick(app, _) | AllResults(app):
            return (app,)
        case _:
            return ()


def compile_steps(c: PatternBuilder, first_root: int) -> tuple[Step, ...]:
    """Return the steps from root number `first`: that root, the other roots, conditions in
    between."""
    rule = c.rule
    given = set(bound_names(Rule(rule.name, rule.params, rule.lhs, rule.rhs)))
    for condition in rule.where:
        defined = definition(condition, frozenset(given))
        if defined is not None:
            given.add(defined[0])
            c.defer(required_names(defined[1]), partial(c.definition_step, *defined))
        else:
            own = required_names(condition) | ({END} if _has_single_use(condition) else set())
            c.defer(own, partial(c.condition_step, condition))
    order = [first_root, *(i for i in range(len(rule.lhs)) if i != first_root)]
    for rank, i in enumerate(order):
        app = root_app(rule.lhs[i])
        if rank and app not in c.matched:
            find_root(c, app, order[:rank])
        if rank:
            separate_root(c, i, order[:rank])
        whole = isinstance(rule.lhs[i], AllResults) or len(rule.lhs) == 1
        match_application(c, app, c.scope.terms[app], root=len(rule.lhs) == 1 and whole)
        pick = rule.lhs[i]
        if isinstance(pick, Pick):
            c.matched.add(pick)
            c.steps.append(_result_step(c.scope.terms[app], c.scope.terms[pick], pick))
    c.matched.add(END)
    c.flush_ready()
    assert not c.deferred, f"{rule.name}: a formula needs what nothing binds"
    return tuple(c.steps)


def match_application(c: PatternBuilder, t: App, slot: int, root: bool = False) -> None:
    """Match the node in `slot` with an application of `t`'s operator."""
    if t in c.matched:
        if slot != c.scope.terms[t]:
            c.steps.append(same_value_step(slot, c.scope.terms[t], show(t)))
        return
    c.matched.add(t)
    children = match_operands(c, t, slot, root)
    match_attributes(c, t, slot)
    c.flush_ready()
    for child, at in children:
        if not isinstance(child, (App, Pick, AllResults)):
            match_leaf(c, child, at)
    for child, at in children:
        match child:
            case App():
                match_application(c, child, at)
            case Pick(app, index):
                match_pick(c, child, app, index, at)
            case AllResults(app):
                match_application(c, app, at)


def match_pick(c: PatternBuilder, t: Pick, app: App, index: int, at: int) -> None:
    known = app in c.matched
    into = c.scope.new_slot() if known else c.scope.terms[app]
    c.steps.append(pick_step(at, into, app.op, index, show(t)))
    c.matched.add(t)
    match_application(c, app, into)


def match_operands(c: PatternBuilder, t: App, slot: int, root: bool) -> list[tuple[Term, int]]:
    """Add the step that binds the operands; return the slot of each."""
    given: list[tuple[Term, int]] = []
    for o in t.operands:
        given.append((o, operand_slot(c, o, given)))
    spots = [operand_test(o, at) for o, at in given]
    runs = [i for i, o in enumerate(t.operands) if isinstance(o, (OperandRun, AllResults))]
    nest = t.op.name in NARY_OPS
    if runs:
        (i,) = runs[:1]
        inner = t.operands[i]
        if isinstance(inner, AllResults):
            step = all_results_step(slot, spots[i].slot, inner.term.op, root and nest)
        else:
            step = operand_run_step(slot, spots[:i], spots[i].slot, spots[i + 1 :])
        c.steps.append(step)
        return given
    swap = "commutative" in t.op.laws and len(spots) == 2
    if swap and is_swap_redundant(c.rule, t, c.fixed_order):
        c.fixed_order.append(t)
        swap = False
    if nest and len(spots) > 1:
        # a part of the operands must contain something specific
        own = any(isinstance(o, (App, Pick, Number)) for o in t.operands)
        own = own or len(set(t.operands)) < len(t.operands)
        other = [s.op is not t.op if s.op is not None else s.test is not is_present for s in spots]
        c.steps.append(nary_step(slot, spots, swap, root and own, all(other)))
    else:
        c.steps.append(operands_step(slot, spots, swap))
    return given


def operand_slot(c: PatternBuilder, t: Term, given: list[tuple[Term, int]]) -> int:
    """Return the slot of an operand: its own slot at its first occurrence."""
    taken = {at for _, at in given}
    match t:
        case Var(n) | OperandRun(n) if n not in c.bound and c.scope.slots[n] not in taken:
            return c.scope.slots[n]
        case App() | Pick() if t not in c.matched and c.scope.terms[t] not in taken:
            return c.scope.terms[t]
        case AllResults(app) if app not in c.matched:
            return c.scope.terms[app]
        case _:
            return c.scope.new_slot()


def match_attributes(c: PatternBuilder, t: App, slot: int) -> None:
    own = frozenset(k for k, _ in t.attrs)
    fixed: dict[str, Attr] = {}
    binds: list[tuple[str, int]] = []
    for key, f in t.attrs:
        match f:
            case Lit(literal):
                fixed[key] = literal
            case Name(n) if n not in c.bound and n not in c.params:
                binds.append((key, c.scope.slots[n]))
                c.bound.add(n)
            case _ if not required_names(f) and (v := constant_formula(c, f)) is not None:
                fixed[key] = v
            case _:
                match_attribute_formula(c, t.op, key, f, slot)
    rest: int | None = None
    if t.rest is None:
        for key, default in t.op.attrs.items():
            if key not in own and default is not REQUIRED:
                fixed[key] = default  # type: ignore[assignment]
    elif t.rest in c.bound:
        c.steps.append(other_attributes_step(slot, own, c.scope.slots[t.rest], t.rest))
    else:
        rest = c.scope.slots[t.rest]
        c.bound.add(t.rest)
    if fixed or binds or rest is not None:
        c.steps.append(attributes_step(slot, t.op, tuple(fixed.items()), binds, rest, own))


def constant_formula(c: PatternBuilder, f: Formula) -> Attr:
    """Return the value of a formula without names, None if it has none."""
    try:
        return c.formula(f)([None] * len(c.scope.cells))  # type: ignore[no-any-return]
    except NotKnown:
        return None


def match_attribute_formula(c: PatternBuilder, op: Op, key: str, f: Formula, slot: int) -> None:
    c.defer(required_names(f), lambda: attribute_formula_step(slot, op, key, c.formula(f), show(f)))


def find_root(c: PatternBuilder, app: App, before: list[int]) -> None:
    """Add candidates for a further root: users of a value that it shares with the matched roots."""
    into = c.scope.terms[app]
    found: list[tuple[int, tuple[Op, ...]]] = []
    bound_paths(c, app, (), found)
    if found:
        slot, path = min(found, key=lambda p: len(p[1]))
        c.steps.append(users_step(slot, path, into))
    else:
        first = c.scope.terms[root_app(c.rule.lhs[before[0]])]
        c.steps.append(nearest_step(first, app.op, into, MAX_ROOT_DISTANCE))


def bound_paths(
    c: PatternBuilder, t: App, above: tuple[Op, ...], out: list[tuple[int, tuple[Op, ...]]]
) -> None:
    """Collect the bound values inside `t`: their slots, and the operators from there up."""
    for o in t.operands:
        match o:
            case Var(n) if n in c.bound:
                out.append((c.scope.slots[n], (t.op, *above)))
            case App() if o in c.matched:
                out.append((c.scope.terms[o], (t.op, *above)))
            case App():
                bound_paths(c, o, (t.op, *above), out)


def separate_root(c: PatternBuilder, i: int, before: list[int]) -> None:
    """Require that a further root is another node; a symmetric pair is tried in one order only."""
    rule, at = c.rule, c.scope.terms[root_app(c.rule.lhs[i])]
    others: list[int] = []
    lower: list[int] = []
    upper: list[int] = []
    for j in before:
        a, b = root_app(rule.lhs[j]), root_app(rule.lhs[i])
        if a == b:
            continue
        others.append(c.scope.terms[a])
        if are_roots_interchangeable(rule, i, j):
            (lower if j < i else upper).append(c.scope.terms[a])
    if others:
        c.steps.append(distinct_step(at, others, lower, upper))


def _has_single_use(c: Formula) -> bool:
    return any(isinstance(p, Call) and p.fn == "single_use" for p in walk(c))


def _result_step(node_slot: int, target: int, t: Pick) -> Step:
    """Return the step for a root that is one of several results."""

    def make(go: Continuation) -> Continuation:
        def run(env: Cells) -> None:
            found = results(env[node_slot])
            if t.index < len(found):
                env[target] = found[t.index]
                go(env)

        return run

    return Step(make, lambda env: f"there is no result {t.index}")
