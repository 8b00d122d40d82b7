"""What kernels should take, by the compiler's own model of them."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.cost.kernel_cost import kernel_cost_model
from superopt.cost.roofline import roofline_us
from superopt.cost.signature import Operand, Signature
from superopt.ir.op import canonical_attrs, infer
from superopt.ops import OPS
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

SIZES = [(1, 64, 56, 60), (1, 256, 14, 12), (16, 256, 14, 12), (1, 512, 64, 96)]


def of(name: str, *shapes: tuple[int, ...], constant: bool = True, **attrs: Any) -> Signature:
    """Of an operator whose last operand is known, or not."""
    op, types = OPS[name], tuple(TensorType(F32, s) for s in shapes)
    held = canonical_attrs(op, types, attrs)
    operands = tuple(Operand(t, constant and t is types[-1]) for t in types)
    return Signature(op, operands, held, infer(op, types, held))


def conv(shape: tuple[int, ...], step: int = 1, apart: int = 1, constant: bool = True) -> Signature:
    own = {"pads": (apart,) * 4, "strides": (step, step), "dilations": (apart, apart)}
    return of("Conv", shape, (shape[1], shape[1], 3, 3), constant=constant, **own)


@pytest.mark.parametrize("shape", SIZES)
def test_dense_convolutions_are_in_tiles(shape: tuple[int, ...]) -> None:
    dense, dilated = kernel_cost_model()([conv(shape), conv(shape, apart=2)])
    assert dense < 0.5 * dilated
    assert roofline_us(conv(shape)) == pytest.approx(roofline_us(conv(shape, apart=2)))
    both = kernel_cost_model(allow_dilated_winograd=True)([conv(shape), conv(shape, apart=2)])
    assert both[0] == dense
    assert both[1] < 0.5 * dilated


def test_of_a_step_of_two_tiles_do_not_pay() -> None:
    shape = SIZES[0]
    dense, strided = kernel_cost_model()([conv(shape), conv(shape, step=2)])
    assert strided > 0.5 * dense  # of a quarter of the products
    assert strided == pytest.approx(roofline_us(conv(shape, step=2)), rel=0.2)


def test_operators_without_a_cost_model_use_the_roofline() -> None:
    some = [conv(SIZES[0], constant=False), of("Relu", (3, 4), constant=False)]
    assert kernel_cost_model()(some) == [roofline_us(s) for s in some]


def test_products_take_their_operations_or_their_bytes() -> None:
    wide, thin = of("MatMul", (512, 512), (512, 512)), of("MatMul", (1, 512), (512, 512))
    times = kernel_cost_model()([wide, thin])
    assert all(1.0 <= t / roofline_us(s) < 1.5 for t, s in zip(times, (wide, thin), strict=True))
    assert times[0] > 10 * times[1]
