"""What a runtime fuses into the node before: such a node costs nothing of its own.

For onnxruntime from the documentation of its graph optimizations (conv, batch norm, activation and
matmul-add fusions of the basic and extended levels); for compiled models from `plan/inline.py`.
Timing whole graphs is what decides; this keeps the sum of parts from crediting a rewrite with what
the runtime does anyway.
"""

from __future__ import annotations

from superopt.ir import graph

_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "HardSigmoid"})

# Operators whose cost may depend on the node before them.
FUSIBLE = _ACTIVATIONS | {"BatchNormalization", "Add", "Mul"}


def fused_away(n: graph.Node, constant: tuple[bool, ...]) -> bool:
    """Does onnxruntime compute `n` as part of the node that gives its operand?"""
    name = n.op.name
    if name in ("Identity", "Dropout"):
        return True
    if not n.inputs or n.inputs[0] is None:
        return False
    before = _producer(n.inputs[0])
    if name in _ACTIVATIONS:
        return before in ("Conv", "BatchNormalization")
    if name == "BatchNormalization":
        return before == "Conv" and all(constant[1:])
    if name in ("Add", "Mul") and len(n.inputs) == 2:
        for i, other in ((0, 1), (1, 0)):
            maker = n.inputs[i]
            kind = None if maker is None else _producer(maker)
            if kind == "Conv" and constant[other]:
                return True
            if kind == "MatMul" and name == "Add" and constant[other]:
                return True
    return False


def compiled_away(n: graph.Node, constant: tuple[bool, ...]) -> bool:
    """Is `n` computed within another kernel of a compiled model? What moves elements is, where they
    are read; what is elementwise, where an operand is made."""
    if n.op.name in ("Identity", "Dropout") or "data" in n.op.laws:
        return True
    if "elementwise" not in n.op.laws and n.op.name != "BatchNormalization":
        return False
    return any(v is not None and graph.producer(v) is not None for v in n.inputs)


def _producer(v: graph.Value) -> str | None:
    p = graph.producer(v)
    return None if p is None else p.op.name
