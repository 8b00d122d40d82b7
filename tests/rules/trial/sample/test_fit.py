"""What is drawn for each operator is valid, and covers what its attributes may be."""

from collections.abc import Mapping
from itertools import permutations, product

import pytest

from superopt.ir.graph import Input, node
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.rules.trial.sample.draw import PartialShape, RejectedChoice, Shape
from superopt.rules.trial.sample.fit import FITS
from superopt.rules.trial.sample.request import ABSENT
from superopt.te.expr.dtype import F32, F64, I32, I64
from superopt.te.expr.tensor import TensorType
from tests.support.rules.fits import attribute_values, draws

OPERAND_COUNTS = {
    "BatchNormalization": 5, "Clip": 3, "Concat": 3, "Conv": 3, "ConvTranspose": 3, "Gather": 2,
    "Gemm": 3, "GroupNormalization": 3, "InstanceNormalization": 3, "LayerNormalization": 3,
    "MatMul": 2, "PRelu": 2, "Pad": 2, "RMSNormalization": 2, "STFT": 2, "SwiGLU": 2,
}  # fmt: skip
UNKNOWN = [(op, (None,) * OPERAND_COUNTS.get(op, 1)) for op in FITS]
# A window may be larger than its image, and a negative pad is none of mode `reflect`.
MOST_FAILURES = {
    "AveragePool": 0.05, "Conv": 0.05, "ConvTranspose": 0.05, "MaxPool": 0.05, "Pad": 0.1,
}  # fmt: skip

KNOWN: list[tuple[str, tuple[PartialShape, ...], dict[str, Attr]]] = [
    ("Add", (None, None), {}),
    ("Add", ((2, None), (None,)), {}),
    ("Add", ((None, 1, 3), (4, None)), {}),
    ("ReduceSum", (None,), {}),
    ("ReduceSum", (None,), {"axes": (1, 2)}),
    ("ReduceSum", (None,), {"axes": (-3,)}),
    ("Softmax", (None,), {"axis": 2}),
    ("Softmax", (None,), {"axis": -3}),
    ("Concat", (None, None), {"axis": 2}),
    ("Concat", (None, None), {"axis": -3}),
    ("Concat", ((2, 3), (None, None)), {}),
    ("Concat", ((2, 3), (4, 3), None), {}),
    ("Concat", ((2, None, 3), (2, 4, None)), {}),
    ("Split", (None,), {"axis": 2}),
    ("Split", (None,), {"split": (1, 2)}),
    ("Split", ((None, 5),), {"split": (1, 2), "axis": 0}),
    ("Slice", (None,), {"axes": (1, 2)}),
    ("Slice", (None,), {"axes": (-3,)}),
    ("Slice", (None,), {"starts": (1, 0)}),
    ("Pad", (None, ()), {"pads": (1, 0, 2, 0)}),
    ("Transpose", (None,), {"perm": (2, 0, 1)}),
    ("Reshape", (None,), {"shape": (2, 6)}),
    ("Reshape", ((None, 3, None),), {"shape": (2, 6)}),
    ("Squeeze", (None,), {"axes": (0, 2)}),
    ("Squeeze", (None,), {"axes": (-3,)}),
    ("Squeeze", ((3, None),), {"axes": (1,)}),
    ("Unsqueeze", (None,), {"axes": (0, 4)}),
    ("Unsqueeze", (None,), {"axes": (-4,)}),
    ("Expand", (None,), {"shape": (2, 3)}),
    ("Tile", (None,), {"repeats": (2, 1, 1)}),
    ("DepthToSpace", (None,), {"blocksize": 3}),
    ("Gather", (None, (2,)), {"axis": 1}),
    ("Gather", (None, None), {"axis": -2}),
    ("MatMul", ((None, 3), None), {}),
    ("MatMul", (None, (2, 5, 3, None)), {}),
    ("MatMul", ((3,), None), {}),
    ("MatMul", (None, (3,)), {}),
    ("Gemm", ((2, 3), None, None), {"transA": 1}),
    ("Gemm", (None, (5, 3), None), {"transB": 1}),
    ("Gemm", (None, None, ABSENT), {}),
    ("Conv", (None, None), {"strides": (1, 2)}),
    ("Conv", (None, None), {"pads": (1, 1, 0, 2)}),
    ("Conv", ((1, 6, None, None), None), {}),
    ("Conv", (None, (4, 3, None, None), (4,)), {}),
    ("Conv", ((1, 6, 8, 8), (4, 3, 2, 2)), {}),
    ("ConvTranspose", ((1, 6, None), None), {}),
    ("STFT", ((2, None, 1), (3,)), {}),
    ("STFT", (None, (3,)), {"frame_step": 2}),
    ("ConvTranspose", (None, (4, 3, None)), {"group": 2}),
    ("AveragePool", ((1, 2, 9, 9),), {"kernel_shape": (3, 3)}),
    ("LayerNormalization", (None, None, ABSENT), {"axis": -1}),
    ("LayerNormalization", ((2, 3, 4), None, (4,)), {"axis": -1}),
    ("GroupNormalization", (None, (4,), None), {}),
    ("InstanceNormalization", ((1, 3, 5), None, None), {}),
    ("SwiGLU", (None, (2, 3)), {}),
    ("PRelu", ((2, 3), None), {}),
]  # fmt: skip


def fits_known(shape: Shape, known: PartialShape) -> bool:
    return known is None or (
        len(shape) == len(known) and all(d in (None, n) for d, n in zip(known, shape, strict=True))
    )


@pytest.mark.parametrize(
    ("op", "shapes", "known"),
    [*((op, shapes, {}) for op, shapes in UNKNOWN), *KNOWN],
    ids=lambda x: str(x).replace(" ", ""),
)
def test_what_is_drawn_is_valid(
    op: str, shapes: tuple[PartialShape, ...], known: Mapping[str, Attr]
) -> None:
    dtypes = (F32, I64) if op == "Gather" else (F32,) * len(shapes)
    failures = 0
    found = draws(op, *shapes, count=80, **known)
    for operands, attrs in found:
        inputs = [
            None if h is ABSENT else Input(f"x{n}", TensorType(dtypes[n], x))
            for n, (x, h) in enumerate(zip(operands, shapes, strict=True))
        ]
        assert all(fits_known(x, h) for x, h in zip(operands, shapes, strict=True) if h != ABSENT)
        try:
            node(OPS[op], inputs, **known, **attrs)
        except InferError:
            failures += 1
    assert failures <= MOST_FAILURES.get(op, 0) * len(found)


# The values of an attribute that are drawn for operands of these shapes: exactly these.
ATTRIBUTES: list[tuple[str, tuple[PartialShape, ...], str, set[Attr]]] = [
    ("ReduceSum", ((2, 3),), "axes", {(0,), (1,), (0, 1)}),
    ("ReduceSum", ((2, 3),), "keepdims", {0, 1}),
    ("ReduceSum", ((2, 3),), "noop_with_empty_axes", {0}),
    ("ReduceSum", ((2, 3, 4, 5),), "axes", {
        (0,), (1,), (2,), (3,), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 1, 2),
        (0, 1, 3), (0, 2, 3), (1, 2, 3),
    }),
    ("Softmax", ((2, 3, 4),), "axis", {0, 1, 2}),
    ("LpNormalization", ((2, 3),), "p", {1, 2}),
    ("LayerNormalization", ((2, 3), None, None), "axis", {0, 1}),
    ("LayerNormalization", ((2, 3), None, None), "epsilon", {0.125, 0.25, 0.5, 1.0, 2.0}),
    ("GroupNormalization", ((1, 6, 2), None, None), "num_groups", {1, 2, 3, 6}),
    ("BatchNormalization", ((1, 6), None, None, None, None), "training_mode", {0}),
    ("LRN", ((1, 6, 2, 2),), "alpha", {0.125, 0.25, 0.5, 1.0, 2.0}),
    ("Elu", ((2, 3),), "alpha", {-0.5, 0.125, 0.25, 0.5, 1.0, 2.0}),
    ("Gelu", ((2, 3),), "approximate", {"none", "tanh"}),
    ("Cast", ((2, 3),), "to", {F32, F64, I32, I64}),
    ("Gemm", ((2, 2), (2, 2), None), "transA", {0, 1}),
    ("Gemm", ((2, 2), (2, 2), None), "transB", {0, 1}),
    ("Gemm", ((2, 2), (2, 2), None), "alpha", {0.5, 1.0, 2.0}),
    ("Conv", ((1, 6, 4), None), "group", {1, 2, 3, 6}),
    ("Conv", ((1, 6, 4), (4, None, 2)), "group", {1, 2}),
    ("Conv", (None, (None, 2, 2)), "group", {1, 2, 3, 4}),
    ("Conv", ((1, 6, 4), (4, 3, 2)), "group", {2}),
    ("Conv", ((1, 6, 4), (4, 4, 2)), "group", {1}),
    ("Conv", ((1, 6, 4), None), "strides", {(1,), (2,)}),
    ("Conv", ((1, 6, 4), None), "dilations", {(1,), (2,)}),
    ("Conv", ((1, 6, 4), None), "auto_pad", {"NOTSET"}),
    ("Conv", ((1, 6, 4), None), "kernel_shape", {None}),
    ("ConvTranspose", ((1, 6, 4), None), "group", {1, 2}),
    ("ConvTranspose", ((1, 6, 4), None), "output_padding", {None}),
    ("MaxPool", ((1, 6, 9),), "kernel_shape", {(1,), (2,), (3,)}),
    ("MaxPool", ((1, 6, 2),), "kernel_shape", {(1,), (2,)}),
    ("Upsample", ((2,),), "scales", {(1.0,), (2.0,), (3.0,)}),
    ("Transpose", ((2, 3, 4),), "perm", set(permutations(range(3)))),
    ("Flatten", ((2, 3),), "axis", {0, 1, 2}),
    ("Squeeze", ((1, 2, 1),), "axes", {(), (0,), (0, 2)}),
    ("Unsqueeze", ((2,),), "axes", {(0,), (1,), (0, 1), (0, 2), (1, 2)}),
    ("Tile", ((5, 6),), "repeats", set(product((1, 2, 3), repeat=2))),
    ("DepthToSpace", (None,), "blocksize", {2, 3}),
    ("DepthToSpace", (None,), "mode", {"DCR", "CRD"}),
    ("SpaceToDepth", (None,), "mode", {"DCR", "CRD"}),
    ("Gather", ((2, 3), None), "axis", {0, 1}),
    ("Reshape", ((2, 3),), "allowzero", {0}),
    ("Split", ((2, 3),), "axis", {0, 1}),
    ("Split", ((2, 3),), "num_outputs", {None}),
    ("Pad", ((2, 3), ()), "mode", {"constant", "edge", "reflect"}),
    ("Slice", ((2, 3),), "axes", {(0,), (1,), (0, 1)}),
    ("Slice", ((2,),), "axes", {(0,)}),
    ("Slice", ((2,),), "steps", {(-1,), (1,), (2,)}),
    ("Concat", ((2, 3), (2, 3)), "axis", {0, 1}),
    ("Concat", ((2, 3), (2, 4)), "axis", {1}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "key", "values"), ATTRIBUTES)
def test_an_attribute_is_drawn_from_these_values(
    op: str, shapes: tuple[PartialShape, ...], key: str, values: set[Attr]
) -> None:
    assert attribute_values(draws(op, *shapes, count=400, free=(key,)), key) == values


def test_an_attribute_without_default_is_not_guessed() -> None:
    with pytest.raises(RejectedChoice, match="no proposal for Einsum's equation"):
        draws("Einsum", (2,), count=1)


def test_only_free_attributes_are_drawn() -> None:
    assert all(attrs.keys() == {"steps"} for _, attrs in draws("Slice", (2,), free=("steps",)))


def test_open_attributes_are_drawn_in_one_order_in_each_process() -> None:
    """The order of a set of names is another one in each process."""
    keys = {
        "GroupNormalization": ("epsilon", "stash_type"),
        "HardSigmoid": ("alpha", "beta"), "LRN": ("alpha", "beta", "bias"),
        "MaxPool": ("auto_pad", "storage_order"), "ReduceSum": ("keepdims", "noop_with_empty_axes"),
    }  # fmt: skip
    for op, free in keys.items():
        ((_, attrs),) = draws(op, (1, 2, 5, 5), count=1, free=free)
        assert tuple(attrs) == free
