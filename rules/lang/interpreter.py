"""Formulas as functions: a safe interpreter over a closed set, compiled once per rule.

A formula becomes a closure over an environment, a list with a slot for every name of the rule.
Nothing is evaluated by Python: only `term.Formula` and `functions.FUNCTIONS` parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.rules.lang.functions import (
    FUNCTIONS,
    NotKnown,
    Result,
    apply_binary,
    as_integer,
    as_number,
    as_tuple,
    as_value,
    compare_results,
    item_of,
    show_result,
)
from superopt.rules.lang.printer import show
from superopt.rules.lang.term import (
    Binary,
    Call,
    Compare,
    Comprehension,
    Formula,
    If,
    Lit,
    Logic,
    Name,
    Seq,
    Slice,
    Spread,
    Subscript,
    Term,
    TermValue,
    Unary,
    children,
)
from superopt.te.expr.node import Expr

Env = list[Result]
Compiled = Callable[[Env], Result]
UsedOnly = Callable[[Env, Result], bool]


@dataclass(frozen=True, slots=True)
class Scope:
    """The slots of the names and subterms of one rule in its environment."""

    slots: dict[str, int] = field(default_factory=dict)
    terms: dict[Term, int] = field(default_factory=dict)
    cells: list[None] = field(default_factory=list)  # as long as the environment

    def new_slot(self) -> int:
        """Return a new slot."""
        self.cells.append(None)
        return len(self.cells) - 1

    def slot(self, name: str) -> int:
        """Return the slot of `name`, created at its first use."""
        if name not in self.slots:
            self.slots[name] = self.new_slot()
        return self.slots[name]

    def inner_scope(self, names: Sequence[str]) -> Scope:
        """Return the scope inside a comprehension that binds `names`."""
        slots = dict(self.slots)
        for name in names:
            slots[name] = self.new_slot()
        return Scope(slots, self.terms, self.cells)


def required_names(f: Formula) -> frozenset[str | Term]:
    """Return the names and subterms of the left side that must be bound before `f` has a value."""
    match f:
        case TermValue(term):
            return frozenset((term,))
        case Comprehension(body, own, over, test):
            inside = required_names(body) | (
                required_names(test) if test is not None else frozenset()
            )
            return required_names(over) | (inside - frozenset(own))
        case Name(n):
            return frozenset((n,))
        case _:
            out: frozenset[str | Term] = frozenset()
            for p in children(f):
                out |= required_names(p)  # type: ignore[arg-type]
            return out


def as_bool(r: Result) -> bool:
    """Return a condition's value; raises NotKnown if it is no bool."""
    if isinstance(r, bool):
        return r
    raise NotKnown(f"{show_result(r)} is not a bool")


def compile_formula(f: Formula, scope: Scope, used_only: UsedOnly) -> Compiled:
    """Return `f` as a function of the environment, which raises NotKnown if `f` has no value.

    `used_only` answers single_use.
    """

    def sub(g: Formula) -> Compiled:
        return compile_formula(g, scope, used_only)

    match f:
        case Lit(constant):
            return lambda env: constant
        case Name(n):
            slot = scope.slots[n]
            return lambda env: env[slot]
        case TermValue(term):
            slot = scope.terms[term]
            return lambda env: env[slot]
        case Seq(items):
            return _tuple(items, scope, used_only)
        case Call(fn, args):
            return _compile_call(fn, args, scope, used_only)
        case Unary(op, g):
            operand, negate = sub(g), _complement if op == "not" else _negate
            return lambda env: negate(operand(env))
        case Binary(op, a, b):
            left, right = sub(a), sub(b)
            return lambda env: apply_binary(op, left(env), right(env))
        case Compare(first, ((op, second),)):
            left, right = sub(first), sub(second)
            return lambda env: compare_results(op, left(env), right(env))
        case Compare(first, rest):
            sides = (first, *(g for _, g in rest))
            pairs = [Compare(g, (link,)) for g, link in zip(sides, rest, strict=False)]
            return _logic("and", [sub(p) for p in pairs])
        case Logic(op, parts):
            return _logic(op, [sub(g) for g in parts])
        case If(test, yes, no):
            guard, then, other = sub(test), sub(yes), sub(no)
            return lambda env: then(env) if as_bool(guard(env)) else other(env)
        case Subscript(g, index):
            sequence, item = sub(g), sub(index)
            return lambda env: item_of(sequence(env), item(env))
        case Slice(g, start, stop, step):
            sequence = sub(g)
            ends = [None if e is None else sub(e) for e in (start, stop, step)]
            return lambda env: as_tuple(sequence(env))[_slice(ends, env)]
        case Comprehension():
            return _each(f, scope, used_only)
        case Spread(g):
            raise ValueError(f"*{show(g)} is not inside a tuple or call")


def evaluate_formula(
    f: Formula,
    names: Mapping[str, Result],
    terms: Mapping[Term, Result],
    used_only: Callable[[Result], bool],
) -> Result:
    """Return the value of `f` for these names and terms of the left side; raises NotKnown if
    none."""
    cells = [*names.values(), *terms.values()]
    slots = {n: k for k, n in enumerate(names)}
    places = {t: len(slots) + k for k, t in enumerate(terms)}
    if any(n not in slots and n not in places for n in required_names(f)):
        raise NotKnown(f"{show(f)} uses values that are not known yet")
    scope = Scope(slots, places, [None] * len(cells))
    run = compile_formula(f, scope, lambda env, v: used_only(v))
    return run([*cells, *[None] * (len(scope.cells) - len(cells))])


def _tuple(
    items: Sequence[Formula], scope: Scope, used_only: UsedOnly
) -> Callable[[Env], tuple[Result, ...]]:
    runs = [
        (
            isinstance(i, Spread),
            compile_formula(i.value if isinstance(i, Spread) else i, scope, used_only),
        )
        for i in items
    ]
    if not any(spread for spread, _ in runs):
        plain = [run for _, run in runs]
        return lambda env: tuple([run(env) for run in plain])

    def build(env: Env) -> tuple[Result, ...]:
        out: list[Result] = []
        for spread, run in runs:
            if spread:
                out.extend(as_tuple(run(env)))
            else:
                out.append(run(env))
        return tuple(out)

    return build


def _compile_call(
    fn: str, args: tuple[Formula, ...], scope: Scope, used_only: UsedOnly
) -> Compiled:
    if len(args) == 1 and not isinstance(args[0], Spread):
        argument = compile_formula(args[0], scope, used_only)
        if fn == "single_use":
            return lambda env: used_only(env, argument(env))
        if fn in ("all", "any"):
            return lambda env: _quantify(fn, as_tuple(argument(env)))
        unary = FUNCTIONS[fn].evaluate
        return lambda env: unary(argument(env))
    function = FUNCTIONS[fn].evaluate
    arguments = _tuple(args, scope, used_only)
    return lambda env: function(*arguments(env))


def _complement(r: Result) -> Result:
    return not as_bool(r)


def _negate(r: Result) -> Result:
    return apply_binary("-", 0, r) if isinstance(r, Expr) else -as_number(r)


def _slice(ends: list[Compiled | None], env: Env) -> slice:
    start, stop, step = (None if e is None else as_integer(e(env)) for e in ends)
    if step == 0:
        raise NotKnown("a slice with step 0")
    return slice(start, stop, step)


def _logic(op: str, operands: list[Compiled]) -> Compiled:
    """Return three-valued `and` or `or`: a decided side may make an undecided one irrelevant."""
    stop = op == "or"

    def run(env: Env) -> Result:
        undecided: NotKnown | None = None
        for part in operands:
            try:
                if as_bool(part(env)) is stop:
                    return stop
            except NotKnown as e:
                undecided = undecided or e
        if undecided is not None:
            raise undecided
        return not stop

    return run


def _quantify(fn: str, items: Sequence[Result]) -> bool:
    found = [as_bool(i) for i in items]
    return all(found) if fn == "all" else any(found)


def _each(f: Comprehension, scope: Scope, used_only: UsedOnly) -> Compiled:
    over = compile_formula(f.over, scope, used_only)
    inner = scope.inner_scope(f.names)
    slots = [inner.slots[n] for n in f.names]
    body = compile_formula(f.body, inner, used_only)
    test = None if f.test is None else compile_formula(f.test, inner, used_only)

    def run(env: Env) -> Result:
        out: list[Result] = []
        for item in as_tuple(over(env)):
            unpack(env, slots, item)
            if test is None or as_bool(test(env)):
                out.append(body(env))
        return tuple(out)

    return run


def unpack(env: Env, slots: Sequence[int], item: Result) -> None:
    """Bind the variables of a comprehension."""
    if len(slots) == 1:
        env[slots[0]] = item
        return
    items = as_tuple(item)
    if len(items) != len(slots):
        raise NotKnown(f"{show_result(item)} has {len(items)} items, not {len(slots)}")
    for slot, one in zip(slots, items, strict=True):
        env[slot] = one


def reject_users(env: Env, r: Result) -> bool:
    """single_use without a graph, as on right sides."""
    raise NotKnown(f"the users of {show_result(as_value(r))} are not known here")
