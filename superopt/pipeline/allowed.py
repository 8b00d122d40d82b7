"""What may be done to a model when it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

TILES = "E2"  # the class of floats of convolutions in tiles: products are distributed over sums


@dataclass(frozen=True, slots=True)
class Allowed:
    """float_class: how much floats may change. partial: may programs that are equal in parts, with
    what corrects them, be used? In kernels that is a dilated convolution as dense ones of every
    d-th element (rules/library/partial, dilated-as-a-batch and what is like it), of which the ends
    are ragged: each is computed in tiles."""

    float_class: str = "E2"
    partial: bool = True

    @property
    def tiles(self) -> bool:
        return self.float_class >= TILES


ALL = Allowed()
