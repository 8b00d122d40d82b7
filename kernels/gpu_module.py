"""Functions of Triton's text, and of the vendor's library. TRITON_INTERPRET=1, set before triton is
first imported, chooses Triton's interpreter."""

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
    """What a library computes, called as Triton's functions are. what: see Kernel.library."""

    what: str
    dots: str

    @property
    def multiplies(self) -> bool:
        """Is it a product, which on a GPU takes `gpu_cublas.workspace`, too?"""
        return self.what.split()[0] == gpu_cublas.NAME

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.run

    def warmup(self, *given: Any, **how: Any) -> None:
        """There is nothing to compile."""

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
        """held: memory for it; none on a processor, as in Triton's interpreter."""
        import torch

        _, *sizes = self.what.split()
        rows, terms, columns = map(int, sizes)
        a, b, out = a.view(rows, terms), b.view(terms, columns), out.view(rows, columns)
        if held is None:
            torch.mm(a, b, out=out)
        else:
            gpu_cublas.multiply(a, b, out, self.dots == "tf32", held)


def vendor(what: str) -> str:
    """Which library of the vendor's computes it. what: see Kernel.library."""
    return VENDORS[what.split()[0]]


def functions(source: str, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The functions of a module's text that have these names. Triton reads a function's source, so
    that the text is known to Python's linecache under the name of a file."""
    name = f"<triton {blake2b(source.encode(), digest_size=10).hexdigest()}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    return {n: space[n] for n in names}
