"""Resizing and sampling: values, symbolic sizes, and the forms on which runtimes differ."""

import numpy as np
import pytest

from superopt.ir.graph import node
from superopt.ir.op import Attr, InferError
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.ops.build import made, operands, value

f32 = np.float32
N, H = Size("n"), Size("h")
X = np.arange(12, dtype=f32).reshape(1, 1, 3, 4)
FLOOR: dict[str, Attr] = {
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}

REFUSED = [
    ("scales=(1.0,2.0)", "for 4 axes"),
    ("sizes=(1,1,6,8) scales=(1.0,1.0,2.0,2.0)", "either scales or sizes are given"),
    ("", "either scales or sizes are given"),
    ("scales=(1.0,1.0,2.0,-2.0)", "scales (1.0, 1.0, 2.0, -2.0)"),
    ('scales=(1.0,1.0,2.0,2.0) mode="area"', "mode area"),
    ("scales=(1.0,1.0,0.5,0.5) antialias=1", "no expression of antialias"),
    (
        'scales=(1.0,1.0,2.0,2.0) coordinate_transformation_mode="tf_crop_and_resize"',
        "no expression of tf_crop_and_resize",
    ),
    ("scales=(1.0,1.0,1.0,1.1)", "to the same sizes by a scale, where runtimes differ"),
    (
        'scales=(1.0,1.0,1.0,0.7) mode="linear" coordinate_transformation_mode="align_corners"',
        "align_corners to 2.7",
    ),
]


@pytest.mark.parametrize(("attrs", "message"), REFUSED)
def test_refused(attrs: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made("Resize", f"f32[1,1,3,4] {attrs}")
    assert message in str(e.value)


def test_a_size_that_depends_on_rounding_is_refused() -> None:
    # 0.7 in float32 is a bit less than 0.7: 10 times it is 6 or 7
    with pytest.raises(InferError, match=r"10 times 0\.69999998\d+ is just not 7"):
        made("Resize", "f32[10] scales=(0.7,)")
    with pytest.raises(InferError, match="element 7 is equally near to two"):
        made(
            "Resize",
            'f32[20] sizes=(14,) coordinate_transformation_mode="asymmetric" nearest_mode="floor"',
        )
    with pytest.raises(InferError, match="linear of integers"):
        made("Resize", 'u8[10] scales=(2.0,) mode="linear"')


def test_nearest_repeats() -> None:
    got = value("Resize", X, scales=(1.0, 1.0, 2.0, 3.0), **FLOOR)
    np.testing.assert_array_equal(got, X.repeat(2, 2).repeat(3, 3))
    got = value("Upsample", X, scales=(1.0, 1.0, 2.0, 3.0))
    np.testing.assert_array_equal(got, X.repeat(2, 2).repeat(3, 3))
    np.testing.assert_array_equal(value("Resize", X, sizes=(6,), axes=(2,)), X.repeat(2, 2))


@pytest.mark.parametrize(
    "scales", [(1.0, 1.0, 2.5, 1.7), (1.0, 1.0, 1.0, 2.2), (1.0, 1.0, 2.0, 3.0)]
)
def test_linear_upsample_is_an_asymmetric_resize(scales: tuple[float, ...]) -> None:
    got = value("Upsample", X, scales=scales, mode="linear")
    np.testing.assert_array_equal(got, value("Resize", X, scales=scales, mode="linear", **FLOOR))
    for number in (0.3, 0.862, -2.3):  # between equal numbers lies that number
        got = value("Upsample", np.full(X.shape, number, f32), scales=scales, mode="linear")
        assert (got == f32(number)).all()


def test_linear_is_a_line() -> None:
    x = np.array([0, 10, 20, 40], f32)
    got = value("Resize", x, scales=(2.0,), mode="linear")
    np.testing.assert_allclose(got, [0, 2.5, 7.5, 12.5, 17.5, 25, 35, 40], rtol=1e-6)
    got = value(
        "Resize", x, sizes=(7,), mode="linear", coordinate_transformation_mode="align_corners"
    )
    np.testing.assert_allclose(got, [0, 5, 10, 15, 20, 30, 40], rtol=1e-6)


def test_cubic_weights_add_up() -> None:
    for exclude in (0, 1):
        got = value("Resize", np.ones(5, f32), scales=(2.5,), mode="cubic", exclude_outside=exclude)
        np.testing.assert_allclose(got, np.ones(12), rtol=1e-6)


def test_sizes_stay_symbolic() -> None:
    def shape(*dims: object, **attrs: Attr) -> str:
        return str(node(OPS["Resize"], operands((TensorType(F32, dims),)), **attrs).type)  # type: ignore[arg-type]

    assert shape(N, 3, H, scales=(1.0, 1.0, 2.0), **FLOOR) == "f32[n, 3, (h * 2)]"
    assert shape(N, H, scales=(1.0, 0.5), **FLOOR) == "f32[n, (h // 2)]"
    assert shape(N, H, scales=(1.0, 2.0), mode="linear") == "f32[n, (h * 2)]"
    assert shape(N, 3, sizes=(6,), axes=(1,)) == "f32[n, 6]"
    with pytest.raises(InferError, match="to 6 from the size h"):
        shape(N, H, sizes=(6,), axes=(1,))
    with pytest.raises(InferError, match="align_corners of the symbolic size h"):
        shape(H, scales=(2.0,), coordinate_transformation_mode="align_corners")


def test_what_a_mode_does_not_read_is_dropped() -> None:
    a = made("Resize", 'f32[1,2,3] scales=(1.0,1.0,2.0) mode="linear"')
    b = node(
        OPS["Resize"],
        a.inputs,
        scales=(1, 1, 2),
        mode="linear",
        nearest_mode="ceil",
        cubic_coeff_a=-0.5,
        axes=(0, 1, -1),
        roi=(),
        sizes=(),
    )
    assert a is b


def test_a_grid_of_the_identity_samples_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    theta = np.array([[[1.0, 0, 0], [0, 1, 0]]] * 2)
    for align in (0, 1):
        grid = value("AffineGrid", theta, size=(2, 3, 4, 5), align_corners=align)
        for mode in ("linear", "nearest", "cubic"):
            got = value("GridSample", x, grid, mode=mode, align_corners=align)
            np.testing.assert_allclose(got, x, atol=1e-12)


def test_places_outside() -> None:
    x = np.array([[[1.0, 2, 3]]])
    grid = np.array([[[-2.0], [5 / 3], [4.0]]])  # elements -2, 3.5 and 7 of three
    got = value("GridSample", x, grid, padding_mode="border")
    np.testing.assert_allclose(got, [[[1, 3, 3]]])
    assert value("GridSample", x, grid).tolist() == [[[0, 0, 0]]]
    got = value("GridSample", x, grid, padding_mode="reflection")
    np.testing.assert_allclose(got, [[[2, 2.5, 2]]])


def test_a_cubic_at_the_border_is_of_elements_that_it_stands_for() -> None:
    """At -1/2 of 1 1 | 1 2 3: as torch and onnxruntime have it, where onnx's own evaluator moves
    the place to 0 first."""
    x, grid = np.array([[[[1.0, 2, 3]]]]), np.array([[[[-1.0, 0.0]]]])
    got = value("GridSample", x, grid, mode="cubic", padding_mode="border")
    np.testing.assert_allclose(got, [[[[1 - 0.09375]]]])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("AffineGrid", "f32[2,2,3] size=(1,3,4,5)", "it takes (1, 2, 3)"),
        ("AffineGrid", "f32[1,2,3] size=(1,3,1,5) align_corners=1", "no corners to align"),
        ("GridSample", "f32[1,2,3,4] f32[2,5,6,2]", "batches and ranks differ"),
        ("GridSample", "f32[1,2,3,4] f32[1,5,6,3]", "batches and ranks differ"),
        ("GridSample", 'f32[1,2,3,4] f32[1,5,6,2] mode="area"', "mode area"),
        ("GridSample", 'f32[1,2,3,4,5] f32[1,5,6,7,3] mode="cubic"', "cubic in 3 dimensions"),
        ("GridSample", 'f32[1,2,3,4] f32[1,5,6,2] padding_mode="wrap"', "padding_mode wrap"),
        ("Upsample", "f32[2] scales=(1.5,)", "scales (1.5,) below 1, or not integers"),
        ("Upsample", 'f32[2] scales=(0.5,) mode="linear"', "scales (0.5,) below 1"),
        ("Upsample", 'f32[2] scales=(2.0,) mode="cubic"', "mode cubic"),
        ("Upsample", 'i32[2] scales=(2.0,) mode="linear"', "linear of integers"),
    ],
)
def test_sampling_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(InferError) as e:
        made(name, text)
    assert message in str(e.value)
