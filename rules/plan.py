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
from superopt.rules.chain import END, Chain
from superopt.rules.checks import (
    apart,
    asked,
    nearest,
    picked,
    rest_is,
    said,
    same,
    users_of,
)
from superopt.rules.condition import Scope, needs
from superopt.rules.functions import NotKnown
from superopt.rules.leaves import leaf, seen
from superopt.rules.make import NARY
from superopt.rules.rule import Rule, bound_names, definition
from superopt.rules.steps import (
    OWN,
    Cells,
    Cont,
    Step,
    all_results,
    nary,
    operands,
    present,
    run_of,
)
from superopt.rules.symmetry import commutes, interchangeable
from superopt.rules.syntax import LETTERS
from superopt.rules.term import (
    All,
    App,
    Call,
    Formula,
    Lit,
    Name,
    Number,
    Pick,
    Run,
    Term,
    Var,
    names,
    show,
    walk,
)

REACH = 4  # nodes of its operator on either side that are tried for an unconnected root


@dataclass(frozen=True, slots=True)
class Start:
    """Matching from one of the roots: its operator, its slot, and the depth of its term."""

    op: Op
    slot: int
    depth: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
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
    virtual: bool


@lru_cache(maxsize=1 << 13)
def plan(rule: Rule) -> Plan:
    """Return the pattern of `rule`."""
    scope = Scope()
    scope.used.extend([None] * OWN)
    for name in sorted(_all_names(rule)):
        scope.slot(name)
    for side in rule.lhs:
        for p in walk(side):
            if isinstance(p, (App, Pick)) and p not in scope.terms:
                scope.terms[p] = scope.fresh()
    letters = {k: scope.fresh() for k in LETTERS}
    roots = tuple(_root(t, scope, len(rule.lhs)) for t in rule.lhs)
    apps = [app_of(t) for t in rule.lhs]
    nodes = tuple(slot for t, slot in scope.terms.items() if isinstance(t, App))
    starts = []
    for first in range(len(rule.lhs)):
        steps = compile_chain(Chain(rule, scope, letters, nodes), first)
        app = apps[first]
        starts.append(Start(app.op, scope.terms[app], depth_of(app), steps))
    inside = {p for t in rule.lhs for p in walk(t) if isinstance(p, App)}
    return Plan(
        rule,
        len(scope.used),
        dict(scope.slots),
        dict(scope.terms),
        roots,
        nodes,
        frozenset(a.op for a in inside),
        tuple(starts),
        any(a.op.name in NARY for a in inside),
    )


def _all_names(rule: Rule) -> set[str]:
    found = {p.name for p in rule.params} | set(bound_names(rule))
    for part in (*rule.lhs, *rule.rhs, *rule.where):
        found |= names(part)
    return found


def app_of(t: Term) -> App:
    match t:
        case App():
            return t
        case Pick(app, _) | All(app):
            return app
        case _:
            raise AssertionError(f"{show(t)} at a root")  # parse_rules refuses it


def _root(t: Term, scope: Scope, count: int) -> tuple[int, int | None]:
    whole = isinstance(t, All) or (isinstance(t, App) and count == 1)
    index = t.index if isinstance(t, Pick) else None if whole else 0
    return scope.terms[app_of(t)], index


def depth_of(t: Term) -> int:
    """Return the depth of nested operators in `t`."""
    inner = [depth_of(p) for p in _operands(t)]
    return (1 if isinstance(t, App) else 0) + max(inner, default=0)


def _operands(t: Term) -> tuple[Term, ...]:
    match t:
        case App(_, given, _, _):
            return given
        case Pick(app, _) | All(app):
            return (app,)
        case _:
            return ()


def compile_chain(c: Chain, first: int) -> tuple[Step, ...]:
    """Return the steps from root number `first`: that root, the other roots, conditions in
    between."""
    rule = c.rule
    given = set(bound_names(Rule(rule.name, rule.params, rule.lhs, rule.rhs)))
    for condition in rule.where:
        made = definition(condition, frozenset(given))
        if made is not None:
            given.add(made[0])
            c.wait(needs(made[1]), partial(c.define, *made))
        else:
            own = needs(condition) | ({END} if _asks_users(condition) else set())
            c.wait(own, partial(c.condition, condition))
    order = [first, *(i for i in range(len(rule.lhs)) if i != first)]
    for rank, i in enumerate(order):
        app = app_of(rule.lhs[i])
        if rank and app not in c.done:
            find(c, app, order[:rank])
        if rank:
            separate(c, i, order[:rank])
        whole = isinstance(rule.lhs[i], All) or len(rule.lhs) == 1
        application(c, app, c.scope.terms[app], root=len(rule.lhs) == 1 and whole)
        pick = rule.lhs[i]
        if isinstance(pick, Pick):
            c.done.add(pick)
            c.steps.append(_result_of(c.scope.terms[app], c.scope.terms[pick], pick))
    c.done.add(END)
    c.flush()
    assert not c.waiting, f"{rule.name}: a formula needs what nothing binds"
    return tuple(c.steps)


def application(c: Chain, t: App, slot: int, root: bool = False) -> None:
    """Match the node in `slot` with an application of `t`'s operator."""
    if t in c.done:
        if slot != c.scope.terms[t]:
            c.steps.append(same(slot, c.scope.terms[t], show(t)))
        return
    c.done.add(t)
    children = take(c, t, slot, root)
    attributes(c, t, slot)
    c.flush()
    for child, at in children:
        if not isinstance(child, (App, Pick, All)):
            leaf(c, child, at)
    for child, at in children:
        match child:
            case App():
                application(c, child, at)
            case Pick(app, index):
                pick(c, child, app, index, at)
            case All(app):
                application(c, app, at)


def pick(c: Chain, t: Pick, app: App, index: int, at: int) -> None:
    if t in c.done:
        c.steps.append(same(at, c.scope.terms[t], show(t)))
        return
    known = app in c.done
    into = c.scope.fresh() if known else c.scope.terms[app]
    c.steps.append(picked(at, into, app.op, index, show(t)))
    c.done.add(t)
    application(c, app, into)


def take(c: Chain, t: App, slot: int, root: bool) -> list[tuple[Term, int]]:
    """Add the step that binds the operands; return the slot of each."""
    given: list[tuple[Term, int]] = []
    for o in t.operands:
        given.append((o, place(c, o, given)))
    spots = [seen(o, at) for o, at in given]
    runs = [i for i, o in enumerate(t.operands) if isinstance(o, (Run, All))]
    nest = t.op.name in NARY
    if runs:
        (i,) = runs[:1]
        inner = t.operands[i]
        if isinstance(inner, All):
            step = all_results(slot, spots[i].slot, inner.term.op, root and nest)
        else:
            step = run_of(slot, spots[:i], spots[i].slot, spots[i + 1 :])
        c.steps.append(step)
        return given
    swap = "commutative" in t.op.laws and len(spots) == 2
    if swap and commutes(c.rule, t, c.fixed):
        c.fixed.append(t)
        swap = False
    if nest and len(spots) > 1:
        # a part of the operands must contain something specific
        own = any(isinstance(o, (App, Pick, Number)) for o in t.operands)
        own = own or len(set(t.operands)) < len(t.operands)
        other = [s.op is not t.op if s.op is not None else s.test is not present for s in spots]
        c.steps.append(nary(slot, spots, swap, root and own, all(other)))
    else:
        c.steps.append(operands(slot, spots, swap))
    return given


def place(c: Chain, t: Term, given: list[tuple[Term, int]]) -> int:
    """Return the slot of an operand: its own slot at its first occurrence."""
    taken = {at for _, at in given}
    match t:
        case Var(n) | Run(n) if n not in c.bound and c.scope.slots[n] not in taken:
            return c.scope.slots[n]
        case App() | Pick() if t not in c.done and c.scope.terms[t] not in taken:
            return c.scope.terms[t]
        case All(app) if app not in c.done:
            return c.scope.terms[app]
        case _:
            return c.scope.fresh()


def attributes(c: Chain, t: App, slot: int) -> None:
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
            case _ if not needs(f) and (v := known(c, f)) is not None:
                fixed[key] = v
            case _:
                ask(c, t.op, key, f, slot)
    rest: int | None = None
    if t.rest is None:
        for key, default in t.op.attrs.items():
            if key not in own and default is not REQUIRED:
                fixed[key] = default  # type: ignore[assignment]
    elif t.rest in c.bound:
        c.steps.append(rest_is(slot, own, c.scope.slots[t.rest], t.rest))
    else:
        rest = c.scope.slots[t.rest]
        c.bound.add(t.rest)
    if fixed or binds or rest is not None:
        c.steps.append(said(slot, t.op, tuple(fixed.items()), binds, rest, own))


def known(c: Chain, f: Formula) -> Attr:
    """Return the value of a formula without names, None if it has none."""
    try:
        return c.formula(f)([None] * len(c.scope.used))  # type: ignore[no-any-return]
    except NotKnown:
        return None


def ask(c: Chain, op: Op, key: str, f: Formula, slot: int) -> None:
    c.wait(needs(f), lambda: asked(slot, op, key, c.formula(f), show(f)))


def find(c: Chain, app: App, before: list[int]) -> None:
    """Add candidates for a further root: users of a value that it shares with the matched roots."""
    into = c.scope.terms[app]
    found: list[tuple[int, tuple[Op, ...]]] = []
    paths(c, app, (), found)
    if found:
        slot, path = min(found, key=lambda p: len(p[1]))
        c.steps.append(users_of(slot, path, into))
    else:
        first = c.scope.terms[app_of(c.rule.lhs[before[0]])]
        c.steps.append(nearest(first, app.op, into, REACH))


def paths(c: Chain, t: App, above: tuple[Op, ...], out: list[tuple[int, tuple[Op, ...]]]) -> None:
    """Collect the bound values inside `t`: their slots, and the operators from there up."""
    for o in t.operands:
        match o:
            case Var(n) if n in c.bound:
                out.append((c.scope.slots[n], (t.op, *above)))
            case App() if o in c.done:
                out.append((c.scope.terms[o], (t.op, *above)))
            case App():
                paths(c, o, (t.op, *above), out)


def separate(c: Chain, i: int, before: list[int]) -> None:
    """Require that a further root is another node; a symmetric pair is tried in one order only."""
    rule, at = c.rule, c.scope.terms[app_of(c.rule.lhs[i])]
    others: list[int] = []
    lower: list[int] = []
    upper: list[int] = []
    for j in before:
        a, b = app_of(rule.lhs[j]), app_of(rule.lhs[i])
        if a == b:
            continue
        others.append(c.scope.terms[a])
        if interchangeable(rule, i, j):
            (lower if j < i else upper).append(c.scope.terms[a])
    if others:
        c.steps.append(apart(at, others, lower, upper))


def _asks_users(c: Formula) -> bool:
    return any(isinstance(p, Call) and p.fn == "single_use" for p in walk(c))


def _result_of(node_slot: int, into: int, t: Pick) -> Step:
    """Return the step for a root that is one of several results."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            found = results(env[node_slot])
            if t.index < len(found):
                env[into] = found[t.index]
                go(env)

        return run

    return Step(make, lambda env: f"there is no result {t.index}")
