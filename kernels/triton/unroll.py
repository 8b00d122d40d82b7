"""Unroll loops before Triton text is printed: those whose iterations each have a tile of their own,
and unrolled ones inside these. Triton has no arrays of registers: each iteration's tile is a
variable, and a load that several iterations share is done once.

    for i < 2 unroll                       a_0[v] = 0
      a[i, v] = 0                     =>   a_1[v] = 0
    ...                                    ...
    for i < 2 unroll                       a_0[v] sum= x[0, v]
      for k < 2 unroll                     a_0[v] sum= x[1, v]
        a[i, v] sum= x[i + k, v]           a_1[v] sum= x[1, v]
                                           a_1[v] sum= x[2, v]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from superopt.kernels.loops.tile import For, Stmt, Store, Update
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

Scratch = tuple[tuple[Tensor, str], ...]


def unroll_loops(body: Sequence[Stmt], scratch: Scratch) -> tuple[tuple[Stmt, ...], Scratch]:
    """Return the statements without such loops, and the buffers, some of which are split."""
    apart = _split_buffers(body, {t for t, _ in scratch})
    if not apart:
        return tuple(body), scratch
    w = _Unroller(apart)
    new = tuple(w.body(body, {}))
    parts: dict[Tensor, list[Tensor]] = {}
    for (t, _), part in w.parts.items():
        parts.setdefault(t, []).append(part)
    return new, tuple((p, scope) for t, scope in scratch for p in parts.get(t, [t]))


def _split_buffers(body: Sequence[Stmt], scratch: set[Tensor]) -> set[Tensor]:
    """Return the buffers whose first index is an unrolled loop's axis at all uses."""
    counted: set[Tensor] = set()
    otherwise: set[Tensor] = set()

    def look(body: Sequence[Stmt], loops: frozenset[Axis]) -> None:
        for s in body:
            if isinstance(s, For):
                look(s.body, loops | {s.axis} if s.kind == "unroll" else loops)
                continue
            own = Load(s.buffer, s.index, s.buffer.dtype)
            for x in (own, *loads(own), *loads(s.value)):
                first = x.index[0] if x.index else None
                (counted if first in loops else otherwise).add(x.tensor)

    look(body, frozenset())
    return (counted - otherwise) & scratch


def _is_sum_block(s: For) -> bool:
    """True if it is a block of a sum, whose terms are taken together (codegen.py)."""
    is_long = hint(s.axis.size) >= MIN_DOT_EXTENT
    return is_long and len(s.body) == 1 and isinstance(s.body[0], Update)


@dataclass(slots=True)
class _Unroller:
    """split_buffers: those with a part for each iteration; parts: these, by iteration."""

    split_buffers: set[Tensor]
    parts: dict[tuple[Tensor, int], Tensor] = field(default_factory=dict)

    def body(self, body: Sequence[Stmt], env: Mapping[Axis, Expr]) -> Iterator[Stmt]:
        for s in body:
            match s:
                case For(axis, inner, "unroll") if (
                    env and not _is_sum_block(s)
                ) or self.indexes_parts(s):
                    assert isinstance(axis.extent, int)
                    for n in range(axis.extent):
                        yield from self.body(inner, {**env, axis: Const(n, axis.dtype)})
                case For(_, inner):
                    until = None if s.until is None else self.substitute(s.until, env)
                    yield replace(s, body=tuple(self.body(inner, env)), until=until)
                case Store() | Update():
                    at = self.substitute(Load(s.buffer, s.index, s.buffer.dtype), env)
                    assert isinstance(at, Load)
                    value = self.substitute(s.value, env)
                    ends = tuple((self.substitute(i, env), n) for i, n in s.limits)
                    yield replace(s, buffer=at.tensor, index=at.index, value=value, limits=ends)

    def indexes_parts(self, s: For) -> bool:
        """True if the loop's axis indexes parts of a split buffer."""
        for x in s.body:
            if isinstance(x, For):
                if self.indexes_parts(replace(s, body=x.body)):
                    return True
                continue
            own = Load(x.buffer, x.index, x.buffer.dtype)
            for y in (own, *loads(x.value)):
                if y.tensor in self.split_buffers and y.index[0] == s.axis:
                    return True
        return False

    def substitute(self, e: Expr, env: Mapping[Axis, Expr]) -> Expr:
        return self.load_parts(substitute_axes(e, env)) if env else e

    def load_parts(self, e: Expr) -> Expr:
        """Return `e` reading parts in place of split buffers."""
        match e:
            case Load(t, (Const(n), *rest), dtype) if t in self.split_buffers:
                key = t, int(n)
                if key not in self.parts:
                    self.parts[key] = Tensor(f"{t.name}_{n}", t.dtype, t.shape[1:])
                return Load(self.parts[key], tuple(rest), dtype)
            case Load(t, at, dtype):
                return Load(t, tuple(map(self.load_parts, at)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(self.load_parts, args)), dtype)
            case Index(element, bound):
                return Index(self.load_parts(element), bound)
        return e
