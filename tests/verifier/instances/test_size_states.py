"""States cover exactly the sizes that they stand for: every small value of the symbols is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product

import pytest

from superopt.te.expr import index
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import Dim, apply
from superopt.verifier.instances.size_cases import (
    comparison_states,
    known_comparison,
    positive_extent_states,
    unit_states,
)
from superopt.verifier.instances.size_equations import (
    drop_common_factors,
    holds_at,
    solve_multiple,
)
from superopt.verifier.instances.size_orders import extreme_states, order_states
from superopt.verifier.instances.sizes import State, equate
from tests.support.rules.sample import check_golden

N, M, P = (Size(name) for name in "nmp")
NAMES = ("n", "m", "p")
BOX, WIDE = range(1, 5), range(1, 10)
Values = tuple[int, ...]
EMPTY = State({}, {})
SIZES: dict[str, Dim] = {
    "n": N, "m": M, "n + 1": N + 1, "2 n": N * 2, "n m": N * M, "n - m + 1": index.dim(N - M + 1),
    "n // 2": index.dim(N // 2), "3": 3, "1": 1, "min(n, 3)": index.dim(apply("min", N, 3)),
    "n + m": index.dim(N + M), "n - 1": index.dim(N - 1), "4 - n": index.dim(4 - index.as_index(N)),
    "n m - m": index.dim(N * M - M), "half": index.dim((N + 1) // 2), "p": P,
    "max(n - 2, m)": index.dim(apply("max", N - 2, M)),
}  # fmt: skip


def covered(state: State | None) -> set[Values]:
    """The small values of n, m and p that a state allows."""
    if state is None:
        return set()
    used = [*state.sizes.values(), *state.hypotheses]
    free = sorted({s for e in used for s in index.symbols(e)} | ({*NAMES} - state.sizes.keys()))
    found = set()
    for values in product(WIDE, repeat=len(free)):
        env = dict(zip(free, values, strict=True))
        if any(env.get(name) == 1 for name in state.not_one):
            continue
        own = tuple(
            index.evaluate(state.sizes[n], env) if n in state.sizes else env[n] for n in NAMES
        )
        if all(v in BOX for v in own) and all(holds_at(h, env) for h in state.hypotheses):
            found.add(own)
    return found


def where(condition: Callable[[dict[str, int]], bool]) -> set[Values]:
    points = product(BOX, repeat=len(NAMES))
    return {v for v in points if condition(dict(zip(NAMES, v, strict=True)))}


def value(d: Dim, env: dict[str, int]) -> int:
    return index.evaluate(index.as_index(d), env)


def union(states: Iterable[State | None]) -> set[Values]:
    return set().union(*map(covered, states))


def show(states: Iterable[State | None]) -> str:
    return "; ".join(
        "none" if s is None else
        f"{ {k: str(v) for k, v in s.sizes.items()} } {[str(h) for h in s.hypotheses]}"
        f" {sorted(s.not_one)} {list(s.derived)}"
        for s in states
    )  # fmt: skip


PAIRS = [*combinations(SIZES, 2), *((b, a) for a, b in combinations(list(SIZES)[:6], 2))]


def test_equal_sizes() -> None:
    lines = []
    for a, b in PAIRS:
        x, y = SIZES[a], SIZES[b]
        states = equate(EMPTY, x, y, "needed")
        equal = where(lambda v, x=x, y=y: value(x, v) == value(y, v))  # type: ignore[misc]
        assert union(states) == equal, (a, b)
        lines.append(f"{a} == {b}: {show(states)}")
    check_golden("sizes", "equal", lines)


@pytest.mark.parametrize("fn", ["eq", "lt", "le"])
def test_compared_sizes(fn: str) -> None:
    lines = []
    test = {"eq": lambda x, y: x == y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y}[fn]
    everywhere = where(lambda v: True)
    for a, b in PAIRS[::4]:
        states = comparison_states(EMPTY, fn, SIZES[a], SIZES[b])
        assert union(states) == everywhere, (a, b)
        for s in states:
            points = covered(s)
            env = [dict(zip(NAMES, v, strict=True)) for v in points]
            if "(n" not in a + b:  # an extreme is decided first
                assert len({test(value(SIZES[a], v), value(SIZES[b], v)) for v in env}) < 2
            implied = None if s is None else known_comparison(s, fn, SIZES[a], SIZES[b])
            if implied is not None:
                assert all(test(value(SIZES[a], v), value(SIZES[b], v)) is implied for v in env)
        known = [s and known_comparison(s, fn, SIZES[a], SIZES[b]) for s in states]
        lines.append(f"{a} {fn} {b}: {show(states)}: {known}")
    check_golden("sizes", fn, lines)


def test_orders_say_what_they_need() -> None:
    lines = []
    for a, b in PAIRS[::3]:
        states = order_states(EMPTY, SIZES[a], SIZES[b], "needed")
        assert union(states) == where(lambda v: True)
        lines.append(f"{a} <= {b}: {show(states)}")
    check_golden("sizes", "orders", lines)


def test_positive_extents_units_and_extremes() -> None:
    lines = []
    for name, d in SIZES.items():
        positive, unit, extreme = (
            positive_extent_states(EMPTY, d), unit_states(EMPTY, d), extreme_states(EMPTY, d),
        )  # fmt: skip
        if positive is not None:
            assert union(positive) == where(lambda v, d=d: value(d, v) >= 1)  # type: ignore[misc]
        assert union(unit) == where(lambda v, d=d: value(d, v) == 1)  # type: ignore[misc]
        if extreme is not None:
            assert union(extreme) == where(lambda v: True)
        shown = [None if s is None else show(s) for s in (positive, unit, extreme)]
        lines.append(f"{name}: {shown}")
    check_golden("sizes", "extents", lines)


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        ((N // 2) * 2 - N, "(n' * 2)"), (N - (N // 3) * 3, "(n' * 3)"),
        ((N // M) * M - N, "(m * n')"),
        ((N // 2) * 2 - N - 1, None), (N - M, None), ((N // 2) * 3 - N, None),
        (((N // 2) * 2 - N) * 3, "(n' * 2)"),
    ],
)  # fmt: skip
def test_multiples(e: Expr, expected: str | None) -> None:
    found = solve_multiple(drop_common_factors(index.polynomial(index.as_index(e))))
    assert (found and (found[0], *map(str, found[1]))) == (expected and ("n", expected))
