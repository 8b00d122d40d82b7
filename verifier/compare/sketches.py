"""Candidate pairs for a proof: values of two graphs that agree on one random input."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from superopt import guard
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ir.op import InferError
from superopt.te.eval.domain import Reals
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F64, to_numpy

# Largest relative distance of two sketches of equal values: 1 / 9 is rounded in the weights of an
# average, but not in a division by nine.
SKETCH_RTOL = 1e-6
SKETCH_ATOL = 1e-30
SKETCH_COPIES = 6  # copies of a tensor made by its sketch, two for the weights
SAMPLE_SIZES = (5, 3, 7, 11, 13, 2)


class _OutOfTime(Exception):
    """The deadline has passed."""


def candidate_pairs(
    a: graph.Graph, b: graph.Graph, seed: int, deadline: float
) -> dict[graph.Value, graph.Value]:
    """Map values of `a` and `b` to an earlier value of `a` that agrees on random inputs.

    The result is empty if the graphs cannot be evaluated, and partial if `deadline` (of
    `time.monotonic()`) passes. Values shared by both graphs are evaluated once.
    """
    feeds = _random_feeds(a, seed)
    if feeds is None:
        return {}
    known = _Sketches()
    found: dict[graph.Value, graph.Value] = {}

    mine = set(graph.walk(a))

    def keep(v: graph.Value, array: np.ndarray) -> None:
        if time.monotonic() > deadline:
            raise _OutOfTime
        earlier = known.find_similar(v, array)
        if earlier is not None:
            found[v] = earlier
        elif v in mine:
            known.add(v, array)

    for i in a.inputs:
        known.add(i, feeds[i.name].astype(np.float64) if _is_float(i) else feeds[i.name])
    try:
        with np.errstate(all="ignore"):
            evaluate(
                graph.Graph(a.inputs, (*a.outputs, *b.outputs)), feeds, Reals(F64), on_result=keep
            )
    except _OutOfTime:
        return found
    except (ValueError, TypeError, IndexError, InferError, MemoryError):
        return {}
    return found


def _is_float(i: graph.Input) -> bool:
    return i.type.dtype is not None and i.type.dtype.is_float


def _random_feeds(a: graph.Graph, seed: int) -> dict[str, np.ndarray] | None:
    names = sorted({s for i in a.inputs for d in i.type.shape or () for s in index.symbols(d)})
    sizes = {name: SAMPLE_SIZES[k % len(SAMPLE_SIZES)] for k, name in enumerate(names)}
    feeds: dict[str, np.ndarray] = {}
    for k, i in enumerate(a.inputs):
        if i.type.dtype is None or i.type.shape is None:
            return None
        rng = np.random.default_rng((seed, k))
        shape = tuple(index.evaluate(d, sizes) for d in i.type.shape)
        try:
            guard.require_memory(8 * math.prod(shape), f"input {i.name}, {list(shape)},")
        except guard.MemoryLimitError:
            return None
        if i.type.dtype.is_float:
            feeds[i.name] = rng.standard_normal(shape).astype(to_numpy(i.type.dtype))
        elif i.type.dtype == BOOL:
            feeds[i.name] = rng.integers(0, 2, shape).astype(bool)
        else:
            feeds[i.name] = rng.integers(0, 2, shape).astype(to_numpy(i.type.dtype))
    return feeds


@dataclass(slots=True)
class _Sketches:
    """Values by type and content. Exact types are compared by their elements, floats by two
    weighted sums: two roundings of a large tensor rarely agree in every element."""

    exact: dict[object, graph.Value] = field(default_factory=dict)
    near: dict[str, list[tuple[np.ndarray, graph.Value]]] = field(default_factory=dict)

    def add(self, v: graph.Value, array: np.ndarray) -> None:
        if array.dtype.kind != "f":
            self.exact.setdefault((str(v.type), array.tobytes()), v)
        else:
            self.near.setdefault(str(v.type), []).append((_sketch(array), v))

    def find_similar(self, v: graph.Value, array: np.ndarray) -> graph.Value | None:
        if array.dtype.kind != "f":
            return self.exact.get((str(v.type), array.tobytes()))
        mine = _sketch(array)
        best: tuple[float, graph.Value | None] = (SKETCH_RTOL * float(mine[-1]) + SKETCH_ATOL, None)
        for other, value in self.near.get(str(v.type), ()):
            apart = float(np.abs(mine - other).max())
            if apart < best[0] or (apart == best[0] and best[1] is None):
                best = apart, value
        return best[1]


def _sketch(array: np.ndarray) -> np.ndarray:
    """Return two weighted sums of the elements and the sum of their magnitudes. A logarithm
    compresses large elements: a mask of -1e38 would hide the other elements."""
    guard.require_memory(SKETCH_COPIES * array.nbytes, f"comparing {array.size} elements")
    flat = np.nan_to_num(array.reshape(-1), nan=77.0)
    small = np.sign(flat) * np.log1p(np.abs(flat))
    return np.array([*(_weights(flat.size) @ small), np.abs(small).sum()])


@lru_cache(maxsize=64)
def _weights(size: int) -> np.ndarray:
    return np.random.default_rng(size).uniform(-1, 1, (2, size))
