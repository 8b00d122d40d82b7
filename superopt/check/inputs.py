"""Inputs for the numerical check: plain, uniform and adversarial values of the right type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as g
from superopt.te import index as ix
from superopt.te.dtype import BOOL, STRING, DType, to_numpy
from superopt.te.expr import TensorType

KINDS = ("normal", "uniform", "adversarial")
_CARRIERS = frozenset({"Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Flatten", "Gather",
                       "Slice", "Transpose", "Concat", "Split", "Expand"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Feeds:
    """One set of inputs: where they came from, and the arrays by input name."""

    kind: str
    arrays: Mapping[str, np.ndarray]


def feeds(
    graph: g.Graph, sizes: Mapping[str, int], seed: int, given: Mapping[str, np.ndarray] | None
) -> Iterator[Feeds]:
    """The user's inputs first, then one set of each kind at `sizes`."""
    if given is not None:
        yield Feeds("given", given)
    limits = {i: _limit(graph, i, sizes) for i in graph.inputs}
    for n, kind in enumerate(KINDS):
        rng = np.random.default_rng((seed, n))
        yield Feeds(
            kind,
            {i.name: values(concrete(i.type, sizes), kind, limits[i], rng) for i in graph.inputs},
        )


def concrete(t: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """`t` at `sizes`; KeyError names a size that has no value."""
    if t.shape is None:
        return t
    return TensorType(t.dtype, tuple(ix.evaluate(d, dict(sizes)) for d in t.shape))


def values(t: TensorType, kind: str, limit: int, rng: np.random.Generator) -> np.ndarray:
    """An array of type `t`; integers are in [0, limit)."""
    if t.dtype is None or t.shape is None:
        raise TypeError(f"no values of {t}")
    shape = tuple(int(d) for d in t.shape)  # type: ignore[arg-type]
    dtype: DType = t.dtype
    if dtype == STRING:
        return rng.choice(np.array(["a", "b", "superopt"], object), shape)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        return rng.integers(0, max(limit, 1), shape).astype(to_numpy(dtype))
    if not dtype.is_float:
        raise TypeError(f"no values of {t}")
    if kind == "uniform":
        drawn = rng.random(shape)
    else:
        drawn = rng.standard_normal(shape)
    if kind == "adversarial":
        # zeros, ties, and magnitudes over six decades, where cancellation and overflow show
        scale = 10.0 ** rng.integers(-4, 3, shape)
        drawn = np.where(rng.random(shape) < 0.1, 0.0, np.round(drawn, 1) * scale)
    if dtype.bits < 16:
        drawn = np.clip(drawn, -4, 4)
    return np.asarray(drawn).astype(to_numpy(dtype))


def _limit(graph: g.Graph, i: g.Input, sizes: Mapping[str, int]) -> int:
    """How large an integer input may be: the least extent that it indexes, 2 if none."""
    if i.type.dtype is None or not i.type.dtype.is_int:
        return 2
    users = g.users(graph)
    least: int | None = None
    stack: list[g.Value] = [i]
    seen: set[g.Value] = set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        for n in users.get(v, []):
            if n.op.name.startswith("Gather") and len(n.inputs) > 1 and n.inputs[1] is v:
                table = n.inputs[0]
                axis = dict(n.attrs).get("axis", 0)
                if table is None or table.type.shape is None or not isinstance(axis, int):
                    continue
                try:
                    extent = ix.evaluate(table.type.shape[axis], dict(sizes))
                except (KeyError, IndexError):
                    continue
                least = extent if least is None else min(least, extent)
            elif n.op.name in _CARRIERS:
                stack.extend(g.results(n))
    return 2 if least is None else least
