"""What the kernels of an option compute."""

from __future__ import annotations

import numpy as np

from superopt.kernels.algorithms.build import build_kernels
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import build_choice
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.pack import from_layout, pack_constant, to_layout
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import Tensor


def run_option(p: Problem, option: Option, given: dict[Tensor, np.ndarray]) -> np.ndarray:
    """The problem's tensor, by the kernels of an option."""
    layouts, t = p.layouts, p.tensor
    choice = build_choice(p, option)
    held = {i: to_layout(layouts[i], a) if i in layouts else a for i, a in given.items()}  # type: ignore[arg-type]
    for kernel in build_kernels(p, choice):
        arrays = []
        packs = {k.source: k for k in kernel.kernel.packs}
        for i in kernel.reads:
            if i in choice.derived_constants:
                source, make = choice.derived_constants[i]
                made = make(given[source])
                arrays.append(pack_constant(packs[i], made) if i in packs else made)
            else:
                arrays.append(pack_constant(packs[i], held[i]) if i in packs else held[i])
        buffer = kernel.kernel.params[-1]
        shape = [n for n in buffer.shape if isinstance(n, int)]
        held[kernel.writes] = np.zeros(shape, to_numpy(buffer.dtype))
        load_kernel(kernel.kernel)(*arrays, held[kernel.writes])
    layout, shape = layouts.get(t), [n for n in t.shape if isinstance(n, int)]
    return held[t] if layout is None else from_layout(layout, held[t], shape)  # type: ignore[arg-type]
