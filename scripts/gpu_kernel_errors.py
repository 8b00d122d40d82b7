#!/usr/bin/env python3
"""Compare each kernel of compiled models with the definition of what it computes, on a GPU.

    scripts/gpu_kernel_errors.py MODEL.onnx ... [--precision fp32,tf32,fp16,bf16] [--no-vendor]

A model is planned for its own sizes (symbolic ones are --size, 2 by default). Each distinct kernel
of the plan is compiled alone, given drawn operands, and its result is compared with its tensor
expression, evaluated by numpy in float64 on the same operands. The error is the largest of
|got - expected| / (|expected| + rms of expected). Exit status 1 if one is above LIMITS.

Without a GPU, with TRITON_INTERPRET=1, Triton's interpreter runs the kernels, slowly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Largest errors of a right kernel, by precision. Operands are rounded alike on both sides, so what
# is left is the rounding of sums, of results, and, in tf32, of the operands of products.
LIMITS = {"fp32": 1e-3, "tf32": 0.02, "fp16": 0.02, "bf16": 0.1}
COMPILERS = 8  # kernels that Triton compiles at a time


@dataclass(frozen=True, slots=True)
class KernelError:
    """model, precision: where the kernel is from; option: how it computes; shape: of its result;
    error: see `difference`."""

    model: str
    precision: str
    option: str
    shape: tuple[int, ...]
    error: float

    @property
    def ok(self) -> bool:
        return self.error <= LIMITS[self.precision]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        verdict = "" if self.ok else "   WRONG"
        return f"{self.model} {self.precision:5} {self.error:9.2e}  {shape}: {self.option}{verdict}"


def kernel_errors(
    source: Any, precision: str, *, vendor: bool = True, size: int = 2, label: str = ""
) -> Iterator[KernelError]:
    """The error of each distinct kernel of a model in this precision.

    source: a path, bytes or a ModelProto; size: of symbolic dimensions. Raises NotImplementedError
    where a part of the plan cannot be compiled."""
    from superopt.compilation.cuda import load_compiler
    from superopt.compilation.frontend.input_arrays import InputPort
    from superopt.onnx_io.read.source import read_model
    from superopt.plan.graph.partition import partition_by_cost

    compiler = load_compiler.compile_model(read_model(source), precision, vendor=vendor).compiler

    def symbols(port: InputPort) -> Iterator[str]:
        return (d for d in port.shape if isinstance(d, str))

    sizes = {name: size for p in compiler.input_ports() for name in symbols(p)}
    segments = partition_by_cost(
        compiler.model.graph, lambda n: not compiler.fallback_reason(n, sizes), sizes
    )
    programs = [compiler.plan_segment(s, sizes) for s in segments if s.native]
    problems = {
        key: (p, made.options[key]) for made in programs for key, p in made.problems.items()
    }
    with ThreadPoolExecutor(COMPILERS) as pool:
        device, dots = compiler.device.torch_device, compiler.device.dot_precision
        some = [(p, o, device, dots) for p, o in problems.values()]
        for _ in pool.map(lambda x: _compile(*x), some):
            pass
    for p, option in problems.values():
        error = error_of(p, option, device, dots)
        shape = tuple(n for n in p.tensor.shape if isinstance(n, int))
        yield KernelError(label, precision, str(option), shape, error)


def _compile(p: Any, option: Any, device: str, dots: str) -> None:
    """Fill Triton's cache, in parallel: what compiles once more afterwards finds it there."""
    if device != "cpu":
        _running(p, option, device, dots, record=False)[0].compile(1)


def _running(p: Any, option: Any, device: str, dots: str, record: bool) -> tuple[Any, Any, Any]:
    """The kernels of a problem with memory of their own, the buffers by tensor, and the choice."""
    from superopt.kernels.algorithms.build import build_kernels, kernel_buffers
    from superopt.kernels.algorithms.space import build_choice, launch_parameters
    from superopt.kernels.llvm.program import Ref
    from superopt.kernels.runtime.gpu_program import KernelCall, build_program

    choice = build_choice(p, option, "cuda")
    made = build_kernels(p, choice)
    given = kernel_buffers(made)
    number = {t: n for n, t in enumerate(given)}
    calls = [
        KernelCall(
            x.kernel,
            tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)),
            *launch_parameters(option),
        )
        for x in made
    ]
    specs = [(tuple(n for n in b.shape if isinstance(n, int)), b.dtype) for b in given.values()]
    none = np.zeros(0, np.uint8)
    r = build_program(calls, none, 0, specs, [], device, dots, capture=record)
    packs = {pack.source: pack for x in made for pack in x.kernel.packs}
    return r, given, (choice, packs)


def error_of(p: Any, option: Any, device: str, dots: str, seed: int = 0) -> float:
    """The error of a problem's kernels under an option, on operands that are drawn."""
    from superopt.kernels.algorithms.build import input_buffers
    from superopt.kernels.runtime.gpu_device import copy_to_device, synchronize, to_array
    from superopt.te.eval.interpret import evaluate

    r, given, (choice, packs) = _running(p, option, device, dots, record=True)
    rng = np.random.default_rng(seed)
    known = {t: _drawn(t, rng) for t in input_buffers(p.tensor)}
    for t, x in zip(given, r.inputs, strict=True):
        if t in known:
            value = known[t]
        elif t in choice.derived_constants:
            source, make = choice.derived_constants[t]
            value = make(known[source])
        else:  # of a kernel before the last one, or the result: what nobody writes stays NaN
            x.fill_(nan if x.is_floating_point() else 7)
            continue
        copy_to_device(x, _stored(value, t, p.layouts, packs).reshape(tuple(x.shape)))
    r()
    synchronize(device)
    result = to_array(r.inputs[list(given).index(p.tensor)])
    got = np.asarray(_read(p, result), np.float64)
    want = evaluate(p.tensor, {t.name: x for t, x in known.items()}, _domain())
    return difference(got, np.asarray(want, np.float64))


def _domain() -> Any:
    """float64, in which a plan's own rounding to tf32 does nothing."""
    from superopt.te.eval.domain import Reals
    from superopt.te.expr.dtype import F64

    class Unrounded(Reals):
        def apply(self, fn: str, args: Any, kinds: Any, dtype: Any) -> np.ndarray:
            return args[0] if fn == "tf32" else super().apply(fn, args, kinds, dtype)

    return Unrounded(F64)


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest of |got - want| / (|want| + rms), where rms is the root mean square of the finite
    elements of `want`; infinite where NaN or infinities differ."""
    finite = np.isfinite(want)
    with np.errstate(all="ignore"):
        if not ((got == want) | (np.isnan(got) & np.isnan(want)))[~finite].all():
            return inf
        if not finite.any():
            return 0.0
        rms = float(np.sqrt((want[finite] ** 2).mean())) or 1.0
        worst = float((np.abs(got - want) / (np.abs(want) + rms))[finite].max())
    return worst if worst == worst else inf


def _drawn(t: Any, rng: np.random.Generator) -> np.ndarray:
    """Elements for an operand; integers are 0 and 1, which are in range where they index."""
    from superopt.te.expr.dtype import BOOL, to_numpy

    shape = tuple(n for n in t.shape if isinstance(n, int))
    if t.dtype == BOOL or t.dtype.is_int:
        return rng.integers(0, 2, shape).astype(to_numpy(t.dtype))
    return rng.standard_normal(shape).astype(to_numpy(t.dtype))


def _stored(value: np.ndarray, t: Any, layouts: Mapping[Any, Any], packs: Any) -> np.ndarray:
    """The value as it lies in the buffer that a kernel reads."""
    from superopt.kernels.loops.layout import Layout
    from superopt.kernels.loops.pack import pack_constant, to_layout

    if t in packs:
        return pack_constant(packs[t], value)
    layout = layouts.get(t)
    return to_layout(layout, value) if isinstance(layout, Layout) else value


def _read(p: Any, buffer: np.ndarray) -> np.ndarray:
    """The elements of a problem's result, out of its buffer."""
    from superopt.kernels.loops.layout import Layout, ScatteredLayout
    from superopt.kernels.loops.pack import from_layout
    from superopt.te.eval.interpret import evaluate
    from superopt.te.expr.dtype import I64
    from superopt.te.expr.tensor import cast, compute

    shape = [n for n in p.tensor.shape if isinstance(n, int)]
    layout = p.layouts.get(p.tensor)
    if isinstance(layout, Layout):
        return from_layout(layout, buffer, shape)
    if not isinstance(layout, ScatteredLayout):
        return buffer.reshape(shape)
    # The whole tensor first, then the part of it that the problem computes.
    whole = from_layout(layout.layout, buffer, layout.shape)
    at = []
    for i in layout.index:
        one = compute(shape, lambda *own, i=i: cast(_at(i, layout.axes, own), I64), dtype=I64)
        at.append(evaluate(one, {}))
    return np.asarray(whole[tuple(at)])


def _at(i: Any, axes: Any, own: Any) -> Any:
    from superopt.te.expr import index

    return index.substitute(i, dict(zip(axes, own, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--precision", default="fp32,tf32,fp16,bf16")
    parser.add_argument("--no-vendor", action="store_true")
    parser.add_argument("--size", type=int, default=2)
    given = parser.parse_args()
    wrong = 0
    for path in given.models:
        for precision in given.precision.split(","):
            found = kernel_errors(
                path, precision, vendor=not given.no_vendor, size=given.size, label=path.stem
            )
            for x in found:
                wrong += not x.ok
                print(x, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
