"""The smallest instance on which the two sides of a rule differ: shape, index, both values."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from superopt.ir.graph import Input
from superopt.rules.lang.functions import Result
from superopt.rules.trial.draws import OVERFLOW_DRAW, draw_overflowing
from superopt.te.analysis.bind_sizes import bind
from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate_all
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F64, to_numpy
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, TensorType
from superopt.verifier.instances.size_equations import holds_at

if TYPE_CHECKING:
    from superopt.verifier.instances.instance import Instance

Difference = tuple[str, int, tuple[int, ...], str, str, Mapping[str, Result]]
MAX_ELEMENTS = 3000  # elements of a tensor
MAX_ASSIGNMENTS = 4000  # size assignments checked
MAX_EVALUATIONS = 60  # instances evaluated
MAX_REPEATED_DRAWS = 12  # of an instance with few elements
TOLERANCE = 1e-6
DRAWS = ("whole", "normal", "positive", "odd", OVERFLOW_DRAW)


def counterexample(one: Instance, seed: int = 0) -> Difference | None:
    """Return (shapes, output, index, left, right, values of names); None if none was found."""
    if one.size_roots:
        return None  # its marker numbers stand for others
    if not all(a < b if strictly else a <= b for a, strictly, b in one.state.number_orders):
        return None  # its marker numbers violate the order
    for done, sizes in enumerate(_valid_sizes(one, seed)):
        if done >= MAX_EVALUATIONS:
            return None
        found = _find_difference(one, sizes, seed + done)
        if found is not None:
            return found
    return None


def open_sizes(one: Instance) -> list[str]:
    """Return the names of the sizes that the instance leaves open."""
    tensors = (*one.inputs, *one.lhs_tensors, *one.rhs_tensors)
    return sorted(
        frozenset().union(
            *(index.symbols(d) for t in tensors for d in t.shape),
            *(index.symbols(d) for d in one.names.values() if isinstance(d, Expr)),
            *(index.symbols(h) for h in one.state.hypotheses),
        )
    )


def _valid_sizes(one: Instance, seed: int) -> Iterator[dict[str, int]]:
    """Yield small sizes that satisfy the hypotheses and leave no tensor empty, smallest first."""
    tensors = (*one.inputs, *one.lhs_tensors, *one.rhs_tensors)
    for sizes in itertools.islice(_assignments(open_sizes(one), seed), MAX_ASSIGNMENTS):
        if all(holds_at(h, sizes) for h in one.state.hypotheses) and all(
            _is_small(t, sizes) for t in tensors
        ):
            yield sizes


def _assignments(names: list[str], seed: int) -> Iterator[dict[str, int]]:
    n = len(names)
    if n <= 6:
        every = itertools.product(range(1, 5), repeat=n)
        yield from (dict(zip(names, v, strict=True)) for v in sorted(every, key=sum))
    rng = Random(seed)
    while n:
        most = rng.choice((2, 3, 4, 6))
        yield {name: rng.randint(1, most) for name in names}


def _is_small(t: Tensor, sizes: dict[str, int]) -> bool:
    count = 1
    for d in t.shape:
        n = index.evaluate(d, sizes)
        if n < 1:
            return False
        count *= n
    return count <= MAX_ELEMENTS


def _find_difference(one: Instance, sizes: dict[str, int], seed: int) -> Difference | None:
    bound = [bind(t, sizes) for t in (*one.lhs, *one.rhs)]
    small = sum(len(t.shape) for t in one.inputs) <= 2  # few elements: draw more often
    for n_draw, draw in enumerate(DRAWS * (MAX_REPEATED_DRAWS if small else 1)):
        rng = np.random.default_rng((seed, n_draw))
        feeds = {t.name: _draw_array(t, sizes, draw, rng) for t in one.inputs}
        half = len(one.lhs)
        try:
            lefts = evaluate_all(bound[:half], feeds, Reals(F64))
        except IndexError:  # an index that is an element is out of range
            continue
        try:
            values = [*lefts, *evaluate_all(bound[half:], feeds, Reals(F64))]
        except IndexError as e:
            return _show_shapes(one, sizes), 0, (), "a value", str(e), _names_at(one, sizes)
        for n, (a, b) in enumerate(zip(values[:half], values[half:], strict=True)):
            if a.shape != b.shape:
                left, right = f"of shape {a.shape}", f"of shape {b.shape}"
                return _show_shapes(one, sizes), n, (), left, right, _names_at(one, sizes)
            wrong = _differing_elements(a, b)
            if wrong.any():
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                left, right = f"{a[at]:g}", f"{b[at]:g}"
                return _show_shapes(one, sizes), n, at, left, right, _names_at(one, sizes)
    return None


def _differing_elements(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        fine = np.isfinite(x) & np.isfinite(y)
        return np.asarray(fine & (np.abs(x - y) > TOLERANCE * (1 + np.abs(x) + np.abs(y))))


def _draw_array(
    t: Tensor, sizes: dict[str, int], draw: str, rng: np.random.Generator
) -> np.ndarray:
    shape = tuple(index.evaluate(d, sizes) for d in t.shape)
    stored = to_numpy(F64 if t.dtype.is_float else t.dtype)
    if t.dtype == BOOL:
        return rng.integers(0, 2, shape).astype(stored)
    if t.dtype.is_int and draw == OVERFLOW_DRAW:
        return draw_overflowing(rng, t.dtype, shape)
    match draw:
        case "whole":
            return rng.integers(-3, 4, shape).astype(stored)
        case "odd":
            return (rng.integers(0, 4, shape) * 2 - 3).astype(stored)
        case "positive":
            return (rng.integers(1, 9, shape) / (4 if t.dtype.is_float else 1)).astype(stored)
        case _:
            return (rng.standard_normal(shape) * 2).astype(stored)


def _show_shapes(one: Instance, sizes: dict[str, int]) -> str:
    def number(d: Dim) -> str:
        return str(index.evaluate(d, sizes))

    shown = [f"{t.name}: {t.dtype}[{', '.join(map(number, t.shape))}]" for t in one.inputs]
    for name, v in one.state.choices.items():
        if " " not in name:
            shown.append(f"{name} = {v}")
    used = sorted(n for n in sizes if "." in n)
    shown += [f"{n} = {sizes[n]}" for n in used]
    return ", ".join(shown)


def _names_at(one: Instance, sizes: dict[str, int]) -> dict[str, Result]:
    free = defaultdict(lambda: 1, sizes)  # names in no shape and no hypothesis
    return {name: _value_at(r, free) for name, r in one.names.items()}


def _value_at(r: Result, sizes: dict[str, int]) -> Result:
    """Return the value of a name at these sizes."""
    match r:
        case Expr():
            return index.evaluate(r, sizes)
        case Input(name, TensorType(dtype, shape)):
            assert shape is not None
            return Input(name, TensorType(dtype, tuple(index.evaluate(d, sizes) for d in shape)))
        case tuple():
            return tuple(_value_at(v, sizes) for v in r)
        case _:
            return r
