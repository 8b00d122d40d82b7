"""Functions of Triton text, and of the vendor's libraries. TRITON_INTERPRET=1, set before triton is
first imported, selects Triton's interpreter."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from superopt.kernels import gpu_convolution, gpu_cublas, gpu_sdpa

VENDORS = {
    gpu_cublas.NAME: "cuBLAS",
    gpu_convolution.NAME: "cuDNN",
    gpu_sdpa.NAME: "torch's attention",
}


@dataclass(frozen=True, slots=True)
class Library:
    """A vendor call, with the call interface of Triton's functions. operation: see
    Kernel.library."""

    what: str
    dots: str

    @property
    def multiplies(self) -> bool:
        """True if it is a matrix product, which takes `cublas.allocate_workspace` on a GPU."""
        return self.what.split()[0] == gpu_cublas.NAME

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.run

    def warmup(self, *given: Any, **how: Any) -> None:
        """Do nothing: there is nothing to compile."""

    def run(self, *given: Any, **how: Any) -> None:
        match self.what.split()[0]:
            case gpu_sdpa.NAME:
                gpu_sdpa.parsed(self.what).run(*given)
            case gpu_convolution.NAME:
                a, b, out = given
                gpu_convolution.parsed(self.what).run(a, b, out, self.dots == "tf32")
            case _:
                self._multiplied(*given)

    def _multiplied(self, a: Any, b: Any, out: Any, held: Any = None) -> None:
        """Compute the product. workspace: cuBLAS's; None on a CPU, as in Triton's interpreter."""
        import torch

        _, *sizes = self.what.split()
        rows, terms, columns = map(int, sizes)
        a, b, out = a.view(rows, terms), b.view(terms, columns), out.view(rows, columns)
        if held is None:
            torch.mm(a, b, out=out)
        else:
            gpu_cublas.multiply(a, b, out, self.dots == "tf32", held)


def vendor(what: str) -> str:
    """Return the name of the library that computes an operation (Kernel.library)."""
    return VENDORS[what.split()[0]]


def functions(source: str, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of these names of a module's text. Triton reads a function's source, so
    the text is registered in Python's linecache under a file name."""
    name = f"<triton {blake2b(source.encode(), digest_size=10).hexdigest()}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    return {n: space[n] for n in names}
