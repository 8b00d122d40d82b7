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

from superopt.partial.extremes import OTHER
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, parts

Done = dict[int, tuple[Expr, Expr]]  # by ids, of what is held


def shared(bodies: Sequence[Expr]) -> list[Expr]:
    """Return the same expressions with nested sums as tensors."""
    made = _Made()
    return [made.outer(b, {}, False) for b in bodies]


@dataclass(slots=True)
class _Made:
    """count: tensors, for their names."""

    count: int = 0

    def outer(self, e: Expr, done: Done, within: bool) -> Expr:
        """Rewrite `e`; in_sum: whether it is inside a sum."""
        if e.dtype == INDEX and not isinstance(e, Index):
            return e
        if id(e) not in done:
            done[id(e)] = (e, self._outer(e, done, within))
        return done[id(e)][1]

    def _outer(self, e: Expr, done: Done, within: bool) -> Expr:
        match e:
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(self.outer(x, done, within) for x in args), dtype)
            case Load(t, index, dtype):
                return Load(t, tuple(self.outer(x, done, within) for x in index), dtype)
            case Index(element, bound):
                return Index(self.outer(element, done, within), bound)
            case Reduce(fn, axes, body, dtype):
                inner = self.outer(body, {}, True)
                nested = within or any(isinstance(x, Reduce) for x in parts(body))
                for a in axes[:0:-1] if nested and fn in OTHER else ():
                    inner = self.tensor(Reduce(fn, (a,), inner, dtype))
                    axes = axes[: axes.index(a)]
                whole = Reduce(fn, axes, inner, dtype)
                return self.tensor(whole) if within else whole
        return e

    def tensor(self, r: Reduce) -> Expr:
        """Return an element of a tensor for `r`; `r` itself if the tensor's size is unknown."""
        handles = _Handles(f"shared{self.count}")
        body = handles.named(r, frozenset())
        bounds = [affine.interval(h) for h in handles.given]
        known = [b for b in bounds if b is not None]
        if len(known) < len(bounds):
            return r
        self.count += 1
        shape = tuple(high - low + 1 for low, high in known)
        axes = tuple(Axis(a.name, n) for a, n in zip(handles.given.values(), shape, strict=True))
        at = {
            old: ix.as_index(new + low)
            for old, new, (low, _) in zip(handles.given.values(), axes, known, strict=True)
        }
        own = Tensor(handles.name, r.dtype, shape, axes, _put(body, at, {}))
        index = tuple(
            ix.as_index(h - low) for h, (low, _) in zip(handles.given, known, strict=True)
        )
        return Load(own, index, r.dtype)


@dataclass(slots=True)
class _Handles:
    """given: the index expressions of the enclosing sums, each with an axis that stands for it."""

    name: str
    given: dict[Expr, Axis] = field(default_factory=dict)
    done: Done = field(default_factory=dict)

    def axis(self, e: Expr) -> Expr:
        if isinstance(e, Const):
            return e
        return self.given.setdefault(e, Axis(f"{self.name}.{len(self.given)}", 1))

    def named(self, e: Expr, own: frozenset[Axis]) -> Expr:
        """Replace index expressions that do not depend on own axes by handles."""
        if isinstance(e, Const):
            return e
        if id(e) not in self.done:
            self.done[id(e)] = (e, self._named(e, own))
        return self.done[id(e)][1]

    def _named(self, e: Expr, own: frozenset[Axis]) -> Expr:
        if e.dtype == INDEX and not isinstance(e, Index):
            return self.index(e, own)
        match e:
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self.named(body, own | set(axes)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(self.named(x, own) for x in args), dtype)
            case Load(t, index, dtype):
                return Load(t, tuple(self.named(x, own) for x in index), dtype)
            case Index(element, bound):
                return Index(self.named(element, own), self.named(bound, own))
        return e

    def index(self, e: Expr, own: frozenset[Axis]) -> Expr:
        if not axes_of(e) & own:
            return self.axis(e)
        if isinstance(e, Axis):
            return e
        if not isinstance(e, Apply):  # an element of a tensor of indices
            raise TypeError(f"{type(e).__name__} {e}")
        if e.fn not in ("add", "mul"):
            return Apply(e.fn, tuple(self.named(x, own) for x in e.args), e.dtype)
        outer: ix.Poly = {}
        inner: Expr = Const(0, INDEX)
        for atoms, c in ix.polynomial(e).items():
            if atoms and not any(axes_of(a) & own for a in atoms):
                outer[atoms] = c
            else:
                term: Expr = Const(c, INDEX)
                for a in atoms:
                    term = ix.as_index(term * self.named(a, own))
                inner = ix.as_index(inner + term)
        return ix.as_index(self.axis(ix.from_polynomial(outer)) + inner) if outer else inner


def _put(e: Expr, at: dict[Axis, Expr], done: Done) -> Expr:
    """Substitute indices for axes without simplification."""
    if isinstance(e, Axis):
        return at.get(e, e)
    if id(e) not in done:
        done[id(e)] = (e, _placed(e, at, done))
    return done[id(e)][1]


def _placed(e: Expr, at: dict[Axis, Expr], done: Done) -> Expr:
    match e:
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_put(x, at, done) for x in args), dtype)
        case Load(t, index, dtype):
            return Load(t, tuple(_put(x, at, done) for x in index), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _put(body, at, done), dtype)
        case Index(element, bound):
            return Index(_put(element, at, done), _put(bound, at, done))
    return e
