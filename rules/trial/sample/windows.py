"""Pool windows that lie entirely in the padding: a maximum, or a mean, of nothing."""

from __future__ import annotations

from superopt.ir.graph import Node

POOLS = frozenset(("MaxPool", "AveragePool"))


def has_padding_only_window(n: Node) -> bool:
    """True if `n` is a pool with such a window, whose result is runtime-dependent."""
    source = n.inputs[0] if n.op.name in POOLS else None
    shape = source.type.shape if source is not None else None
    if shape is None:
        return False
    kernel, steps, spread, pads = (
        _numbers(n, key) for key in ("kernel_shape", "strides", "dilations", "pads")
    )
    rank = len(shape) - 2
    for k in range(rank):
        size = shape[2 + k]
        assert isinstance(size, int)
        reach = (kernel[k] - 1) * spread[k]
        for at in range(-pads[k], size + pads[rank + k] - reach, steps[k]):
            if all(not 0 <= at + i * spread[k] < size for i in range(kernel[k])):
                return True
    return False


def _numbers(n: Node, key: str) -> list[int]:
    value = n.attr(key)
    assert isinstance(value, tuple)
    return [v for v in value if isinstance(v, int)]
