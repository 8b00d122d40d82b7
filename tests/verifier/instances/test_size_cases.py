"""Case splits on sizes."""

from superopt.te.expr import index
from superopt.te.expr.node import Size
from superopt.verifier.instances.size_cases import positive_extent_states
from superopt.verifier.instances.sizes import State


def test_an_extent_of_two_sizes_is_made_positive_by_one_of_them() -> None:
    n, p = Size("n"), Size("p")
    states = positive_extent_states(State({}, {}), index.dim(n - p))
    assert states is not None
    assert [s and dict(s.sizes) for s in states] == [
        {"n": index.as_index(index.dim(p + Size("n'")))}
    ]
    assert positive_extent_states(State({}, {}), index.dim(n + p)) is None
