"""Export a GPU program as a module image, which loaded_image.py runs again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.cuda.image import Function, Image, Lane, PortSpec, SliceSpec, Step
from superopt.kernels.cuda.launch import prefers_shared_memory
from superopt.kernels.cuda.sized_image import ARENA_ALIGNMENT
from superopt.kernels.runtime.gpu_device import supports_dependent_launch, to_array
from superopt.kernels.runtime.gpu_program import GpuProgram
from superopt.kernels.triton.compiler import WARP_THREADS
from superopt.kernels.triton.module import VendorFunction


@dataclass(frozen=True, slots=True)
class ModuleImage:
    """code: that of all functions, concatenated; known_bytes: the arena's first bytes."""

    image: Image
    code: bytes
    known_bytes: np.ndarray


def export_image(r: GpuProgram, device: str, dot_precision: str) -> ModuleImage | None:
    """Export a program that has run on `device`. None if a kernel takes parameters that are not
    kept."""
    arena = _Arena([])
    known = [r.constants]
    for k in r.loaded.values():
        known += [k.own_tensors[t] for t, _ in k.kernel.tables]
    for x in known:
        arena.add(x)
    end = arena.size
    for x in (r.memory, *r.inputs, *r.outputs):
        arena.add(x)
    texts = CodeTable([])
    functions: dict[Function, int] = {}
    steps = []
    for n, (_, function, programs, given, how) in zip(r.call_numbers, r.launches, strict=True):
        if isinstance(function, VendorFunction):
            made: Function | None = Function(function.operation, 0, 0)
        elif device == "cpu":
            kernel = r.loaded[r.calls[n].kernel.name]
            own = next(k for k, f in kernel.functions.items() if f is function)
            made = texts.add(own, kernel.text.source.encode())
        else:
            kernel = function.warmup(*given, grid=(programs,), **how)
            alike = supports_dependent_launch(device) and prefers_shared_memory(
                given, kernel.metadata.shared
            )
            made = add_compiled(kernel, texts, alike)
        if made is None:
            return None
        places = tuple(map(arena.slice_of, given))
        early = bool(how.get("launch_pdl"))
        steps.append(Step(functions.setdefault(made, len(functions)), programs, places, early, n))
    image = Image(
        tuple(functions),
        tuple(steps),
        tuple(Lane(c.lane, tuple(c.waits)) for c in r.calls),
        tuple(map(arena.port_of, r.inputs)),
        tuple(map(arena.port_of, r.outputs)),
        arena.size,
        end,
        dot_precision,
    )
    whole = np.zeros(end, np.uint8)
    for x, at in arena.tensors[: len(known)]:
        bytes_ = to_array(x.reshape(-1)).view(np.uint8)
        whole[at : at + len(bytes_)] = bytes_
    return ModuleImage(image, b"".join(texts.entries), whole)


def add_compiled(kernel: Any, texts: CodeTable, prefers_shared: bool) -> Function | None:
    """Add a kernel compiled by Triton."""
    if not kernel.takes_only_addresses:
        return None
    told = kernel.metadata
    threads = WARP_THREADS * told.num_warps
    return texts.add(told.name, kernel.asm["cubin"], told.shared, threads, prefers_shared)


@dataclass(frozen=True, slots=True)
class CodeTable:
    entries: list[bytes]

    def add(
        self,
        name: str,
        text: bytes,
        shared: int = 0,
        threads: int = 0,
        prefers_shared: bool = False,
    ) -> Function:
        begin = 0
        for x in self.entries:
            if x == text:
                break
            begin += len(x)
        else:
            self.entries.append(text)
        return Function(name, begin, begin + len(text), shared, threads, prefers_shared)


@dataclass(slots=True)
class _Arena:
    """Tensors and their offsets; size: total bytes."""

    tensors: list[tuple[Any, int]]
    size: int = 0

    def add(self, x: Any) -> int:
        at = self.size
        self.tensors.append((x, at))
        self.size += -(-x.numel() * x.element_size() // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        return at

    def slice_of(self, x: Any) -> SliceSpec:
        """Return the slice of a part of one of the tensors, or add a kernel's own tensor."""
        at = next(self._offsets_of(x), None)
        return self.add(x) if at is None else at, x.numel(), _dtype_name(x)

    def port_of(self, x: Any) -> PortSpec:
        return self.slice_of(x)[0], tuple(x.shape), _dtype_name(x)

    def _offsets_of(self, x: Any) -> Iterator[int]:
        begin = x.data_ptr()
        for whole, at in self.tensors:
            first = whole.data_ptr()
            size = whole.numel() * whole.element_size()
            if first <= begin and begin + x.numel() * x.element_size() <= first + size:
                yield at + begin - first


def _dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
