"""Matrix products by cuBLAS as candidates beside generated kernels, as convolutions are
(vendor_convolution.py).

The epilogue, if any, is a kernel of its own. Sums are in float32, and rounded to a 16-bit result
once more than in generated kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.gpu.blocks import (
    elements_per_program,
    elementwise_schedule,
    memory_order_axes,
    memory_stride,
)
from superopt.kernels.algorithms.gpu.gemm import DerivedConstants, transposed_constant
from superopt.kernels.algorithms.gpu.grouped_gemm import match_grouped
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, match_matrix_product
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.lower import buffer_view
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.substitution import replace_loads, scatter_layout
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.vendor import cublas
from superopt.te.expr.dtype import F32, DType
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

VENDOR = "vendor"  # the name of options, and a knob, of vendor libraries
VENDOR_FIRST_PRODUCTS = 2**33  # products from which the vendor's library is the unmeasured default


@remember_match
def recognise_vendor_gemm(p: Problem) -> MatrixProduct | None:
    """Match a product that cuBLAS computes."""
    m = match_matrix_product(p) if match_grouped(p) is None else None
    return m if m is not None and m.operand_bytes > 1 and _is_supported(p, m) else None


def vendor_gemm_options(p: Problem, m: MatrixProduct) -> list[Option]:
    """Return the only option."""
    return [Option.make(VENDOR)]


def predict_vendor_gemm(p: Problem, m: MatrixProduct) -> Prediction | None:
    """Return the option for a large product; it is not expected to pay for others."""
    return Prediction(Option.make(VENDOR)) if prod(m.sizes) >= VENDOR_FIRST_PRODUCTS else None


def _is_supported(p: Problem, m: MatrixProduct) -> bool:
    """True if it is the rows of a matrix in memory order times a constant."""
    a, b = m.contraction.a, m.contraction.b
    over = [x for x in m.reduction_axes if x.extent != 1]
    if (m.batch and any(x.extent != 1 for x in m.batch)) or b.tensor not in p.constants:
        return False
    found = reduction(p.tensor)
    if found is None or a.dtype != b.dtype or len(over) != 1:
        return False
    match found.body:
        case Apply("mul", (x, y)) if {without_widening(x), without_widening(y)} == {a, b}:
            pass
        case _:
            return False
    axes = [*(x for x in m.rows if x.extent != 1), *over]
    size = 1
    for x in reversed(axes):
        if memory_stride(a, x, p.layouts) != size:
            return False
        size *= x.size
    used = [i for i, n in zip(b.index, b.tensor.shape, strict=True) if n != 1]
    columns = [x for x in m.columns if x.extent != 1]
    whole = all(isinstance(i, Axis) and i.extent == n
                for i, n in zip(b.index, b.tensor.shape, strict=True) if n != 1)  # fmt: skip
    return whole and len(used) == len(set(used)) and set(used) == {*columns, *over}


def without_widening(e: Expr) -> Expr:
    """Return the operand of a widening cast to float32."""
    match e:
        case Apply("cast", (x,), dtype) if dtype == F32:
            return x
    return e


def schedule_vendor_gemm(p: Problem, m: MatrixProduct, option: Option) -> Choice:
    """Return the choice: the product, and its epilogue."""
    found = reduction(p.tensor)
    assert found is not None
    rows, columns, terms = m.sizes
    b = m.contraction.b
    order = (*m.reduction_axes, *m.columns)
    at = {i: d for d, i in enumerate(b.index) if isinstance(i, Axis)}
    shape = [n for n in b.tensor.shape if isinstance(n, int)]
    used = [at[x] for x in order if x.extent != 1]
    perm = [*used, *(d for d in range(len(shape)) if d not in used)]

    turned = transposed_constant(b.tensor, tuple(perm), (terms, columns))

    def make(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.reshape(shape).transpose(perm)).reshape(terms, columns)

    kind = m.contraction.a.dtype
    k, n = Axis("k", terms), Axis("n", columns)
    # the body only records what is read; cuBLAS computes it
    body = Reduce(
        "sum", (k,), Apply("mul", (m.contraction.a, Load(turned, (k, n), kind)), kind), kind
    )
    call = VendorCall(
        (m.contraction.a.tensor, turned), f"{cublas.CALL_NAME} {rows} {terms} {columns}"
    )
    made = {turned: (b.tensor, make)}
    return choice_with_epilogue(p, (*m.rows, *m.columns), found, body, call, made, option)


VENDOR_GEMM = Algorithm(
    (VENDOR,), "GEMM by cuBLAS", recognise_vendor_gemm, vendor_gemm_options, schedule_vendor_gemm,
    predict_vendor_gemm, uses_vendor_library=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VendorCall:
    """A vendor call: its operands, and the call (Kernel.library)."""

    reads: tuple[Tensor, Tensor]
    operation: str

    def kernel(self, result: Tensor, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> Kernel:
        """Return the call as a kernel that writes `result`."""
        some = tuple(buffer_view(x.name, x, layouts.get(x)).buffer for x in self.reads)
        out = buffer_view("t1", result, layouts.get(result)).buffer
        return Kernel("kernel", (*some, out), (), library=self.operation)


def choice_with_epilogue(
    p: Problem,
    axes: tuple[Axis, ...],
    reduction_expr: Reduce,
    body: Reduce,
    call: VendorCall,
    derived_constants: DerivedConstants,
    option: Option,
) -> Choice:
    """Return the choice of a vendor call followed by a kernel of the epilogue, if there is one.
    axes: of the call's result, in memory order; reduction_expr: the sum in the problem; body: the
    same sum over the call's operands."""
    t, lies, kind = p.tensor, p.layouts.get(p.tensor), body.dtype
    if _is_whole_result(p, axes, reduction_expr, kind):
        whole = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        there = scatter_layout(t, lies, t.axes, t.axes)
        kernels = {whole: call.kernel(whole, {**p.layouts, whole: there})}
        return Choice(
            option, whole, layout=there, derived_constants=derived_constants, kernels=kernels
        )
    sizes = tuple(x.extent for x in axes)
    before = Tensor("product", kind, sizes, axes, body)
    held = Tensor("summed", kind, sizes)

    total = Load(held, axes, kind)
    sum_ = total if kind == F32 else Apply("cast", (total,), F32)
    mark = Tensor("mark", reduction_expr.dtype, ())
    assert t.body is not None
    root_body = replace_loads(replace_reduction(t.body, reduction_expr, mark, ()), mark, sum_)
    root = Tensor(t.name, t.dtype, t.shape, t.axes, root_body)
    own = {x: y for x, y in p.layouts.items() if x != t}
    outer = replace(p, tensor=root, layouts=own if lies is None else {**own, root: lies})
    return Choice(
        option,
        root,
        {root: elementwise_schedule(outer, elements_per_program(t))},
        (),
        scatter_layout(t, lies, t.axes, t.axes),
        {},
        ((before, held),),
        derived_constants,
        {before: call.kernel(before, p.layouts)},
    )


def _is_whole_result(p: Problem, axes: Sequence[Axis], reduction_expr: Reduce, kind: DType) -> bool:
    """True if the sum is the whole result, in the vendor's dtype and layout."""
    t, lies = p.tensor, p.layouts.get(p.tensor)
    order, wanted = ([x for x in some if x.extent != 1] for some in (memory_order_axes(p), axes))
    if isinstance(lies, ScatteredLayout) or order != wanted:
        return False
    if lies is not None and any(x.border or x.block > 1 for x in lies.parts):
        return False
    match t.body:
        case Apply("cast", (x,), dtype) if x == reduction_expr:
            return dtype == kind
    return t.body == reduction_expr and kind == t.dtype
