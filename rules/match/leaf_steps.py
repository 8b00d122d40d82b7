"""The steps for operands that are no applications: parameters, numbers, constants."""

from __future__ import annotations

from superopt.ir.graph import Constant, Item, Node, Value
from superopt.ir.op import Op
from superopt.rules.lang.fills import ARRAY_FILLS, is_array_fill, is_fill, is_number_constant
from superopt.rules.lang.functions import NotKnown, are_equal, show_result
from superopt.rules.lang.interpreter import required_names
from superopt.rules.lang.printer import show
from superopt.rules.lang.syntax import Param, element_types
from superopt.rules.lang.term import (
    Absent,
    App,
    Fill,
    Formula,
    Lit,
    Name,
    Number,
    OperandRun,
    Pick,
    Scalar,
    Spread,
    Term,
    Var,
)
from superopt.rules.lang.value_facts import uniform_value
from superopt.rules.match.check_steps import (
    condition_step,
    constant_step,
    definition_step,
    dtype_step,
    same_value_step,
)
from superopt.rules.match.operand_steps import Cells, Operand, is_present
from superopt.rules.match.pattern_builder import PatternBuilder
from superopt.rules.match.shape_steps import ShapePattern, shape_step


def operand_test(t: Term, slot: int) -> Operand:
    """Return the immediate test of an operand."""
    match t:
        case App(op):
            return Operand(slot, op.name, op=op)
        case Pick(app, _):
            return Operand(slot, show(t), test=lambda v: _is_made_by(v, app.op))
        case Absent():
            return Operand(slot, "absent", test=lambda v: v is None)
        case Number(n):
            return Operand(slot, f"the number {show(t)}", test=lambda v: is_number_constant(v, n))
        case Fill("table", _):
            return Operand(slot, show(t), test=lambda v: type(v) is Constant)
        case Scalar() | Fill():
            return Operand(slot, show(t), test=_may_be_constant)
        case _:
            return Operand(slot, show(t), test=is_present)


def _may_be_constant(v: Value | None) -> bool:
    """True if `v` may match a number or a fill."""
    return uniform_value(v) is not None or any(is_array_fill(kind, v) for kind in ARRAY_FILLS)


def _is_made_by(v: Value | None, op: Op) -> bool:
    n = v.node if type(v) is Item else v
    return type(n) is Node and n.op is op


def _constant_number(v: Value) -> int | float:
    found = uniform_value(v)
    if found is None:
        raise NotKnown(f"{show_result(v)} is not a uniform constant")
    return found


def match_leaf(c: PatternBuilder, t: Term, slot: int) -> None:
    """Match the content of `slot` with a parameter or constant."""
    match t:
        case Var(n) | OperandRun(n):
            if n in c.bound:
                c.steps.append(same_value_step(slot, c.scope.slots[n], n))
                return
            c.bound.add(n)
            match_param(c, c.params[n], slot)
        case Scalar(Name(n)) if n not in c.bound:
            c.bound.add(n)
            step = definition_step(c.scope.slots[n], lambda env: _constant_number(env[slot]), n)
            c.steps.append(step)
        case Scalar(f):
            run = c.formula(f)
            test = lambda env, v: is_number_constant(v, run(env))  # noqa: E731
            c.defer(required_names(f), lambda: constant_step(slot, test, show(t)))
        case Fill(kind, args):
            match_fill(c, t, kind, args, slot)
    c.flush_ready()


def match_param(c: PatternBuilder, p: Param, slot: int) -> None:
    """Match the type of a parameter."""
    if p.kind != "any":
        letter = c.letters.get(p.kind)
        bind = letter is not None and p.kind not in c.bound_kinds
        c.bound_kinds.add(p.kind)
        types = element_types(p.kind)
        c.steps.append(dtype_step(slot, types, letter, bind, f"{p.name}: {p.kind}"))
    if p.shape is not None:
        c.steps.append(shape_step(slot, shape_pattern(c, p.shape, slot), str(p)))


def shape_pattern(c: PatternBuilder, shape: tuple[Formula, ...], slot: int) -> ShapePattern:
    at = next((i for i, d in enumerate(shape) if isinstance(d, Spread)), None)
    head, tail = (shape, ()) if at is None else (shape[:at], shape[at + 1 :])
    before = tuple(dim_pattern(c, d, slot, i) for i, d in enumerate(head))
    after = tuple(dim_pattern(c, d, slot, i - len(tail)) for i, d in enumerate(tail))
    if at is None:
        return ShapePattern(before)
    spread = shape[at]
    assert isinstance(spread, Spread)
    assert isinstance(spread.value, Name)
    name = spread.value.id
    bind = name not in c.bound
    c.bound.add(name)
    return ShapePattern(before, (c.scope.slots[name], bind), after)


def dim_pattern(
    c: PatternBuilder, d: Formula, slot: int, i: int
) -> tuple[int | None, int | None, bool]:
    match d:
        case Lit(int(n)):
            return None, n, False
        case Name(name):
            bind = name not in c.bound
            c.bound.add(name)
            return c.scope.slots[name], None, bind
        case _:
            run = c.formula(d)
            holds = lambda env: are_equal(env[slot].type.shape[i], run(env))  # noqa: E731
            words = f"size {i} == {show(d)}"
            c.defer(required_names(d), lambda: condition_step(holds, words, lambda env: ""))
            return None, None, False


def match_fill(c: PatternBuilder, t: Fill, kind: str, args: tuple[Formula, ...], slot: int) -> None:
    """Match zeros(shape), ones(shape), full(shape, number), eye(n) and other fills."""
    used = args[: 1 + (kind == "full")]
    given = [c.formula(a) for a in used]

    def test(env: Cells, v: Value) -> bool:
        return is_fill(kind, v, [g(env) for g in given])

    need = frozenset[str]().union(*map(required_names, used))
    c.defer(need, lambda: constant_step(slot, test, show(t)))
