"""Where a rule matches a graph: every way to bind its names so that the left side is there.

A left side is compiled once into generators over an environment (a list with a slot for each name
and each subterm); each yields once for every way to match and undoes its bindings afterwards. The
first root is looked up by operator, further roots by a bound value that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from superopt.ir.graph import Constant, Item, Node, Value, item, node, producer
from superopt.ir.op import InferError, Op, canonical_attrs
from superopt.rules.condition import Env, Scope, compiled, truth
from superopt.rules.context import GraphContext
from superopt.rules.facts import is_eye, rounded, uniform
from superopt.rules.functions import NotKnown, Result, equal
from superopt.rules.rule import Rule, definition
from superopt.rules.syntax import CLASSES, LETTERS, Param
from superopt.rules.term import (
    Absent, All, App, Filled, Formula, Lit, Name, Number, Pick, Run, Scalar, Seq, Spread, Term, Var, show, walk,
)  # fmt: skip
from superopt.te.dtype import DTYPES

UNSET = object()
Matcher = Callable[[object, list[object]], Iterator[None]]
CUT_NARY = frozenset({"Concat", "Sum", "Max", "Min"})


@dataclass(frozen=True, slots=True)
class Match:
    """A rule at a place: the values that its left side gives there, the bindings by name, and the
    nodes that the left side covers."""

    rule: Rule
    roots: tuple[Value, ...]
    bindings: Mapping[str, Result]
    nodes: tuple[Node, ...]
    terms: Mapping[Term, Result]


@dataclass(frozen=True, slots=True)
class Root:
    """A term at the root of the left side: its operator, which result, and how to match its node."""

    op: Op
    index: int | None  # None: all results
    run: Matcher
    paths: tuple[tuple[int, tuple[Op, ...]], ...]  # slot of a shared value, operators above it


@dataclass(frozen=True, slots=True)
class Plan:
    """A rule ready to match."""

    size: int
    slots: Mapping[str, int]
    terms: Mapping[Term, int]
    roots: tuple[Root, ...]
    attrs: tuple[tuple[int, tuple[tuple[str, Callable[[Env], Result]], ...]], ...]
    where: tuple[tuple[Formula, int | None, Callable[[Env], Result]], ...]
    depth: int


class _Compiler:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.scope = Scope()
        self.params = {p.name: p for p in rule.params if isinstance(p, Param)}
        self.attrs: list[tuple[int, tuple[tuple[str, Callable[[Env], Result]], ...]]] = []
        self.bound: set[str] = set()
        self.letters: dict[str, int] = {}
        for side in (*rule.lhs, *rule.rhs, *rule.where):
            for p in walk(side):
                match p:
                    case Var(n) | Run(n) | Name(n):
                        self.scope.slot(n)
                    case App(_, _, _, rest):
                        if rest is not None:
                            self.scope.slot(rest)
        for param in self.params.values():
            for d in param.shape or ():
                for p in walk(d):
                    if isinstance(p, Name):
                        self.scope.slot(p.id)
        for side in rule.lhs:
            for p in walk(side):
                if isinstance(p, (App, Pick)) and p not in self.scope.terms:
                    self.scope.terms[p] = self.scope.fresh()

    def plan(self) -> Plan:
        roots = tuple(self.root(t) for t in self.rule.lhs)
        where: list[tuple[Formula, int | None, Callable[[Env], Result]]] = []
        for condition in self.rule.where:
            given = definition(condition, frozenset(self.bound))
            if given is not None:
                name, f = given
                self.bound.add(name)
                where.append((condition, self.scope.slot(name), self.formula(f)))
            else:
                where.append((condition, None, self.formula(condition)))
        depth = max(_depth(t) for t in self.rule.lhs)
        return Plan(
            len(self.scope.used), dict(self.scope.slots), dict(self.scope.terms), roots,
            tuple(self.attrs), tuple(where), depth,
        )  # fmt: skip

    def formula(self, f: Formula) -> Callable[[Env], Result]:
        return compiled(f, self.scope, _used_only)

    def root(self, t: Term) -> Root:
        paths: list[tuple[int, tuple[Op, ...]]] = []
        app = t.term if isinstance(t, (Pick, All)) else t
        assert isinstance(app, App)
        _paths(app, (), self.bound, self.scope.slots, paths)
        paths.sort(key=lambda p: len(p[1]))
        # an operator alone at the root stands for all its results
        whole = isinstance(t, All) or (isinstance(t, App) and len(self.rule.lhs) == 1)
        index = t.index if isinstance(t, Pick) else None if whole else 0
        return Root(app.op, index, self.app(app), tuple(paths[:1]))

    def term(self, t: Term) -> Matcher:
        match t:
            case Var(n):
                return self.var(n)
            case Absent():
                return lambda v, env: iter((None,) if v is None else ())
            case Number(value):
                return lambda v, env: iter((None,) if _is_number(v, value) else ())
            case Scalar(f):
                return self.scalar(f)
            case Filled(kind, args):
                return self.filled(kind, args)
            case App():
                run = self.app(t)

                def single(v: object, env: list[object]) -> Iterator[None]:
                    if type(v) is Node and v.op is t.op and len(v.types) == 1:
                        yield from run(v, env)

                return single
            case Pick(app, i):
                run_app = self.app(app)
                slot = self.scope.terms[t]

                def pick(v: object, env: list[object]) -> Iterator[None]:
                    n = v.node if type(v) is Item else v
                    if type(n) is not Node or n.op is not app.op or v is not item(n, i):
                        return
                    before, env[slot] = env[slot], v
                    yield from run_app(n, env)
                    env[slot] = before

                return pick
            case _:
                raise NotImplementedError(f"{show(t)} on a left side")

    def scalar(self, f: Formula) -> Matcher:
        if isinstance(f, Name) and f.id not in self.bound:
            slot = self.scope.slot(f.id)
            self.bound.add(f.id)

            def bind(v: object, env: list[object]) -> Iterator[None]:
                number = uniform(v)  # type: ignore[arg-type]
                if number is not None:
                    before, env[slot] = env[slot], number
                    yield
                    env[slot] = before

            return bind
        run = self.formula(f)

        def same(v: object, env: list[object]) -> Iterator[None]:
            try:
                if _is_number(v, run(env)):  # type: ignore[arg-type]
                    yield
            except NotKnown:
                return

        return same

    def filled(self, kind: str, args: tuple[Formula, ...]) -> Matcher:
        """zeros(shape), ones(shape), full(shape, number) or eye(n): a constant that is that."""
        shape = args[0]
        if kind == "eye":
            dims = self.dims((shape, shape))
        elif isinstance(shape, Seq):
            dims = self.dims(shape.items)
        else:
            whole = self.dim(shape)
            dims = whole
        number = args[1] if kind == "full" else Lit({"zeros": 0, "ones": 1, "eye": 1}[kind])
        value = self.formula(number)

        def run(v: object, env: list[object]) -> Iterator[None]:
            if not isinstance(v, Constant) or v.type.shape is None:
                return
            if is_eye(v) if kind == "eye" else _is_number(v, value(env)):  # type: ignore[arg-type]
                yield from dims(v.type.shape, env)

        return run

    def var(self, name: str) -> Matcher:
        slot = self.scope.slots[name]
        check = self.typed(self.params.get(name))
        self.bound.add(name)

        def run(v: object, env: list[object]) -> Iterator[None]:
            held = env[slot]
            if held is not UNSET:
                if held is v:
                    yield
                return
            if v is None:
                return
            for _ in check(v, env):
                env[slot] = v
                yield
                env[slot] = UNSET

        return run

    def typed(self, p: Param | None) -> Matcher:
        """Does a value have the parameter's element type and shape? Binds sizes."""
        if p is None:
            return lambda v, env: iter((None,))
        letter = None
        if p.kind in LETTERS:
            kinds = LETTERS[p.kind]
            letter = self.letters.setdefault(p.kind, -1)
            if letter < 0:
                letter = self.letters[p.kind] = self.scope.fresh()
        else:
            kinds = CLASSES.get(p.kind, "")
        exact = DTYPES.get(p.kind) if not kinds else None
        dims = None if p.shape is None else self.dims(p.shape)

        def run(v: object, env: list[object]) -> Iterator[None]:
            t = v.type  # type: ignore[attr-defined]
            if t.dtype is None or t.shape is None:
                return
            if exact is not None:
                if t.dtype is not exact:
                    return
            elif t.dtype.kind not in kinds:
                return
            if letter is not None:
                held = env[letter]
                if held is UNSET:
                    env[letter] = t.dtype
                    if dims is None:
                        yield
                    else:
                        yield from dims(t.shape, env)
                    env[letter] = UNSET
                    return
                if held is not t.dtype:
                    return
            if dims is None:
                yield
            else:
                yield from dims(t.shape, env)

        return run

    def dims(self, shape: tuple[Formula, ...]) -> Matcher:
        at = next((i for i, d in enumerate(shape) if isinstance(d, Spread)), None)
        before = [self.dim(d) for d in (shape if at is None else shape[:at])]
        middle = None if at is None else self.dim(shape[at].value)  # type: ignore[union-attr]
        after = [] if at is None else [self.dim(d) for d in shape[at + 1 :]]
        least = len(before) + len(after)

        def run(given: object, env: list[object]) -> Iterator[None]:
            assert isinstance(given, tuple)
            if len(given) < least or (middle is None and len(given) != least):
                return
            tail = len(given) - len(after)
            parts: list[tuple[Matcher, object]] = list(zip(before, given, strict=False))
            if middle is not None:
                parts.append((middle, given[len(before) : tail]))
            parts += list(zip(after, given[tail:], strict=True))
            yield from _all(parts, 0, env)

        return run

    def dim(self, f: Formula) -> Matcher:
        if isinstance(f, Name):
            slot = self.scope.slot(f.id)
            self.bound.add(f.id)

            def bind(d: object, env: list[object]) -> Iterator[None]:
                held = env[slot]
                if held is UNSET:
                    env[slot] = d
                    yield
                    env[slot] = UNSET
                elif held == d:
                    yield

            return bind
        value = self.formula(f)

        def same(d: object, env: list[object]) -> Iterator[None]:
            try:
                if equal(value(env), d):  # type: ignore[arg-type]
                    yield
            except NotKnown:
                return

        return same

    def app(self, t: App) -> Matcher:
        slot = self.scope.terms[t]
        keys = frozenset(k for k, _ in t.attrs)
        binds: list[tuple[str, int]] = []
        asks: list[tuple[str, Callable[[Env], Result]]] = []
        operands = self.operands(t)
        for key, f in t.attrs:
            if isinstance(f, Name) and f.id not in self.bound and f.id not in self.params:
                self.bound.add(f.id)
                binds.append((key, self.scope.slot(f.id)))
            else:
                asks.append((key, self.formula(f)))
        rest = None if t.rest is None else self.scope.slot(t.rest)
        if t.rest is not None:
            self.bound.add(t.rest)
        if asks:
            self.attrs.append((slot, tuple(asks)))
        plain = rest is None

        def run(v: object, env: list[object]) -> Iterator[None]:
            assert isinstance(v, Node)
            if env[slot] is not UNSET:
                if env[slot] is v:
                    yield
                return
            if plain and not _defaults(v, keys):
                return
            given = dict(v.attrs)
            saved: list[tuple[int, object]] = []
            ok = True
            for key, at in binds:
                held, value = env[at], given[key]
                if held is UNSET:
                    saved.append((at, held))
                    env[at] = value
                elif held != value:
                    ok = False
                    break
            if ok and rest is not None:
                others = tuple((k, x) for k, x in v.attrs if k not in keys)
                if env[rest] is UNSET:
                    saved.append((rest, UNSET))
                    env[rest] = others
                else:
                    ok = env[rest] == others
            if ok:
                env[slot] = v
                yield from operands(v, env)
                env[slot] = UNSET
            for at, held in saved:
                env[at] = held

        return run

    def operands(self, t: App) -> Matcher:
        at = next((i for i, o in enumerate(t.operands) if isinstance(o, (Run, All))), None)
        if at is not None:
            return self.run_of(t, at)
        parts = [self.term(o) for o in t.operands]
        count = len(parts)
        swaps = "commutative" in t.op.laws and count == 2
        cuts = t.op.name in CUT_NARY and count == 2

        def run(v: object, env: list[object]) -> Iterator[None]:
            assert isinstance(v, Node)
            inputs = v.inputs
            if len(inputs) == count or (len(inputs) < count and not t.op.variadic):
                padded = inputs + (None,) * (count - len(inputs))
                yield from _all(list(zip(parts, padded, strict=True)), 0, env)
                if swaps and inputs[0] is not inputs[1]:
                    yield from _all([(parts[0], inputs[1]), (parts[1], inputs[0])], 0, env)
            elif cuts and len(inputs) > 2:
                for i in range(1, len(inputs)):
                    front, back = _joined(v, inputs[:i]), _joined(v, inputs[i:])
                    if front is not None and back is not None:
                        yield from _all([(parts[0], front), (parts[1], back)], 0, env)

        return run

    def run_of(self, t: App, at: int) -> Matcher:
        before = [self.term(o) for o in t.operands[:at]]
        after = [self.term(o) for o in t.operands[at + 1 :]]
        middle = t.operands[at]
        if isinstance(middle, All):
            whole = self.app(middle.term)
            op = middle.term.op

            def items(values: object, env: list[object]) -> Iterator[None]:
                assert isinstance(values, tuple)
                n = producer(values[0]) if values and values[0] is not None else None
                if n is None or n.op is not op or len(values) != len(n.types):
                    return
                if all(v is item(n, i) for i, v in enumerate(values)):
                    yield from whole(n, env)

        else:
            assert isinstance(middle, Run)
            slot = self.scope.slots[middle.name]
            check = self.typed(self.params.get(middle.name))
            self.bound.add(middle.name)

            def items(values: object, env: list[object]) -> Iterator[None]:
                assert isinstance(values, tuple)
                if env[slot] is not UNSET:
                    if env[slot] == values:
                        yield
                    return
                for v in values:  # sizes in a run's shape are each operand's own
                    if v is None or next(check(v, env), UNSET) is UNSET:
                        return
                env[slot] = values
                yield
                env[slot] = UNSET

        least = len(before) + len(after)

        def run(v: object, env: list[object]) -> Iterator[None]:
            assert isinstance(v, Node)
            inputs = v.inputs
            if len(inputs) < least:
                return
            tail = len(inputs) - len(after)
            parts: list[tuple[Matcher, object]] = list(zip(before, inputs, strict=False))
            parts.append((items, inputs[len(before) : tail]))
            parts += list(zip(after, inputs[tail:], strict=True))
            yield from _all(parts, 0, env)

        return run


def _all(parts: list[tuple[Matcher, object]], at: int, env: list[object]) -> Iterator[None]:
    """Every way to match all parts, one after the other."""
    if at == len(parts):
        yield
        return
    run, v = parts[at]
    if at + 1 == len(parts):
        yield from run(v, env)
        return
    for _ in run(v, env):
        yield from _all(parts, at + 1, env)


def _joined(v: Node, part: tuple[Value | None, ...]) -> Value | None:
    if len(part) == 1:
        return part[0]
    try:
        return node(v.op, part, **dict(v.attrs))
    except InferError:
        return None


def _is_number(v: object, value: object) -> bool:
    found = uniform(v)  # type: ignore[arg-type]
    if found is None:
        return False
    dtype = v.type.dtype  # type: ignore[attr-defined]
    return bool(found == rounded(value, dtype))  # type: ignore[arg-type]


def _depth(t: Term) -> int:
    match t:
        case App(_, operands, _, _):
            return 1 + max((_depth(o) for o in operands), default=0)
        case Pick(app, _) | All(app):
            return _depth(app)
        case _:
            return 0


def _paths(
    t: App,
    above: tuple[Op, ...],
    bound: set[str],
    slots: Mapping[str, int],
    out: list[tuple[int, tuple[Op, ...]]],
) -> None:
    for o in t.operands:
        match o:
            case Var(n) if n in bound:
                out.append((slots[n], (t.op, *above)))
            case App():
                _paths(o, (t.op, *above), bound, slots, out)


@lru_cache(maxsize=1 << 14)
def _defaults(n: Node, said: frozenset[str]) -> bool:
    """Do all attributes but those `said` have their defaults?"""
    for k, v in n.attrs:
        if k not in said and v != n.op.attrs[k]:
            break
    else:
        return True
    types = tuple(None if v is None else v.type for v in n.inputs)
    try:
        return canonical_attrs(n.op, types, {k: v for k, v in n.attrs if k in said}) == n.attrs
    except (InferError, AssertionError, TypeError):
        return False


def _used_only(env: Env, r: Result) -> bool:
    ctx = env[-2]
    own = env[-1]
    return ctx.used_only_by(r, own(env))  # type: ignore[union-attr,operator]


@lru_cache(maxsize=1 << 13)
def plan(rule: Rule) -> Plan:
    """The rule compiled."""
    return _Compiler(rule).plan()


def matches(
    rule: Rule, ctx: GraphContext, near: Collection[Node] | None = None
) -> Iterator[Match]:
    """Every match of `rule` in the graph (with a node in `near`, when given), in a fixed order."""
    p = plan(rule)
    for root in p.roots:
        if root.op not in ctx.by_op:
            return

    def covered(env: Env) -> list[Node]:
        return [n for s in p.terms.values() if type(n := env[s]) is Node]  # type: ignore[misc]

    env: list[object] = [UNSET] * p.size + [ctx, covered]
    values: list[Value] = []
    first = p.roots[0]
    zone = None if near is None or len(p.roots) > 1 else _zone(ctx, near, p.depth)
    for n in ctx.by_op[first.op]:
        if zone is not None and n not in zone:
            continue
        yield from _rooted(rule, p, ctx, near, 0, n, env, values)


def _zone(ctx: GraphContext, near: Collection[Node], depth: int) -> Collection[Node]:
    """The nodes whose left side may cover one of `near`."""
    found = set(near)
    front = list(near)
    for _ in range(depth - 1):
        front = [
            u
            for n in front
            for i in range(len(n.types))
            for u in ctx.users.get(item(n, i), ())
            if u not in found
        ]
        found.update(front)
    return found


def _rooted(
    rule: Rule,
    p: Plan,
    ctx: GraphContext,
    near: Collection[Node] | None,
    at: int,
    n: Node,
    env: list[object],
    values: list[Value],
) -> Iterator[Match]:
    root = p.roots[at]
    wanted = range(len(n.types)) if root.index is None else (root.index,)
    if root.index is not None and root.index >= len(n.types):
        return
    taken = [item(n, i) for i in wanted]
    if any(t in values for t in taken):
        return
    for _ in root.run(n, env):
        values += taken
        if at + 1 < len(p.roots):
            for m in _candidates(p.roots[at + 1], ctx, env):
                same = p.roots[at + 1].op is root.op and p.roots[at + 1].index == root.index
                if same and m is not n and ctx.position[m] < ctx.position[n]:
                    continue
                yield from _rooted(rule, p, ctx, near, at + 1, m, env, values)
        else:
            found = _finished(rule, p, near, env, values)
            if found is not None:
                yield found
        del values[len(values) - len(taken) :]


def _candidates(root: Root, ctx: GraphContext, env: list[object]) -> Iterator[Node]:
    if not root.paths:
        yield from ctx.by_op.get(root.op, ())
        return
    slot, ops = root.paths[0]
    level: list[Value] = [env[slot]]  # type: ignore[list-item]
    for op in ops[:-1]:
        level = [
            u for v in level for u in ctx.users.get(v, ()) if u.op is op and len(u.types) == 1
        ]
    for v in level:
        for u in ctx.users.get(v, ()):
            if u.op is ops[-1]:
                yield u


def _finished(
    rule: Rule, p: Plan, near: Collection[Node] | None, env: list[object], values: list[Value]
) -> Match | None:
    covered = tuple(dict.fromkeys(n for s in p.terms.values() if type(n := env[s]) is Node))
    if near is not None and not any(n in near for n in covered):
        return None
    saved: list[int] = []
    try:
        for slot, asks in p.attrs:
            n = env[slot]
            assert isinstance(n, Node)
            said = {k: f(env) for k, f in asks}  # type: ignore[arg-type]
            given = dict(n.attrs)
            if all(given.get(k, UNSET) == v for k, v in said.items()):
                continue
            types = tuple(None if v is None else v.type for v in n.inputs)
            if canonical_attrs(n.op, types, {**given, **said}) != n.attrs:  # type: ignore[dict-item]
                return None
        for _, into, f in p.where:
            if into is not None and env[into] is UNSET:
                env[into] = f(env)  # type: ignore[arg-type]
                saved.append(into)
            elif into is not None:
                if not equal(env[into], f(env)):  # type: ignore[arg-type]
                    return None
            elif not truth(f(env)):  # type: ignore[arg-type]
                return None
        bindings = {n: env[s] for n, s in p.slots.items() if env[s] is not UNSET}
        terms = {t: env[s] for t, s in p.terms.items() if env[s] is not UNSET}
        return Match(rule, tuple(values), bindings, covered, terms)  # type: ignore[arg-type]
    except (NotKnown, InferError, AssertionError):
        return None
    finally:
        for s in saved:
            env[s] = UNSET
