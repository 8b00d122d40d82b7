"""The problem that a kernel solves, and the choice of how it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from math import prod
from typing import Self, TypeVar, cast

import numpy as np

from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import Schedule
from superopt.kernels.loops.substitution import AlgorithmForm
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

MAX_STRASSEN_LEVELS = 2  # of Strassen's recursion
MAX_WINOGRAD_TILE = 4  # outputs along a side
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Problem:
    """A tensor to compute from others in memory, their layouts, and which are constant. width:
    bytes of a vector. row_axes: for row kernels with stages, the number of axes that select a row;
    else 0. allow_winograd: of other rounding. max_winograd_tile: limit on the sides of its tiles;
    filters of larger ones take more memory. strassen_levels: limit on Strassen's recursion, which
    also enlarges constants. allow_dilated_winograd: of other rounding, too. processor: whose costs
    decide. stores_half: floats are stored as fp16 or bf16 on request (triton/narrow_stores.py).
    is_example: at the example sizes of a symbolic problem, which is solved alike. threads: that
    share the kernel. bf16_instructions: products may be of bfloat16, with sums of float32, by these
    instructions (llvm/dot_products/products.py); empty: none may. integer_instructions: of products
    of uint8 and int8. sum_limit: the largest absolute value of sums of these, if the constants are
    known; 0 if they are not. matches: what recognisers found (`remember_match`)."""

    tensor: Tensor
    layouts: Mapping[Tensor, Layout | ScatteredLayout]
    constants: Collection[Tensor]
    width: int
    row_axes: int = 0
    allow_winograd: bool = True
    strassen_levels: int = MAX_STRASSEN_LEVELS
    allow_dilated_winograd: bool = True
    processor: Processor = ZEN5
    stores_half: bool = False
    is_example: bool = False
    threads: int = 1
    max_winograd_tile: int = MAX_WINOGRAD_TILE
    bf16_instructions: str = ""
    integer_instructions: str = ""
    sum_limit: int = 0
    matches: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def lanes(self) -> int:
        """The lanes of a vector of the result, or of the wider sums of products in it."""
        sums = [r.dtype.bits for r in reductions(self.tensor.body) if _is_product(r.body)]
        bits = max(self.tensor.dtype.bits, *sums, 1)
        return max(self.width * 8 // bits, 1)

    @property
    def multiply_lanes(self) -> int:
        """The lanes of a vector that are multiplied at a time."""
        return max(self.lanes // 2, 1) if self.processor.splits_vectors else self.lanes

    def features(self) -> tuple[int, ...]:
        """Return the features a problem's time mostly depends on: elements of the result, terms of
        each sum, bytes of constants and of other operands, extents of the result's last two axes in
        memory order, and the bytes of a vector."""
        t = self.tensor
        sums = reductions(t.body)
        terms = prod(a.size for a in sums[0].axes) if sums else 1
        read = dict.fromkeys(x.tensor for x in loads(t.body)) if t.body is not None else {}
        fixed = sum(_buffer_bytes(x) for x in read if x in self.constants)
        other = sum(_buffer_bytes(x) for x in read if x not in self.constants)
        order = [t.axes[p.axis].size for p in effective_layout(self.layouts.get(t), t.rank).parts]
        last = [1, 1, *order][-2:]
        return (prod(a.size for a in t.axes), terms, fixed, other, *last, self.width)


def remember_match(recognise: Callable[[Problem], Found]) -> Callable[[Problem], Found]:
    """Return the recogniser; it runs once for each problem, though several algorithms call it."""

    name = f"{recognise.__module__}.{recognise.__qualname__}"

    @wraps(recognise)
    def recall(p: Problem) -> Found:
        if name not in p.matches:
            p.matches[name] = recognise(p)
        return cast(Found, p.matches[name])

    return recall


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel computes a tensor.

    root: the tensor that is computed instead, with `layout` if it differs. packed: constants in
    reading order. derived_constants: constants computed from others. producers: tensors computed by
    kernels before, with the buffers they are read from. kernels: of tensors without a schedule:
    calls of a vendor's library, and loops that no schedule expresses. in_place: row stages may be
    stored in the result (in_place_stages.py). programs, instructions: see Kernel. restage: returns,
    of the problem's tensor at any sizes, what is computed instead by other stages, with its
    schedules.
    """

    option: Option
    root: Tensor
    schedules: Mapping[Tensor, Schedule] = field(default_factory=dict)
    packed: tuple[Tensor, ...] = ()
    layout: ScatteredLayout | None = None
    tables: Mapping[Tensor, np.ndarray] = field(default_factory=dict)
    producers: tuple[tuple[Tensor, Tensor], ...] = ()
    derived_constants: Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]] = field(
        default_factory=dict
    )
    kernels: Mapping[Tensor, Kernel] = field(default_factory=dict)
    in_place: bool = False
    programs: int = 0
    restage: Callable[[Tensor], tuple[Tensor, Mapping[Tensor, Schedule]]] | None = None
    instructions: str = ""

    @classmethod
    def of_form(
        cls, option: Option, form: AlgorithmForm, constant: Tensor,
        transform: Callable[[np.ndarray], np.ndarray],
    ) -> Self:  # fmt: skip
        """Return the choice of an algorithm's form, whose constant is transformed ahead of time."""
        made = {form.transformed_constant: (constant, transform)}
        return cls(
            option, form.root, form.schedules, (form.transformed_constant,), form.layout,
            form.tables, form.producers, made,
        )  # fmt: skip


def _buffer_bytes(t: Tensor) -> int:
    return prod(map(hint, t.sizes)) * max(t.dtype.bits // 8, 1)


def _is_product(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "mul"
