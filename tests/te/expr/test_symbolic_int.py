"""Symbolic integers: arithmetic is that of integers, and decisions hold where their guards do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Size
from superopt.te.expr.symbolic_int import (
    SizeEnvironment,
    SymbolicInt,
    SymbolicSizeError,
    example_sizes,
    extent,
    floor_power_of_two,
    hint,
    is_symbolic,
    symbolic_sizes,
    without_symbolic_sizes,
)
from superopt.te.expr.tensor import Tensor

NAMES = ("n", "m")
SIZES = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})
Node = tuple[object, ...]


def formulas(divisors: bool = True) -> st.SearchStrategy[Node]:
    """Integer formulas of n and m; divisors are at least 1."""
    leaves = st.one_of(
        st.sampled_from([("size", name) for name in NAMES]),
        st.integers(-9, 9).map(lambda v: ("number", v)),
    )

    def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        two = st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner)
        divisor = st.one_of(
            st.integers(1, 9).map(lambda v: ("number", v)),
            st.sampled_from([("size", name) for name in NAMES]),
        )
        divided = st.tuples(st.sampled_from(["//", "%"]), inner, divisor)
        negative = inner.map(lambda x: ("-", x))
        return st.one_of(two, divided, negative) if divisors else two

    return st.recursive(leaves, grow, max_leaves=6)


FUNCTIONS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, *b: a - b[0] if b else -a,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def evaluate(f: Node, sizes: dict[str, int]) -> int:
    """Evaluate a formula with Python's operators on integers, symbolic or not."""
    match f:
        case ("size", str(name)):
            return sizes[name]
        case ("number", int(v)):
            return v
        case (str(fn), *args):
            return FUNCTIONS[fn](*(evaluate(a, sizes) for a in args))  # type: ignore[arg-type]
    raise AssertionError(f)


def symbolic() -> dict[str, int]:
    return {name: extent(Size(name)) for name in NAMES}


def value(n: int, sizes: dict[str, int]) -> int:
    return index.evaluate(index.dim(n), sizes)


def holds(environment: SizeEnvironment, sizes: dict[str, int]) -> bool:
    """True if all guards hold at these sizes."""
    for guard, wanted in environment.guards.items():
        assert isinstance(guard, Apply)
        a, b = (index.evaluate(x, sizes) for x in guard.args)
        if {"lt": a < b, "le": a <= b, "eq": a == b}[guard.fn] != wanted:
            return False
    return True


@given(formulas(), SIZES, st.lists(SIZES, min_size=3, max_size=3))
def test_arithmetic_is_that_of_integers_at_all_sizes(
    f: Node, hints: dict[str, int], others: list[dict[str, int]]
) -> None:
    with symbolic_sizes(hints) as environment:
        found = evaluate(f, symbolic())
    assert not environment.guards
    assert hint(found) == evaluate(f, hints)
    for sizes in others:
        assert value(found, sizes) == evaluate(f, sizes)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "is in (1, 2)": lambda a, b: a in (b, 1, 2),
    "max": lambda a, b: max(a, b) == a,
    "bool": lambda a, b: bool(a) and not b,
}


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMPARISONS)), formulas(), formulas()), min_size=1,
             max_size=4),
    SIZES,
    st.lists(SIZES, min_size=8, max_size=8),
)  # fmt: skip
def test_decisions_hold_where_the_guards_do(
    asked: list[tuple[str, Node, Node]], hints: dict[str, int], others: list[dict[str, int]]
) -> None:
    with symbolic_sizes(hints) as environment:
        decided = [COMPARISONS[fn](*(evaluate(f, symbolic()) for f in fs)) for fn, *fs in asked]
    assert decided == [COMPARISONS[fn](*(evaluate(f, hints) for f in fs)) for fn, *fs in asked]
    assert holds(environment, hints)
    for sizes in others:
        if holds(environment, sizes):
            now = [COMPARISONS[fn](*(evaluate(f, sizes) for f in fs)) for fn, *fs in asked]
            assert now == decided


@given(st.sampled_from(["<", "<=", "=="]), SIZES, SIZES)
def test_a_comparison_of_two_sizes_admits_all_with_the_same_order(
    fn: str, hints: dict[str, int], sizes: dict[str, int]
) -> None:
    with symbolic_sizes(hints) as environment:
        n, m = symbolic().values()
        decided = COMPARISONS[fn](n, m)
    assert holds(environment, sizes) == (COMPARISONS[fn](sizes["n"], sizes["m"]) == decided)


@given(formulas(), SIZES, SIZES)
def test_a_plain_integer_guards_equality_with_the_example(
    f: Node, hints: dict[str, int], sizes: dict[str, int]
) -> None:
    with symbolic_sizes(hints) as environment:
        found = evaluate(f, symbolic())
        plain = int(found)
    assert type(plain) is int
    assert plain == evaluate(f, hints)
    assert holds(environment, sizes) == (evaluate(f, sizes) == plain)


@pytest.mark.parametrize(
    "use",
    [
        lambda n: list(range(n)),
        lambda n: [0] * n,
        lambda n: "abcdefghij"[n],
        lambda n: float(n),
        lambda n: n.bit_length(),
        lambda n: 1 << int(n),
    ],
    ids=["range", "repetition", "index", "float", "bit_length", "shift"],
)
def test_what_needs_a_plain_integer_guards_it(use: Callable[[int], object]) -> None:
    with symbolic_sizes({"n": 7}) as environment:
        found = use(extent(Size("n")))
    assert found == use(7)
    assert [holds(environment, {"n": n}) for n in (6, 7, 8)] == [False, True, False]


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_power_of_two_is_at_most_the_size_where_a_guard_says_so(example: int, n: int) -> None:
    with symbolic_sizes({"n": example}) as environment:
        size = extent(Size("n"))
        found = floor_power_of_two(size)
        fits = found <= size
    assert fits
    assert found <= example < 2 * found
    if holds(environment, {"n": n}):
        assert found <= n


def test_proved_comparisons_need_no_guard() -> None:
    with symbolic_sizes({"n": 5, "m": 3}) as environment:
        n, m = symbolic().values()
        assert n >= 1
        assert n + m > m
        assert n * m >= 1
        assert 0 <= n % 8 < 8
        assert n - n == 0
        assert not is_symbolic(n - n)
        assert (n * 8) % 8 == 0
    assert not environment.guards


def test_a_set_or_a_dictionary_takes_no_symbolic_integer() -> None:
    with symbolic_sizes({"n": 16}):
        n = extent(Size("n"))
        with pytest.raises(SymbolicSizeError, match="n is symbolic"):
            _ = n in {16, 32}
        with pytest.raises(SymbolicSizeError, match="n is symbolic"):
            _ = {16: "tile"}.get(n)


def test_an_undecided_comparison_of_indices_is_not_true() -> None:
    with pytest.raises(TypeError, match="not decided"):
        max(Size("n"), Size("m"))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="truth of 0"):
        bool(Size("n") < 1)  # decided: a constant, whose value says so
    assert Axis("i", 4) + 1  # an expression that is no comparison is there


def test_extents_are_symbolic_only_in_the_context() -> None:
    t = Tensor("t", Size("n").dtype, (Size("n"), 4))
    with pytest.raises(AssertionError, match="n is not known"):
        _ = t.sizes
    with symbolic_sizes({"n": 5}):
        assert example_sizes() == {"n": 5}
        assert isinstance(t.sizes[0], SymbolicInt)
        assert t.sizes[1] == 4
        assert isinstance(Axis("i", Size("n") + 1).size, SymbolicInt)
        with without_symbolic_sizes():
            assert not example_sizes()
            with pytest.raises(AssertionError, match="n is not known"):
                _ = t.sizes
    assert not example_sizes()


def test_expressions_hold_no_symbolic_integer() -> None:
    with symbolic_sizes({"n": 5}):
        n = extent(Size("n"))
        assert Axis("i", n + 1).extent == Size("n") + 1
        assert Tensor("t", Size("n").dtype, (n, 4)).shape == (Size("n"), 4)
        assert Axis("i", 4) * n == Axis("i", 4) * Size("n")
        assert index.as_index(n) == Size("n")


@given(formulas(divisors=False), SIZES)
def test_a_size_that_cancels_is_a_plain_integer(f: Node, hints: dict[str, int]) -> None:
    with symbolic_sizes(hints):
        found = evaluate(f, symbolic())
        assume(is_symbolic(found))
        assert found - found == 0
        assert type(found - found) is int
