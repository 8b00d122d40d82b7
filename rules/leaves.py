"""The steps for operands that are no applications: parameters, numbers, constants."""

from __future__ import annotations

from superopt.ir.graph import Constant, Item, Node, Value
from superopt.ir.op import Op
from superopt.rules.chain import Chain
from superopt.rules.checks import Dims, constant_is, defined, same, shaped, typed, when
from superopt.rules.condition import needs
from superopt.rules.facts import uniform
from superopt.rules.fills import ARRAYS, is_array, is_filled, is_number
from superopt.rules.functions import NotKnown, equal, tell
from superopt.rules.steps import Cells, Operand, present
from superopt.rules.syntax import Param, element_types
from superopt.rules.term import (
    Absent,
    App,
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
    show,
)


def seen(t: Term, slot: int) -> Operand:
    """Return the immediate test of an operand."""
    match t:
        case App(op):
            return Operand(slot, op.name, op=op)
        case Pick(app, _):
            return Operand(slot, show(t), test=lambda v: _made_by(v, app.op))
        case Absent():
            return Operand(slot, "absent", test=lambda v: v is None)
        case Number(n):
            return Operand(slot, f"the number {show(t)}", test=lambda v: is_number(v, n))
        case Filled("table", _):
            return Operand(slot, show(t), test=lambda v: type(v) is Constant)
        case Scalar() | Filled():
            return Operand(slot, show(t), test=_maybe)
        case _:
            return Operand(slot, show(t), test=present)


def _maybe(v: Value | None) -> bool:
    """True if `v` may match a number or a fill."""
    return uniform(v) is not None or any(is_array(kind, v) for kind in ARRAYS)


def _made_by(v: Value | None, op: Op) -> bool:
    n = v.node if type(v) is Item else v
    return type(n) is Node and n.op is op


def _number(v: Value) -> int | float:
    found = uniform(v)
    if found is None:
        raise NotKnown(f"{tell(v)} is no constant with one small value")
    return found


def leaf(c: Chain, t: Term, slot: int) -> None:
    """Match the content of `slot` with a parameter or constant."""
    match t:
        case Var(n) | Run(n):
            if n in c.bound:
                c.steps.append(same(slot, c.scope.slots[n], n))
                return
            c.bound.add(n)
            param(c, c.params[n], slot)
        case Scalar(Name(n)) if n not in c.bound:
            c.bound.add(n)
            step = defined(c.scope.slots[n], lambda env: _number(env[slot]), n)
            c.steps.append(step)
        case Scalar(f):
            run = c.formula(f)
            test = lambda env, v: is_number(v, run(env))  # noqa: E731
            c.wait(needs(f), lambda: constant_is(slot, test, show(t)))
        case Filled(kind, args):
            filled(c, t, kind, args, slot)
    c.flush()


def param(c: Chain, p: Param, slot: int) -> None:
    """Match the type of a parameter."""
    if p.kind != "any":
        letter = c.letters.get(p.kind)
        bind = letter is not None and p.kind not in c.kinds
        c.kinds.add(p.kind)
        types = element_types(p.kind)
        c.steps.append(typed(slot, types, letter, bind, f"{p.name}: {p.kind}"))
    if p.shape is not None:
        c.steps.append(shaped(slot, dims(c, p.shape, slot), str(p)))


def dims(c: Chain, shape: tuple[Formula, ...], slot: int) -> Dims:
    at = next((i for i, d in enumerate(shape) if isinstance(d, Spread)), None)
    head, tail = (shape, ()) if at is None else (shape[:at], shape[at + 1 :])
    before = tuple(dim(c, d, slot, i) for i, d in enumerate(head))
    after = tuple(dim(c, d, slot, i - len(tail)) for i, d in enumerate(tail))
    if at is None:
        return Dims(before)
    spread = shape[at]
    assert isinstance(spread, Spread)
    assert isinstance(spread.value, Name)
    name = spread.value.id
    bind = name not in c.bound
    c.bound.add(name)
    return Dims(before, (c.scope.slots[name], bind), after)


def dim(c: Chain, d: Formula, slot: int, i: int) -> tuple[int | None, int | None, bool]:
    match d:
        case Lit(int(n)):
            return None, n, False
        case Name(name):
            bind = name not in c.bound
            c.bound.add(name)
            return c.scope.slots[name], None, bind
        case _:
            run = c.formula(d)
            holds = lambda env: equal(env[slot].type.shape[i], run(env))  # noqa: E731
            words = f"size {i} == {show(d)}"
            c.wait(needs(d), lambda: when(holds, words, lambda env: ""))
            return None, None, False


def filled(c: Chain, t: Filled, kind: str, args: tuple[Formula, ...], slot: int) -> None:
    """Match zeros(shape), ones(shape), full(shape, number), eye(n) and other fills."""
    said = args[: 1 + (kind == "full")]
    given = [c.formula(a) for a in said]

    def test(env: Cells, v: Value) -> bool:
        return is_filled(kind, v, [g(env) for g in given])

    need = frozenset[str]().union(*map(needs, said))
    c.wait(need, lambda: constant_is(slot, test, show(t)))
