"""Write the constants of compiled programs into a saved model: by digest, the recipe of each
(recipes.py). Small ones, and those without a recipe, are stored as kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superopt.compilation.artifact.describe_recipes import (
    NoRecipeError,
    WeightIndex,
    slot_recipe,
)
from superopt.compilation.artifact.recipes import Recipe, evaluate_recipe
from superopt.plan.program.call_context import ALIGNMENT_BYTES
from superopt.plan.program.constant_pool import PackedConstants

if TYPE_CHECKING:
    from superopt.compilation.cache.class_entries import ConstantEntry
    from superopt.plan.program.pack_constants import ConstantSlot
    from superopt.plan.program.program import Program

MAX_STORED_BYTES = 1 << 11  # of a constant that is stored whatever its recipe


@dataclass(slots=True)
class ConstantWriter:
    """Collects the constants of programs. slots: what is known of them, by digest. parts: of the
    section of small arrays, of so many bytes."""

    weights: WeightIndex
    recipes: dict[str, Recipe] = field(default_factory=dict)
    slots: dict[str, ConstantSlot] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add_program(self, program: Program, constants: PackedConstants) -> None:
        """Let the recipes of a program's constants be found."""
        by_offset = {c.offset: c for c in program.constants if c.bytes}
        for at, digest in zip(constants.offsets, constants.digests, strict=True):
            if at in by_offset:
                self.slots[digest] = by_offset[at]

    def write(
        self, constants: PackedConstants
    ) -> tuple[list[ConstantEntry], list[bytes], int] | None:
        """As `class_entries.write_constants`: add constants that are not there."""
        entries: list[ConstantEntry] = []
        for at, digest, a in zip(constants.offsets, constants.digests, constants.arrays,
                                 strict=True):  # fmt: skip
            if digest not in self.recipes:
                self.recipes[digest] = self._find_recipe(digest, a) or self.add_data(a)
            entries.append((at, digest, len(a), ""))
        return entries, [], 0

    def add_data(self, array: np.ndarray) -> Recipe:
        """Store an array; return its recipe."""
        at, data = self.size, np.ascontiguousarray(array).tobytes()
        padding = -len(data) % ALIGNMENT_BYTES
        self.parts += data, bytes(padding)
        self.size += len(data) + padding
        return ["data", at, array.dtype.name, [*array.shape]]

    def data(self) -> bytes:
        return b"".join(self.parts)

    def _find_recipe(self, digest: str, packed: np.ndarray) -> Recipe | None:
        """Return a recipe that gives these bytes; None if there is none or they are few."""
        if len(packed) <= MAX_STORED_BYTES or (c := self.slots.get(digest)) is None:
            return None
        parts, size = len(self.parts), self.size
        try:
            found = slot_recipe(c, self.weights, self.add_data)
        except NoRecipeError:
            found = None
        if found is not None:
            made = evaluate_recipe(found, self.weights.views, memoryview(self.data()))
            if np.array_equal(_as_bytes(made), packed[: c.bytes]) and made.nbytes == c.bytes:
                return found
        del self.parts[parts:]
        self.size = size
        return None


def _as_bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)
