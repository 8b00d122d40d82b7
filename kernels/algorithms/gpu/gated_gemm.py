"""Gated products (plan/rewrites/matmul/gate_fusion.py) on a GPU: several products of one operand,
combined into one result, in one kernel with an accumulator block for each, or one after the other.

    gated_gemm      one kernel: the shared operand is read once, and gates are never in memory
    separate_gates  gates are kernels of their own, or cuBLAS's; the last product reads them

All kernels of `separate_gates` have the same loops, and `gated_gemm` merges them
(kernel_merging.py): the statements of the gates precede those of the last product, and their
results stay in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm, expect_no_gain
from superopt.kernels.algorithms.build import BuiltKernel, build_kernels, input_buffers
from superopt.kernels.algorithms.gpu.blocks import MEMORY_BYTES_PER_NS, PIPELINE_STAGES
from superopt.kernels.algorithms.gpu.gemm import product_choice
from superopt.kernels.algorithms.gpu.gemm_cost_model import block_times, vary_option
from superopt.kernels.algorithms.gpu.kernel_merging import merged_kernel
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, match_matrix_product
from superopt.kernels.algorithms.gpu.vendor_gemm import (
    VENDOR,
    recognise_vendor_gemm,
    schedule_vendor_gemm,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, cast

OPTIONS_PER_KIND = 3  # of each kind, before the others
MAX_PRODUCTS = 8  # of one kernel
MULTI_GATE_COST_FACTOR = (
    1.1  # required gain for more than two products, for which the cost model was not measured
)


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate as a problem of its own, and the buffer of its result if that is in memory."""

    problem: Problem
    buffer: Tensor


@dataclass(frozen=True, slots=True)
class GatedProduct:
    """The gates, and the problem that reads them, a product of the same sizes."""

    gates: tuple[Gate, ...]
    final: Problem
    matrix: MatrixProduct

    @property
    def product_count(self) -> int:
        """The number of products."""
        return len(self.gates) + 1


def is_gated_product(result: Tensor, g: Tensor) -> bool:
    """True if `result` is a reduction and reads `g` elementwise outside of it."""
    return reduction(result) is not None and reads_elementwise(result, g)


def reads_elementwise(result: Tensor, g: Tensor) -> bool:
    """True if each element of `g` is read for the same element of the result, and in no
    reduction."""
    if result.body is None or any(x.tensor is g for r in reductions(result.body) for x in loads(r)):
        return False
    some = [x for x in loads(result.body) if x.tensor is g]
    return result.shape == g.shape and all(_is_own_element(x, result) for x in some)


def _is_own_element(x: Load, result: Tensor) -> bool:
    places = zip(x.index, result.axes, result.shape, strict=True)
    return all(i == a or n == 1 for i, a, n in places)


def have_same_operand(result: Tensor, gate: Tensor, constants: Collection[Tensor]) -> bool:
    """True if both are products of the same operand with constant matrices of one dtype, over axes
    of equal sizes."""
    a, b = (
        contraction.match_contraction(t, constants, 1)
        for t in (result, _with_axes_of(gate, result))
    )
    if a is None or b is None or a.a != b.a or not a.a_axes or not a.b_axes:
        return False
    known = a.b.tensor in constants and b.b.tensor in constants
    return known and a.b.index == b.b.index and a.b.dtype == b.b.dtype


def _with_axes_of(gate: Tensor, result: Tensor) -> Tensor:
    """Return the gate over the axes of the other product."""
    own, other = reduction(result), reduction(gate)
    assert gate.body is not None
    if own is None or other is None or [a.size for a in own.axes] != [a.size for a in other.axes]:
        return gate
    over = dict(zip(other.axes, own.axes, strict=True))
    env: dict[Axis, Expr] = dict(zip(gate.axes, result.axes, strict=True))

    def go(e: Expr) -> Expr:
        match e:
            case Reduce(fn, _, body, dtype) if e == other:
                return Reduce(fn, own.axes, substitute_axes(body, {**env, **over}), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return substitute_axes(e, env)

    return Tensor(gate.name, gate.dtype, result.shape, result.axes, go(gate.body))


@remember_match
def match_gated(p: Problem) -> GatedProduct | None:
    """Match the gates of a problem; None if it has none."""
    t = p.tensor
    if p.row_axes or t.body is None or t in p.layouts:
        return None
    some = dict.fromkeys(x.tensor for x in loads(t.body) if x.tensor.body is not None)
    if not some or not all(
        is_gated_product(t, g) and have_same_operand(t, g, p.constants) for g in some
    ):
        return None
    gates = {g: _gate_problem(p, g) for g in some}
    last = replace(p, tensor=_read_gates_from(t, {g: gate.buffer for g, gate in gates.items()}))
    m = match_matrix_product(last)
    if m is None or any(match_matrix_product(gate.problem) is None for gate in gates.values()):
        return None
    return GatedProduct(tuple(gates.values()), last, m)


def _gate_problem(p: Problem, g: Tensor) -> Gate:
    """Return the gate over the result's axes, in 16 bits if its operands have 16."""
    t, gate = p.tensor, _with_axes_of(g, p.tensor)
    c = contraction.match_contraction(gate, p.constants, 1)
    assert c is not None
    assert gate.body is not None
    kind = c.b.dtype if c.b.dtype.bits == 16 else gate.dtype
    short = Tensor("gate", kind, t.shape, t.axes, cast(gate.body, kind))
    return Gate(replace(p, tensor=short), Tensor("held", kind, t.shape))


def _read_gates_from(t: Tensor, buffers: Mapping[Tensor, Tensor]) -> Tensor:
    """Return the result reading gates from their buffers."""

    def read(e: Expr) -> Expr:
        match e:
            case Load(x, _, dtype) if x in buffers:
                return cast(Load(buffers[x], t.axes, buffers[x].dtype), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
        return e

    assert t.body is not None
    return Tensor(t.name, t.dtype, t.shape, t.axes, read(t.body))


def fused_product_count(g: GatedProduct, is_16_bit: bool) -> int:
    """Return how many products to fuse into one kernel; the others are one kernel before it, as
    horizontally fused columns (plan/rewrites/matmul/horizontal_fusion.py), with split-K if that is
    faster. is_16_bit: of the operands."""
    m = replace(g.matrix, operand_bytes=2 if is_16_bit else 4)

    def taken(n: int) -> float:
        rest = g.product_count - n
        before = (
            _best_ns(_side_by_side_product(m, rest)) + rest * _gate_traffic_ns(m) if rest else 0.0
        )
        return (before + _best_ns(m, n)) * (MULTI_GATE_COST_FACTOR if n > 2 else 1.0)

    n = min(range(g.product_count, 0, -1), key=taken)
    return n if n == 1 or can_fuse_kernels(g) else 1


def should_fuse(g: GatedProduct, is_16_bit: bool, axis: Axis) -> bool:
    """True if one kernel for all products, of both halves along `axis`, is estimated to be faster
    than one for all but the last product and another for that."""
    m = replace(g.matrix, operand_bytes=2 if is_16_bit else 4)
    one = replace(m, batch=tuple(a for a in m.batch if a != axis))
    after = (
        _best_ns(one, g.product_count - 1) * MULTI_GATE_COST_FACTOR
        + _best_ns(one)
        + _gate_traffic_ns(one)
    )
    return (
        fused_product_count(g, is_16_bit) == g.product_count
        and _best_ns(m, g.product_count) * MULTI_GATE_COST_FACTOR < after
    )


def _best_ns(m: MatrixProduct, gates: int = 1) -> float:
    """Return the best estimated time, ns."""
    return min((time for time, _ in block_times(m, gates)), default=inf)


def _side_by_side_product(m: MatrixProduct, n: int) -> MatrixProduct:
    """Return n horizontally fused products."""
    return replace(m, columns=(Axis("gate", n), *m.columns))


def _gate_traffic_ns(m: MatrixProduct) -> float:
    """Return the time to read a gate, ns."""
    size = prod(m.sizes[:2]) * prod(a.size for a in m.batch)
    return size * (m.operand_bytes) / MEMORY_BYTES_PER_NS


def gated_options(p: Problem, g: GatedProduct) -> Iterator[Option]:
    """Yield options, by estimated time."""
    m, n = g.matrix, g.product_count
    one = sorted(block_times(m, n), key=lambda x: x[0]) if can_fuse_kernels(g) else []
    each = _block_times_of_one(m)
    some = [(time, o, "gated_gemm") for time, o in one] + [
        (n * time + (n - 1) * _gate_traffic_ns(m), o, "separate_gates") for time, o in each
    ]
    first = [x for kind in (one, each) for _, x in kind[:OPTIONS_PER_KIND]]
    ranked = sorted(some, key=lambda x: (x[1] not in first, x[0]))
    for waiting, more_warps in ((PIPELINE_STAGES, 0), (PIPELINE_STAGES - 1, 1)):
        for _, o, name in ranked:
            knobs = {**dict(vary_option(o, waiting, more_warps).knobs), "gates": n}
            yield Option(name, tuple(knobs.items()))


def _block_times_of_one(m: MatrixProduct) -> list[tuple[float, Option]]:
    """Return (estimated ns, option) of the blocks of one product without split-K, best first."""
    return sorted((x for x in block_times(m) if x[1].algorithm == "gemm"), key=lambda x: x[0])


@remember_match
def recognise_vendor_gates(p: Problem) -> GatedProduct | None:
    """Match gates that cuBLAS computes."""
    g = match_gated(p)
    offers = g is not None and all(_vendor_gate(x, Option.make(VENDOR)) for x in g.gates)
    return g if offers else None


def vendor_gates_options(p: Problem, g: GatedProduct) -> Iterator[Option]:
    """Yield the only option: the last product has the best block of one product."""
    best = _block_times_of_one(g.matrix)[0][1]
    yield Option("separate_gates", (*best.knobs, ("gates", g.product_count), (VENDOR, 1)))


def _vendor_gate(gate: Gate, o: Option) -> Choice | None:
    """Return a gate by cuBLAS, if it has no epilogue; else None."""
    m = recognise_vendor_gemm(gate.problem)
    made = None if m is None else schedule_vendor_gemm(gate.problem, m, o)
    return None if made is None or made.producers else made


def can_fuse_kernels(g: GatedProduct) -> bool:
    """True if the kernels can be merged loop by loop."""
    one = next((o for _, o in block_times(g.matrix, g.product_count)), None)
    if one is None:
        return False
    try:
        _gated_choice(g, Option("gated_gemm", one.knobs))
    except NotImplementedError:
        return False
    return True


def schedule_gated(p: Problem, g: GatedProduct, o: Option) -> Choice:
    """Return the choice of an option. Raises ValueError if cuBLAS does not have the product."""
    return _gated_choice(g, o)


def _gated_choice(g: GatedProduct, o: Option) -> Choice:
    last = product_choice(g.final, g.matrix, o)
    if o.algorithm == "gated_gemm":
        return _fused_choice(g, last, o)
    firsts = []
    for gate in g.gates:
        m = match_matrix_product(gate.problem)
        assert m is not None
        own = (
            _vendor_gate(gate, o) if VENDOR in dict(o.knobs) else product_choice(gate.problem, m, o)
        )
        if own is None:
            raise ValueError(f"{o}: cuBLAS does not compute {gate.problem.tensor.name}")
        firsts.append(own)
    every = (*firsts, last)
    return replace(
        last, option=o,
        schedules={t: s for x in every for t, s in x.schedules.items()},
        packed=tuple(t for x in every for t in x.packed),
        derived_constants={t: s for x in every for t, s in x.derived_constants.items()},
        kernels={t: k for x in every for t, k in x.kernels.items()},
        producers=tuple((x.root, gate.buffer) for x, gate in zip(firsts, g.gates, strict=True)),
    )  # fmt: skip


def _without_narrowing(t: Tensor) -> Tensor:
    """Return the tensor without the final cast to a narrower dtype."""
    match t.body:
        case Apply("cast", (x,), dtype) if dtype == t.dtype and x.dtype == F32:
            return Tensor(t.name, F32, t.shape, t.axes, x)
    return t


def _fused_choice(g: GatedProduct, last: Choice, o: Option) -> Choice:
    """Return the choice of one merged kernel; see merged_kernel. Its root records what it reads and
    computes."""
    after, made = last.root, dict(last.derived_constants)
    gates: list[BuiltKernel] = []
    inner: dict[Tensor, Expr] = {}
    for gate in g.gates:
        wide = replace(gate.problem, tensor=_without_narrowing(gate.problem.tensor))
        m = match_matrix_product(wide)
        assert m is not None
        own = product_choice(wide, m, o)
        made |= own.derived_constants
        assert own.root.body is not None
        inner[gate.buffer] = own.root.body
        gates.append(build_kernels(wide, own)[0])

    def put(e: Expr) -> Expr:
        match e:
            case Load(x) if x in inner:
                return cast(inner[x], x.dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(put, args)), dtype)
        return e

    assert after.body is not None
    root = Tensor(after.name, after.dtype, after.shape, after.axes, put(after.body))
    held = tuple(gate.buffer for gate in g.gates)
    built = build_kernels(g.final, last)[0]
    kernel = merged_kernel(gates, built, held, input_buffers(root))
    return Choice(o, root, derived_constants=made, kernels={root: kernel})


VENDOR_GATES = Algorithm(
    ("separate_gates",), "gated products (SwiGLU, LSTM): gates by cuBLAS", recognise_vendor_gates,
    vendor_gates_options, schedule_gated, expect_no_gain, uses_vendor_library=True,
)  # fmt: skip
GATED_GEMM = Algorithm(
    ("gated_gemm", "separate_gates"), "gated products (SwiGLU, LSTM): one kernel, or one each",
    match_gated, gated_options, schedule_gated, exclusive=True,
)  # fmt: skip
