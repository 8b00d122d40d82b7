"""Build the kernels of a Choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.kernels.algorithms.digests import kernel_digest
from superopt.kernels.algorithms.in_place_stages import compute_in_place
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.llvm.byte_lookups import has_byte_lookups
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.processor import AVX512_VBMI
from superopt.kernels.triton.narrow_stores import narrow_stores
from superopt.te.analysis.bind_sizes import has_symbolic_size
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.dtype import BOOL, U8
from superopt.te.expr.node import Load
from superopt.te.expr.symbolic_int import example_sizes
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel, named after its digest, and the tensors that its parameters stand for."""

    kernel: Kernel
    reads: tuple[Tensor, ...]
    writes: Tensor


def build_kernels(p: Problem, choice: Choice) -> list[BuiltKernel]:
    """Return the kernels in execution order; the last one writes the problem's tensor."""
    layout = dict(p.layouts)
    if choice.restage is not None and p.tensor in layout:
        layout[choice.root] = layout[p.tensor]
    if choice.layout is not None:
        layout[choice.root] = choice.layout
    out = [_build_kernel(p, before, choice, layout, buffer) for before, buffer in choice.producers]
    return [*out, _build_kernel(p, choice.root, choice, layout, p.tensor)]


def _build_kernel(
    p: Problem,
    root: Tensor,
    choice: Choice,
    layout: dict[Tensor, Layout | ScatteredLayout],
    target: Tensor,
) -> BuiltKernel:
    read = input_buffers(root)
    if root.dtype == BOOL and isinstance(root.body, Load) and read == [root.body.tensor]:
        return _bool_copy_kernel(root, root.body, choice, layout, target)
    given = [x for x in read if x not in choice.tables]
    if root in choice.kernels:
        kernel = choice.kernels[root]
    else:
        packs = [x for x in choice.packed if x in given]
        tables = {x: table for x, table in choice.tables.items() if x in read}
        kernel = lower_kernel("kernel", given, [root], choice.schedules, layout, tables, packs)
        if choice.in_place:
            kernel = compute_in_place(kernel)
        if choice.instructions:
            kernel = replace(kernel, instructions=choice.instructions)
        elif p.processor.permutes_bytes and has_byte_lookups(root.body):
            kernel = replace(kernel, instructions=AVX512_VBMI)
        if root is choice.root and choice.programs:
            kernel = replace(kernel, programs=choice.programs)
    if p.stores_half:
        kernel = replace(kernel, body=narrow_stores(kernel.body))
    return BuiltKernel(_name_kernel(kernel, root), tuple(given), target)


def _name_kernel(kernel: Kernel, root: Tensor) -> Kernel:
    """Return the kernel of a tensor with its name, and with the sizes that it reads."""
    buffers_are_symbolic = any(not isinstance(n, int) for x in kernel.params for n in x.shape)
    if example_sizes() and (has_symbolic_size(root) or buffers_are_symbolic):
        kernel = replace(kernel, sizes=tuple(example_sizes()))
    return replace(kernel, name=f"k{kernel_digest(kernel)}")


def _bool_copy_kernel(
    root: Tensor,
    load: Load,
    choice: Choice,
    layout: dict[Tensor, Layout | ScatteredLayout],
    target: Tensor,
) -> BuiltKernel:
    """Return a copy kernel of booleans as bytes, so that no lane is compared with 0."""
    given = Tensor(load.tensor.name, U8, load.tensor.shape)
    made = Tensor(root.name, U8, root.shape, root.axes, Load(given, load.index, U8))
    same = {load.tensor: given, root: made}
    kernel = lower_kernel(
        "kernel", [given], [made],
        {same.get(t, t): x for t, x in choice.schedules.items()},
        {same.get(t, t): x for t, x in layout.items()},
    )  # fmt: skip
    return BuiltKernel(_name_kernel(kernel, root), (load.tensor,), target)


def kernel_buffers(kernels: Sequence[BuiltKernel]) -> dict[Tensor, Tensor]:
    """Return the buffer of each tensor of the kernels; packed constants have buffers of their
    own."""
    out: dict[Tensor, Tensor] = {}
    for x in kernels:
        for buffer, t in zip(x.kernel.params, (*x.reads, x.writes), strict=True):
            out.setdefault(t, buffer)
    return out


def input_buffers(t: Tensor) -> list[Tensor]:
    """Return the tensors in memory that `t` and its stages read."""
    bodies = [x.body for x in computed_tensors([t]) if x.body is not None]
    read = dict.fromkeys(x.tensor for b in bodies for x in loads(b))
    return [x for x in read if x.body is None]
