"""Properties of operators for the axiom-level prover."""

from superopt.ops import OPS
from superopt.verifier.axiom.operators import AXIS_ATTRIBUTES


def test_attributes_that_name_axes() -> None:
    for name, op in OPS.items():
        if name.startswith("Reduce") or name in ("Slice", "Squeeze", "Unsqueeze"):
            assert AXIS_ATTRIBUTES[name] == "axes"
        else:
            assert AXIS_ATTRIBUTES.get(name) == ("axis" if "axis" in op.attrs else None), name
