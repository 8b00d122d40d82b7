"""Plan a tensor as trees of array operations, one for each box, independent of the domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.te.analysis.affine import Affine, affine, interval
from superopt.te.eval.affine_boxes import Box, split_into_boxes
from superopt.te.eval.array_ops import (
    NO_POSITIONS,
    AffineForm,
    AffineValues,
    ArrayOp,
    ArrayProgram,
    BoxProgram,
    ConstantArray,
    Contraction,
    Elementwise,
    GatherElements,
    Mask,
    Padding,
    Positions,
    Reduction,
    Select,
    StridedView,
    WrapIndex,
)
from superopt.te.eval.load_access import direct_access, padded_access, static_shape
from superopt.te.expr.dtype import INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor

MAX_PADDING_FACTOR = (
    4  # bound on the size of a padded source relative to the tensor, for guarded loads
)


@lru_cache(maxsize=1 << 13)
def array_program(tensor: Tensor) -> ArrayProgram:
    """Return the program of a tensor with a body. Raises TypeError for a symbolic size."""
    shape = static_shape(tensor.shape, tensor.name)
    assert tensor.body is not None
    if 0 in shape:
        return ArrayProgram(shape, (), frozenset())
    planner = _Planner({}, {})
    parts: list[BoxProgram] = []
    for box in split_into_boxes(tensor.axes, tensor.body):
        body = planner.step(box.body, box.axes, ())
        parts.append(BoxProgram(box.axes, _box_position(box), body))
    return ArrayProgram(shape, tuple(parts), frozenset(p for p, n in planner.uses.items() if n > 1))


def _box_position(box: Box) -> tuple[Affine, ...]:
    forms = [affine(p) for p in box.position]
    return tuple(f for f in forms if f is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _BranchGuard:
    """A guard that holds (or not) inside of the enclosing guards: a branch of a select."""

    guard: Expr
    holds: bool
    enclosing: tuple[_BranchGuard, ...]


_Branch = tuple[_BranchGuard, ...]


@dataclass(frozen=True, slots=True)
class _Planner:
    """Memo of operations by expression, scope and branch, and the number of uses of each."""

    memo: dict[tuple[int, tuple[Axis, ...], _Branch], tuple[Expr, ArrayOp]]
    uses: dict[ArrayOp, int]

    def step(self, e: Expr, scope: tuple[Axis, ...], branch: _Branch) -> ArrayOp:
        key = (id(e), scope, branch)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = (e, self.build_step(e, scope, branch))
        plan = found[1]
        self.uses[plan] = self.uses.get(plan, 0) + 1
        return plan

    def build_step(self, e: Expr, scope: tuple[Axis, ...], branch: _Branch) -> ArrayOp:
        match e:
            case Const(value, dtype):
                return ConstantArray(scope, NO_POSITIONS, value, dtype)
            case Apply("select", (guard, yes, no), _):
                return self.select(guard, yes, no, scope, branch)
            case Load():
                return self.load(e, scope, branch)
            case Reduce(fn, axes, body, dtype):
                return self.reduce(fn, axes, body, dtype, scope, branch)
            case Index(element, Const(n), _):
                inner = self.step(element, scope, branch)
                return WrapIndex(scope, inner.axes, inner, int(n), self.masks(scope, branch))
            case _ if e.dtype == INDEX and (form := affine(e)) is not None:
                placed = _as_form(form, scope)
                return AffineValues(scope, _form_axes((placed,)), placed)
            case Apply(fn, args, dtype):
                return self.elementwise(
                    fn, [self.step(a, scope, branch) for a in args], args, dtype
                )
            case _:
                raise TypeError(f"{e} cannot be evaluated")

    def elementwise(
        self, fn: str, steps: list[ArrayOp], args: tuple[Expr, ...], dtype: DType
    ) -> ArrayOp:
        axes = NO_POSITIONS.union(*(s.axes for s in steps))
        return Elementwise(
            steps[0].scope, axes, fn, tuple(steps), tuple(a.dtype for a in args), dtype
        )

    def masks(self, scope: tuple[Axis, ...], branch: _Branch) -> tuple[Mask, ...]:
        return tuple(Mask(self.step(w.guard, scope, w.enclosing), w.holds) for w in branch)

    def select(
        self, guard: Expr, yes: Expr, no: Expr, scope: tuple[Axis, ...], branch: _Branch
    ) -> ArrayOp:
        pad = padded_access(guard, yes, no)
        if pad is not None:
            fill = self.step(no, scope, branch)
            low, high, load = pad[0].low, pad[0].high, pad[0].load
            inner: ArrayOp = self.padded_view(load, pad[0].forms, low, high, fill, (), scope)
            for term in pad[1]:
                inner = _make_select(self.step(term, scope, branch), inner, fill)
            return inner
        g = self.step(guard, scope, branch)
        a = self.step(yes, scope, (*branch, _BranchGuard(guard, True, branch)))
        b = self.step(no, scope, (*branch, _BranchGuard(guard, False, branch)))
        return _make_select(g, a, b)

    def padded_view(
        self,
        e: Load,
        affines: Sequence[Affine],
        low: tuple[int, ...],
        high: tuple[int, ...],
        fill: ArrayOp,
        masks: tuple[Mask, ...],
        scope: tuple[Axis, ...],
    ) -> StridedView:
        spans = [s for s in map(interval, e.index) if s is not None]
        first, last = tuple(s[0] for s in spans), tuple(s[1] for s in spans)
        forms = tuple(_as_form(f, scope) for f in affines)
        edge = Padding(low, high, first, last, fill, masks)
        return StridedView(scope, _form_axes(forms), e.tensor, forms, False, edge)

    def load(self, e: Load, scope: tuple[Axis, ...], branch: _Branch) -> ArrayOp:
        found = direct_access(e)
        if found is not None:
            forms = tuple(_as_form(f, scope) for f in found.forms)
            return StridedView(scope, _form_axes(forms), e.tensor, forms, found.flat, None)
        affines = [affine(i) for i in e.index]
        plain = [f for f in affines if f is not None]
        shape = static_shape(e.tensor.shape, e.tensor.name)
        if branch and len(plain) == len(affines) and 0 not in shape:
            zero = ConstantArray(scope, NO_POSITIONS, 0, e.dtype)
            top, masks = tuple(n - 1 for n in shape), self.masks(scope, branch)
            view = self.padded_view(e, plain, (0,) * len(shape), top, zero, masks, scope)
            assert view.padding is not None
            spans = zip(view.padding.first, view.padding.last, strict=True)
            if math.prod(b - a + 1 for a, b in spans) <= MAX_PADDING_FACTOR * math.prod(shape):
                return view
        return self.gather(e, affines, shape, scope, branch)

    def gather(
        self,
        e: Load,
        affines: list[Affine | None],
        shape: tuple[int, ...],
        scope: tuple[Axis, ...],
        branch: _Branch,
    ) -> ArrayOp:
        forms: dict[int, AffineForm] = {}
        steps: dict[int, ArrayOp] = {}
        for d, (i, f, n) in enumerate(zip(e.index, affines, shape, strict=True)):
            span = interval(i)
            if f is not None and span is not None and span[0] >= 0 and span[1] < n:
                forms[d] = _as_form(f, scope)
            else:
                steps[d] = self.step(i, scope, branch)
        while True:  # an axis that indices and forms both use is read by index arrays only
            taken = NO_POSITIONS.union(*(s.axes for s in steps.values()))
            both = [d for d, f in forms.items() if taken & _form_axes((f,))]
            if not both:
                break
            for d in both:
                del forms[d]
                steps[d] = self.step(e.index[d], scope, branch)
        axes = taken | _form_axes(tuple(forms.values()))
        picked = tuple(sorted(steps.items()))
        return GatherElements(
            scope, axes, e.tensor, tuple(forms.items()), picked, self.masks(scope, branch)
        )

    def reduce(
        self,
        fn: str,
        axes: tuple[Axis, ...],
        body: Expr,
        dtype: DType,
        scope: tuple[Axis, ...],
        branch: _Branch,
    ) -> ArrayOp:
        inner, outer = (*scope, *axes), len(scope)
        if fn == "sum" and isinstance(body, Apply) and body.fn in ("mul", "neg"):
            return self.sum_of_products(body, dtype, inner, outer, branch)
        plan = self.step(body, inner, branch)
        return _make_reduction(scope, fn, plan, dtype)

    def sum_of_products(
        self, body: Expr, dtype: DType, inner: tuple[Axis, ...], outer: int, branch: _Branch
    ) -> ArrayOp:
        """Plan a sum of products; factors that do not depend on the reduced axes are hoisted."""
        factors, sign = _factors(body)
        steps = [self.step(f, inner, branch) for f in factors]
        inside = [n for n, s in enumerate(steps) if any(p >= outer for p in s.axes)]
        free = [f for n, f in enumerate(factors) if n not in inside]
        scope = inner[:outer]
        summed = [steps[n] for n in inside]
        axes = NO_POSITIONS.union(*(s.axes for s in summed))
        count = sign
        out: ArrayOp
        if len(summed) > 1 and any(s.axes != summed[0].axes for s in summed):
            kept = frozenset(p for p in axes if p < outer)
            out = Contraction(scope, kept, inner, tuple(summed), dtype)
            for p in range(outer, len(inner)):
                n = inner[p].extent
                count *= n if p not in axes and isinstance(n, int) else 1
        elif not summed or (not free and sign == 1):
            plan = self.step(body, inner, branch)
            return _make_reduction(scope, "sum", plan, dtype)
        else:
            plan = summed[0]
            for other in summed[1:]:
                plan = Elementwise(inner, axes, "mul", (plan, other), (dtype, dtype), dtype)
            out = _make_reduction(scope, "sum", plan, dtype)
        others = [self.step(f, scope, branch) for f in free]
        if count != 1:
            others.append(ConstantArray(scope, NO_POSITIONS, count, dtype))
        for other in others:
            out = Elementwise(
                scope, out.axes | other.axes, "mul", (out, other), (dtype, dtype), dtype
            )
        return out


def _factors(e: Expr) -> tuple[list[Expr], int]:
    """Return the factors of a product and its sign."""
    match e:
        case Apply("mul", (a, b), _):
            (left, s), (right, t) = _factors(a), _factors(b)
            return left + right, s * t
        case Apply("neg", (a,), _):
            factors, sign = _factors(a)
            return factors, -sign
        case _:
            return [e], 1


def _as_form(f: Affine, scope: tuple[Axis, ...]) -> AffineForm:
    return AffineForm(f.base, tuple((scope.index(a), c) for a, c in f.terms))


def _form_axes(forms: tuple[AffineForm, ...]) -> Positions:
    return frozenset(p for f in forms for p, _ in f.terms)


def _make_reduction(scope: tuple[Axis, ...], fn: str, body: ArrayOp, dtype: DType) -> Reduction:
    outer = len(scope)
    sliding: set[int] = set()
    for view in _elementwise_views(body):
        for form in () if view.flat else view.forms:
            if len(form.terms) > 1:
                sliding.update(p for p, _ in form.terms if p >= outer)
    axes = frozenset(p for p in body.axes if p < outer)
    return Reduction(scope, axes, fn, body, frozenset(sliding), dtype)


def _elementwise_views(plan: ArrayOp) -> list[StridedView]:
    """Return the views that an operation reads elementwise."""
    out: list[StridedView] = []
    stack, seen = [plan], set[ArrayOp]()
    while stack:
        step = stack.pop()
        if step in seen:
            continue
        seen.add(step)
        match step:
            case StridedView():
                out.append(step)
            case Elementwise(_, _, _, args, _, _):
                stack.extend(args)
            case Select(_, _, guard, yes, no):
                stack.extend((guard, yes, no))
            case _:
                pass
    return out


def _make_select(guard: ArrayOp, yes: ArrayOp, no: ArrayOp) -> ArrayOp:
    return Select(guard.scope, guard.axes | yes.axes | no.axes, guard, yes, no)
