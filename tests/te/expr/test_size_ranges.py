"""Proofs of inequalities for sizes in known ranges: what is proved, and that it holds."""

import random
from math import prod

import pytest

from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Size
from superopt.te.expr.size_ranges import SizeRanges

N, B = Size("n"), Size("b")


def ceiling(a: Expr, d: int) -> Expr:
    return index.as_index(-((-a) // d))


def tile_begin(f: int) -> Expr:
    """Return the begin of a tile, of which the last one overlaps the one before."""
    blocks = Axis("i", index.dim(ceiling(N, f)))
    return index.apply("min", (index.as_index(blocks * f), index.as_index(N - f)), N.dtype)


PROVED = {
    "a size is positive": (N - 1, {}),
    "a bound of a size": (N - 64, {"n": 64}),
    "at least one block": (ceiling(N, 80) - 1, {}),
    "blocks of a bound": (ceiling(N, 16) - 5, {"n": 65}),
    "covering blocks": (ceiling(N, 16) * 16 - N, {}),
    "full blocks": (N - N // 16 * 16, {}),
    "the begin of a tile": (tile_begin(30), {"n": 30}),
    "the end of a tile": (N - 1 - (tile_begin(30) + Axis("j", 30)), {}),
    "a remainder": (15 - N % 16, {}),
    "a product of sizes": (N * B - N, {}),
    "an axis of symbolic extent": (N - 1 - Axis("i", N), {}),
}
NOT_PROVED = {
    "beyond the bound": (N - 65, {"n": 64}),
    "blocks beyond the bound": (ceiling(N, 16) - 5, {"n": 64}),
    "the begin of a tile of fewer rows": (tile_begin(30), {"n": 29}),
    "beyond the end of a tile": (N - 2 - (tile_begin(30) + Axis("j", 30)), {"n": 30}),
    "an axis beyond the end": (N - 2 - Axis("i", N), {}),
    "other sizes": (N - B, {"n": 64}),
}


@pytest.mark.parametrize("what", PROVED)
def test_inequalities_are_proved(what: str) -> None:
    e, least = PROVED[what]
    assert SizeRanges(least).is_nonnegative(index.as_index(e))


@pytest.mark.parametrize("what", NOT_PROVED)
def test_inequalities_that_do_not_hold_are_not_proved(what: str) -> None:
    e, least = NOT_PROVED[what]
    assert not SizeRanges(least).is_nonnegative(index.as_index(e))


def test_the_greatest_value_of_a_size_is_used() -> None:
    assert SizeRanges({}, {"n": 9}).is_nonnegative(index.as_index(9 - N))
    assert not SizeRanges({}, {"n": 10}).is_nonnegative(index.as_index(9 - N))


@pytest.mark.parametrize(
    ("e", "least", "greatest"),
    [
        (N - 64, 64, None),
        (63 - N, 1, 63),
        (2 * N - 9, 5, None),
        (ceiling(N, 16) - 5, 65, None),
        (4 - ceiling(N, 16), 1, 64),
        (N // 8 - 2, 16, None),
        (N * B - 9, 1, None),
    ],
    ids=str,
)
def test_ranges_are_narrowed_by_what_holds(e: Expr, least: int, greatest: int | None) -> None:
    ranges = SizeRanges()
    ranges.add_nonnegative(index.as_index(e))
    assert ranges.least.get("n", 1) == least
    assert ranges.greatest.get("n") == greatest


def value(e: Expr, env: dict[Expr, int]) -> int:
    match e:
        case Const(v):
            return int(v)
        case Apply(fn, args):
            values = [value(a, env) for a in args]
            match fn:
                case "add":
                    return sum(values)
                case "mul":
                    return prod(values)
                case "floordiv":
                    return values[0] // values[1]
                case "mod":
                    return values[0] % values[1]
                case "min":
                    return min(values)
            assert fn == "max"
            return max(values)
    return env[e]


def random_index(rng: random.Random, depth: int, axes: list[Axis]) -> Expr:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice([N, N, B, Const(rng.randint(-9, 9), N.dtype), *axes])
    a, b = (random_index(rng, depth - 1, axes) for _ in range(2))
    if kind < 0.7:
        return index.as_index(a + b if kind < 0.55 else a - b)
    if kind < 0.83:
        return index.as_index(a * rng.randint(-5, 5) if kind < 0.78 else a * b)
    if kind < 0.93:
        return index.as_index(a // rng.randint(1, 9) if kind < 0.9 else a % rng.randint(1, 9))
    return index.apply(rng.choice(["min", "max"]), (a, b), N.dtype)


def test_what_is_proved_holds_for_all_values() -> None:
    rng = random.Random(1)
    proved = 0
    for _ in range(4000):
        blocks = Axis("i", index.dim(ceiling(N, rng.randint(1, 9))))
        axes = [blocks, Axis("j", rng.randint(1, 9)), Axis("k", N)]
        e = index.as_index(random_index(rng, 4, axes))
        ranges = SizeRanges({"n": rng.randint(1, 20)}, {"b": 4} if rng.random() < 0.5 else {})
        if not ranges.is_nonnegative(e):
            continue
        proved += 1
        for _ in range(25):
            env: dict[Expr, int] = {
                N: ranges.least["n"] + rng.choice([0, 0, 1, 2, rng.randint(0, 30)]),
                B: rng.randint(1, ranges.greatest.get("b", 30)),
            }
            for a in axes:
                extent = value(index.as_index(a.extent), env)
                env[a] = rng.choice([0, extent - 1, rng.randrange(extent)])
            assert value(e, env) >= 0, (str(e), env)
    assert proved > 1000
