"""Functions of Triton text, and of the vendor's libraries. TRITON_INTERPRET=1, set before triton is
first imported, selects Triton's interpreter."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from superopt.kernels.vendor import cublas, cudnn, sdpa

VENDOR_NAMES = {
    cublas.CALL_NAME: "cuBLAS",
    cudnn.CALL_NAME: "cuDNN",
    sdpa.CALL_NAME: "torch's attention",
}


@dataclass(frozen=True, slots=True)
class VendorFunction:
    """A vendor call, with the call interface of Triton's functions. operation: see
    Kernel.library."""

    operation: str
    dot_precision: str

    @property
    def is_gemm(self) -> bool:
        """True if it is a matrix product, which takes `cublas.allocate_workspace` on a GPU."""
        return self.operation.split()[0] == cublas.CALL_NAME

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.run

    def warmup(self, *tensors: Any, **options: Any) -> None:
        """Do nothing: there is nothing to compile."""

    def run(self, *tensors: Any, **options: Any) -> None:
        match self.operation.split()[0]:
            case sdpa.CALL_NAME:
                sdpa.parse_sdpa(self.operation).run(*tensors)
            case cudnn.CALL_NAME:
                a, b, out = tensors
                cudnn.parse_convolution(self.operation).run(a, b, out, self.dot_precision == "tf32")
            case _:
                self._run_gemm(*tensors)

    def _run_gemm(self, a: Any, b: Any, out: Any, workspace: Any = None) -> None:
        """Compute the product. workspace: cuBLAS's; None on a CPU, as in Triton's interpreter."""
        import torch

        _, *sizes = self.operation.split()
        rows, terms, columns = map(int, sizes)
        a, b, out = a.view(rows, terms), b.view(terms, columns), out.view(rows, columns)
        if workspace is None:
            torch.mm(a, b, out=out)
        else:
            cublas.multiply(a, b, out, self.dot_precision == "tf32", workspace)


def vendor_name(operation: str) -> str:
    """Return the name of the library that computes an operation (Kernel.library)."""
    return VENDOR_NAMES[operation.split()[0]]


def define_functions(source: str, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of these names of a module's text. Triton reads a function's source, so
    the text is registered in Python's linecache under a file name."""
    name = f"<triton {blake2b(source.encode(), digest_size=10).hexdigest()}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    return {n: space[n] for n in names}
