"""Make the constants of compiled programs of what a saved model has (constant_writer.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.compilation.artifact.recipes import Recipe, evaluate_recipe
from superopt.plan.program.call_context import ALIGNMENT_BYTES, aligned_zeros
from superopt.plan.program.constant_pool import CONSTANT_POOL, PackedConstants

MAX_THREADS = 4


@dataclass(slots=True)
class ConstantReader:
    """Makes constants of a file's weights and data."""

    recipes: Mapping[str, Recipe]
    weights: Sequence[memoryview]
    data: memoryview

    def read(
        self, entries: list[list[Any]], size: int, inline_bytes: bytes
    ) -> PackedConstants | None:
        """As `class_entries.read_constants`: return a program's constants."""
        missing = {
            digest: length for _, digest, length, _ in entries if CONSTANT_POOL.get(digest) is None
        }
        held = self._make(missing)  # the pool's references are weak
        found = []
        for _, digest, _, _ in entries:
            known = CONSTANT_POOL.get(digest)
            found.append(held[digest] if known is None else known)
        places, digests = (tuple(c[n] for c in entries) for n in (0, 1))
        return PackedConstants(places, size, digests, tuple(found))

    def _make(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Return constants of these padded sizes, large ones in one piece of memory."""
        out: dict[str, np.ndarray] = {}
        places: dict[str, int] = {}
        end = 0
        for digest, size in sizes.items():
            if (mapped := self._map_constant(self.recipes[digest], size)) is not None:
                out[digest] = mapped
            else:
                places[digest] = end
                end += size
        arena = aligned_zeros(end)

        def fill(digest: str) -> None:
            made = evaluate_recipe(self.recipes[digest], self.weights, self.data)
            at = places[digest]
            part = arena[at : at + made.nbytes]
            np.copyto(part.view(made.dtype).reshape(made.shape), made)

        threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        if threads > 1 and len(places) > 1:
            with ThreadPoolExecutor(threads) as pool:
                some = sorted(places, key=lambda d: -sizes[d])
                list(pool.map(fill, some))
        else:
            for digest in places:
                fill(digest)
        for digest, at in places.items():
            out[digest] = arena[at : at + sizes[digest]]
        return {digest: CONSTANT_POOL.add(digest, a) for digest, a in out.items()}

    def _map_constant(self, recipe: Recipe, size: int) -> np.ndarray | None:
        """Return a constant that is in the file as kernels read it; None if it is not."""
        kind, *_ = recipe
        if kind not in ("data", "weight"):
            return None
        a = evaluate_recipe(recipe, self.weights, self.data)
        source, at = (self.data, recipe[1]) if kind == "data" else (
            self.weights[recipe[1]], recipe[2])  # fmt: skip
        fits = a.flags.c_contiguous and at + size <= len(source)
        flat = np.frombuffer(source, np.uint8, size, at) if fits else None
        return flat if flat is not None and flat.ctypes.data % ALIGNMENT_BYTES == 0 else None
