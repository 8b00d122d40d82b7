"""The GPU target: turn Triton text into functions that run on a GPU or in Triton's interpreter.

Needs the extra `gpu`. TRITON_INTERPRET=1, set before triton is first imported, selects the
interpreter: kernels then run on the CPU, one program after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from superopt.kernels.loops.tile import Kernel, Store, Update, flat_statements
from superopt.kernels.triton.codegen import Launch, TritonText, triton_text
from superopt.kernels.triton.compiler import CompiledFunction
from superopt.kernels.triton.functions import triton_type
from superopt.kernels.triton.module import VendorFunction, define_functions
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr import index
from superopt.te.expr.dtype import BF16, F16, F32, DType
from superopt.te.expr.index import evaluate
from superopt.te.expr.node import Apply
from superopt.te.expr.tensor import Tensor

NO_SIZES: Mapping[str, int] = MappingProxyType({})


def compile_options(kernel: Kernel) -> dict[str, bool]:
    """Return Triton's compile options of a kernel: whether to contract a product and a sum.

    Contraction is off if a value is rounded to 16 bits between two operations: LLVM computes both
    in 16 bits then, which is equal, and a contraction would skip the rounding.
    """
    return {"enable_fp_fusion": not any(map(_rounds_between, flat_statements(kernel.body)))}


def _rounds_between(s: Store | Update) -> bool:
    """True if a value is rounded to 16 bits and widened again."""
    for e in subexpressions(s.value):
        match e:
            case Apply("cast", (Apply("cast", _, inner),), outer) if outer == F32 and inner in (
                F16,
                BF16,
            ):
                return True
    return False


@dataclass(frozen=True, slots=True)
class LoadedTritonKernel:
    """A kernel's functions by name, and its own tensors: scratch and tables."""

    kernel: Kernel
    text: TritonText
    functions: Mapping[str, Any]
    own_tensors: Mapping[Tensor, Any]

    def __call__(self, *tensors: Any) -> None:
        """Compute the result tensors (last) from the inputs: contiguous torch tensors of the
        parameters' dtypes and shapes, on the kernel's device.

        Raises TypeError or ValueError if they are not. Not reentrant.
        """
        if len(tensors) != len(self.kernel.params):
            raise TypeError(f"{len(tensors)} tensors for {len(self.kernel.params)} parameters")
        given = dict(self.own_tensors)
        for p, x in zip(self.kernel.params, tensors, strict=True):
            if x.dtype != torch_dtype(p.dtype) or tuple(x.shape) != p.shape:
                raise TypeError(f"{p.name} is {x.dtype}{list(x.shape)}, not {p.type}")
            if not x.is_contiguous():
                raise ValueError(f"{p.name} is not contiguous")
            given[p] = x
        options = compile_options(self.kernel)
        with np.errstate(all="ignore"):  # the interpreter also computes masked-off elements
            for launch in self.text.launches:
                arguments = [given[t] for t in launch.buffers]
                self.functions[launch.name][(launch.programs,)](*arguments, **options)


def torch_dtype(dtype: DType) -> Any:
    """Return torch's dtype. Raises NotImplementedError if there is none."""
    import torch

    name = triton_type(dtype).removeprefix("tl.")
    return getattr(torch, "bool" if name == "int1" else name)


def load_triton_kernel(
    kernel: Kernel,
    device: str = "cpu",
    dot_precision: str = "ieee",
    dependent_launch: bool = False,
    sizes: Mapping[str, int] = NO_SIZES,
) -> LoadedTritonKernel:
    """Load a kernel for tensors on `device`: "cuda", or "cpu" in the interpreter. dot_precision: of
    fp32 products, by Triton's name: ieee or tf32. dependent_launch: see codegen.triton_text. sizes:
    of scratch tensors.

    Raises NotImplementedError if Triton text cannot express it, ImportError without the extra.
    """
    import torch

    if kernel.library:
        once = Launch(kernel.name, 1, kernel.params)
        call = VendorFunction(kernel.library, dot_precision)
        return LoadedTritonKernel(kernel, TritonText("", (once,), ()), {kernel.name: call}, {})
    text = triton_text(
        kernel, dot_precision, interpreted=device == "cpu", dependent_launch=dependent_launch
    )
    own = {}
    for t, n in text.scratch:
        count = evaluate(index.as_index(n), {**sizes})
        own[t] = torch.empty(count, dtype=torch_dtype(t.dtype), device=device)
    for t, numbers in kernel.tables:
        own[t] = torch.tensor(numbers, dtype=torch_dtype(t.dtype), device=device)
    made: dict[str, Any] = dict(define_functions(text.source, [x.name for x in text.launches]))
    if device == "cuda":
        made = {name: CompiledFunction(f) for name, f in made.items()}
    return LoadedTritonKernel(kernel, text, made, own)
