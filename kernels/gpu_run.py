"""The GPU target: Triton's text to functions that run, on a GPU or in Triton's interpreter.

Needs the extra `gpu`. TRITON_INTERPRET=1, set before triton is first imported, chooses the
interpreter: kernels run on the CPU then, a program after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.gpu_compiled import Compiled
from superopt.kernels.gpu_functions import type_of
from superopt.kernels.gpu_module import Library, functions
from superopt.kernels.gpu_text import Launch, Printed, printed
from superopt.kernels.tile import Kernel, Store, Update, flat
from superopt.te.dtype import BF16, F16, F32, DType
from superopt.te.expr import Tensor
from superopt.te.node import Apply
from superopt.te.walk import parts


def compile_options(kernel: Kernel) -> dict[str, bool]:
    """Options of Triton's compiler for a kernel: whether it may contract a product and a sum.

    Not where a value is rounded to 16 bits between two operations. LLVM computes both operations in
    16 bits then, which gives the same, and a contraction would leave out the rounding between.
    """
    return {"enable_fp_fusion": not any(map(_rounds_between, flat(kernel.body)))}


def _rounds_between(s: Store | Update) -> bool:
    for e in parts(s.value):
        match e:
            case Apply("cast", (Apply("cast", _, inner),), outer) if outer == F32 and inner in (
                F16,
                BF16,
            ):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel's functions by name, and its own tensors: scratch and tables."""

    kernel: Kernel
    text: Printed
    functions: Mapping[str, Any]
    own: Mapping[Tensor, Any]

    def __call__(self, *tensors: Any) -> None:
        """Compute the last tensors (of torch) from the first ones: contiguous, of the parameters'
        types, on the device for which the kernel is loaded.

        Raises TypeError or ValueError where they are not. Not to be called twice at a time.
        """
        if len(tensors) != len(self.kernel.params):
            raise TypeError(f"{len(tensors)} tensors for {len(self.kernel.params)} parameters")
        given = dict(self.own)
        for p, x in zip(self.kernel.params, tensors, strict=True):
            if x.dtype != torch_type(p.dtype) or tuple(x.shape) != p.shape:
                raise TypeError(f"{p.name} is {x.dtype}{list(x.shape)}, not {p.type}")
            if not x.is_contiguous():
                raise ValueError(f"{p.name} is not contiguous")
            given[p] = x
        options = compile_options(self.kernel)
        with np.errstate(all="ignore"):  # the interpreter computes what no mask lets through, too
            for launch in self.text.launches:
                arguments = [given[t] for t in launch.buffers]
                self.functions[launch.name][(launch.programs,)](*arguments, **options)


def torch_type(dtype: DType) -> Any:
    """torch's element type. Raises NotImplementedError where there is none."""
    import torch

    name = type_of(dtype).removeprefix("tl.")
    return getattr(torch, "bool" if name == "int1" else name)


def loaded(kernel: Kernel, device: str = "cpu", dots: str = "ieee", early: bool = False) -> Loaded:
    """The kernel as functions for tensors on `device`: "cuda", or "cpu" in the interpreter. dots:
    the precision of products of float32, by Triton's name: ieee or tf32. early: see
    gpu_text.printed.

    Raises NotImplementedError for what Triton's text cannot say, ImportError without the extra.
    """
    import torch

    if kernel.library:
        once = Launch(kernel.name, 1, kernel.params)
        call = Library(kernel.library, dots)
        return Loaded(kernel, Printed("", (once,), ()), {kernel.name: call}, {})
    text = printed(kernel, dots, interpreted=device == "cpu", early=early)
    own = {t: torch.empty(n, dtype=torch_type(t.dtype), device=device) for t, n in text.scratch}
    for t, numbers in kernel.tables:
        own[t] = torch.tensor(numbers, dtype=torch_type(t.dtype), device=device)
    made: dict[str, Any] = dict(functions(text.source, [x.name for x in text.launches]))
    if device == "cuda":
        made = {name: Compiled(f) for name, f in made.items()}
    return Loaded(kernel, text, made, own)
