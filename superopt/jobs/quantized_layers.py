"""Proofs of a compiled model's layers: within how many quantization steps of the definition."""

from __future__ import annotations

from collections import Counter

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.stand_ins import numbered_input
from superopt.ir.substitute import replace_all
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.quantization.requantize import merge_requantization
from superopt.report.compilation.quantization import LayerProofs
from superopt.verification.layer_proofs import LayerProver, is_small_integer

MAX_SECONDS = 20.0  # for all layers


def prove_layers(graph: ir_graph.Graph) -> LayerProofs:
    """Return within how many steps of its definition each layer is that the compiler's passes
    change: the operators between quantized values, for all values of these."""
    prover = LayerProver(MAX_SECONDS)
    proved: Counter[int] = Counter()
    unproved = 0
    for n in ir_graph.nodes(graph):
        if n.op.name != "QuantizeLinear" or n.op.domain or is_constant(n, {}):
            continue
        before = _layer(n)
        after = merge_requantization(lower_quantized_products(before))
        if after.outputs == before.outputs:
            continue
        steps = prover.steps(before.outputs[0], after.outputs[0])
        if steps is None:
            unproved += 1
        else:
            proved[steps] += 1
    return LayerProofs(tuple(sorted(proved.items())), unproved)


def _layer(root: ir_graph.Node) -> ir_graph.Graph:
    """Return the graph of a result over the quantized values that it is computed from."""
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    stack: list[ir_graph.Value] = [root]
    seen: set[ir_graph.Value] = set()
    while stack:
        v = stack.pop()
        if v in seen or is_constant(v, {}):
            continue
        seen.add(v)
        if v is not root and is_small_integer(v):
            change[v] = numbered_input(len(change), v.type, "layer")
        else:
            stack += ir_graph.operands(v)
    inputs = tuple(i for i in change.values() if isinstance(i, ir_graph.Input))
    return ir_graph.Graph(inputs, replace_all(ir_graph.Graph((), (root,)), change).outputs)
