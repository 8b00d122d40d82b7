"""Rewrite an element until its loads are affine: split a tensor into boxes with a body each.

select(i < 3, a[i], b[i - 3])   i in [0, 3): a[i]      i in [3, 8): b[i - 3]       split
x[i // 4, i % 4]                i = 4 p + q: x[p, q]                               radix
x[(h + p - k) // 2]             a box, or a term of the sum, for each value        unroll

Splitting an axis of the tensor gives boxes; splitting a reduction axis gives several reductions,
which are combined. A load that stays non-affine is planned with index arrays and masks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from superopt.te.analysis.affine import Affine, affine, atoms_of, substitute
from superopt.te.eval.load_access import direct_access, padded_access
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce

MAX_BOXES = 4096
MAX_REDUCTIONS = 256  # of one expression
MAX_UNROLLED_EXTENT = 64  # the longest axis that is unrolled
_FRESH_NAMES = itertools.count()


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: its index in dimension n is `position[n]`, affine in `axes`; its element
    is `body`."""

    axes: tuple[Axis, ...]
    position: tuple[Expr, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class Split:
    """Split an axis into [0, threshold) and the rest."""

    axis: Axis
    threshold: int


@dataclass(frozen=True, slots=True)
class Radix:
    """Write an axis as digits * step + digit."""

    axis: Axis
    step: int


@dataclass(frozen=True, slots=True)
class Unroll:
    """Unroll an axis into its values."""

    axis: Axis


Action = Split | Radix | Unroll


def split_into_boxes(axes: tuple[Axis, ...], body: Expr) -> list[Box]:
    """Return the boxes of a tensor with these axes (none of extent 0) and this element."""
    single: dict[Expr, Expr] = {a: Const(0, INDEX) for a in axes if a.extent == 1}
    kept = tuple(a for a in axes if a not in single)
    place = tuple(single.get(a, a) for a in axes)
    todo = [Box(kept, place, simplify_reductions(substitute(body, single)))]
    done: list[Box] = []
    while todo:
        box = todo.pop()
        action = next_action(box.body)
        if action is None or len(done) + len(todo) >= MAX_BOXES:
            done.append(box)
        elif action.axis in box.axes:
            todo.extend(reversed(_split_box(box, action)))
        else:
            body = _split_reductions(box.body, action)
            if body is box.body:
                done.append(box)
            else:
                todo.append(Box(box.axes, box.position, body))
    return done


def _axis_parts(action: Action) -> list[tuple[tuple[Axis, ...], Expr]]:
    """Return, for each part of an axis, the axes that replace it and its value in terms of them."""
    n = action.axis.extent
    assert isinstance(n, int)
    match action:
        case Split(_, at):
            low, high = _fresh(at), _fresh(n - at)
            return [_drop_unit_axis(low, 0), _drop_unit_axis(high, at)]
        case Radix(_, step):
            digits, digit = _fresh(n // step), _fresh(step)
            return [((digits, digit), index.as_index(digits * step + digit))]
        case Unroll():
            return [((), Const(v, INDEX)) for v in range(n)]


def _drop_unit_axis(axis: Axis, start: int) -> tuple[tuple[Axis, ...], Expr]:
    if axis.extent == 1:
        return (), Const(start, INDEX)
    return (axis,), index.as_index(axis + start)


def _fresh(extent: int) -> Axis:
    return Axis(f"_{next(_FRESH_NAMES)}", extent)


def _replace_axis(axes: tuple[Axis, ...], old: Axis, new: tuple[Axis, ...]) -> tuple[Axis, ...]:
    at = axes.index(old)
    return (*axes[:at], *new, *axes[at + 1 :])


def _split_box(box: Box, action: Action) -> list[Box]:
    out: list[Box] = []
    for new, value in _axis_parts(action):
        env: dict[Expr, Expr] = {action.axis: value}
        place = tuple(substitute(p, env) for p in box.position)
        body = simplify_reductions(substitute(box.body, env))
        out.append(Box(_replace_axis(box.axes, action.axis, new), place, body))
    return out


def _map_children(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return `e` with `change` applied to its operands; `e` itself if nothing changes."""
    match e:
        case Apply(fn, args, dtype) if dtype != INDEX:
            parts = tuple(change(a) for a in args)
            same = all(a is b for a, b in zip(parts, args, strict=True))
            return e if same else Apply(fn, parts, dtype)
        case Reduce(fn, axes, body, dtype):
            inner = change(body)
            return e if inner is body else Reduce(fn, axes, inner, dtype)
        case _:
            return e


def simplify_reductions(e: Expr) -> Expr:
    """Return `e` without reductions over no elements, over no axes, or over an axis of extent 1."""
    done: dict[int, tuple[Expr, Expr]] = {}

    def change(x: Expr) -> Expr:
        found = done.get(id(x))
        if found is None:
            found = done[id(x)] = (x, one(x))
        return found[1]

    def one(x: Expr) -> Expr:
        if not isinstance(x, Reduce):
            return _map_children(x, change)
        if any(a.extent == 0 for a in x.axes):
            return Const(identity_element(x.fn, x.dtype), x.dtype)
        single: dict[Expr, Expr] = {a: Const(0, INDEX) for a in x.axes if a.extent == 1}
        body = change(substitute(x.body, single) if single else x.body)
        axes = tuple(a for a in x.axes if a not in single)
        if not axes or _is_idempotent(x.fn, body):
            return body
        return x if body is x.body else Reduce(x.fn, axes, body, x.dtype)

    return change(e)


def _is_idempotent(fn: str, body: Expr) -> bool:
    """True if a reduction of this constant is the constant."""
    if not isinstance(body, Const):
        return False
    return fn in ("max", "min", "any", "all") or body.value == identity_element(fn, body.dtype)


def _split_reductions(e: Expr, action: Action) -> Expr:
    """Return `e` with reductions over the action's axis split; `e` if there are too many."""
    done: dict[int, tuple[Expr, Expr]] = {}

    def change(x: Expr) -> Expr:
        found = done.get(id(x))
        if found is None:
            found = done[id(x)] = (x, one(x))
        return found[1]

    def one(x: Expr) -> Expr:
        if not isinstance(x, Reduce) or action.axis not in x.axes:
            return _map_children(x, change)
        parts = [
            simplify_reductions(
                Reduce(
                    x.fn,
                    _replace_axis(x.axes, action.axis, new),
                    substitute(x.body, {action.axis: value}),
                    x.dtype,
                )
                if _replace_axis(x.axes, action.axis, new)
                else substitute(x.body, {action.axis: value})
            )
            for new, value in _axis_parts(action)
        ]
        nothing = identity_element(x.fn, x.dtype)
        rest = [p for p in parts if not (isinstance(p, Const) and p.value == nothing)]
        out = rest[0] if rest else Const(nothing, x.dtype)
        for p in rest[1:]:
            out = Apply(REDUCTION_COMBINERS[x.fn], (out, p), x.dtype)
        return out

    return change(e) if _count_reductions(e) < MAX_REDUCTIONS else e


def _count_reductions(e: Expr) -> int:
    """Return the number of reductions in `e`."""
    count = 0
    stack, seen = [e], set[int]()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        match x:
            case Apply(_, args, dtype) if dtype != INDEX:
                stack.extend(args)
            case Reduce(_, _, body, _):
                count += 1
                stack.append(body)
            case _:
                pass
    return count


def next_action(e: Expr) -> Action | None:
    """Return the next action that makes more of `e` affine; None when there is none."""
    stack, seen = [e], set[int]()
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        found: Action | None = None
        match x:
            case Apply("select", (guard, yes, no), _):
                pad = padded_access(guard, yes, no)
                terms = [guard] if pad is None else pad[1]
                for term in terms:
                    found = found or _guard_action(term)
                stack.extend(terms)
                stack.extend([no, yes] if pad is None else [no])
            case Apply(_, args, _):
                stack.extend(reversed(args))
            case Load(_, index, _):
                if direct_access(x) is None:
                    for i in index:
                        found = found or _index_action(i)
                    stack.extend(index)
            case Index(element, _, _):
                stack.append(element)
            case Reduce(_, _, body, _):
                stack.append(body)
            case _:
                pass
        if found is not None:
            return found
    return None


def _guard_action(guard: Expr) -> Action | None:
    """Return the action for a comparison that depends on one axis."""
    match guard:
        case Apply("and" | "or", _, _) | Apply("not", _, _):
            for term in guard.args if isinstance(guard, Apply) else ():
                found = _guard_action(term)
                if found is not None:
                    return found
        case Apply("lt" | "le" | "eq" | "ne" as fn, (a, b), _) if a.dtype == INDEX:
            gap = index.as_index(b - a)
            form = affine(gap)
            if form is None:
                return _index_action(gap)
            if len(form.terms) == 1:
                ((axis, c),) = form.terms
                if fn in ("eq", "ne"):
                    at = -form.base // c  # the interval shows that there is a solution
                    return Split(axis, at or 1)
                return _split_action(axis, _sign_change(c, form.base - (1 if fn == "lt" else 0)))
        case _:
            pass
    return None


def _sign_change(c: int, base: int) -> int:
    """Return the first i >= 1 at which c i + base >= 0 changes."""
    return -(base // c) if c > 0 else base // -c + 1


def _split_action(axis: Axis, threshold: int) -> Action | None:
    n = axis.extent
    return Split(axis, threshold) if isinstance(n, int) and 0 < threshold < n else None


def _index_action(e: Expr) -> Action | None:
    """Return the action that makes a quotient, remainder, minimum or maximum in an index affine."""
    for atom in atoms_of(e):
        match atom:
            case Apply("floordiv" | "mod", (x, Const(m)), _):
                form = affine(x)
                found = _index_action(x) if form is None else _division_action(form, int(m))
            case Apply("min" | "max", (a, b), _):
                gap = index.as_index(b - a)
                form = affine(gap)
                if form is None:
                    found = _index_action(gap)
                elif len(form.terms) == 1:
                    ((axis, c),) = form.terms
                    found = _split_action(axis, _sign_change(c, form.base))
                else:
                    found = None
            case _:
                found = None
        if found is not None:
            return found
    return None


def _division_action(form: Affine, m: int) -> Action | None:
    """Return the action that makes form // m affine; every coefficient of the form is in (-m/2,
    m/2]."""
    for axis, c in form.terms:
        n, step = axis.extent, m // math.gcd(c, m)
        assert isinstance(n, int)
        if n > step:
            return Radix(axis, step) if n % step == 0 else Split(axis, n // step * step)
    if len(form.terms) == 1:
        ((axis, c),) = form.terms
        k = form.base // m
        if c > 0:
            return _split_action(axis, -(-((k + 1) * m - form.base) // c))
        return _split_action(axis, (form.base - k * m) // -c + 1)
    small = sorted(form.axes, key=lambda a: (isinstance(a.extent, int) and a.extent, a.name))
    if small and isinstance(small[0].extent, int) and small[0].extent <= MAX_UNROLLED_EXTENT:
        return Unroll(small[0])
    return None
