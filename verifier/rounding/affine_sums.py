"""Values of graphs as sums of scaled integers, with the scales as numbers.

    DequantizeLinear(x, s, z)                          s * x - s * z
    Conv(DequantizeLinear(x, s, z), DequantizeLinear(w, t, v)) + b
                                                       s * t * ConvInteger(x, w, z, v) + b

Tools fold scales, biases and normalization into constants that are rounded to float32, so that two
such sums are not equal as formulas. They are compared by their numbers: the difference over the
real numbers is at most sum(|c - c'| * |integer|) + |b - b'|. That a product of dequantized integers
is a scaled product of the integers is proved for each kind of product (`prove_equal`), for all
operands of its shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.op import Attr
from superopt.ir.stand_ins import numbered_input
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.verifier.compare.value_equality import prove_equal
from superopt.verifier.prove import Limits
from superopt.verifier.rounding.quantized_results import SELECTING
from superopt.verifier.rounding.scaled_integers import (
    ScaledIntegers,
    canonical_integers,
    match_integers,
    real_constant,
    single_zero,
    whole_integers,
)
from superopt.verifier.verdict import Proved

Value = ir_graph.Value
PRODUCTS = frozenset(("MatMul", "Gemm", "Conv"))
FLOAT64_MARGIN = 1e-12  # relative to terms, more than what float64 rounds
MAX_DEPTH = 64  # operators
LEMMA_LIMITS = Limits(seconds=5.0, work=100_000, has_exact_casts=True)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Real numbers in float64. size: the sum of the magnitudes of the terms that they are sums of,
    which their errors are relative to."""

    values: np.ndarray
    size: np.ndarray

    def __add__(self, other: Numbers) -> Numbers:
        return Numbers(self.values + other.values, self.size + other.size)

    def __mul__(self, by: np.ndarray) -> Numbers:
        return Numbers(self.values * by, self.size * np.abs(by))

    def distance(self, other: Numbers) -> np.ndarray:
        """Return a bound of the real numbers' difference."""
        margin = FLOAT64_MARGIN * (self.size + other.size)
        return np.asarray(np.abs(self.values - other.values) + margin)


def exact_numbers(values: np.ndarray) -> Numbers:
    return Numbers(values, np.abs(values))


ZERO = exact_numbers(np.zeros(()))


@dataclass(frozen=True, slots=True)
class AffineSum:
    """sum(coefficient * integer) + offset. terms: integer values of the graph; coefficients
    broadcast to the value's shape. selected: operators that select elements of the sum."""

    terms: dict[Value, Numbers]
    offset: Numbers
    selected: tuple[object, ...] = ()


@dataclass(slots=True)
class AffineReader:
    """Reads values as sums. lemmas: proofs about products, by both sides over stand-ins."""

    lemmas: dict[tuple[Value, ...], bool] = field(default_factory=dict)

    def read(self, v: Value | None, depth: int = MAX_DEPTH) -> AffineSum | None:
        """Return a float32 value as a sum; None for other values."""
        if v is None or not depth:
            return None
        if is_constant(v, {}):
            return AffineSum({}, exact_numbers(real_constant(v)))
        n = ir_graph.producer(v)
        if n is None or n.op.domain or v.type.dtype != F32 or v.type.shape is None:
            return None
        match n.op.name:
            case "DequantizeLinear" | "Cast":
                found = match_integers(v)
                return None if found is None else self.scaled_integers(found, depth)
            case "Add" | "Sub" | "Mul" | "Div":
                return self.arithmetic(n, depth)
            case "BatchNormalization":
                return self.normalization(n, depth)
            case name if name in PRODUCTS:
                return self.product(n)
            case "Slice" if (count := _leading_channels(n)) is not None:
                return self.first_channels(self.read(n.inputs[0], depth - 1), n, count)
            case _ if is_selection(n):
                return _select(n, self.read(n.inputs[0], depth - 1))
            case _:
                return None

    def scaled_integers(self, q: ScaledIntegers, depth: int) -> AffineSum | None:
        rank = len(q.x.type.shape or ())
        zero = _along(real_constant(q.zero), q.axis, rank)
        scale = np.ones(()) if q.scale is None else _along(real_constant(q.scale), q.axis, rank)
        n = ir_graph.producer(q.x)
        if n is not None and is_selection(n) and q.axis is None and n.inputs[0] is not None:
            x = _select(
                n, self.scaled_integers(whole_integers(n.inputs[0]), depth - 1) if depth else None
            )
            moved = None if x is None else _scale_sum(x, scale, False)
            return None if moved is None else _shift_sum(moved, -scale * zero)
        term = {canonical_integers(q.x): exact_numbers(scale)}
        return AffineSum(term, exact_numbers(-scale * zero))

    def arithmetic(self, n: ir_graph.Node, depth: int) -> AffineSum | None:
        a, b = (self.read(v, depth - 1) for v in n.inputs)
        if a is None or b is None:
            return None
        if n.op.name in ("Add", "Sub"):
            if n.op.name == "Add" and b.selected:
                a, b = b, a
            if b.selected or (a.selected and b.terms):
                return None
            if a.selected:
                shift = b.offset.values
                return _shift_sum(a, shift if n.op.name == "Add" else -shift)
            sign = np.asarray(1.0 if n.op.name == "Add" else -1.0)
            terms = dict(a.terms)
            for x, c in b.terms.items():
                terms[x] = terms.get(x, ZERO) + c * sign
            return AffineSum(terms, a.offset + b.offset * sign)
        if n.op.name == "Mul" and b.terms:
            a, b = b, a
        return None if b.terms else _scale_sum(a, b.offset.values, n.op.name == "Div")

    def normalization(self, n: ir_graph.Node, depth: int) -> AffineSum | None:
        x, *known = n.inputs
        a, epsilon = self.read(x, depth - 1), n.attr("epsilon")
        given = [v for v in known if v is not None and is_constant(v, {})]
        if a is None or len(given) != 4 or len(n.types) != 1 or not isinstance(epsilon, float):
            return None
        after = len(n.type.shape or ()) - 2
        scale, bias, mean, variance = (real_constant(v).reshape(-1, *(1,) * after) for v in given)
        factor = scale / np.sqrt(variance + float(np.float32(epsilon)))
        out = None if a.selected else _scale_sum(a, factor, False)
        if out is None:
            return None
        shift = Numbers(bias - mean * factor, np.abs(bias) + np.abs(mean * factor))
        return AffineSum(out.terms, out.offset + shift)

    def product(self, n: ir_graph.Node) -> AffineSum | None:
        """Return a product of scaled integers as one of the integers."""
        x, w = map(match_integers, n.inputs[:2])
        bias = n.inputs[2] if len(n.inputs) > 2 else None
        columns = _columns_axis(n)
        if x is None or w is None or x.axis is not None or columns is None:
            return None
        if w.axis not in (None, columns) or (bias is not None and not is_constant(bias, {})):
            return None
        after = len(n.type.shape or ()) - 2 if n.op.name == "Conv" else 0
        whole = _integer_product(n, x, w, columns)
        if whole is None or not self.is_proved(n, x, w, bias, whole, after):
            return None
        scale = np.ones(())
        for q in (x, w):
            scale = scale * (np.ones(()) if q.scale is None else real_constant(q.scale))
        offset = np.zeros(()) if bias is None else real_constant(bias)
        term = {canonical_integers(whole): exact_numbers(_in_front_of(scale, after))}
        return AffineSum(term, exact_numbers(_in_front_of(offset, after)))

    def first_channels(self, a: AffineSum | None, n: ir_graph.Node, count: int) -> AffineSum | None:
        """Return the first channels of a sum: of convolutions, by the first filters."""
        if a is None or a.selected:
            return None
        rank, terms = len(n.type.shape or ()), dict[Value, Numbers]()
        for x, c in a.terms.items():
            cut = self.convolution_channels(x, n, count)
            if cut is None:
                return None
            terms[cut] = _cut_channels(c, rank, count)
        return AffineSum(terms, _cut_channels(a.offset, rank, count))

    def convolution_channels(self, x: Value, n: ir_graph.Node, count: int) -> Value | None:
        """Return a convolution by its first filters, which the prover shows to be its first
        channels; None for other values."""
        p = ir_graph.producer(x)
        if p is None or p.op.name != "ConvInteger" or p.attr("group") != 1:
            return None
        image, filters, *zeros = p.inputs
        if filters is None or any(z is None or z.type.shape != () for z in zeros):
            return None
        attrs = dict(p.attrs)
        first = ir_graph.node(OPS["Slice"], [filters], axes=(0,), starts=(0,), ends=(count,))
        fewer = ir_graph.node(p.op, [image, first, *zeros], **attrs)
        moved = ir_graph.node(OPS["Slice"], [x], **dict(n.attrs))
        change: dict[Value, Value] = {filters: numbered_input(1, filters.type, "operand")}
        if image is not None:
            change[image] = numbered_input(0, image.type, "operand")
        one, other = replace_all(ir_graph.Graph((), (moved, fewer)), change).outputs
        return canonical_integers(fewer) if self.is_lemma(one, other) else None

    def is_proved(
        self,
        n: ir_graph.Node,
        x: ScaledIntegers,
        w: ScaledIntegers,
        bias: Value | None,
        whole: ir_graph.Node,
        after: int,
    ) -> bool:
        """True if the prover shows that a product is the scaled product of the integers, for all
        operands of these types."""
        scaled: Value = ir_graph.node(OPS["Cast"], [whole], to=F32)
        scales = [q.scale for q in (x, w) if q.scale is not None]
        for s in scales:
            scaled = ir_graph.node(OPS["Mul"], [scaled, _reshape_along(s, after)])
        if bias is not None:
            scaled = ir_graph.node(OPS["Add"], [scaled, _reshape_along(bias, after)])
        given = (x.x, w.x, *scales, bias)
        change: dict[Value, Value] = {}
        for k, v in enumerate(given):
            if v is not None and v not in change:
                change[v] = numbered_input(k, v.type, "operand")
        one, other = replace_all(ir_graph.Graph((), (n, scaled)), change).outputs
        return self.is_lemma(one, other)

    def is_lemma(self, one: Value, other: Value) -> bool:
        """True if the prover shows two values over stand-ins equal."""
        if (one, other) not in self.lemmas:
            found = prove_equal(one, other, (), LEMMA_LIMITS)
            self.lemmas[one, other] = isinstance(found, Proved)
        return self.lemmas[one, other]


def is_selection(n: ir_graph.Node) -> bool:
    """True if the result has elements of the first operand, moved, or the largest or the average of
    some: what commutes with a positive factor and a number that is added."""
    moves = n.op.name in SELECTING or "data" in n.op.laws or _is_average(n)
    same = [v for v in n.inputs if v is not None and v.type.dtype == n.types[0].dtype]
    return moves and len(n.types) == 1 and not n.op.domain and len(same) == 1


def _is_average(n: ir_graph.Node) -> bool:
    """True for an average of elements of each channel, without padding."""
    if n.op.name == "AveragePool":
        pads = n.attr("pads")
        plain = n.attr("auto_pad") in ("NOTSET", "VALID") and not n.attr("ceil_mode")
        return plain and not (isinstance(pads, tuple) and any(pads))
    return n.op.name == "GlobalAveragePool"


def _select(n: ir_graph.Node, a: AffineSum | None) -> AffineSum | None:
    """Return what an operator selects of a sum; None if it moves elements of other coefficients."""
    if a is None:
        return None
    every = (a.offset, *a.terms.values())
    by_channel = n.op.name in SELECTING or _is_average(n)
    if not by_channel and any(c.values.size > 1 for c in every):
        return None
    return replace(a, selected=(*a.selected, (n.op, n.attrs, n.inputs[1:])))


def _shift_sum(a: AffineSum, by: np.ndarray) -> AffineSum | None:
    """Return a sum of which elements are selected, plus one number."""
    return replace(a, offset=a.offset + exact_numbers(by)) if by.size == 1 else None


def _leading_channels(n: ir_graph.Node) -> int | None:
    """Return the number of channels of a Slice that takes the first ones."""
    x = n.inputs[0]
    before, after = (None if v is None else v.type.shape for v in (x, n))
    if before is None or after is None or len(n.inputs) > 1 or len(before) < 2:
        return None
    count = after[1]
    plain = ir_graph.node(OPS["Slice"], [x], axes=(1,), starts=(0,), ends=(count,))
    return count if plain is n and isinstance(count, int) else None


def _cut_channels(c: Numbers, rank: int, count: int) -> Numbers:
    """Return the numbers of the first channels, where there is one for each."""
    axis = c.values.ndim - rank + 1
    if axis < 0 or c.values.shape[axis] == 1:
        return c
    every = (slice(None),) * axis + (slice(count),)
    return Numbers(c.values[every], c.size[every] if c.size.ndim > axis else c.size)


def _integer_product(
    n: ir_graph.Node, x: ScaledIntegers, w: ScaledIntegers, columns: int
) -> ir_graph.Node | None:
    """Return the product of the integers, None if the zero points are of no type that it has."""
    zeros = (single_zero(x.zero), single_zero(w.zero))
    if zeros[0].type.shape != ():
        return None
    if n.op.name == "Conv":
        return ir_graph.node(OPS["ConvInteger"], [x.x, w.x, *zeros], **dict(n.attrs))
    right: Value = w.x
    if columns == 0:
        right = ir_graph.node(OPS["Transpose"], [w.x], perm=(1, 0))
    return ir_graph.node(OPS["MatMulInteger"], [x.x, right, *zeros])


def _columns_axis(n: ir_graph.Node) -> int | None:
    """Return the axis of the second operand that is one of the result's; None if the product has
    no integer form."""
    x, w = n.inputs[:2]
    assert x is not None
    assert w is not None
    rank = len(w.type.shape or ())
    match n.op.name:
        case "MatMul":
            return 1 if rank == 2 and len(x.type.shape or ()) > 1 else None
        case "Gemm":
            plain = n.attr("alpha") == 1 and n.attr("beta") == 1 and not n.attr("transA")
            return None if not plain else 0 if n.attr("transB") else 1
        case _:
            return 0


def _scale_sum(a: AffineSum, by: np.ndarray, divides: bool) -> AffineSum | None:
    if (divides and (by == 0).any()) or (a.selected and (by.size > 1 or (by <= 0).any())):
        return None
    by = 1.0 / by if divides else by
    return replace(a, terms={x: c * by for x, c in a.terms.items()}, offset=a.offset * by)


def _along(values: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    """Return numbers along an axis of a tensor of this rank; single ones as they are."""
    if axis is None or values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *(1,) * (rank - 1 - axis))


def _in_front_of(values: np.ndarray, after: int) -> np.ndarray:
    if values.size == 1:
        return values.reshape(())
    return values.reshape(*values.shape, *(1,) * after)


def _reshape_along(v: Value, after: int) -> Value:
    """Return numbers along an axis so that they broadcast over so many axes behind it."""
    shape = v.type.shape or ()
    if shape in ((), (1,)):
        attrs: dict[str, Attr] = {"shape": ()}
    elif after and len(shape) == 1:
        attrs = {"shape": (*shape, *(1,) * after)}
    else:
        return v
    return v if shape == () else ir_graph.node(OPS["Reshape"], [v], **attrs)
