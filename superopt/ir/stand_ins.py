"""Stand-ins for inputs and weights, so that equal subgraphs are one object."""

from __future__ import annotations

from functools import cache

import numpy as np

from superopt.ir import graph
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType

_MAX_INSPECTED_BYTES = 1 << 20  # rules inspect the values of constants up to this size
_MAX_KEPT_BYTES = 128  # constants up to this size are kept
_MAX_MAGNITUDE = 1000.0  # constants with larger elements are kept: no sum is regrouped around them


@cache
def numbered_input(number: int, t: TensorType, mark: str = "") -> graph.Input:
    """Return input number `number` of type `t`: the same object for the same mark."""
    return graph.Input(f"v{number}{mark}", t)


def stand_in(c: graph.Constant, number: int) -> graph.Constant:
    """Return a stand-in of the type of `c`, or `c` itself if a rule may inspect its values."""
    t = c.type
    if t.dtype is None or t.shape is None or c.nbytes <= _MAX_KEPT_BYTES or not t.dtype.is_float:
        return c
    if c.nbytes <= _MAX_INSPECTED_BYTES:
        flat = c.load().reshape(-1)
        if (flat == flat[0]).all() or not np.abs(flat.astype(np.float64)).max() <= _MAX_MAGNITUDE:
            return c
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    kind = to_numpy(t.dtype)

    def load() -> np.ndarray:
        return (np.arange(int(np.prod(shape))) % 7 + number).astype(kind).reshape(shape)

    return graph.constant(type=t, key=("stand-in", number, t), load=load, nbytes=c.nbytes)
