"""Sums within sums as tensors of what they hang on, of which each element is computed once.

A window over windows is one expression in which each place of the outer one has an inner one of its
own, and most of these are the same:

    sum(k[p] * sum(q[r] * x[i + p + r - 1], r), p)    ->    sum(k[p] * t[i + p], p)
    where t[h] = sum(q[r] * x[h + r - 1], r)

Of these a maximum over rows and columns is one of rows of ones of columns, which are tensors, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.partial.regions.term_sets import OPPOSITE
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, subexpressions
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor

Memo = dict[int, tuple[Expr, Expr]]  # by ids, of what is held


def share_nested_sums(bodies: Sequence[Expr]) -> list[Expr]:
    """Return the same expressions with nested sums as tensors."""
    made = _Sharer()
    return [made.share(b, {}, False) for b in bodies]


@dataclass(slots=True)
class _Sharer:
    """count: tensors, for their names."""

    count: int = 0

    def share(self, e: Expr, done: Memo, in_sum: bool) -> Expr:
        """Rewrite `e`; in_sum: whether it is inside a sum."""
        if e.dtype == INDEX and not isinstance(e, Index):
            return e
        if id(e) not in done:
            done[id(e)] = (e, self._share(e, done, in_sum))
        return done[id(e)][1]

    def _share(self, e: Expr, done: Memo, in_sum: bool) -> Expr:
        match e:
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(self.share(x, done, in_sum) for x in args), dtype)
            case Load(t, index, dtype):
                return Load(t, tuple(self.share(x, done, in_sum) for x in index), dtype)
            case Index(element, bound):
                return Index(self.share(element, done, in_sum), bound)
            case Reduce(fn, axes, body, dtype):
                inner = self.share(body, {}, True)
                nested = in_sum or any(isinstance(x, Reduce) for x in subexpressions(body))
                for a in axes[:0:-1] if nested and fn in OPPOSITE else ():
                    inner = self.as_tensor(Reduce(fn, (a,), inner, dtype))
                    axes = axes[: axes.index(a)]
                whole = Reduce(fn, axes, inner, dtype)
                return self.as_tensor(whole) if in_sum else whole
        return e

    def as_tensor(self, r: Reduce) -> Expr:
        """Return an element of a tensor for `r`; `r` itself if the tensor's size is unknown."""
        handles = _Handles(f"shared{self.count}")
        body = handles.with_handles(r, frozenset())
        bounds = [affine.interval(h) for h in handles.handles]
        known = [b for b in bounds if b is not None]
        if len(known) < len(bounds):
            return r
        self.count += 1
        shape = tuple(high - low + 1 for low, high in known)
        axes = tuple(Axis(a.name, n) for a, n in zip(handles.handles.values(), shape, strict=True))
        at = {
            old: te_index.as_index(new + low)
            for old, new, (low, _) in zip(handles.handles.values(), axes, known, strict=True)
        }
        own = Tensor(handles.name, r.dtype, shape, axes, _substitute(body, at, {}))
        index = tuple(
            te_index.as_index(h - low) for h, (low, _) in zip(handles.handles, known, strict=True)
        )
        return Load(own, index, r.dtype)


@dataclass(slots=True)
class _Handles:
    """given: the index expressions of the enclosing sums, each with an axis that stands for it."""

    name: str
    handles: dict[Expr, Axis] = field(default_factory=dict)
    done: Memo = field(default_factory=dict)

    def handle(self, e: Expr) -> Expr:
        if isinstance(e, Const):
            return e
        return self.handles.setdefault(e, Axis(f"{self.name}.{len(self.handles)}", 1))

    def with_handles(self, e: Expr, own: frozenset[Axis]) -> Expr:
        """Replace index expressions that do not depend on own axes by handles."""
        if isinstance(e, Const):
            return e
        if id(e) not in self.done:
            self.done[id(e)] = (e, self._with_handles(e, own))
        return self.done[id(e)][1]

    def _with_handles(self, e: Expr, own: frozenset[Axis]) -> Expr:
        if e.dtype == INDEX and not isinstance(e, Index):
            return self.index(e, own)
        match e:
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self.with_handles(body, own | set(axes)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(self.with_handles(x, own) for x in args), dtype)
            case Load(t, index, dtype):
                return Load(t, tuple(self.with_handles(x, own) for x in index), dtype)
            case Index(element, bound):
                return Index(self.with_handles(element, own), self.with_handles(bound, own))
        return e

    def index(self, e: Expr, own: frozenset[Axis]) -> Expr:
        if not index_axes(e) & own:
            return self.handle(e)
        if isinstance(e, Axis):
            return e
        if not isinstance(e, Apply):  # an element of a tensor of indices
            raise TypeError(f"{type(e).__name__} {e}")
        if e.fn not in ("add", "mul"):
            return Apply(e.fn, tuple(self.with_handles(x, own) for x in e.args), e.dtype)
        outer: te_index.Poly = {}
        inner: Expr = Const(0, INDEX)
        for atoms, c in te_index.polynomial(e).items():
            if atoms and not any(index_axes(a) & own for a in atoms):
                outer[atoms] = c
            else:
                term: Expr = Const(c, INDEX)
                for a in atoms:
                    term = te_index.as_index(term * self.with_handles(a, own))
                inner = te_index.as_index(inner + term)
        return (
            te_index.as_index(self.handle(te_index.from_polynomial(outer)) + inner)
            if outer
            else inner
        )


def _substitute(e: Expr, at: dict[Axis, Expr], done: Memo) -> Expr:
    """Substitute indices for axes without simplification."""
    if isinstance(e, Axis):
        return at.get(e, e)
    if id(e) not in done:
        done[id(e)] = (e, _substitute_operands(e, at, done))
    return done[id(e)][1]


def _substitute_operands(e: Expr, at: dict[Axis, Expr], done: Memo) -> Expr:
    match e:
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_substitute(x, at, done) for x in args), dtype)
        case Load(t, index, dtype):
            return Load(t, tuple(_substitute(x, at, done) for x in index), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _substitute(body, at, done), dtype)
        case Index(element, bound):
            return Index(_substitute(element, at, done), _substitute(bound, at, done))
    return e
