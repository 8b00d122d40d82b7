"""Choose the element type of each tensor in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import ml_dtypes
import numpy as np

from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.plan.lowering.kernel_stages import kernel_stages
from superopt.plan.program.buffer_reads import narrowed_loader
from superopt.plan.program.target import Target
from superopt.te.analysis.walk import is_window_load, loads, reductions, subexpressions
from superopt.te.expr.dtype import F32, DType, to_numpy
from superopt.te.expr.node import Apply, Const, Expr, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

PERIODIC_FUNCTIONS = ("sin", "cos", "tan")
DISCONTINUOUS_FUNCTIONS = ("eq", "ne", "lt", "le", "floor", "ceil", "round", "sign", "mod", "fmod")
MIN_REDUCTION_RATIO = 8  # elements that are reduced to one
MAX_INSPECTED_ELEMENTS = 1 << 22  # elements of a constant whose values are inspected, at most
MAX_ORDINARY_MAGNITUDE = 64  # bound of scores and of a bias


@dataclass(slots=True)
class StorageTypes:
    """The element types of a program's tensors in memory, as its target stores them. Results and
    constants are narrowed. Outputs and what a kernel choice adds are not, nor are `partial_sums`,
    which may be small beside the terms that are added to them."""

    target: Target
    tensors: GraphTensors
    current: Mapping[Tensor, Tensor]
    outputs: Collection[Tensor]
    partial_sums: Collection[Tensor] = ()
    owner: dict[Tensor, Tensor] = field(init=False)
    full_precision: set[Tensor] = field(init=False)
    exact_constants: set[Tensor] = field(init=False)
    narrowed: dict[Tensor, Tensor] = field(default_factory=dict)
    magnitudes: dict[Tensor, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.tensors.parts.items()
        self.owner = {x.tensor: whole for whole, some in parts for x in some}
        aim = self.target
        few = aim.storage_dtype is not None or bool(aim.dropped_bits)
        kinds = (
            self._periodic_arguments,
            self._reduced_values,
            self._out_of_range,
            self._masked_maxima,
            self._compared_integers,
        )
        self.full_precision = {*self.partial_sums}.union(*(some() for some in kinds if few))
        self.exact_constants = self._find_exact_constants() if few else set()

    def dtype_of(self, t: Tensor) -> DType:
        kind = self.target.storage_dtype
        return t.dtype if kind is None or not self._may_narrow(t) else kind

    def dropped_bits(self, t: Tensor) -> int:
        return self.target.dropped_bits if self._may_narrow(t) else 0

    def _may_narrow(self, t: Tensor) -> bool:
        t = self.owner.get(t, t)
        own = t in self.current or t in self.tensors.parts
        return t.dtype == F32 and t not in self.outputs and own and t not in self.full_precision

    def _stages(self, definition: Tensor) -> list[Tensor]:
        return kernel_stages(definition, self.current)

    def _periodic_arguments(self) -> set[Tensor]:
        """Return the arguments of sines, and what they are computed from up to a reduction: 16 bits
        do not resolve an angle of many turns, such as a position in a text."""
        left = [
            x.tensor
            for now in self.current.values()
            for s in self._stages(now)
            if s.body is not None
            for e in subexpressions(s.body)
            if isinstance(e, Apply) and e.fn in PERIODIC_FUNCTIONS
            for x in loads(e)
        ]
        found: set[Tensor] = set()
        while left:
            t = left.pop()
            t = self.owner.get(t, t)
            if t in found:
                continue
            found.add(t)
            own = [x.tensor for x in self.tensors.parts.get(t, ())] or [t]
            found |= set(own)
            bodies = [now.body for x in own if (now := self.current.get(x)) is not None]
            left += [x.tensor for b in bodies if b is not None and not reductions(b)
                     for x in loads(b)]  # fmt: skip
        return found

    def _reduced_values(self) -> set[Tensor]:
        """Return reductions of many numbers to one, such as the maximum of a row, and reductions
        that are combined with one of their operands somewhere, such as a mean that is subtracted:
        the combination uses the unrounded operand."""
        out: set[Tensor] = {*self.partial_sums}
        beside = {t: self._buffers_read(now) for t, now in self.current.items()}
        for t, now in self.current.items():
            some = [r for r in reductions(now.body) if not _is_sum_of_products(r)]
            read = [x.tensor for r in some for x in loads(r.body)]
            if (
                max(map(_element_count, read), default=0) >= MIN_REDUCTION_RATIO * _element_count(t)
                or out & set(read)
                or (
                    some
                    and any(
                        t in other and not beside[t].isdisjoint(other - {t})
                        for other in beside.values()
                    )
                )
            ):
                out.add(t)
        return out

    def _buffers_read(self, definition: Tensor) -> set[Tensor]:
        """Return the buffers that it reads; for copies, their sources."""
        out = set()
        for x in (
            x.tensor for s in self._stages(definition) if s.body is not None for x in loads(s.body)
        ):
            while (of := self.current.get(x)) is not None and isinstance(of.body, Load):
                x = of.body.tensor
            out.add(x)
        return out

    def _out_of_range(self) -> set[Tensor]:
        """Return the tensors with constants beyond the range of the storage type, such as additive
        masks."""
        most = self._max_finite()
        return {
            t for t, now in self.current.items() if now.body is not None
            for e in subexpressions(now.body)
            if isinstance(e, Const) and e.dtype.is_float and most < abs(float(e.value)) < inf
        }  # fmt: skip

    def _masked_maxima(self) -> set[Tensor]:
        """Return the operands of row maxima, as in a softmax, to which a possibly large number was
        added: a mask may exclude all of a row by a number beyond the storage type, and the maximum
        must not be an infinity then."""
        out = set()
        for now in self.current.values():
            some = ((s, r) for s in self._stages(now) for r in reductions(s.body) if r.fn == "max")
            of_rows = (
                x for s, r in some for x in loads(r.body) if not is_window_load(s.axes, r.axes, x)
            )
            for t in {x.tensor for x in of_rows}:
                while (of := self.current.get(t)) is not None and isinstance(of.body, Load):
                    t = of.body.tensor
                if of is not None and any(self._may_mask(x) for x in self._stages(of)):
                    out.add(t)
        return out

    def _compared_integers(self) -> set[Tensor]:
        """Return what is computed from integers only, such as positions from a mask, and is
        compared or cast to integers: 16 bits do not represent all of them. Sums of products are
        treated as other ones."""
        asked, out = self._compared_floats(), set[Tensor]()
        for t, now in self.current.items():  # producers come first
            if self.owner.get(t, t) not in asked or any(
                map(_is_sum_of_products, self._reductions(now))
            ):
                continue
            read = [x for x in self._buffers_read(now) if not _is_stage(x, self.current)]
            if read and all(x in out or self._is_integral(x) for x in read):
                out.add(t)
            whole = self.owner.get(t)
            if whole is not None and all(x.tensor in out for x in self.tensors.parts[whole]):
                out.add(whole)
        return out

    def _find_exact_constants(self) -> set[Tensor]:
        """Return the constants that decide comparisons or the size of angles, except as factors of
        sums of products: thresholds, and the frequencies that multiply positions. The search stops
        at tensors that are rounded in memory."""
        left: list[Expr] = [
            e for now in self.current.values() for s in self._stages(now)
            if s.body is not None for e in subexpressions(s.body)
            if isinstance(e, Apply) and (_is_discontinuous(e) or e.fn in PERIODIC_FUNCTIONS)
        ]  # fmt: skip
        seen, out = set[Tensor](), set[Tensor]()
        while left:
            e = left.pop()
            factors = {
                x.tensor for r in reductions(e) if _is_sum_of_products(r) for x in loads(r.body)
            }
            for t in {x.tensor for x in loads(e)} - factors - seen:
                seen.add(t)
                if t in self.tensors.constants:
                    out.add(t)
                elif t in self.full_precision or t in self.outputs or _is_stage(t, self.current):
                    of = [x.tensor for x in self.tensors.parts.get(t, ())] or [t]
                    bodies = [self.current.get(x, x).body for x in of]
                    left += [b for b in bodies if b is not None]
        return out

    def _compared_floats(self) -> set[Tensor]:
        """Return the floats that are compared or cast to integers, and what they are computed
        from."""
        left = [x.tensor for now in self.current.values() for s in self._stages(now)
                if s.body is not None for e in subexpressions(s.body)
                if isinstance(e, Apply) and _is_discontinuous(e) for x in loads(e)]  # fmt: skip
        found: set[Tensor] = set()
        while left:
            t = left.pop()
            if t in found or not t.dtype.is_float:
                continue
            found.add(t)
            for x in [x.tensor for x in self.tensors.parts.get(t, ())] or [t]:
                found.add(x)
                left += self._buffers_read(self.current[x]) if x in self.current else ()
        return found

    def _reductions(self, definition: Tensor) -> list[Reduce]:
        return [r for s in self._stages(definition) for r in reductions(s.body)]

    def _is_integral(self, x: Tensor) -> bool:
        """True for integers, integral floats, and single numbers."""
        if not x.dtype.is_float:
            return True
        if x not in self.tensors.constants or _element_count(x) > MAX_INSPECTED_ELEMENTS:
            return False
        array = self.tensors.constants[x]()
        return array.size == 1 or bool((array == np.rint(array)).all())

    def _may_mask(self, s: Tensor) -> bool:
        """True if it adds a tensor that is computed, given, or a constant of large numbers, beside
        which 16 bits do not resolve others."""
        assert s.body is not None
        sums = [
            e for e in subexpressions(s.body) if isinstance(e, Apply) and e.fn in ("add", "sub")
        ]
        terms = [a for e in sums if e.dtype.is_float for a in e.args if not reductions(a)]
        read = {x.tensor for a in terms for x in loads(a)}
        given = [x for x in read if x.body is None or x in self.current]
        known = self.tensors.constants
        return any(
            x not in known
            or _element_count(x) > MAX_INSPECTED_ELEMENTS
            or self._max_magnitude(x) > MAX_ORDINARY_MAGNITUDE
            for x in given
        )

    def _exceeds_range(self, x: Tensor, definition: Tensor) -> bool:
        """True if a constant that is not a factor of a product exceeds the range of the storage
        type."""
        return (
            _element_count(x) <= MAX_INSPECTED_ELEMENTS
            and not self._is_product_factor(x, definition)
            and self._max_magnitude(x) > self._max_finite()
        )

    def _max_magnitude(self, x: Tensor) -> float:
        """Return the largest finite magnitude of a constant."""
        if x not in self.magnitudes:
            array = self.tensors.constants[x]()
            self.magnitudes[x] = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
        return self.magnitudes[x]

    def _is_product_factor(self, x: Tensor, definition: Tensor) -> bool:
        """True if it is a factor of a sum of products."""
        sums = [
            r
            for s in self._stages(definition)
            for r in reductions(s.body)
            if _is_sum_of_products(r)
        ]
        return any(e.tensor is x for r in sums for e in loads(r.body))

    def _max_finite(self) -> float:
        """Return the largest number that stays finite when rounded."""
        found: Any = ml_dtypes.finfo  # which has no types
        kind = self.target.storage_dtype
        if kind is None:
            return float(found(np.float32).max) * (1 - 2.0 ** (self.target.dropped_bits - 23))
        return float(found(to_numpy(kind)).max)

    def narrowed_constants(self, t: Tensor, definition: Tensor) -> dict[Tensor, Tensor]:
        """Return the narrowed constants that are read for a tensor."""
        aim, known = self.target, self.tensors.constants
        few = (aim.storage_dtype is not None or aim.dropped_bits) and t not in self.full_precision
        inside = [
            x.tensor for s in self._stages(definition) if s.body is not None for x in loads(s.body)
        ]
        some = dict.fromkeys(inside) if few else ()
        read = [x for x in some if x in known and x.dtype == F32]
        read = [
            x
            for x in read
            if x not in self.exact_constants or self._is_product_factor(x, definition)
        ]
        read = [x for x in read if not self._exceeds_range(x, definition)]
        for x in read:
            if x not in self.narrowed:
                made = Tensor(
                    f"{x.name}_{aim.storage_dtype or 'short'}", aim.storage_dtype or F32, x.shape
                )
                known[made] = narrowed_loader(known[x], made.dtype, aim.dropped_bits)
                self.narrowed[x] = made
        return {x: self.narrowed[x] for x in read}


def _is_discontinuous(e: Apply) -> bool:
    """True if rounding an operand may change the result discontinuously."""
    return e.fn in DISCONTINUOUS_FUNCTIONS or (
        e.fn == "cast" and not e.dtype.is_float and any(x.dtype.is_float for x in e.args)
    )


def _is_stage(x: Tensor, current: Collection[Tensor]) -> bool:
    """True if it is computed inside of a kernel and not stored."""
    return x.body is not None and x not in current


def _is_sum_of_products(r: Reduce) -> bool:
    """True for a sum of products of buffers. Squares, as in variances, do not count."""
    match r.body:
        case Apply("mul", (x, y)):
            return x != y and any(loads(x)) and any(loads(y))
    return False


def _element_count(t: Tensor) -> int:
    return prod(map(hint, t.sizes))
