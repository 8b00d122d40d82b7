"""Functions of Triton's text, and of the vendor's library. TRITON_INTERPRET=1, set before triton is
first imported, chooses Triton's interpreter."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from threading import RLock
from typing import Any

from superopt.kernels import gpu_convolution, gpu_sdpa

_SAYING = RLock()  # what is said of products is the process's
VENDORS = {"mm": "cuBLAS", gpu_convolution.NAME: "cuDNN", gpu_sdpa.NAME: "torch's attention"}


@dataclass(frozen=True, slots=True)
class Library:
    """What a library computes, called as Triton's functions are. what: see Kernel.library."""

    what: str
    dots: str

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

    def _multiplied(self, a: Any, b: Any, out: Any) -> None:
        import torch

        _, *sizes = self.what.split()
        rows, terms, columns = map(int, sizes)
        some = a.view(rows, terms), b.view(terms, columns)
        with products(self.dots == "tf32"):
            torch.mm(*some, out=out.view(rows, columns))


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """torch's products of float32 are of numbers rounded to tf32, or exact; sums of shorter floats
    are of float32. What was said of these before, by the old way or the new one, is so again.
    Threads wait for each other here; what others ask of torch meanwhile is answered so, too."""
    import torch

    with _SAYING:
        yield from _said(torch.backends.cuda.matmul, tf32)


def _said(said: Any, tf32: bool) -> Iterator[None]:
    try:
        wanted: dict[str, Any] = {"allow_tf32": (tf32, said.allow_tf32)}
    except RuntimeError:  # it was said by the new way: the old one is not answered then
        wanted = {"fp32_precision": ("tf32" if tf32 else "ieee", said.fp32_precision)}
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        wanted[name] = False, getattr(said, name)
    try:
        for name, (value, _) in wanted.items():
            setattr(said, name, value)
        yield
    finally:
        for name, (_, before) in wanted.items():
            setattr(said, name, before)


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
