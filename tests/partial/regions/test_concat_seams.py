"""Programs that join the same parts."""

from __future__ import annotations

from superopt.ir import graph
from superopt.partial.regions.boxes import format_box
from superopt.partial.regions.composition import Composer
from superopt.partial.regions.concat_seams import find_seams
from superopt.partial.regions.find import find_regions
from tests.support.partial.regions import apply, exact, given_

X, Y = given_("x", 1, 6, 5, 7), given_("y", 1, 6, 5, 7)
K, Q = given_("k", 4, 6, 3, 3), given_("q", 6, 6, 1, 1)


def pool(v: graph.Value, size: int = 3) -> graph.Value:
    return apply("MaxPool", v, kernel_shape=(size, size), pads=(size // 2,) * 4)


def mean(v: graph.Value) -> graph.Value:
    pads = (1, 1, 1, 1)
    return apply("AveragePool", v, kernel_shape=(3, 3), pads=pads, count_include_pad=1)


def branches(v: graph.Value, axis: int = 1) -> graph.Value:
    some = apply("Conv", v, K, pads=(1, 1, 1, 1)), apply("Conv", v, Q), mean(v)
    return apply("Concat", *some, axis=axis)


def parts_of(a: graph.Value, b: graph.Value) -> tuple[int, list[int]] | None:
    both = Composer()
    left, right = both.tensor(a), both.tensor(b)
    assert left.body is not None
    assert right.body is not None
    assert left.axes == right.axes
    found = find_seams(left.axes, [left.body, right.body])
    return None if found is None else (found[0], [p.begin for p in found[1]])


def test_parts_are_those_of_both() -> None:
    whole = apply("Concat", X, Y, axis=3)
    each = apply("Concat", branches(X), branches(Y), axis=3)
    assert parts_of(branches(whole), each) == (1, [0, 4, 10])
    assert parts_of(whole, apply("Concat", Y, X, axis=3)) == (3, [0, 7])
    assert parts_of(whole, apply("Relu", whole)) is None
    assert parts_of(whole, apply("Neg", given_("z", 1, 6, 5, 14))) is None


def test_as_the_comparison_of_every_element() -> None:
    whole = apply("Concat", X, Y, axis=3)
    exact(branches(whole), apply("Concat", branches(X), branches(Y), axis=3))
    exact(whole, apply("Concat", Y, X, axis=3))
    exact(apply("Concat", X, Y, X, axis=2), apply("Concat", X, X, Y, axis=2))
    exact(apply("Concat", X, apply("Conv", X, Q), axis=1), apply("Concat", X, mean(X), axis=1))


def test_branches_of_models() -> None:
    """Channels of one branch are not those of another: 0.6 s and 0.2 s, and not exact."""
    x, y = given_("x", 1, 64, 20, 20), given_("y", 1, 64, 20, 20)

    def pools(v: graph.Value) -> graph.Value:
        return apply(
            "Concat", v, pool(v, 5), pool(pool(v, 5), 5), pool(pool(pool(v, 5), 5), 5), axis=1
        )

    found = find_regions(
        apply("Concat", pools(x), pools(y), axis=3), pools(apply("Concat", x, y, axis=3))
    )
    assert found.is_exact
    assert found.compared_elements < 1000
    assert [*map(format_box, found.different)] == [
        "[0, 64:128, 0:20, 18:22]", "[0, 128:192, 0:20, 16:24]", "[0, 192:256, 0:20, 14:26]",
    ]  # fmt: skip
