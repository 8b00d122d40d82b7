"""The values that an open attribute may take."""

import pytest

from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.expr.dtype import BOOL, F16, F32, F64, I64
from superopt.te.expr.node import Size
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.attributes import (
    SMALL_STRIDES_NOTE,
    OpenAttribute,
    Unsupported,
    attribute_options,
    option_ranks,
    scope_limits,
)

SMALL = [(1, 1), (2, 2)]
T0, T1 = Size("t0"), Size("t1")


@pytest.mark.parametrize(
    ("op", "key", "rank", "values"),
    [
        ("ConvTranspose", "strides", 4, SMALL),
        ("ConvTranspose", "dilations", 4, SMALL),
        ("ConvTranspose", "pads", 4, [(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)]),
        ("ConvTranspose", "output_padding", 4, [(0, 0), (1, 1)]),
        ("Expand", "shape", 1, [(T0,), (T0, T1)]),
        ("Expand", "shape", 4, [(T0, T1, Size("t2"), Size("t3"))]),
        (
            "Expand",
            "shape",
            0,
            [(), (T0,), (T0, T1), (T0, T1, Size("t2")), (T0, T1, Size("t2"), Size("t3"))],
        ),
        (
            "Reshape",
            "shape",
            2,
            [(T0,), (T0, T1), (T0, T1, Size("t2")), (T0, T1, Size("t2"), Size("t3"))],
        ),
        ("Conv", "strides", 4, [(Size("s0"), Size("s1"))]),
        ("Conv", "dilations", 3, [(Size("d0"),)]),
        ("Conv", "group", 4, [Size("g")]),
        ("Conv", "kernel_shape", 4, [None]),
        ("Conv", "auto_pad", 4, ["NOTSET"]),
        ("MaxPool", "kernel_shape", 4, [(Size("k0"), Size("k1"))]),
        ("AveragePool", "ceil_mode", 4, [0, 1]),
        ("MaxPool", "storage_order", 4, [0]),
        ("GroupNormalization", "num_groups", 4, [Size("g")]),
        ("GroupNormalization", "stash_type", 4, [F32]),
        ("BatchNormalization", "training_mode", 4, [0]),
        ("Flatten", "axis", 2, [0, 1, 2]),
        ("Softmax", "axis", 2, [0, 1]),
        ("ReduceSum", "axes", 2, [(0,), (1,), (0, 1)]),
        ("ReduceSum", "keepdims", 2, [0, 1]),
        ("ReduceSum", "noop_with_empty_axes", 2, [0]),
        ("Squeeze", "axes", 2, [(), (0,), (1,), (0, 1)]),
        ("Unsqueeze", "axes", 1, [(0,), (1,), (0, 1), (0, 2), (1, 2)]),
        ("Unsqueeze", "axes", 4, [(0,), (1,), (2,), (3,), (4,)]),
        ("Slice", "axes", 2, [(), (0,), (1,), (0, 1)]),
        ("Slice", "starts", 2, [None]),
        ("Slice", "ends", 2, [None]),
        ("Tile", "repeats", 2, [(Size("r0"), Size("r1"))]),
        ("Upsample", "scales", 1, [(Size("s0"),)]),
        ("DepthToSpace", "blocksize", 4, [Size("b")]),
        ("DepthToSpace", "mode", 4, ["DCR", "CRD"]),
        ("Transpose", "perm", 2, [(0, 1), (1, 0)]),
        ("Cast", "to", 1, [F32, F64, F16, I64, BOOL]),
        ("Gelu", "approximate", 1, ["none", "tanh"]),
        ("Pad", "mode", 1, ["constant", "edge", "reflect", "wrap"]),
        ("Gemm", "transA", 2, [0, 1]),
        ("Reshape", "allowzero", 2, [0]),
        ("Split", "num_outputs", 2, [None]),
    ],
)
def test_options(op: str, key: str, rank: int, values: list[object]) -> None:
    a = OpenAttribute(ProofContext(), OPS[op], key, "a", [rank], {}, 4)
    assert [option(Size) for option in attribute_options(a)] == values


def open_attribute(op: str, key: str, rank: int, **known: Attr) -> OpenAttribute:
    return OpenAttribute(ProofContext(), OPS[op], key, "a", [rank], known, 4)


def test_numbers_are_any_and_those_that_simplify() -> None:
    for op, key, more in (("Elu", "alpha", [0.0, 1.0]), ("LayerNormalization", "epsilon", [])):
        a = open_attribute(op, key, 2)
        assert [option(Size) for option in attribute_options(a)] == [a.unknown(), *more]


@pytest.mark.parametrize(
    ("op", "rank", "size", "values"),
    [
        ("Conv", 3, 1, [(0, 0)]),
        ("Conv", 3, 3, [(2, 2)]),
        ("Pad", 1, 3, [(0, 0)]),
        ("Split", 1, 3, [(2,), (2, 2), (2, 2, 2)]),
    ],
)
def test_pads_and_parts_are_sizes_less_one_and_of_any_sign(
    op: str, rank: int, size: int, values: list[tuple[int, ...]]
) -> None:
    """Where all fresh sizes are `size`."""
    a = open_attribute(op, "split" if op == "Split" else "pads", rank)
    assert [option(lambda name: size) for option in attribute_options(a)] == values


def test_slices_have_as_many_steps_as_axes_and_as_many_axes_as_starts() -> None:
    steps = attribute_options(open_attribute("Slice", "steps", 3, axes=(0, 2)))
    assert [option(Size) for option in steps] == [(1, 1), (2, 2), (-1, -1)]
    axes = attribute_options(open_attribute("Slice", "axes", 3, starts=(0, 0)))
    assert [option(Size) for option in axes] == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("op", "key", "known"),
    [("Slice", "steps", {}), ("Slice", "starts", {"ends": (1,)}), ("LpNormalization", "p", {})],
)
def test_other_attributes_have_no_scope(op: str, key: str, known: dict[str, Attr]) -> None:
    with pytest.raises(Unsupported):
        attribute_options(open_attribute(op, key, 2, **known))


@pytest.mark.parametrize(
    ("op", "key", "limits"),
    [
        ("Unsqueeze", "axes", ["one or two new axes"]),
        ("ReduceMax", "axes", ["reductions over at least one axis"]),
        ("ConvTranspose", "pads", [SMALL_STRIDES_NOTE]),
        ("ConvTranspose", "group", []),
        ("Cast", "to", ["casts to f32, f64, f16, i64 and bool"]),
        ("Conv", "pads", []),
        ("Squeeze", "axes", []),
    ],
)
def test_a_proof_says_which_values_it_leaves_out(op: str, key: str, limits: list[str]) -> None:
    assert scope_limits(OPS[op], key) == limits


@pytest.mark.parametrize(
    ("op", "key", "rank", "levels"),
    [
        ("Reshape", "shape", 2, [1, 2, 3, 4]),
        ("Expand", "shape", 2, [2, 3]),
        ("Unsqueeze", "axes", 2, [2] * 3 + [3] * 6),
        ("Transpose", "perm", 2, None),
    ],
)
def test_options_of_larger_results_are_tried_later(
    op: str, key: str, rank: int, levels: list[int] | None
) -> None:
    options = attribute_options(open_attribute(op, key, rank))
    assert option_ranks(OPS[op], key, [rank], options) == levels
