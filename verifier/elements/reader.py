"""Translate tensor expressions to normal forms: the proof is about the operators' own
definitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from superopt.ops.shared.precision import NARROWED
from superopt.te.expr.dtype import BOOL, F32, F64, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce, Size
from superopt.te.expr.tensor import Dim, Tensor, const
from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power
from superopt.verifier.elements.comparisons import equals_zero
from superopt.verifier.elements.conversions import ElementTypes
from superopt.verifier.elements.index_digits import split_bound_indices
from superopt.verifier.elements.index_functions import (
    Unreadable as Unreadable,
)
from superopt.verifier.elements.index_functions import (
    index_function,
    tighten_equality,
)
from superopt.verifier.elements.integer_functions import compare_elements, integer_function
from superopt.verifier.elements.integers import as_poly
from superopt.verifier.elements.maxima import max_over
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.products import product_over
from superopt.verifier.elements.scalars import apply_function, number_of
from superopt.verifier.elements.simplify import (
    is_inhabited_somewhere,
    multiply,
    outer_guard,
    restrict,
    sum_over,
)
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import Facts, Guard, eq, ge, negate
from superopt.verifier.poly.polynomial import Poly, Var

# Functions that are right modulo 2^bits: their identities over the reals hold in all number types.
RING_FUNCTIONS = frozenset(("add", "sub", "neg", "mul"))
AxisValues = Mapping[str, Poly]  # the indices of the axes of a tensor and of reductions, by name


@dataclass(slots=True)
class Reader:
    """Reads elements; one of an integer type as a form that is congruent to it, see `overflow`.
    min_sizes: lower bounds of symbols. out_of_bounds: reads not shown to be in bounds;
    reads_checked: their total. is_type_dependent: True if the number type matters.
    representative_types: types that stand for others."""

    context: ProofContext
    min_sizes: Mapping[str, int]
    memo: dict[object, NF] = field(default_factory=dict)
    out_of_bounds: list[str] = field(default_factory=list)
    reads_checked: int = 0
    is_type_dependent: bool = False
    representative_types: frozenset[DType] = frozenset()
    size_roots: Mapping[str, Expr] = field(default_factory=dict)  # sizes n, by names of 1 / sqrt(n)
    # keeps alive the tensors whose identities are keys
    kept_alive: list[Tensor] = field(default_factory=list)
    size_facts: Facts = field(init=False)  # about sizes
    types: ElementTypes = field(init=False)

    def __post_init__(self) -> None:
        self.size_facts = Facts(self.context)
        self.types = ElementTypes(self.context, self.representative_types)
        self.context.element_types.clear()
        self.context.index_elements.clear()

    def dim(self, d: Dim, axis_values: AxisValues | None = None) -> Poly:
        if isinstance(d, int):
            return polynomial.const(self.context, d)
        if isinstance(d, Size):
            return self.size(d.name)
        return self.index(d, axis_values or {}, self.size_facts)

    def size(self, name: str) -> Poly:
        return polynomial.symbol(self.context, name, self.min_sizes.get(name, 1))

    def element(self, t: Tensor, index: tuple[Poly, ...], facts: Facts) -> NF:
        """Return the element of `t` at `index`."""
        index = self.check_bounds(t, index, facts)
        if t.body is None:
            self.types.record_input(t.name, t.dtype)
            one = power(normal.read(self.context, t.name, index))
            return power(normal.truth("is", one)) if t.dtype == BOOL else one
        key = (id(t), index, facts.hypotheses)
        found = self.memo.get(key)
        if found is None:
            self.kept_alive.append(t)
            places = {a.name: p for a, p in zip(t.axes, index, strict=True)}
            found = self.memo[key] = self.value(_body_over_reals(t, t.body), places, facts)
        return found

    def check_bounds(self, t: Tensor, index: tuple[Poly, ...], facts: Facts) -> tuple[Poly, ...]:
        """Record the axes along which `index` is not shown to be in bounds, and return the index
        with 0 along axes of one element."""
        for p, d in zip(index, t.shape, strict=True):
            self.reads_checked += 1
            n = self.dim(d)
            if len(p.terms) == 1:
                ((m, c),) = p.terms
                if c == 1 and len(m) == 1 and isinstance(m[0], polynomial.Var) and m[0].extent is n:
                    continue
            if not (facts.holds(ge(p)) and facts.holds(ge(n - 1 - p))):
                self.out_of_bounds.append(f"{t.name}[{p}] of {n} where {facts.hypotheses}")
        zero = polynomial.const(self.context, 0)
        return tuple(zero if d == 1 else p for p, d in zip(index, t.shape, strict=True))

    # --- indices ----------------------------------------------------------------------------------

    def index(self, e: Expr, axis_values: AxisValues, facts: Facts) -> Poly:
        match e:
            case Const(v):
                return polynomial.const(self.context, int(v))
            case Size(name):
                return self.size(name)
            case Axis(name, _):
                return axis_values[name]
            case Apply(fn, args, _):
                operands = [self.index(a, axis_values, facts) for a in args]
                if fn in ("floordiv", "mod") and not facts.holds(ge(operands[1] - 1)):
                    raise Unreadable(f"{e}: is {operands[1]} at least 1?")
                return index_function(fn, operands, facts)
            case Index(element, bound):
                at = self.exact_value(element, axis_values, facts)
                n = self.index(bound, axis_values, facts)
                known = as_poly(at, facts)
                if known is not None and facts.holds(ge(n - 1 - known)):
                    if facts.holds(ge(known)):
                        return known
                    if facts.holds(ge(known + n)) and facts.holds(ge(-known - 1)):
                        return known + n
                return polynomial.element_index(at, n)
            case _:
                raise Unreadable(f"index {e}")

    def index_guard(self, e: Expr, axis_values: AxisValues, facts: Facts) -> Guard | None:
        """Return a guard inside an element that is used as an index, else None."""
        match e:
            case Index(element, _):
                return outer_guard(self.value(element, axis_values, facts))
            case Apply(_, args, _):
                return next(
                    (g for a in args if (g := self.index_guard(a, axis_values, facts))), None
                )
            case _:
                return None

    def guard(self, e: Apply, axis_values: AxisValues, facts: Facts) -> Guard:
        a, b = (self.index(x, axis_values, facts) for x in e.args)
        match e.fn:
            case "lt":
                return tighten_equality(ge(b - a - 1))
            case "le":
                return tighten_equality(ge(b - a))
            case "eq":
                return tighten_equality(eq(b - a))
            case _:
                return negate(tighten_equality(eq(b - a)))

    # --- elements ---------------------------------------------------------------------------------

    def value(self, e: Expr, axis_values: AxisValues, facts: Facts) -> NF:
        if e.dtype == INDEX:
            return normal.from_poly(self.index(e, axis_values, facts))
        if e.dtype == BOOL:
            return self.truth_value(e, True, axis_values, facts)
        match e:
            case Const(v):
                return self.literal(v, facts)
            case Load(tensor, index, _):
                g = next((g for i in index if (g := self.index_guard(i, axis_values, facts))), None)
                if g is None:
                    return self.element(
                        tensor, tuple(self.index(i, axis_values, facts) for i in index), facts
                    )
                sides = [(s, facts.with_guards(s)) for s in (g, negate(g))]
                return normal.add(
                    *(restrict(self.value(e, axis_values, more), s, facts) for s, more in sides)
                )
            case Reduce(fn, axes, body, _):
                return self.reduce(fn, axes, body, axis_values, facts)
            case Apply("select", (guard, yes, no), kind):
                bounds = saturation_bounds(e)
                if bounds is not None and kind.is_float:
                    value = self.value(bounds[0], axis_values, facts)
                    low, high = (normal.constant(self.context, b) for b in bounds[1:])
                    inner = apply_function("min", [value, high], facts)
                    return apply_function("max", [inner, low], facts)
                return self.select(guard, yes, no, axis_values, facts)
            case Apply("cast", (x,), kind):
                self.is_type_dependent = True
                return self.types.convert(self.value(x, axis_values, facts), x.dtype, kind, facts)
            case Apply(fn, args, kind) if fn in RING_FUNCTIONS:
                operands = [self.value(a, axis_values, facts) for a in args]
                return apply_function(fn, operands, facts)
            case Apply(fn, args, kind):
                self.is_type_dependent = True
                forms = [self.value(a, axis_values, facts) for a in args]
                kinds = [a.dtype for a in args]
                operands = [
                    self.types.value(x, k, facts) for x, k in zip(forms, kinds, strict=True)
                ]
                if fn == "bitcast":  # what it gives depends on both types
                    fn = f"bitcast of {kinds[0]} to {kind}"
                found = self.types.integer_type(kind)
                if found is not None:
                    return integer_function(fn, operands, found, facts)
                if not kind.is_float:
                    raise Unreadable(f"{fn} of {kind}")
                return apply_function(fn, operands, facts)
            case _:
                raise Unreadable(str(e))

    def exact_value(self, e: Expr, axis_values: AxisValues, facts: Facts) -> NF:
        """Return the value of an element: of an integer that overflows, the one in range."""
        return self.types.value(self.value(e, axis_values, facts), e.dtype, facts)

    def literal(self, v: Number | bool, facts: Facts) -> NF:
        if isinstance(v, float) and not v.is_integer():
            self.is_type_dependent = True  # no integer equals it
        size = self.size_roots.get(self.context.unknowns.name(v) or "")
        if size is None:
            return number_of(self.context, v)
        n = normal.from_poly(self.index(size, {}, facts))
        root = apply_function("sqrt", [n], facts)
        return apply_function("div", [normal.constant(self.context, 1), root], facts)

    def reduce(
        self, fn: str, axes: tuple[Axis, ...], body: Expr, axis_values: AxisValues, facts: Facts
    ) -> NF:
        fresh = tuple(polynomial.fresh_var(self.dim(a.extent, axis_values)) for a in axes)
        inner = {
            **axis_values,
            **{a.name: polynomial.atom_poly(v) for a, v in zip(axes, fresh, strict=True)},
        }
        if fn in ("sum", "prod", "any", "all"):
            element = self.value(body, inner, facts)
        else:
            self.is_type_dependent = True
            element = self.extremum_element(fn, body, fresh, inner, facts)
        fresh, element = split_bound_indices(fresh, element)
        match fn:
            case "sum":
                return sum_over(element, fresh, facts)
            case "max" | "any":
                return max_over(element, fresh, facts)
            case "min":
                return normal.scale(max_over(normal.scale(element, -1), fresh, facts), -1)
            case "all":
                flipped = normal.subtract(normal.constant(facts.context, 1), element)
                return normal.subtract(
                    normal.constant(facts.context, 1), max_over(flipped, fresh, facts)
                )
            case _:
                return product_over(element, fresh, facts)

    def extremum_element(
        self, fn: str, body: Expr, bound: tuple[Var, ...], axis_values: AxisValues, facts: Facts
    ) -> NF:
        """Return the value of an element of a maximum or minimum. Padding by the least or greatest
        integer of a type is as padding by an infinity if some element is not padding."""
        match body:
            case Apply("select", (guard, yes, Const(v)), kind) if kind.is_int:
                found = self.types.integer_type(kind)
                assert found is not None
                if found.bits and v == (found.low if fn == "max" else found.high):
                    condition = self.truth_value(guard, True, axis_values, facts)
                    if is_inhabited_somewhere(condition, bound, facts):
                        end = const(-math.inf if fn == "max" else math.inf, F32)
                        return self.select(guard, yes, end, axis_values, facts, exact=True)
            case _:
                pass
        return self.exact_value(body, axis_values, facts)

    def select(
        self,
        guard: Expr,
        yes: Expr,
        no: Expr,
        axis_values: AxisValues,
        facts: Facts,
        *,
        exact: bool = False,
    ) -> NF:
        """Return the choice; `exact`: of the values of integers."""
        read = self.exact_value if exact else self.value
        out: list[NF] = []
        for side, branch in ((True, yes), (False, no)):
            condition = self.truth_value(guard, side, axis_values, facts)
            if isinstance(branch, Const) and branch.value == 0:
                continue
            for t in condition.terms:
                more = facts.with_guards(*t.guards)
                element = read(branch, axis_values, more)
                if t.powers or t.coefficient != 1:
                    plain = Term(t.coefficient, (), frozenset(), t.powers)
                    element = multiply(normal.from_terms(facts.context, (plain,)), element, more)
                for g in sorted(t.guards):
                    element = restrict(element, g, facts)
                out.append(element)
        return normal.add_all(facts.context, out)

    def truth_value(self, e: Expr, expected: bool, axis_values: AxisValues, facts: Facts) -> NF:
        """Return 1 where the bool `e` is `expected`, else 0; guards on indices stay guards."""
        match e:
            case Const(v):
                return normal.constant(facts.context, int(bool(v) == expected))
            case Apply("lt" | "le" | "eq" | "ne", (a, _), _) if a.dtype == INDEX:
                g = self.guard(e, axis_values, facts)
                return restrict(
                    normal.constant(facts.context, 1), g if expected else negate(g), facts
                )
            case Apply("lt" | "le" | "eq" | "ne" as fn, (a, b), _):
                self.is_type_dependent = True
                read = self.exact_value if fn in ("lt", "le") else self.value
                x, y = read(a, axis_values, facts), read(b, axis_values, facts)
                out = compare_elements(fn, x, y, self.types.integer_type(a.dtype), facts)
                expected = expected == (fn in ("lt", "eq"))
            case Apply("not", (a,), _):
                return self.truth_value(a, not expected, axis_values, facts)
            case Apply("and" | "or" as fn, (a, b), _):
                first = expected == (fn == "and")  # both must be `expected`
                x = self.truth_value(a, expected, axis_values, facts)
                y = self.truth_value(b, expected, axis_values, facts)
                if first:
                    return multiply(x, y, facts)
                other = self.truth_value(a, not expected, axis_values, facts)
                return normal.add(x, multiply(other, y, facts))
            case Apply("isnan" | "isinf", _, _):
                return normal.constant(facts.context, int(not expected))
            case Apply("xor", (a, b), _):
                x, y = (
                    self.truth_value(a, True, axis_values, facts),
                    self.truth_value(b, True, axis_values, facts),
                )
                out = normal.subtract(normal.add(x, y), normal.scale(multiply(x, y, facts), 2))
            case Apply("select", (guard, yes, no), _):
                out = self.select(guard, yes, no, axis_values, facts)
            case Load(tensor, index, _):
                at = tuple(self.index(i, axis_values, facts) for i in index)
                out = self.element(tensor, at, facts)
            case Reduce(fn, axes, body, _):
                out = self.reduce(fn, axes, body, axis_values, facts)
            case Apply("cast", (x,), _):
                out = normal.subtract(
                    normal.constant(facts.context, 1),
                    equals_zero(self.exact_value(x, axis_values, facts), facts),
                )
            case _:
                raise Unreadable(str(e))
        return out if expected else normal.subtract(normal.constant(facts.context, 1), out)


def saturation_bounds(e: Apply) -> tuple[Expr, int, int] | None:
    """Return x, low and high of select(low < x, min(x, high), low), which is min(x, high), but at
    least low."""
    match e.args:
        case (
            Apply("lt", (Const(int() as a), x)),
            Apply("min", (y, Const(int() as high))),
            Const(int() as low),
        ) if x == y and a == low <= high:
            return x, low, high
        case _:
            return None


def _body_over_reals(t: Tensor, body: Expr) -> Expr:
    """Return the body of a tensor without the rounding of an operator's float64 sums to the type of
    its result, which is the identity over the reals; a Cast of the model is none."""
    match body:
        case Apply("cast", (x,), kind) if t.name == NARROWED and (x.dtype, kind) == (F64, F32):
            return x
    return body
