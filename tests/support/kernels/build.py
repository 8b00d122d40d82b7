"""Kernels of single operators, and what they are compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from superopt.compilation.cpu.load_compiler import tuned_compiler
from superopt.compilation.frontend.allowed_transforms import ALL_TRANSFORMS
from superopt.ir.graph import Node
from superopt.ir.op import canonical_attrs, expression
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.engine import psabi_machine
from superopt.onnx_io.read.source import read_model
from superopt.ops import OPS
from superopt.plan.program.program import Program
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.dtype import BOOL, F32, to_numpy
from superopt.te.expr.tensor import Tensor, TensorType, placeholder


def kernel_of(n: Node) -> Kernel:
    """The kernel of a node, of its operands' and its results' buffers."""
    types = tuple(None if v is None else v.type for v in n.inputs)
    outs = expression(n.op, types, n.attrs)
    bodies = [t.body for t in computed_tensors(outs) if t.body is not None]
    read = {x.tensor.name: x.tensor for b in bodies for x in loads(b) if x.tensor.body is None}
    some = [(f"a{k}", t) for k, t in enumerate(types) if t is not None]
    params = [read.get(name) or placeholder(name, t) for name, t in some]
    return lower_kernel("k", params, outs)


def drawn(t: TensorType | Tensor, rng: np.random.Generator) -> np.ndarray:
    assert t.dtype is not None
    assert t.shape is not None
    shape = tuple(int(d) for d in t.shape if isinstance(d, int))
    if t.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if t.dtype.is_int:  # as indices, also
        return rng.integers(0, 3, shape).astype(to_numpy(t.dtype))
    return rng.standard_normal(shape).astype(to_numpy(t.dtype))


def blank(k: Kernel, results: int) -> list[np.ndarray]:
    """Arrays for a kernel's results, of what nobody would compute."""
    shapes = [tuple(int(d) for d in p.shape if isinstance(d, int)) for p in k.params[-results:]]
    kinds = [to_numpy(p.dtype) for p in k.params[-results:]]
    return [np.full(s, 77, d) for s, d in zip(shapes, kinds, strict=True)]


def plan_model(m: onnx.ModelProto, level: str, cpu: str = "") -> Program:
    """The program that a processor of this level would run. cpu: its name in LLVM."""
    machine = psabi_machine(level)
    machine = replace(machine, cpu=cpu) if cpu else machine
    return tuned_compiler(read_model(m), 1, machine, None, ALL_TRANSFORMS).replan({}, {})[1]


def product(op: str, *shapes: tuple[int, ...], **attrs: object) -> tuple[Tensor, list[Tensor]]:
    """The expression, and its operands."""
    types = tuple(TensorType(F32, s) for s in shapes)
    (t,) = expression(OPS[op], types, canonical_attrs(OPS[op], types, attrs))
    assert t.body is not None
    found = {x.tensor.name: x.tensor for x in loads(t.body)}
    return t, [found[name] for name in sorted(found)]


NAMES = ["expressions", "schedule", "stages", "loops", "tile", "ll", "optimized.ll"]
