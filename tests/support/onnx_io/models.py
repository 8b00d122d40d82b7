"""Small valid models, one for each kind of thing that a model file may hold."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


def value(name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Floats drawn from the name."""
    rng = np.random.default_rng(sum(name.encode()))
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(
        graph, opset_imports=opsets, ir_version=ir_version, functions=functions
    )
    made.producer_name = "tests"
    made.metadata_props.add(key="purpose", value="to be read")
    return made


def conv_net() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c1", "s", "t", "m", "v"], ["n1"], "norm1"),
        helper.make_node("Relu", ["n1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", group=2),
        helper.make_node("Add", ["c2", "r1"], ["a"], "add"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten", axis=1),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    initializers = [
        *(weights("w1", 4, 3, 3, 3), weights("b1", 4), weights("w2", 4, 2, 1, 1)),
        *(weights("s", 4), weights("t", 4), weights("m", 4)),
        numpy_helper.from_array(np.ones(4, np.float32), "v"),
        *(weights("w3", 5, 4), weights("b3", 5)),
    ]
    return model(nodes, [value("x", ["n", 3, 8, 8])], [value("y", ["n", 5])], initializers)


def attention() -> onnx.ModelProto:
    nodes = []
    for part in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}0"], f"matmul_{part}"),
            helper.make_node("Reshape", [f"{part}0", "heads"], [f"{part}1"], f"split_{part}"),
        ]
    nodes += [
        helper.make_node("Transpose", ["q1"], ["q2"], "turn_q", perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k1"], ["k2"], "turn_k", perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v1"], ["v2"], "turn_v", perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["q2", "k2"], ["s0"], "scores"),
        helper.make_node("Mul", ["s0", "scale"], ["s1"], "scaled"),
        helper.make_node("Softmax", ["s1"], ["s2"], "softmax", axis=-1),
        helper.make_node("MatMul", ["s2", "v2"], ["o0"], "mixed"),
        helper.make_node("Transpose", ["o0"], ["o1"], "turn_back", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o1", "flat"], ["o2"], "joined"),
        helper.make_node("LayerNormalization", ["o2", "g", "b"], ["y"], "norm", axis=-1),
    ]
    initializers = [
        *(weights(f"w{part}", 8, 8) for part in "qkv"),
        *(ints("heads", 0, 0, 2, 4), ints("flat", 0, 0, 8)),
        *(numpy_helper.from_array(np.array(0.5, np.float32), "scale"),),
        *(weights("g", 8), weights("b", 8)),
    ]
    return model(nodes, [value("x", [1, 5, 8])], [value("y", [1, 5, 8])], initializers)


def control_flow() -> onnx.ModelProto:
    """An If and a Loop whose bodies read values of the graph around them."""
    then = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["then_out"], "then_mul")],
        "then",
        [],
        [value("then_out", [2, 3])],
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["x", "own"], ["else_out"], "else_sub")],
        "else",
        [],
        [value("else_out", [2, 3])],
        [weights("own", 3)],
    )
    body = helper.make_graph(
        [
            helper.make_node("Add", ["carried", "branch"], ["next"], "body_add"),
            helper.make_node("Identity", ["going"], ["go_on"], "body_go_on"),
            helper.make_node("ReduceSum", ["next"], ["scanned"], "body_sum", keepdims=0),
        ],
        "body",
        [
            value("turn", [], TensorProto.INT64),
            value("going", [], TensorProto.BOOL),
            value("carried", [2, 3]),
        ],
        [value("go_on", [], TensorProto.BOOL), value("next", [2, 3]), value("scanned", [])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["cond"], "compare"),
        helper.make_node("If", ["cond"], ["branch"], "if", then_branch=then, else_branch=other),
        helper.make_node("Loop", ["times", "cond", "x"], ["last", "sums"], "loop", body=body),
    ]
    initializers = [
        weights("w", 2, 3),
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(4, np.int64), "times"),
    ]
    outputs = [value("last", [2, 3]), value("sums", [None])]
    return model(nodes, [value("x", [2, 3])], outputs, initializers)


def local_function() -> onnx.ModelProto:
    slope = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    leaky = helper.make_node("LeakyRelu", ["h"], ["b"])
    leaky.attribute.append(slope)
    function = helper.make_function(
        "tests",
        "Block",
        ["a", "w"],
        ["b"],
        [helper.make_node("MatMul", ["a", "w"], ["h"]), leaky],
        [helper.make_opsetid("", 17)],
        ["slope"],
    )
    nodes = [
        helper.make_node("Block", ["x", "w1"], ["h1"], "first", domain="tests", slope=0.1),
        helper.make_node("Block", ["h1", "w2"], ["y"], "second", domain="tests", slope=0.2),
    ]
    initializers = [weights("w1", 4, 6), weights("w2", 6, 2)]
    return model(
        nodes,
        [value("x", ["n", 4])],
        [value("y", ["n", 2])],
        initializers,
        domains=["tests"],
        functions=[function],
    )


def custom_domain() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node(
            "Unheard", ["r", "w"], ["u", "v"], "unheard", domain="org.example", level=3, mode="odd"
        ),
        helper.make_node("Add", ["u", "r"], ["y"], "add"),
    ]
    return model(
        nodes,
        [value("x", [2, 4])],
        [value("y", [2, 4]), value("v", [None])],
        [weights("w", 4)],
        domains=["org.example"],
    )


def shapes() -> onnx.ModelProto:
    """The chain of small integer tensors with which exporters compute a Reshape."""
    constant = numpy_helper.from_array(np.array([1], np.int64), "")
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], "gather", axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"], "unsqueeze"),
        helper.make_node("Constant", [], ["one"], "constant", value=constant),
        helper.make_node("Mul", ["n1", "one"], ["n2"], "mul"),
        helper.make_node("Concat", ["n2", "rest"], ["to"], "concat", axis=0),
        helper.make_node("Reshape", ["x", "to"], ["r"], "reshape"),
        helper.make_node("Slice", ["r", "begin", "end", "axes1"], ["c"], "slice"),
        helper.make_node("Cast", ["c"], ["y"], "cast", to=TensorProto.FLOAT16),
    ]
    initializers = [
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
        *(ints("axes", 0), ints("rest", -1, 2), ints("begin", 0), ints("end", 3), ints("axes1", 1)),
    ]
    output = value("y", ["n", None, 2], TensorProto.FLOAT16)
    return model(nodes, [value("x", ["n", 12])], [output], initializers)


def quantized() -> onnx.ModelProto:
    def constant(name: str, dtype: type, value: float) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, dtype), name)

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"], "quantize"),
        helper.make_node(
            "QLinearMatMul", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["qy"], "matmul"
        ),
        helper.make_node("DequantizeLinear", ["qy", "sy", "zy"], ["y"], "dequantize"),
    ]
    w = np.arange(12, dtype=np.int8).reshape(4, 3)
    initializers = [
        *(constant("sx", np.float32, 0.1), constant("zx", np.uint8, 128)),
        *(numpy_helper.from_array(w, "w"), constant("sw", np.float32, 0.05)),
        *(constant("zw", np.int8, 0), constant("sy", np.float32, 0.2)),
        constant("zy", np.uint8, 100),
    ]
    return model(nodes, [value("x", [2, 4])], [value("y", [2, 3])], initializers)


def large_weights() -> onnx.ModelProto:
    """Weights large enough to stay out of skeletons, one of them in a Constant node."""
    constant = weights("", 80, 80)
    nodes = [
        helper.make_node("Constant", [], ["c"], "constant", value=constant),
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "c"], ["b"], "second"),
        helper.make_node("Add", ["b", "bias"], ["y"], "add"),
    ]
    initializers = [weights("w1", 90, 80), weights("bias", 80)]
    return model(nodes, [value("x", ["n", 90])], [value("y", ["n", 80])], initializers)


def chain(length: int) -> onnx.ModelProto:
    """Neg and Relu in turn."""
    nodes = [
        helper.make_node("Relu" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"], f"node{i}")
        for i in range(length)
    ]
    return model(nodes, [value("v0", [1, 8])], [value(f"v{length}", [1, 8])])


def save_external(proto: onnx.ModelProto, path: Path, location: str) -> Path:
    """Save with all initializers in a file at `location`, seen from the model's folder."""
    (path.parent / location).unlink(missing_ok=True)
    onnx.save_model(proto, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv_net": conv_net,
    "attention": attention,
    "control_flow": control_flow,
    "local_function": local_function,
    "custom_domain": custom_domain,
    "shapes": shapes,
    "quantized": quantized,
    "large_weights": large_weights,
}
