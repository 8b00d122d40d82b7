"""Chosen operands and attributes of operators that move elements fit what is known."""

import math
from itertools import permutations, product
from random import Random

import numpy as np
import pytest

from superopt.rules.trial.sample.draw import Draw, RejectedChoice, Style
from superopt.rules.trial.sample.fit_movement import _draw_reshape, _slice_bounds
from tests.support.rules.fits import attribute_values, draws, operand_ranks

SEEDS = range(400)
ALL_RANKS = {1, 2, 3, 4}


def seeded_draws() -> list[Draw]:
    return [Draw(Random(seed), Style()) for seed in SEEDS]


# --- joining and cutting --------------------------------------------------------------------------


def test_operands_of_a_concat_are_equal_except_along_its_axis() -> None:
    lengths = set()
    found = draws("Concat", None, None)
    for (x, y), attrs in found:
        axis = attrs["axis"]
        assert isinstance(axis, int)
        assert (x[:axis], x[axis + 1 :]) == (y[:axis], y[axis + 1 :])
        lengths.add(x[axis] == y[axis])
    assert lengths == {True, False}
    assert operand_ranks(found) == ALL_RANKS


def test_a_concat_has_the_rank_that_its_axis_requires() -> None:
    assert operand_ranks(draws("Concat", None, None, axis=2)) == {3, 4}
    assert operand_ranks(draws("Concat", None, None, axis=-2)) == {2, 3, 4}


def test_a_concat_of_operands_that_differ_in_one_axis_is_along_it() -> None:
    found = draws("Concat", (2, 3, 4), (2, 5, 4), None)
    assert attribute_values(found, "axis") == {1}
    assert {(x[0], x[2]) for (_, _, x), _ in found} == {(2, 4)}


def test_a_split_is_into_one_to_three_parts_that_may_be_empty() -> None:
    found = draws("Split", (3,), count=4000)
    every = {p for n in (1, 2, 3) for p in product(range(4), repeat=n) if sum(p) == 3}
    assert attribute_values(found, "split") == every
    assert sum(0 in attrs["split"] for _, attrs in found) < 0.1 * len(found)  # type: ignore[operator]
    lengths = [len(attrs["split"]) for _, attrs in found]  # type: ignore[arg-type]
    assert 0.5 < lengths.count(2) / len(lengths) < 0.7


def test_a_split_operand_is_as_long_as_its_parts() -> None:
    found = draws("Split", None, split=(4, 5))
    axes = [(x, attrs["axis"]) for (x,), attrs in found]
    assert {x[axis] for x, axis in axes} == {9}  # type: ignore[index]
    assert {axis for _, axis in axes} == {0, 1, 2, 3}
    assert {x[0] for (x,), _ in draws("Split", None, free=("split",))} == set(range(2, 8))
    assert {x[1] for (x,), _ in draws("Split", (2, None), split=(4, 5), axis=1)} == {9}
    assert operand_ranks(draws("Split", None)) == ALL_RANKS
    assert operand_ranks(draws("Split", None, axis=2)) == {3, 4}
    assert operand_ranks(draws("Split", None, axis=-2)) == {2, 3, 4}


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_bounds_of_a_slice_are_those_of_any_part(step: int) -> None:
    found = {_slice_bounds(4, step, None, None, d) for d in seeded_draws()}
    parts = {tuple(range(a, b)) for a in range(4) for b in range(a + 1, 5)}
    taken = {tuple(np.arange(4)[a : b : 1 if step > 0 else -1].tolist()) for a, b in found}
    assert {tuple(sorted(t)) for t in taken} == parts
    assert all(t == tuple(sorted(t, reverse=step < 0)) for t in taken)


def test_a_whole_axis_is_often_reversed() -> None:
    bounds = [_slice_bounds(40, -1, None, None, d) for d in seeded_draws()]
    assert 0.5 < bounds.count((39, -41)) / len(bounds) < 0.8


def test_an_open_bound_of_a_slice_fits_the_known_one() -> None:
    ends = {_slice_bounds(9, 1, 3, None, d) for d in seeded_draws()}
    assert ends == {(3, 4), (3, 5), (3, 9)}
    lengths = [b - a for a, b in (_slice_bounds(9, 1, 3, None, d) for d in seeded_draws())]
    assert 0.4 < lengths.count(1) / len(lengths) < 0.6
    starts = {_slice_bounds(9, 1, None, 3, d) for d in seeded_draws()}
    assert starts == {(0, 3), (1, 3), (2, 3)}
    assert {_slice_bounds(9, 1, None, 0, d) for d in seeded_draws()} == {(0, 0)}
    beyond = {_slice_bounds(2, 1, None, 9, d) for d in seeded_draws()}
    assert beyond == {(0, 9), (1, 9)}
    assert _slice_bounds(9, 1, 5, 2, Draw(Random(0), Style())) == (5, 2)
    assert _slice_bounds(1, -1, None, None, Draw(Random(0), Style())) == (0, -2)


def test_a_slice_has_no_more_and_no_other_axes_than_its_operand() -> None:
    for shapes, known in (((2,), {"starts": (0, 0)}), ((2,), {"axes": (1,)})):
        with pytest.raises(RejectedChoice):
            draws("Slice", shapes, count=1, **known)
    for draw in seeded_draws():
        with pytest.raises(RejectedChoice, match="a slice of nothing"):
            _slice_bounds(0, 1, None, None, draw)
    assert operand_ranks(draws("Slice", None)) == ALL_RANKS
    assert operand_ranks(draws("Slice", None, axes=(1,))) == {2, 3, 4}
    assert operand_ranks(draws("Slice", None, axes=(-2, 0))) == {2, 3, 4}
    assert operand_ranks(draws("Slice", None, starts=(0, 0, 0))) == {3, 4}


def test_a_slice_is_mostly_of_one_axis_and_without_steps() -> None:
    found = draws("Slice", (9, 9), count=400)
    counts = [len(attrs["axes"]) for _, attrs in found]  # type: ignore[arg-type]
    assert 0.65 < counts.count(1) / len(counts) < 0.85
    steps = [step for _, attrs in found for step in attrs["steps"]]  # type: ignore[union-attr]
    assert 0.4 < steps.count(1) / len(steps) < 0.6
    assert attribute_values(draws("Slice", ()), "axes") == {()}


def test_a_slice_without_steps_goes_forward() -> None:
    found = draws("Slice", (5, 6), axes=(0, 1), free=("starts", "ends"))
    assert all(
        a < b
        for _, attrs in found
        for a, b in zip(attrs["starts"], attrs["ends"], strict=True)  # type: ignore[arg-type]
    )


def test_pads_are_none_positive_negative_and_mixed() -> None:
    rank = 40
    pads = [attrs["pads"] for _, attrs in draws("Pad", (9,) * rank, ())]
    assert all(isinstance(p, tuple) and len(p) == 2 * rank for p in pads)
    begins = [p[2:rank] for p in pads]  # type: ignore[index]
    assert {tuple(sorted(set(b))) for b in begins} == {
        (0,), (-1, 0, 1), (-1, 0, 1, 2), (-1, 1, 2), (0, 1, 2),
    }  # fmt: skip
    opposite = [p[:rank] == tuple(-n for n in p[rank:]) and any(p) for p in pads]  # type: ignore[index,arg-type]
    mixed = [-1 in p and not o for p, o in zip(pads, opposite, strict=True)]  # type: ignore[operator]
    assert 0.15 < sum(opposite) / sum((*opposite, *mixed)) < 0.5
    unpadded = [not any((*p[:2], *p[rank : rank + 2])) for p in pads if any(p)]  # type: ignore[index,arg-type]
    assert 0.4 < sum(unpadded) / len(unpadded) < 0.7  # as before a convolution


def test_pads_of_fewer_than_three_axes_are_of_all() -> None:
    zeros = {}
    for rank in (2, 3):
        found = [attrs["pads"] for _, attrs in draws("Pad", (9,) * rank, ())]
        zeros[rank] = sum(not any((*p[:2], *p[rank : rank + 2])) for p in found) / len(found)  # type: ignore[index]
        assert {p[rank - 1] for p in found} == {-1, 0, 1, 2}  # type: ignore[index]
    assert zeros[2] < 0.4 < zeros[3]
    assert operand_ranks(draws("Pad", None, ())) == ALL_RANKS
    assert operand_ranks(draws("Pad", None, (), pads=(0, 1, 2, 0, 0, 0))) == {3}
    assert operand_ranks(draws("Pad", None, None), 1) == {0}


# --- shapes ---------------------------------------------------------------------------------------


def test_a_transpose_is_rarely_the_identity() -> None:
    perms = [attrs["perm"] for _, attrs in draws("Transpose", (2, 3, 4))]
    assert set(perms) == set(permutations(range(3)))
    assert 0.15 < perms.count((0, 1, 2)) / len(perms) < 0.5
    assert operand_ranks(draws("Transpose", None)) == {2, 3, 4}


def test_a_reshape_keeps_merges_splits_adds_and_swaps_axes() -> None:
    found = {_draw_reshape((2, 3, 5), d) for d in seeded_draws()}
    assert {math.prod(shape) for shape in found} == {30}
    assert found >= {
        (2, 3, 5), (6, 5), (2, 15), (1, 2, 3, 5), (2, 1, 3, 5), (2, 3, 1, 5), (2, 3, 5, 1),
        (3, 2, 5), (5, 3, 2), (2, 5, 3), (30,),
    }  # fmt: skip
    assert {len(shape) for shape in found} == ALL_RANKS


def test_a_reshape_often_merges_two_axes_and_splits_one() -> None:
    merged = [_draw_reshape((7, 11), d) for d in seeded_draws()]
    assert 0.15 < merged.count((77,)) / len(merged) < 0.27
    split = {_draw_reshape((4, 3, 5, 7), d) for d in seeded_draws()}
    assert (2, 2, 3, 5, 7) in split
    assert any(len(shape) == 3 and shape[0] == 12 for shape in split)


def test_a_reshape_of_one_or_no_axis() -> None:
    for x, least in (((6,), {(6,), (2, 3), (3, 2), (1, 6), (6, 1)}), ((), {(), (1,), (1, 1)})):
        found = {_draw_reshape(x, d) for d in seeded_draws()}
        assert found >= least
        assert {math.prod(shape) for shape in found} == {math.prod(x)}


def test_the_operand_of_a_reshape_has_as_many_elements_as_its_result() -> None:
    found = draws("Reshape", None, shape=(2, 6))
    assert {math.prod(x) for (x,), _ in found} == {12}
    assert operand_ranks(found) == ALL_RANKS
    assert sum(x == (2, 6) for (x,), _ in found) > 0.25 * len(found)
    partial = {x for (x,), _ in draws("Reshape", (None, 3, None), shape=(2, 6))}
    assert partial == {(a, 3, 4 // a) for a in (1, 2, 4)}
    assert {x for (x,), _ in draws("Reshape", (None, 3), count=50)} == {(n, 3) for n in range(2, 5)}
    for hole in ((5, None), (0, None)):
        with pytest.raises(RejectedChoice):
            draws("Reshape", hole, count=1, shape=(2, 6))
    assert attribute_values(draws("Reshape", None, shape=(2, 6)), "allowzero") == {0}


def test_upsampled_and_tiled_operands_are_small() -> None:
    for op in ("Upsample", "Tile"):
        found = draws(op, None)
        assert operand_ranks(found) == ALL_RANKS
        assert {d for (x,), _ in found for d in x} == {2, 3, 4}
    assert {len(attrs["scales"]) for _, attrs in draws("Upsample", (2, 3))} == {2}  # type: ignore[arg-type]
    assert operand_ranks(draws("Tile", None, repeats=(1, 2))) == {2}


def test_repeats_are_of_none_of_one_and_of_several_axes() -> None:
    repeats = [attrs["repeats"] for _, attrs in draws("Tile", (5, 6, 7))]
    assert {(2, 1, 1), (3, 1, 1)} <= set(repeats)
    assert 0.25 < sum(r in ((2, 1, 1), (3, 1, 1)) for r in repeats) / len(repeats) < 0.5
    assert 0.25 < repeats.count((1, 1, 1)) / len(repeats) < 0.45
    assert any(len(set(r)) == 3 for r in repeats)  # type: ignore[arg-type]


def test_a_squeezed_axis_has_size_1() -> None:
    assert {x[1] for (x,), _ in draws("Squeeze", None, axes=(1,))} == {1}
    assert operand_ranks(draws("Squeeze", None, axes=(1,))) == {2, 3, 4}
    assert operand_ranks(draws("Squeeze", None, axes=(-3,))) == {3, 4}
    assert operand_ranks(draws("Squeeze", None, axes=())) == ALL_RANKS
    assert {x for (x,), _ in draws("Squeeze", (3, None), axes=(1,))} == {(3, 1)}
    for (x,), attrs in draws("Squeeze", None):
        axes = attrs["axes"]
        assert isinstance(axes, tuple)
        assert {x[a] for a in axes if isinstance(a, int)} <= {1}
    axes = [attrs["axes"] for _, attrs in draws("Squeeze", (1, 1, 1))]
    assert set(axes) == {(), (0,), (0, 1), (0, 1, 2)}
    assert axes.count((0, 1, 2)) > len(axes) / 2


def test_an_unsqueezed_operand_has_the_rank_that_its_axes_require() -> None:
    assert operand_ranks(draws("Unsqueeze", None)) == {1, 2, 3}
    assert operand_ranks(draws("Unsqueeze", None, axes=(2,))) == {2, 3}
    assert operand_ranks(draws("Unsqueeze", None, axes=(0, 2))) == {1, 2, 3}
    assert operand_ranks(draws("Unsqueeze", None, axes=(0, 3))) == {2, 3}
    assert operand_ranks(draws("Unsqueeze", None, axes=(-3,))) == {2, 3}
    scalar = Style(rank=0)
    assert operand_ranks(draws("Unsqueeze", None, style=scalar)) == {0}
    assert operand_ranks(draws("Unsqueeze", None, style=scalar, axes=(0, 1))) == {0}
    assert operand_ranks(draws("Unsqueeze", None, style=scalar, axes=(1,))) == {1, 2, 3}
    axes = [attrs["axes"] for _, attrs in draws("Unsqueeze", (2, 3))]
    assert {len(a) for a in axes} == {1, 2}  # type: ignore[arg-type]
    assert sum(len(a) == 2 for a in axes) < 0.4 * len(axes)  # type: ignore[arg-type]


def test_an_expanded_operand_keeps_its_known_sizes() -> None:
    found = draws("Expand", (3, None))
    assert {x[0] for (x,), _ in found} == {3}
    assert {x[1] for (x,), _ in found} == set(range(1, 8))
    assert operand_ranks(draws("Expand", None)) == ALL_RANKS


def test_an_expand_widens_axes_of_size_1_adds_one_in_front_or_does_nothing() -> None:
    shapes = [attrs["shape"] for _, attrs in draws("Expand", (3, 1))]
    assert {s[-2:] for s in shapes} == {(3, n) for n in range(1, 8)}  # type: ignore[index]
    assert {len(s) for s in shapes} == {2, 3}  # type: ignore[arg-type]
    assert 0.15 < shapes.count((3, 1)) / len(shapes) < 0.4
    wide = draws("Expand", (3, 1, 2, 2))
    assert {len(attrs["shape"]) for _, attrs in wide} == {4}  # type: ignore[arg-type]
    ones = [x.count(1) / len(x) for (x,), _ in draws("Expand", None)]
    assert 0.3 < sum(ones) / len(ones) < 0.5


def test_the_operand_of_an_expand_broadcasts_to_its_shape() -> None:
    found = {x for (x,), _ in draws("Expand", None, shape=(2, 3))}
    assert all(np.broadcast_shapes(x, (2, 3)) == (2, 3) for x in found)
    assert found >= {(2, 3), (3,), (1, 3), (2, 1), ()}


def test_blocks_of_a_space_to_depth_divide_the_image_and_of_its_inverse_the_channels() -> None:
    for (x,), attrs in draws("DepthToSpace", None):
        assert x[1] // attrs["blocksize"] ** 2 in (2, 3)  # type: ignore[operator]
        assert set(x[2:]) <= {2, 3}
    for (x,), attrs in draws("SpaceToDepth", None):
        assert {d / attrs["blocksize"] for d in x[2:]} <= {2, 3}  # type: ignore[operator]
        assert x[1] in (2, 3)
    assert {x for (x,), _ in draws("DepthToSpace", (1, 8, 2, 2))} == {(1, 8, 2, 2)}
    assert {d % 4 for (x,), _ in draws("SpaceToDepth", None, blocksize=4) for d in x[2:]} == {0}


def test_a_gather_has_small_indices_of_ranks_0_to_2() -> None:
    found = draws("Gather", None, None)
    assert operand_ranks(found) == {1, 2, 3}
    ranks = [len(index) for (_, index), _ in found]
    assert set(ranks) == {0, 1, 2}
    assert 0.4 < ranks.count(1) / len(ranks) < 0.6
    assert {d for (_, index), _ in found for d in index} == {2, 3, 4}
    assert operand_ranks(draws("Gather", None, (2,), axis=1)) == {2, 3}
    assert operand_ranks(draws("Gather", None, (2,), axis=-2)) == {2, 3}
    assert "axis" not in draws("Gather", None, None, free=())[0][1]
