"""Export a GPU program as a module image, which loaded_image.py runs again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.gpu_compiled import WARP
from superopt.kernels.gpu_device import array, overlaps
from superopt.kernels.gpu_image import Function, Image, Lane, Place, Port, Step
from superopt.kernels.gpu_launch import like_others
from superopt.kernels.gpu_module import Library
from superopt.kernels.gpu_program import Running

ALIGNED = 256


@dataclass(frozen=True, slots=True)
class Imaged:
    """code: that of all functions, concatenated; known_bytes: the arena's first bytes."""

    image: Image
    texts: bytes
    known: np.ndarray


def imaged(r: Running, device: str, dots: str) -> Imaged | None:
    """Export a program that has run on `device`. None if a kernel takes parameters that are not
    kept."""
    arena = _Arena([])
    known = [r.constants]
    for k in r.loaded.values():
        known += [k.own[t] for t, _ in k.kernel.tables]
    for x in known:
        arena.add(x)
    end = arena.size
    for x in (r.memory, *r.inputs, *r.outputs):
        arena.add(x)
    texts = _Texts([])
    functions: dict[Function, int] = {}
    steps = []
    for n, (_, function, programs, given, how) in zip(r.numbers, r.launches, strict=True):
        if isinstance(function, Library):
            made: Function | None = Function(function.what, 0, 0)
        elif device == "cpu":
            kernel = r.loaded[r.calls[n].kernel.name]
            own = next(k for k, f in kernel.functions.items() if f is function)
            made = texts.function(own, kernel.text.source.encode())
        else:
            kernel = function.warmup(*given, grid=(programs,), **how)
            alike = overlaps(device) and like_others(given, kernel.metadata.shared)
            made = _compiled(kernel, texts, alike)
        if made is None:
            return None
        places = tuple(map(arena.place, given))
        early = bool(how.get("launch_pdl"))
        steps.append(Step(functions.setdefault(made, len(functions)), programs, places, early, n))
    image = Image(
        tuple(functions),
        tuple(steps),
        tuple(Lane(c.lane, tuple(c.waits)) for c in r.calls),
        tuple(map(arena.port, r.inputs)),
        tuple(map(arena.port, r.outputs)),
        arena.size,
        end,
        dots,
    )
    whole = np.zeros(end, np.uint8)
    for x, at in arena.held[: len(known)]:
        bytes_ = array(x.reshape(-1)).view(np.uint8)
        whole[at : at + len(bytes_)] = bytes_
    return Imaged(image, b"".join(texts.held), whole)


def _compiled(kernel: Any, texts: _Texts, alike: bool) -> Function | None:
    """Add a kernel compiled by Triton."""
    if not kernel.plain:
        return None
    told = kernel.metadata
    threads = WARP * told.num_warps
    return texts.function(told.name, kernel.asm["cubin"], told.shared, threads, alike)


@dataclass(frozen=True, slots=True)
class _Texts:
    held: list[bytes]

    def function(
        self, name: str, text: bytes, shared: int = 0, threads: int = 0, alike: bool = False
    ) -> Function:
        begin = 0
        for x in self.held:
            if x == text:
                break
            begin += len(x)
        else:
            self.held.append(text)
        return Function(name, begin, begin + len(text), shared, threads, alike)


@dataclass(slots=True)
class _Arena:
    """Tensors and their offsets; size: total bytes."""

    held: list[tuple[Any, int]]
    size: int = 0

    def add(self, x: Any) -> int:
        at = self.size
        self.held.append((x, at))
        self.size += -(-x.numel() * x.element_size() // ALIGNED) * ALIGNED
        return at

    def place(self, x: Any) -> Place:
        """Return the slice of a part of one of the tensors, or add a kernel's own tensor."""
        at = next(self._within(x), None)
        return self.add(x) if at is None else at, x.numel(), _kind(x)

    def port(self, x: Any) -> Port:
        return self.place(x)[0], tuple(x.shape), _kind(x)

    def _within(self, x: Any) -> Iterator[int]:
        begin = x.data_ptr()
        for whole, at in self.held:
            first = whole.data_ptr()
            size = whole.numel() * whole.element_size()
            if first <= begin and begin + x.numel() * x.element_size() <= first + size:
                yield at + begin - first


def _kind(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
