"""Decide which nodes a runtime fuses into their producer, so that they cost nothing.

For onnxruntime this follows the documentation of its graph optimizations (conv, batch norm,
activation and matmul-add fusions of the basic and extended levels); for compiled models
`plan/rewrites/fusion/inline.py`. The final decision is by timing whole graphs; this keeps the sum
of node costs from crediting a rewrite for what the runtime does anyway.
"""

from __future__ import annotations

from superopt.ir import graph

_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "HardSigmoid"})

# Operators whose cost may depend on the node before them.
FUSIBLE = _ACTIVATIONS | {"BatchNormalization", "Add", "Mul"}


def is_fused_in_onnxruntime(n: graph.Node, constant: tuple[bool, ...]) -> bool:
    """True if onnxruntime computes `n` as part of the producer of its operand."""
    name = n.op.name
    if name in ("Identity", "Dropout"):
        return True
    if not n.inputs or n.inputs[0] is None:
        return False
    before = _producer_op(n.inputs[0])
    if name in _ACTIVATIONS:
        return before in ("Conv", "BatchNormalization")
    if name == "BatchNormalization":
        return before == "Conv" and all(constant[1:])
    if name in ("Add", "Mul") and len(n.inputs) == 2:
        for i, other in ((0, 1), (1, 0)):
            maker = n.inputs[i]
            kind = None if maker is None else _producer_op(maker)
            if kind == "Conv" and constant[other]:
                return True
            if kind == "MatMul" and name == "Add" and constant[other]:
                return True
    return False


def is_fused_when_compiled(n: graph.Node, constant: tuple[bool, ...]) -> bool:
    """True if a compiled model computes `n` within another kernel: data movement where its result
    is read, elementwise nodes where an operand is computed."""
    if n.op.name in ("Identity", "Dropout") or "data" in n.op.laws:
        return True
    if "elementwise" not in n.op.laws and n.op.name != "BatchNormalization":
        return False
    return any(v is not None and graph.producer(v) is not None for v in n.inputs)


def _producer_op(v: graph.Value) -> str | None:
    p = graph.producer(v)
    return None if p is None else p.op.name
