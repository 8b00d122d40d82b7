"""Steps of random models: recurrent layers, Scans and Ifs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.dynamic_builder import Builder, Tensor, bound_values

HALF = np.array(0.5, np.float32)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _sequence(b: Builder) -> Tensor | None:
    """Return a value of steps, sequences and a fixed number of features."""
    x = b.pick(lambda t: len(t.shape) == 3 and isinstance(t.shape[-1], int))
    return None if x is None else bound_values(b, x)


def add_recurrent(b: Builder) -> None:
    x = _sequence(b)
    if x is None:
        return
    steps, batch, size = x.shape
    assert isinstance(size, int)
    kind, hidden = b.random.choice([*GATES]), b.random.choice([1, 5, 8, 17])
    direction = b.random.choice(["forward", "reverse", "bidirectional"])
    d = 1 + (direction == "bidirectional")
    gates = GATES[kind] * hidden
    shapes = ((d, gates, size), (d, gates, hidden), (d, 2 * gates))
    weights = [b.floats(*shape, scale=0.3) for shape in shapes]  # errors do not grow over steps
    y, last = b.node(kind, x.name, *weights, outputs=2, hidden_size=hidden, direction=direction)
    b.pool.append(Tensor(last, (d, batch, hidden), True))
    turned = b.add("Transpose", (steps, batch, d, hidden), y, perm=[0, 2, 1, 3], bounded=True)
    b.add("Reshape", (steps, batch, d * hidden), turned.name, b.ints(0, 0, -1), bounded=True)


def _body(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    infos = [
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in some]
        for some in (inputs, outputs)
    ]
    return helper.make_graph(nodes, f"body_{outputs[0]}", *infos)


def add_scan(b: Builder) -> None:
    """A moving average of slices along any axis, and what is left of them."""
    x = b.pick(lambda t: len(t.shape) >= 2)
    if x is None:
        return
    axis = b.random.randrange(len(x.shape))
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    x, n = bound_values(b, x), b.name()
    (start,) = b.node("ReduceMean", x.name, b.ints(axis), keepdims=0)
    half = b.constant(HALF)
    inner = [
        helper.make_node("Mul", [f"{n}s", half], [f"{n}a"]),
        helper.make_node("Mul", [f"{n}x", half], [f"{n}b"]),
        helper.make_node("Add", [f"{n}a", f"{n}b"], [f"{n}s1"]),
        helper.make_node("Sub", [f"{n}x", f"{n}s1"], [f"{n}y"]),
    ]
    back = [b.random.randint(0, 1)]
    last, y = b.node(
        "Scan", start, x.name, outputs=2, num_scan_inputs=1,
        body=_body(inner, [f"{n}s", f"{n}x"], [f"{n}s1", f"{n}y"]),
        scan_input_axes=[axis], scan_output_axes=[axis], scan_input_directions=back,
    )  # fmt: skip
    b.pool += [Tensor(last, rest, True), Tensor(y, x.shape, True)]


def add_if(b: Builder) -> None:
    """One of two functions of a value, by the sign of its sum or by one of its sizes."""
    x = b.pick(lambda t: len(t.shape) >= 1)
    if x is None:
        return
    x, n = bound_values(b, x), b.name()
    if b.random.random() < 0.5:
        (total,) = b.node("ReduceSum", x.name, keepdims=0)
        (condition,) = b.node("Greater", total, b.constant(HALF))
    else:
        (shape,) = b.node("Shape", x.name)
        (size,) = b.node("Gather", shape, b.ints(b.random.randrange(len(x.shape))))
        (condition,) = b.node("Greater", size, b.ints(b.random.choice([1, 8, 40])))
    width = x.shape[-1]
    then = [helper.make_node("Exp", [x.name], [f"{n}t"])]
    if isinstance(width, int) and len(x.shape) > 1:
        then = [
            helper.make_node("MatMul", [x.name, b.floats(width, width)], [f"{n}m"]),
            helper.make_node("Tanh", [f"{n}m"], [f"{n}t"]),
        ]
    otherwise = [helper.make_node("Abs", [x.name], [f"{n}e"])]
    b.add(
        "If", x.shape, condition, bounded=True,
        then_branch=_body(then, [], [f"{n}t"]), else_branch=_body(otherwise, [], [f"{n}e"]),
    )  # fmt: skip
