"""Models all of whose outputs are empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from superopt.plan.program.image import CountCall
    from superopt.plan.program.size_formulas import SizeFormulas


@dataclass(frozen=True, slots=True)
class EmptyOutputs:
    """The step of a model all of whose outputs are empty. shapes, dtypes: of the outputs."""

    outputs: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]
    inputs: ClassVar[Mapping[str, Any]] = {}

    def run(self, env: dict[Any, Any]) -> None:
        """Compute the outputs."""
        for v, shape, dtype in zip(self.outputs, self.shapes, self.dtypes, strict=True):
            env[v] = np.empty(shape, dtype)


@dataclass(frozen=True, slots=True)
class SymbolicEmptyOutputs:
    """The step of a model all of whose outputs are empty, at all sizes. shapes: formulas of those
    of the outputs."""

    outputs: tuple[Any, ...]
    shapes: SizeFormulas
    dtypes: tuple[np.dtype, ...]
    formulas: ClassVar[None] = None
    programs: ClassVar[tuple[()]] = ()

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> EmptyOutputs:
        """Return the step at given sizes."""
        return EmptyOutputs(self.outputs, self.shapes.at_sizes(sizes).output_shapes, self.dtypes)
