"""The proof of a rule on tensor expressions: both sides as tensors of symbolic sizes.

An expression variable is any tensor, read at the axes that it may depend on; `...` is one axis, and
each run of axes has one to three. Conditions on sizes are hypotheses, and so is what the functions
that conditions name promise of elements.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from superopt.rules.library.records import Scope
from superopt.rules.te.build import Builder, Lambda, Value, as_axis, as_dim, as_tuple
from superopt.rules.te.term import (
    AxisTerm,
    Call,
    Element,
    Fold,
    Run,
    Store,
    Term,
    TeRule,
    Tuple,
    Var,
    element_kinds,
    subterms,
)
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, DTYPES, F32, DType
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Load, Size
from superopt.te.expr.tensor import Tensor, apply, ravel, unravel
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader, Unreadable
from superopt.verifier.equality.element_equality import are_equal_elements
from superopt.verifier.poly.facts import Facts
from superopt.verifier.poly.polynomial import atom_poly, fresh_var
from superopt.verifier.prove import Limits
from superopt.verifier.verdict import Proved, Unknown

MAX_RUN = 3  # axes of a run


def prove_te_rule(rule: TeRule, limits: Limits | None = None) -> Proved | Unknown:
    """Prove that both sides of a rule are equal, element by element, for all sizes."""
    limit = limits or Limits()
    begin = time.thread_time()
    context = ProofContext.with_limits(limit.seconds, limit.work)

    def unknown(reason: str) -> Unknown:
        return Unknown(reason, time.thread_time() - begin)

    runs = _runs(rule)
    cases = checked = 0
    try:
        for counts in product(*runs.values()):
            if sum(counts) > MAX_RUN + 1:
                continue
            reads = _prove_case(rule, dict(zip(runs, counts, strict=True)), context)
            if isinstance(reads, str):
                return unknown(f"{reads} with runs of {counts} axes")
            cases, checked = cases + (reads > 0), checked + reads
    except OutOfTime:
        return unknown(f"{limit.seconds} seconds are over")
    except (Unreadable, Undefined) as e:
        return unknown(f"{type(e).__name__}: {e}")
    except RecursionError:
        return unknown("nested too deep")
    finally:
        context.close()
    if not cases:
        return unknown("no case")
    ranks = f"runs of up to {MAX_RUN} axes" if runs else "all ranks"
    scope = Scope(ranks, cases, (*ASSUMPTIONS, *sorted(context.scope_notes)))
    shown, seconds = checked + context.matched_sums, time.thread_time() - begin
    return Proved(scope, (), (), shown, context.queries, seconds, MAX_RUN)


ASSUMPTIONS = ("sizes from 1", "floats as real numbers, sizes without overflow")


def _runs(rule: TeRule) -> dict[str, range]:
    """Return how many axes each run of the left side may have."""
    out = {name: range(1, MAX_RUN + 1) for name, kind in rule.kinds.items() if kind == "run"}
    for t in (x for side in (rule.lhs, *rule.where) for x in subterms(side)):
        for a in t.axes if isinstance(t, Fold | Store) else ():
            if isinstance(a, AxisTerm) and a.is_run:
                least = int(len(t.axes) == 1) if isinstance(t, Fold) else 0
                out[a.name] = range(least, MAX_RUN + least)
    return out


def _axis_terms(*terms: Term) -> list[AxisTerm]:
    """Return the axes of the reductions and tensors in terms."""
    found = (a for t in terms for x in subterms(t) if isinstance(x, Fold | Store) for a in x.axes)
    return [a for a in found if isinstance(a, AxisTerm)]


def _prove_case(rule: TeRule, counts: dict[str, int], context: ProofContext) -> int | str:
    """Return the number of reads that are in bounds; what is not shown as text."""
    case = _Case(rule, counts)
    try:
        left, right = case.sides()
    except ValueError as e:  # of a tensor in memory without an axis of its element
        return str(e)
    if left.dtype != right.dtype:
        return f"{left.dtype} becomes {right.dtype}"
    if not case.is_possible:
        return 0
    reader = Reader(context, dict.fromkeys(case.naturals, 0))
    known = Facts(context)
    for h in case.hypotheses:
        known = known.with_guards(reader.guard(h, {}, known))
    if known.is_contradictory():
        return "the conditions contradict each other"
    reader.size_facts = known
    place = tuple(atom_poly(fresh_var(reader.dim(d), "i")) for d in left.shape)
    one, two = (reader.element(t, place, known) for t in (left, right))
    if reader.out_of_bounds:
        return f"may read outside: {reader.out_of_bounds[0]}"
    kind = reader.types.integer_type(left.dtype)
    equal = are_equal_elements(one, two, kind, known)
    return reader.reads_checked if equal else "not shown equal"


@dataclass(slots=True)
class _Case:
    """A rule with a number of axes for each run. naturals: the sizes that may be 0. is_possible:
    False if a condition excludes these numbers of axes."""

    rule: TeRule
    counts: dict[str, int]
    env: dict[str, Value] = field(default_factory=dict)
    hypotheses: list[Apply] = field(default_factory=list)
    naturals: list[str] = field(default_factory=list)
    is_possible: bool = True
    outer: tuple[Axis, ...] = (Axis("outer", Size("outer_size")),)

    def sides(self) -> tuple[Tensor, Tensor]:
        """Return both sides as tensors with the same axes."""
        for name, kind in self.rule.kinds.items():
            if kind in ("size", "nat", "int", "run"):
                self.env[name] = self.size(name, self.counts.get(name))
        self.bind_extents()
        for t in self.rule.where:
            self.assume_sizes(t)
        self.bind_axes()
        indices = self.bind_indices()
        for name, kind in self.rule.kinds.items():
            if kind == "order":  # which one does not matter: it is read at the same axes
                inner = (v for a in _axis_terms(self.rule.lhs) for v in as_tuple(self.env[a.name]))
                self.env[name] = (*inner, *self.outer)
        promised = {p: t for t in self.rule.where if (p := _promised_name(t)) is not None}
        for side in (self.rule.lhs, *promised.values(), self.rule.rhs):
            self.bind_variables(side, promised)
        lhs, rhs = self.rule.lhs, self.rule.rhs
        if isinstance(lhs, Fold) and isinstance(rhs, Fold) and lhs.fn == rhs.fn == "tensor":
            return self.same_elements(self.tensor(lhs), self.tensor(rhs))
        build = self.builder(is_left_side=True)
        for name, t in promised.items():  # of the left side by what is promised of it
            of = self.env[name]
            if isinstance(of, Lambda) and isinstance(t, Call):
                build.env[name] = Lambda(of.axes, self.builder().expr(t.args[1]))
        left, right = build.expr(lhs), self.builder().expr(rhs)
        axes = (*self.outer, *indices)
        shape = tuple(a.extent for a in axes)
        return (
            Tensor("left", left.dtype, shape, axes, left),
            Tensor("right", right.dtype, shape, axes, right),
        )

    def builder(self, is_left_side: bool = False) -> Builder:
        return Builder(dict(self.env), self.outer, lambda e: e, F32, is_left_side=is_left_side)

    def tensor(self, side: Fold) -> Tensor:
        build = self.builder()
        axes = build.new_axes(side.axes)
        body = build.expr(side.body)
        return Tensor("side", body.dtype, tuple(a.extent for a in axes), axes, body)

    def same_elements(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return the left side with the axes of the right one: both have the same elements in
        row-major order."""
        place = ravel(right.axes, right.shape)
        at = unravel(place, left.shape)
        read = Load(left, at, left.dtype)
        return Tensor("left", left.dtype, right.shape, right.axes, read), right

    def size(self, name: str, count: int | None) -> Value:
        """Return a symbolic size, or a run of them."""
        kind = self.rule.kinds.get(name)
        if kind == "int":  # any integer
            self.naturals += [f"{name}_above", f"{name}_below"]
            return apply("sub", Size(f"{name}_above"), Size(f"{name}_below"))
        if kind == "nat":
            self.naturals.append(name)
        return Size(name) if count is None else tuple(Size(f"{name}{n}") for n in range(count))

    def bind_extents(self) -> None:
        for a in _axis_terms(self.rule.lhs, *self.rule.where):
            if isinstance(a.extent, Var):
                count = self.counts[a.name] if a.is_run else None
                self.env.setdefault(a.extent.name, self.size(a.extent.name, count))

    def assume_sizes(self, t: Term) -> None:
        """Bind the names that a condition chooses, and keep conditions on sizes as hypotheses."""
        match t:
            case Call("in", (names, Var(_, args))) if args is not None:
                values = [v for a in args if (v := self.known(a)) is not None]
                runs = [len(v) for v in values if isinstance(v, tuple)]
                for x in names.items if isinstance(names, Tuple) else (names,):
                    if isinstance(x, Var) and self.is_size(x.name):
                        self.env[x.name] = self.size(
                            x.name, runs[0] if runs else self.counts.get(x.name)
                        )
            case Call("eq", (Var(name, None), whole)) if isinstance(
                self.env.get(name), Size | tuple
            ):
                self.env[name] = self.builder().value(whole)
            case Call("lt" | "le" | "eq" | "ne", sides) if not any(
                isinstance(x, Element) or self.known(x) is None for x in sides
            ):
                found = as_tuple(self.builder().value(t))
                self.hypotheses += [g for g in found if isinstance(g, Apply)]
                self.is_possible = self.is_possible and all(g is not False for g in found)

    def known(self, t: Term) -> Value | None:
        """Return the value of a term of sizes; None where it has other names."""
        names = [x for x in subterms(t) if isinstance(x, Var | Run)]
        if any(x.name not in self.env or (isinstance(x, Var) and x.args) for x in names):
            return None
        return self.builder().value(t)

    def is_size(self, name: str) -> bool:
        """True for a name in an index or extent, not an element."""
        return self.rule.kinds.get(name) in ("size", "int", "nat", "run") or any(
            isinstance(x, Var | Run) and x.name == name
            for side in (self.rule.lhs, self.rule.rhs)
            for t in subterms(side)
            for part in _index_terms(t)
            for x in subterms(part)
        )

    def bind_indices(self) -> list[Axis]:
        """Return axes for the variables that are indices of elements on the left side."""
        out: list[Axis] = []
        for t in subterms(self.rule.lhs):
            for i in t.index if isinstance(t, Element) else ():
                if isinstance(i, Var) and i.name not in self.env:
                    out.append(Axis(i.name, Size(f"{i.name}_size")))
                    self.env[i.name] = out[-1]
        return out

    def bind_variables(self, side: Term, promised: dict[str, Term]) -> None:
        """Bind the variables of elements to inputs, or to what conditions promise of them."""
        own_axes = {a.name for a in _axis_terms(side)}
        for t in subterms(side):
            if isinstance(t, Element) and t.tensor not in self.env:
                axes = [self.env[i.name] for i in t.index if isinstance(i, Var)]
                own = tuple(a for a in axes if isinstance(a, Axis))
                given = promised.get(t.tensor)
                body = None
                if isinstance(given, Call):
                    self.bind_variables(given.args[1], promised)
                    body = self.builder().expr(given.args[1])
                shape = tuple(a.extent for a in own)
                dtype = F32 if body is None else body.dtype
                self.env[t.tensor] = Tensor(
                    t.tensor, dtype, shape, () if body is None else own, body
                )
            if isinstance(t, Var) and t.name not in self.env.keys() | own_axes:
                self.env[t.name] = self.variable(t)

    def bind_axes(self) -> None:
        """Bind the axes of the left side."""
        for t in (x for side in (self.rule.lhs, *self.rule.where) for x in subterms(side)):
            if isinstance(t, Fold):
                build = self.builder()
                axes = build.new_axes(t.axes)
                self.env = build.env
                if t.fn in ("axes", "tensor"):
                    self.outer = axes if t.fn == "axes" else ()

    def variable(self, t: Var) -> Value:
        """Return an input that depends on the arguments, and on the axes of the result that are
        none of them."""
        kind = self.rule.kinds.get(t.name, "any")
        dtype = _element_type(kind)
        own: list[Axis] = []
        inside: set[str] = set()  # axes of the result that it depends on only through an argument
        for a in t.args or ():
            if isinstance(a, Call) and a.fn == "unravel":
                digits = self.builder().items(a.args[1:])
                own += (Axis(f"{t.name}_{n}", as_dim(d)) for n, d in enumerate(digits, len(own)))
            elif isinstance(a, Call):
                own.append(Axis(f"{t.name}_{len(own)}", self.extent(a)))
                inside |= {x.name for x in subterms(a) if isinstance(x, Var)}
            elif isinstance(a, Var | Run):
                own += map(as_axis, as_tuple(self.env[a.name]))
        outer = [] if kind == "number" else [a for a in self.outer if a.name not in inside]
        outer = [a for a in outer if a not in own]
        shape = tuple(a.extent for a in (*outer, *own))
        body = Load(Tensor(t.name, dtype, shape), (*outer, *own), dtype)
        return Lambda(tuple(own), body)

    def extent(self, t: Term) -> Dim:
        """Return the extent of an index that grows with each of its axes."""
        build = self.builder()
        for name, v in build.env.items():
            if isinstance(v, Axis):
                build.env[name] = te_index.dim(te_index.as_index(v.extent) - 1)
        last = build.value(t)
        assert isinstance(last, Expr)
        return te_index.dim(te_index.as_index(last + 1))


def _element_type(kind: str) -> DType:
    if kind == "bool":
        return BOOL
    return DTYPES.get(element_kinds(kind)[0], F32)


def _promised_name(t: Term) -> str | None:
    """Return the name of what a condition promises something of."""
    match t:
        case Call("eq", (Element(name, _), _)):
            return name
        case Call("eq", (Var(name, (_, *_)), _)):
            return name
    return None


def _index_terms(t: Term) -> Iterator[Term]:
    """Yield the terms that are indices or sizes in `t`."""
    match t:
        case Var(_, args) if args is not None:
            yield from args
        case Element(_, index):
            yield from index
        case Fold(_, axes, _) | Store(_, axes, _, _):
            yield from (a.extent for a in axes if isinstance(a, AxisTerm) and a.extent is not None)
            if isinstance(t, Store):
                yield from t.index or ()
        case Call("lt" | "le" | "eq", sides):
            yield from sides
