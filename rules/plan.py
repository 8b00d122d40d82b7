"""A rule's left side as a chain of steps, made once.

The order of the steps is fixed when the rule is compiled, so it is known at each step which names
are bound already. A condition or attribute formula becomes a step as soon as all that it needs is
bound; what needs the whole match (single_use) comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from superopt.ir.graph import Item, Node, Value, results
from superopt.ir.op import REQUIRED, Attr, Op
from superopt.rules.checks import (
    Dims,
    apart,
    asked,
    constant_is,
    defined,
    nearest,
    picked,
    rest_is,
    said,
    same,
    shaped,
    typed,
    users_of,
    when,
)
from superopt.rules.condition import Scope, compiled, needs
from superopt.rules.facts import is_eye, rounded, uniform
from superopt.rules.functions import NotKnown, Result, equal, number, tell
from superopt.rules.rule import Rule, bound_names, definition
from superopt.rules.steps import (
    CONTEXT,
    OWN,
    PART,
    Cells,
    Cont,
    Operand,
    Step,
    all_results,
    nary,
    operands,
    present,
    run_of,
)
from superopt.rules.symmetry import commutes, interchangeable
from superopt.rules.syntax import CLASSES, LETTERS, Param
from superopt.rules.term import (
    Absent,
    All,
    App,
    Call,
    Filled,
    Formula,
    Lit,
    Name,
    Number,
    Pick,
    Run,
    Scalar,
    Spread,
    Term,
    Var,
    names,
    show,
    walk,
)
from superopt.te.dtype import DTYPES

# Operators with any number of operands that nest: Concat(Concat(x, y), z) = Concat(x, y, z). Not
# Mean: the mean of a mean and a third is not the mean of three.
NARY = frozenset(("Concat", "Sum", "Max", "Min"))
REACH = 4  # how many nodes of its operator on either side a root that shares nothing is tried with
END = Var("the end of the match")  # what single_use needs


@dataclass(frozen=True, slots=True)
class Start:
    """Matching from one of the roots: its operator, its slot, and how deep its term is."""

    op: Op
    slot: int
    depth: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A rule ready to match.

    size: of the environment. slots: of names. terms: of applications (their node) and picks. roots:
    slot and result number (None: all results). nodes: slots of matched nodes. ops: the operators
    that a graph must have. starts: one for each root. virtual: may nodes be parts of n-ary ones?
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
    """The plan of `rule`."""
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
    apps = [_app_of(t) for t in rule.lhs]
    nodes = tuple(slot for t, slot in scope.terms.items() if isinstance(t, App))
    starts = []
    for first in range(len(rule.lhs)):
        steps = _Compiler(rule, scope, letters, nodes).chain(first)
        app = apps[first]
        starts.append(Start(app.op, scope.terms[app], _depth(app), steps))
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


def _app_of(t: Term) -> App:
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
    return scope.terms[_app_of(t)], index


def _depth(t: Term) -> int:
    """How many operators are above each other in `t`."""
    inner = [_depth(p) for p in _operands(t)]
    return (1 if isinstance(t, App) else 0) + max(inner, default=0)


def _operands(t: Term) -> tuple[Term, ...]:
    match t:
        case App(_, given, _, _):
            return given
        case Pick(app, _) | All(app):
            return (app,)
        case _:
            return ()


class _Compiler:
    """The state of compiling one chain: what is bound so far, and what waits to be."""

    def __init__(
        self, rule: Rule, scope: Scope, letters: Mapping[str, int], nodes: tuple[int, ...]
    ) -> None:
        self.rule, self.scope, self.letters, self.nodes = rule, scope, letters, nodes
        self.params = {p.name: p for p in rule.params if isinstance(p, Param)}
        self.bound: set[str] = set()
        self.done: set[Term] = set()
        self.kinds: set[str] = set()  # letters that have an element type
        self.steps: list[Step] = []
        self.fixed: list[App] = []  # commutative applications that are tried in one order
        self.waiting: list[tuple[frozenset[str | Term], Callable[[], Step]]] = []
        self.matched = bound_names(rule)

    def chain(self, first: int) -> tuple[Step, ...]:
        rule = self.rule
        conditions = list(rule.where)
        given = set(self.matched) - self._defined()
        for c in conditions:
            made = definition(c, frozenset(given))
            if made is not None and made[0] not in given:
                given.add(made[0])
                self.wait(needs(made[1]), partial(self.define, *made))
            else:
                own = needs(c) | ({END} if _asks_users(c) else set())
                self.wait(own, partial(self.condition, c))
        order = [first, *(i for i in range(len(rule.lhs)) if i != first)]
        for rank, i in enumerate(order):
            app = _app_of(rule.lhs[i])
            if rank and app not in self.done:
                self.find(app, order[:rank])
            if rank:
                self.separate(i, order[:rank])
            whole = isinstance(rule.lhs[i], All) or len(rule.lhs) == 1
            self.app(app, self.scope.terms[app], root=len(rule.lhs) == 1 and whole)
            pick = rule.lhs[i]
            if isinstance(pick, Pick):
                self.done.add(pick)
                self.steps.append(_result_of(self.scope.terms[app], self.scope.terms[pick], pick))
        self.done.add(END)
        self.flush()
        assert not self.waiting, f"{rule.name}: a formula needs what nothing binds"
        return tuple(self.steps)

    def _defined(self) -> set[str]:
        """Names that only conditions give a value."""
        plain = bound_names(_without_conditions(self.rule))
        return set(self.matched) - plain

    # --- what waits -------------------------------------------------------------------------------

    def wait(self, need: frozenset[str | Term], make: Callable[[], Step]) -> None:
        self.waiting.append((need, make))

    def flush(self) -> None:
        """Add the steps that have what they need."""
        again = True
        while again:
            again = False
            for entry in list(self.waiting):
                need, make = entry
                if all(n in self.bound if isinstance(n, str) else n in self.done for n in need):
                    self.waiting.remove(entry)
                    self.steps.append(make())
                    again = True

    def formula(self, f: Formula) -> Callable[[Cells], Any]:
        run = compiled(f, self.scope, self.used_only)
        return lambda env: _plain(run(env))

    def used_only(self, env: Cells, r: Result) -> bool:
        """single_use: has the value no user outside the match?"""
        own = [env[s] for s in self.nodes]
        if env[PART] is not None:
            own.append(env[PART][0])
        if not isinstance(r, (Node, Item)):
            return bool(env[CONTEXT].used_only_by(r, own))
        values = results(r) if isinstance(r, Node) else (r,)
        return all(env[CONTEXT].used_only_by(v, own) for v in values)

    def condition(self, c: Formula) -> Step:
        said_of = sorted(names(c) & set(self.scope.slots))
        slots = [(n, self.scope.slots[n]) for n in said_of]

        def shown(env: Cells) -> str:
            have = [f"{n} is {tell(env[s])}" for n, s in slots]
            return f" ({'; '.join(have)})" if have else ""

        return when(compiled(c, self.scope, self.used_only), show(c), shown)

    def define(self, name: str, f: Formula) -> Step:
        self.bound.add(name)
        return defined(self.scope.slots[name], self.formula(f), f"{name} == {show(f)}")

    # --- applications -----------------------------------------------------------------------------

    def app(self, t: App, slot: int, root: bool = False) -> None:
        """The node in `slot` is an application of `t`'s operator; match the rest of it."""
        if t in self.done:
            if slot != self.scope.terms[t]:
                self.steps.append(same(slot, self.scope.terms[t], show(t)))
            return
        self.done.add(t)
        children = self.operands(t, slot, root)
        self.attributes(t, slot)
        self.flush()
        for child, at in children:
            if not isinstance(child, (App, Pick, All)):
                self.value(child, at)
        for child, at in children:
            match child:
                case App():
                    self.app(child, at)
                case Pick(app, index):
                    self.pick(child, app, index, at)
                case All(app):
                    self.app(app, at)

    def pick(self, t: Pick, app: App, index: int, at: int) -> None:
        if t in self.done:
            self.steps.append(same(at, self.scope.terms[t], show(t)))
            return
        known = app in self.done
        into = self.scope.fresh() if known else self.scope.terms[app]
        self.steps.append(picked(at, into, app.op, index, show(t)))
        self.done.add(t)
        self.app(app, into)

    def operands(self, t: App, slot: int, root: bool) -> list[tuple[Term, int]]:
        """The step that takes the operands; gives where each went."""
        given: list[tuple[Term, int]] = []
        for o in t.operands:
            given.append((o, self.place(o, given)))
        spots = [_operand(o, at) for o, at in given]
        runs = [i for i, o in enumerate(t.operands) if isinstance(o, (Run, All))]
        nest = t.op.name in NARY
        if runs:
            (i,) = runs[:1]
            inner = t.operands[i]
            if isinstance(inner, All):
                step = all_results(slot, spots[i].slot, inner.term.op, root and nest)
            else:
                step = run_of(slot, spots[:i], spots[i].slot, spots[i + 1 :])
            self.steps.append(step)
            return given
        swap = "commutative" in t.op.laws and len(spots) == 2
        if swap and commutes(self.rule, t, self.fixed):
            self.fixed.append(t)
            swap = False
        if nest and len(spots) > 1:
            own = [isinstance(o, (App, Pick)) for o in t.operands]
            other = [s.op is not t.op if s.op is not None else s.test is not present for s in spots]
            self.steps.append(nary(slot, spots, swap, root and any(own), all(other)))
        else:
            self.steps.append(operands(slot, spots, swap))
        return given

    def place(self, t: Term, given: list[tuple[Term, int]]) -> int:
        """Where an operand goes: its own slot at its first occurrence."""
        taken = {at for _, at in given}
        match t:
            case Var(n) | Run(n) if n not in self.bound and self.scope.slots[n] not in taken:
                return self.scope.slots[n]
            case App() | Pick() if t not in self.done and self.scope.terms[t] not in taken:
                return self.scope.terms[t]
            case All(app) if app not in self.done:
                return self.scope.terms[app]
            case _:
                return self.scope.fresh()

    def attributes(self, t: App, slot: int) -> None:
        own = frozenset(k for k, _ in t.attrs)
        fixed: dict[str, Attr] = {}
        binds: list[tuple[str, int]] = []
        for key, f in t.attrs:
            match f:
                case Lit(literal):
                    fixed[key] = literal
                case Name(n) if n not in self.bound and n not in self.params:
                    binds.append((key, self.scope.slots[n]))
                    self.bound.add(n)
                case _ if not needs(f) and (v := self.number(f)) is not None:
                    fixed[key] = v
                case _:
                    self.ask(t.op, key, f, slot)
        rest: int | None = None
        if t.rest is None:
            for key, default in t.op.attrs.items():
                if key not in own and default is not REQUIRED:
                    fixed[key] = default  # type: ignore[assignment]
        elif t.rest in self.bound:
            self.steps.append(rest_is(slot, own, self.scope.slots[t.rest], t.rest))
        else:
            rest = self.scope.slots[t.rest]
            self.bound.add(t.rest)
        if fixed or binds or rest is not None:
            self.steps.append(said(slot, t.op, tuple(fixed.items()), binds, rest, own))

    def number(self, f: Formula) -> Attr:
        """The value of a formula without names, None where it has none."""
        try:
            return self.formula(f)([None] * len(self.scope.used))  # type: ignore[no-any-return]
        except NotKnown:
            return None

    def ask(self, op: Op, key: str, f: Formula, slot: int) -> None:
        self.wait(needs(f), lambda: asked(slot, op, key, self.formula(f), show(f)))

    # --- operands that are no applications --------------------------------------------------------

    def value(self, t: Term, slot: int) -> None:
        match t:
            case Var(n) | Run(n):
                if n in self.bound:
                    self.steps.append(same(slot, self.scope.slots[n], n))
                    return
                self.bound.add(n)
                self.param(self.params[n], slot)
            case Scalar(Name(n)) if n not in self.bound:
                self.bound.add(n)
                step = defined(self.scope.slots[n], lambda env: _number(env[slot]), n)
                self.steps.append(step)
            case Scalar(f):
                run = self.formula(f)
                test = lambda env, v: _is_number(v, run(env))  # noqa: E731
                self.wait(needs(f), lambda: constant_is(slot, test, show(t)))
            case Filled(kind, args):
                self.filled(t, kind, args, slot)
        self.flush()

    def param(self, p: Param, slot: int) -> None:
        """The type of a parameter."""
        if p.kind != "any":
            kinds = LETTERS.get(p.kind) or CLASSES.get(p.kind, "")
            letter = self.letters.get(p.kind)
            bind = letter is not None and p.kind not in self.kinds
            self.kinds.add(p.kind)
            self.steps.append(typed(slot, kinds, DTYPES.get(p.kind), letter, bind, p.kind))
        if p.shape is not None:
            self.steps.append(shaped(slot, self.dims(p.shape, slot), str(p).partition(": ")[2]))

    def dims(self, shape: tuple[Formula, ...], slot: int) -> Dims:
        at = next((i for i, d in enumerate(shape) if isinstance(d, Spread)), None)
        head, tail = (shape, ()) if at is None else (shape[:at], shape[at + 1 :])
        before = tuple(self.dim(d, slot, i) for i, d in enumerate(head))
        after = tuple(self.dim(d, slot, i - len(tail)) for i, d in enumerate(tail))
        if at is None:
            return Dims(before)
        spread = shape[at]
        assert isinstance(spread, Spread)
        assert isinstance(spread.value, Name)
        name = spread.value.id
        bind = name not in self.bound
        self.bound.add(name)
        return Dims(before, (self.scope.slots[name], bind), after)

    def dim(self, d: Formula, slot: int, i: int) -> tuple[int | None, int | None, bool]:
        match d:
            case Lit(int(n)):
                return None, n, False
            case Name(name):
                bind = name not in self.bound
                self.bound.add(name)
                return self.scope.slots[name], None, bind
            case _:
                run = self.formula(d)
                holds = lambda env: equal(env[slot].type.shape[i], run(env))  # noqa: E731
                words = f"size {i} == {show(d)}"
                self.wait(needs(d), lambda: when(holds, words, lambda env: ""))
                return None, None, False

    def filled(self, t: Filled, kind: str, args: tuple[Formula, ...], slot: int) -> None:
        """zeros(shape), ones(shape), full(shape, number), eye(n): a constant that is that."""
        extent = self.formula(args[0])
        content = self.formula(args[1] if kind == "full" else Lit(0 if kind == "zeros" else 1))

        def test(env: Cells, v: Value) -> bool:
            shape = (extent(env), extent(env)) if kind == "eye" else extent(env)
            right = is_eye(v) if kind == "eye" else _is_number(v, content(env))
            return right and equal(v.type.shape, shape)

        need = needs(args[0]) | (needs(args[1]) if kind == "full" else frozenset())
        self.wait(need, lambda: constant_is(slot, test, show(t)))

    # --- further roots ----------------------------------------------------------------------------

    def find(self, app: App, before: list[int]) -> None:
        """Candidates for a further root: users of a value that it shares with what is matched."""
        into = self.scope.terms[app]
        paths: list[tuple[int, tuple[Op, ...]]] = []
        self.paths(app, (), paths)
        if paths:
            slot, path = min(paths, key=lambda p: len(p[1]))
            self.steps.append(users_of(slot, path, into))
        else:
            first = self.scope.terms[_app_of(self.rule.lhs[before[0]])]
            self.steps.append(nearest(first, app.op, into, REACH))

    def paths(self, t: App, above: tuple[Op, ...], out: list[tuple[int, tuple[Op, ...]]]) -> None:
        for o in t.operands:
            match o:
                case Var(n) if n in self.bound:
                    out.append((self.scope.slots[n], (t.op, *above)))
                case App() if o in self.done:
                    out.append((self.scope.terms[o], (t.op, *above)))
                case App():
                    self.paths(o, (t.op, *above), out)

    def separate(self, i: int, before: list[int]) -> None:
        """A further root is another node; of a symmetric pair only one order is tried."""
        rule, at = self.rule, self.scope.terms[_app_of(self.rule.lhs[i])]
        others: list[int] = []
        lower: list[int] = []
        upper: list[int] = []
        for j in before:
            a, b = _app_of(rule.lhs[j]), _app_of(rule.lhs[i])
            if a == b:
                continue
            others.append(self.scope.terms[a])
            if interchangeable(rule, i, j):
                (lower if j < i else upper).append(self.scope.terms[a])
        if others:
            self.steps.append(apart(at, others, lower, upper))


def _without_conditions(rule: Rule) -> Rule:
    return Rule(rule.name, rule.params, rule.lhs, rule.rhs)


def _asks_users(c: Formula) -> bool:
    return any(isinstance(p, Call) and p.fn == "single_use" for p in walk(c))


def _operand(t: Term, slot: int) -> Operand:
    """What can be seen of an operand at once."""
    match t:
        case App(op):
            return Operand(slot, op.name, op=op)
        case Pick(app, _):
            return Operand(slot, show(t), test=lambda v: _made_by(v, app.op))
        case Absent():
            return Operand(slot, "absent", test=lambda v: v is None)
        case Number(n):
            return Operand(slot, f"the number {show(t)}", test=lambda v: _is_number(v, n))
        case Scalar() | Filled():
            return Operand(slot, show(t), test=lambda v: uniform(v) is not None or is_eye(v))
        case _:
            return Operand(slot, show(t), test=present)


def _made_by(v: Value | None, op: Op) -> bool:
    n = v.node if type(v) is Item else v
    return type(n) is Node and n.op is op


def _is_number(v: Value | None, wanted: Result) -> bool:
    found = uniform(v)
    if found is None or v is None or v.type.dtype is None:
        return False
    return found == rounded(number(wanted), v.type.dtype)


def _number(v: Value) -> int | float:
    found = uniform(v)
    if found is None:
        raise NotKnown(f"{tell(v)} is no constant with one small value")
    return found


def _plain(r: Result) -> Result:
    return float(r) if isinstance(r, Fraction) else r


def _result_of(node_slot: int, into: int, t: Pick) -> Step:
    """A root that is one of several results."""

    def make(go: Cont) -> Cont:
        def run(env: Cells) -> None:
            found = results(env[node_slot])
            if t.index < len(found):
                env[into] = found[t.index]
                go(env)

        return run

    return Step(make, lambda env: f"there is no result {t.index}")
