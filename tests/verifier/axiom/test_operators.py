"""Properties of operators for the axiom-level prover."""

from superopt.ops import OPS
from superopt.verifier.axiom.operators import AXIS_ATTRIBUTES, BROADCASTS


def test_attributes_that_name_axes() -> None:
    for name, op in OPS.items():
        if name.startswith("Reduce") or name in ("Slice", "Squeeze", "Unsqueeze"):
            assert AXIS_ATTRIBUTES[name] == "axes"
        else:
            assert AXIS_ATTRIBUTES.get(name) == ("axis" if "axis" in op.attrs else None), name


def test_maxima_and_binary_operators_broadcast() -> None:
    assert {"Add", "Mul", "Max", "Min"} <= BROADCASTS
    assert BROADCASTS.isdisjoint({"Relu", "Concat", "MatMul", "PRelu", "SwiGLU"})
