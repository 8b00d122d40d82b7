"""Traversals of expressions: loads, subexpressions, reductions, axes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from operator import is_

from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor


def computed_tensors(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the computed tensors in topological order, producers first."""
    done: dict[Tensor, None] = {}

    def visit(t: Tensor) -> None:
        if t.body is not None and t not in done:
            for load in loads(t.body):
                visit(load.tensor)
            done[t] = None

    for o in outputs:
        visit(o)
    return list(done)


def loads(e: Expr) -> Iterator[Load]:
    """Return every load in `e`, including those within indices, the outer ones first."""
    found: list[Load] = []
    stack = [e]
    while stack:  # a hot path: faster than a recursive generator
        e = stack.pop()
        kind = type(e)
        if kind is Apply:
            stack += e.args[::-1]  # type: ignore[attr-defined]
        elif kind is Load:
            found.append(e)  # type: ignore[arg-type]
            stack += e.index[::-1]  # type: ignore[attr-defined]
        elif kind is Reduce:
            stack.append(e.body)  # type: ignore[attr-defined]
        elif kind is Index:
            stack += (e.bound, e.element)  # type: ignore[attr-defined]
    return iter(found)


def subexpressions(e: Expr) -> Iterator[Expr]:
    """Yield `e` and every subexpression once."""
    stack, seen = [e], set[int]()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        stack += operands(e)


def reductions(e: Expr | None) -> list[Reduce]:
    """Return every reduction in `e` once, the outer ones first."""
    found: dict[Reduce, None] = {}
    stack = [] if e is None else [e]
    while stack:
        e = stack.pop()
        if type(e) is Apply:
            stack += e.args[::-1]
        elif type(e) is Reduce:
            found[e] = None
            stack.append(e.body)
    return list(found)


def is_window_load(result_axes: Collection[Axis], reduced_axes: Collection[Axis], e: Load) -> bool:
    """True if an index of the load combines an axis of the result and a reduced axis (a sliding
    window)."""
    each = [index_axes(i) for i in e.index]
    return any(axes & set(result_axes) and axes & set(reduced_axes) for axes in each)


def index_axes(e: Expr) -> set[Axis]:
    """Return the axes that an index depends on."""
    match e:
        case Axis():
            return {e}
        case Apply(_, args) | Load(_, args):
            return set().union(*map(index_axes, args)) if args else set()
        case Index(found, bound):
            return index_axes(found) | index_axes(bound)
    return set()


def operands(e: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression."""
    if type(e) is Apply:  # a hot path: faster than `match`
        return e.args
    if type(e) is Load:
        return e.index
    if type(e) is Reduce:
        return (e.body,)
    if type(e) is Index:
        return e.element, e.bound
    return ()


def with_operands(e: Expr, new_operands: Sequence[Expr]) -> Expr:
    """Return `e` with these operands, not simplified."""
    match e:
        case Apply(fn, args, dtype):
            return e if all(map(is_, new_operands, args)) else Apply(fn, tuple(new_operands), dtype)
        case Load(t, index, dtype):
            return e if all(map(is_, new_operands, index)) else Load(t, tuple(new_operands), dtype)
        case Reduce(fn, axes, body, dtype):
            return e if new_operands[0] is body else Reduce(fn, axes, new_operands[0], dtype)
        case Index():
            element, bound = new_operands
            return Index(element, bound)
    return e


def node_key(e: Expr) -> object:
    """Return what identifies an expression beside its operands."""
    match e:
        case Apply(fn, args, dtype):
            return fn, len(args), dtype
        case Load(t):
            return t
        case Reduce(fn, axes, _, dtype):
            return fn, axes, dtype
        case Index():
            return Index
    return e


def share_subexpressions(roots: Sequence[Expr]) -> list[Expr]:
    """Return the expressions with equal subexpressions shared as one object (hash consing)."""
    made: dict[object, Expr] = {}
    done: dict[int, tuple[Expr, Expr]] = {}  # by id; holds the expression

    def go(e: Expr) -> Expr:
        found = done.get(id(e))
        if found is None:
            if e.dtype == INDEX and type(e) is not Index:
                one = made.setdefault(e, e)
            else:
                inner = tuple(map(go, operands(e)))
                key = (node_key(e), *map(id, inner))
                one = made.get(key) or made.setdefault(key, with_operands(e, inner))
            found = done[id(e)] = (e, one)
        return found[1]

    return list(map(go, roots))


def has_ordered_axes(t: Tensor) -> bool:
    """True if operands have their axes in the order of `t`. With channels last, an image has the
    layout that is read only after a copy."""
    assert t.body is not None
    for x in loads(t.body):
        some = [[t.axes.index(a) for a in index_axes(i) if a in t.axes] for i in x.index]
        found = [n for each in some for n in sorted(each)]
        if found != sorted(found):
            return False
    return True
