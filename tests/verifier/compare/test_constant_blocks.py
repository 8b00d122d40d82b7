"""Constants that are cut, moved and put together out of others are found as expressions of them."""

from __future__ import annotations

from random import Random

import numpy as np

from superopt.ir.evaluate import evaluate
from superopt.ir.graph import Graph, constant
from superopt.ir.text import show_graph
from superopt.te.eval.domain import Reals
from superopt.verifier.compare.constant_blocks import Source, bits_of, cover_by_blocks
from tests.support.rules.sample import check_golden

RNG = np.random.default_rng(11)
ARRAYS = [RNG.permutation(10_000)[:n].astype(np.float32).reshape(shape) for n, shape in (
    (24, (4, 6)), (40, (8, 5)), (60, (3, 4, 5)), (7, (7,)),
)]  # fmt: skip
SEEDS = range(90)
OPERATORS = ("slice", "transpose", "reshape", "concat", "pad", "stack", "reverse")


def source(array: np.ndarray, tolerance: float | None = None) -> Source:
    flat = array.reshape(-1).astype(np.float64)
    near = None if tolerance is None else np.full(flat.shape, tolerance)
    return Source(constant(array), array.shape, flat, near, bits_of(array).reshape(-1))


def drawn(rng: Random) -> tuple[np.ndarray, list[str]]:
    """An array after some operators, and their names."""
    a, steps = rng.choice(ARRAYS), []
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(OPERATORS)
        axis = rng.randrange(a.ndim)
        match kind:
            case "slice":
                step = rng.choice((1, 1, 2, 3))
                start = rng.randrange(a.shape[axis])
                a = np.take(a, range(start, a.shape[axis], step), axis)
            case "transpose":
                a = a.transpose(rng.sample(range(a.ndim), a.ndim))
            case "reshape":
                a = a.reshape(-1) if rng.random() < 0.5 else a.reshape(a.shape[0], -1)
            case "concat":
                other = np.take(a, range(rng.randint(1, a.shape[axis])), axis)
                a = np.concatenate([a, other], axis)
            case "pad":
                a = np.pad(a, [(rng.randint(0, 1), rng.randint(0, 2)) for _ in a.shape])
            case "stack":
                a = np.stack([a, a[..., ::-1]]) if rng.random() < 0.5 else np.stack([a])
            case _:
                a = np.flip(a, axis)
        steps.append(kind)
    return np.ascontiguousarray(a), steps


def show(v: object) -> str:
    lines = show_graph(Graph((), (v,))).splitlines()  # type: ignore[arg-type]
    return "; ".join(x.strip() for x in lines if x.strip().startswith(("%", "return")))


def test_blocks_have_the_bits_of_the_array() -> None:
    sources, lines, count = [source(a) for a in ARRAYS], [], 0
    for seed in SEEDS:
        array, steps = drawn(Random(seed))
        found = cover_by_blocks(array, sources)
        if found is not None:
            count += 1
            (made,) = evaluate(Graph((), (found,)), {}, Reals())
            assert made.tobytes() == array.tobytes()
        text = "none" if found is None else show(found)
        lines.append(f"{seed}: {list(array.shape)} {' '.join(steps)}: {text}")
    assert count > len(SEEDS) / 2
    check_golden("compare", "covers", lines)


def test_an_element_that_is_nowhere_has_no_block() -> None:
    sources = [source(a) for a in ARRAYS]
    array = ARRAYS[0].copy()
    array[2, 3] = -5
    assert cover_by_blocks(array, sources) is None
    signs = np.where(ARRAYS[0] > 5000, 0, -0.0).astype(np.float32)
    found = cover_by_blocks(signs, sources)
    assert found is not None
    assert evaluate(Graph((), (found,)), {}, Reals())[0].tobytes() == signs.tobytes()


def test_near_numbers_are_found_within_the_tolerance() -> None:
    for off, found in ((0.0, True), (0.4, True), (0.6, False)):
        made = cover_by_blocks((ARRAYS[0].T + np.float32(off)).copy(), [source(ARRAYS[0], 0.5)])
        assert (made is not None) is found
    assert cover_by_blocks(ARRAYS[0] + np.float32(0.4), [source(ARRAYS[0])]) is None


def test_earlier_sources_are_preferred() -> None:
    first, second = source(ARRAYS[0]), source(np.concatenate([ARRAYS[0], ARRAYS[0]]))
    for sources in ((first, second), (second, first)):
        found = cover_by_blocks(ARRAYS[0].copy(), sources)
        assert found is not None
        text = show(found)
        assert ("Slice" in text) == (sources[0] is second)
