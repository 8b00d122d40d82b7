"""Shapes and attributes of contractions, pools, reductions and normalizations."""

import pytest

from superopt.ir.op import Attr
from superopt.rules.trial.sample.draw import PartialShape, RejectedChoice, Shape
from superopt.rules.trial.sample.fit_contractions import _complete_shape, _known_size
from superopt.rules.trial.sample.request import ABSENT
from tests.support.rules.fits import attribute_values, draws, operand_ranks

SMALL = {2, 3, 4}
SIZES = set(range(2, 8))


@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [
        ((2, None, 3), -1, 3),
        ((2, None, 3), 0, 2),
        ((2, None, 3), 1, None),
        ((2,), 1, None),
        ((2,), -2, None),
        ((2, 3), -2, 2),
        (None, 0, None),
    ],
)
def test_known_size(shape: PartialShape, axis: int, size: int | None) -> None:
    assert _known_size(shape, axis) == size


def test_a_completed_shape_keeps_its_known_sizes() -> None:
    assert _complete_shape((2, None), (3, 4)) == (2, 4)
    assert _complete_shape(None, (3, 4)) == (3, 4)
    with pytest.raises(RejectedChoice, match="rank 1, not 2"):
        _complete_shape((2,), (3, 4))


# --- matrix products ------------------------------------------------------------------------------


def test_the_inner_size_of_a_product_is_that_of_the_known_operand() -> None:
    assert draws("MatMul", (4, 9), (None, 5), count=1) == [(((4, 9), (9, 5)), {})]
    assert {y[-2] for (_, y), _ in draws("MatMul", (4, 9), None)} == {9}
    assert {x[-1] for (x, _), _ in draws("MatMul", None, (9, 5))} == {9}
    assert {x[-1] for (x, _), _ in draws("MatMul", None, (9,))} == {9}
    assert {x[-1] for (x, _), _ in draws("MatMul", None, None)} == SIZES


def test_operands_of_a_product_have_ranks_2_to_4_and_broadcast() -> None:
    found = draws("MatMul", None, None, count=400)
    ranks = [(len(x), len(y)) for (x, y), _ in found]
    assert set(ranks) == {(a, b) for a in SMALL for b in SMALL}
    assert 0.25 < ranks.count((2, 2)) / len(ranks) < 0.5
    batches = [(x[:-2], y[:-2]) for (x, y), _ in found if len(x) == len(y) == 4]
    assert {d for x, y in batches for d in (*x, *y)} == {1, 2, 3}
    assert any(x == y for x, y in batches)
    assert any(x != y for x, y in batches)
    assert {d for (x, y), _ in found for d in (x[-2], y[-1])} == SIZES


def test_batches_of_a_product_are_those_of_the_known_operand() -> None:
    found = [x for (x, _), _ in draws("MatMul", None, (5, 1, 9, 3))]
    assert {len(x) for x in found} == {2, 4}
    assert {x[:-3] for x in found if len(x) == 4} == {(5,), (1,)}
    assert {x[-3] for x in found if len(x) > 2} == {1, 2, 3}
    assert [len(x) for x in found].count(4) > len(found) / 3
    assert operand_ranks(draws("MatMul", (5, 6, 9, 3), None), 1) == SMALL


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
def test_a_gemm_takes_its_sizes_from_what_is_known(a: int, b: int) -> None:
    def transpose_if(shape: Shape, flag: int) -> Shape:
        return shape[::-1] if flag else shape

    flags: dict[str, Attr] = {"transA": a, "transB": b}
    for (_, y, z), _ in draws("Gemm", transpose_if((5, 9), a), None, None, **flags):
        assert (len(y), transpose_if(y, b)[0]) == (2, 9)
        assert z in {(5, y[1 - b]), (1, y[1 - b]), (5, 1), (1, 1), (y[1 - b],), (1,), ()}
    for (x, _, _), _ in draws("Gemm", None, transpose_if((9, 5), b), None, **flags):
        assert transpose_if(x, a)[1] == 9
    for (x, y, _), _ in draws("Gemm", None, None, (5,), **flags):
        assert transpose_if(y, b)[1] == 5
        assert transpose_if(x, a)[1] == transpose_if(y, b)[0]
    free = [transpose_if(x, a)[0] for (x, *_), _ in draws("Gemm", None, None, ABSENT, **flags)]
    assert set(free) == SIZES
    assert {len(operands) for operands, _ in draws("Gemm", None, None, **flags)} == {2}


# --- windows --------------------------------------------------------------------------------------


def test_a_convolution_has_groups_and_few_small_sizes() -> None:
    found = draws("Conv", None, None, None, count=400)
    assert operand_ranks(found) == {3, 4}
    assert operand_ranks(found, 2) == {1}
    assert {x[0] for (x, _, _), _ in found} == {1, 2}
    assert {w[1] for (_, w, _), _ in found} == {1, 2, 3}
    assert {d for (x, _, _), _ in found for d in x[2:]} == {4, 5, 6, 7}
    assert {d for (_, w, _), _ in found for d in w[2:]} == {1, 2, 3}
    groups = {(attrs["group"], x[1] // w[1], w[0]) for (x, w, _), attrs in found}
    assert {g for g, _, _ in groups} == {1, 2, 3, 4}
    assert all(g == parts for g, parts, _ in groups)
    assert {o // g for g, _, o in groups} == {1, 2, 3}  # type: ignore[operator]
    assert all(w[:1] == b for (_, w, b), _ in found)


def test_a_convolution_takes_its_channels_from_what_is_known() -> None:
    for (_, w), attrs in draws("Conv", (2, 6, 8), None):
        assert w[1] * attrs["group"] == 6  # type: ignore[operator]
        assert w[0] % attrs["group"] == 0  # type: ignore[operator]
    for (x, _), attrs in draws("Conv", None, (4, 3, 2)):
        assert x[1] == 3 * attrs["group"]  # type: ignore[operator]
        assert 4 % attrs["group"] == 0  # type: ignore[operator]
    assert attribute_values(draws("Conv", None, (4, 3, 2)), "group") == {1, 2}
    for (x, w), _ in draws("Conv", None, None, group=3):
        assert x[1] == 3 * w[1]
        assert w[0] % 3 == 0
    assert {w for (_, w), _ in draws("Conv", (2, 6, 8), (None, 3, 2), group=2)} == {
        (o, 3, 2) for o in (2, 4, 6)
    }


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("strides", (1,) * 3),
        ("dilations", (1,) * 3),
        ("pads", (0,) * 6),
        ("kernel_shape", (1,) * 3),
    ],
)
def test_attributes_of_a_window_determine_its_rank(
    op: str, key: str, value: tuple[int, ...]
) -> None:
    assert operand_ranks(draws(op, None, None, **{key: value})) == {5}


def test_geometry_of_a_convolution_is_plain_uneven_or_keeps_sizes() -> None:
    found = [attrs for _, attrs in draws("Conv", (1, 1, 8, 8), (1, 1, 3, 2), count=600)]
    assert {attrs["strides"] for attrs in found} == {(a, b) for a in (1, 2) for b in (1, 2)}
    assert {attrs["dilations"] for attrs in found} == {(a, b) for a in (1, 2) for b in (1, 2)}
    pads = [attrs["pads"] for attrs in found]
    assert {n for p in pads for n in p} == {0, 1, 2}  # type: ignore[union-attr]
    assert 0.15 < pads.count((0, 0, 0, 0)) / len(pads) < 0.35
    assert len(set(pads)) > 60
    keeping = [
        attrs
        for attrs in found
        if attrs["strides"] == (1, 1)
        and attrs["pads"] == ((1, 0, 1, 1) if attrs["dilations"] == (1, 1) else None)
    ]
    dilated = [a for a in found if a["dilations"] == (2, 2) and a["pads"] == (2, 1, 2, 1)]
    assert len(keeping) > 0.08 * len(found)
    assert len(dilated) > 0.02 * len(found)
    assert all(sum(a["strides"]) == 2 for a in dilated[:2])  # type: ignore[arg-type]


def test_pads_keep_the_size_for_known_dilations_too() -> None:
    found = [a["pads"] for _, a in draws("Conv", (1, 1, 9), (1, 1, 2), dilations=(4,))]
    assert found.count((2, 2)) > 0.25 * len(found)


def test_pads_of_a_pool_are_less_than_its_window() -> None:
    found = draws("MaxPool", (1, 1, 9, 9), kernel_shape=(3, 1), dilations=(2, 1), count=400)
    pads = attribute_values(found, "pads")
    assert {p[0] for p in pads} == {p[2] for p in pads} == set(range(5))  # type: ignore[index]
    assert {p[1::2] for p in pads} == {(0, 0)}  # type: ignore[index]


def test_a_transposed_convolution_is_rarely_padded() -> None:
    found = draws("ConvTranspose", None, None, None, count=400)
    assert operand_ranks(found) == {3, 4}
    assert {x[0] for (x, _, _), _ in found} == {1, 2}
    assert {w[1] for (_, w, _), _ in found} == {1, 2, 3}
    assert {d for (x, _, _), _ in found for d in x[2:]} == {2, 3, 4}
    assert {d for (_, w, _), _ in found for d in w[2:]} == {1, 2, 3}
    assert {x[1] // attrs["group"] for (x, _, _), attrs in found} == {1, 2, 3}  # type: ignore[operator]
    assert all(x[1] == w[0] and b == (w[1] * a["group"],) for (x, w, b), a in found)  # type: ignore[operator]
    zeros = [not any(a["pads"]) for _, a in found]  # type: ignore[arg-type]
    assert 0.7 < sum(zeros) / len(zeros) < 0.9
    assert all(len(a["pads"]) == 2 * (len(x) - 2) for (x, *_), a in found)  # type: ignore[arg-type]
    groups = [a["group"] for _, a in found]
    assert 0.55 < groups.count(1) / len(groups) < 0.8
    assert {x[1] for (x, _), _ in draws("ConvTranspose", None, (4, 5, 2))} == {4}
    assert {w for (_, w), _ in draws("ConvTranspose", (1, 4, 3), (None, 5, 2))} == {(4, 5, 2)}


def test_flags_and_windows_of_a_pool() -> None:
    keys = ("ceil_mode", "count_include_pad")
    found = draws("AveragePool", None)
    for k in keys:
        assert attribute_values(found, k) == {0, 1}
    assert all(
        len(a["kernel_shape"]) == len(x) - 2  # type: ignore[arg-type]
        and all(k <= n for k, n in zip(a["kernel_shape"], x[2:], strict=True))  # type: ignore[arg-type]
        for (x,), a in found
    )
    assert {x[0] for (x,), _ in found} == {1, 2}
    assert {x[1] for (x,), _ in found} == SMALL
    assert {d for (x,), _ in found for d in x[2:]} == SIZES


@pytest.mark.parametrize(
    ("op", "ranks"),
    [("BatchNormalization", {1, 2, 3}), ("InstanceNormalization", {2, 3})],
)
def test_a_normalization_has_one_number_for_each_channel(op: str, ranks: set[int]) -> None:
    found = draws(op, None, None, None)
    assert operand_ranks(found) == {n + 1 for n in ranks}
    assert all(scale == bias == x[1:2] for (x, scale, bias), _ in found)
    assert {x[1] for (x, *_), _ in draws(op, None, None, (9,))} == {9}
    assert {scale for (_, scale), _ in draws(op, (1, 5, 4), None)} == {(5,)}
    assert {x for (x, *_), _ in draws(op, (1, 5, 4), (5,))} == {(1, 5, 4)}


# --- along axes -----------------------------------------------------------------------------------


def test_a_reduction_has_the_rank_that_its_axes_require() -> None:
    assert operand_ranks(draws("ReduceSum", None)) == {1, 2, 3, 4}
    assert operand_ranks(draws("ReduceSum", None, axes=(2,))) == {3, 4}
    assert operand_ranks(draws("ReduceSum", None, axes=(-2,))) == {2, 3, 4}
    assert operand_ranks(draws("ReduceSum", None, axes=(0, -3))) == {3, 4}
    assert operand_ranks(draws("ReduceSum", None, axes=())) == {1, 2, 3, 4}
    assert {d for (x,), _ in draws("ReduceSum", None) for d in x} == {2, 3, 4, 5}
    axes = [attrs["axes"] for _, attrs in draws("ReduceSum", (2, 3, 4, 5))]
    assert {len(a) for a in axes} == {1, 2, 3}  # type: ignore[arg-type]
    assert 0.45 < sum(len(a) == 1 for a in axes) / len(axes) < 0.75  # type: ignore[arg-type]


def test_an_operand_has_the_rank_that_its_axis_requires() -> None:
    assert operand_ranks(draws("Softmax", None)) == {1, 2, 3, 4}
    assert operand_ranks(draws("Softmax", None, axis=1)) == {2, 3, 4}
    assert operand_ranks(draws("Softmax", None, axis=-2)) == {2, 3, 4}
    assert draws("Softmax", (2, 3), count=1, free=()) == [(((2, 3),), {})]


def test_a_scale_has_the_axes_from_the_normalized_one_on() -> None:
    for (x, scale), attrs in draws("LayerNormalization", None, None):
        assert scale == x[attrs["axis"] :]  # type: ignore[misc]
    assert operand_ranks(draws("LayerNormalization", None, None)) == {1, 2, 3, 4}
    assert draws("LayerNormalization", (2, 3, 4), None, ABSENT, count=1, axis=1)[0][0] == (
        (2, 3, 4), (3, 4), (),
    )  # fmt: skip
    assert draws("LayerNormalization", (2, 3, 4), None, count=1, free=())[0][0][1] == (4,)
    with pytest.raises(RejectedChoice):
        draws("LayerNormalization", (2, 3, 4), (3, 4), count=1, axis=-1)
