"""Import the bodies of Scan and Loop nodes as graphs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as oir

from superopt.errors import OutOfTime, SuperoptError
from superopt.ir import graph
from superopt.ir.substitute import substitute_values
from superopt.onnx_io.import_.dtypes import onnx_dtype
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.subgraphs import captured_values
from superopt.onnx_io.read.source import read_model
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import TensorType

MAX_INLINED_CONSTANT_BYTES = (
    1024  # of a constant whose numbers the body's import may need, as a Reshape's shape
)


class UnreadableBody(ValueError):
    """The reason why a body cannot be imported."""


def body_graph(
    n: oir.Node, types: Sequence[TensorType], outer_values: Sequence[graph.Value | None]
) -> graph.Graph:
    """Return the body of a node as a graph whose inputs have the given types. `outer_values` are
    the captured values, in the order of `captured_values`. Sizes of the types may be symbols.

    Raises UnreadableBody if a shape is not known or the importer rejects the body.
    """
    attribute = n.attributes.get("body")
    owner = n.graph
    if attribute is None or not isinstance(owner, oir.Graph):
        raise UnreadableBody("it is in a function or another body")
    proto = oir.to_proto(attribute.as_graph())
    if len(proto.input) != len(types):
        raise UnreadableBody(f"its body takes {len(proto.input)} values, and is given {len(types)}")
    for info, t in zip(proto.input, types, strict=True):
        info.type.CopyFrom(_type_proto(t))
    names = [v.name or "" for v in captured_values(n)]
    read_outside: list[tuple[str, graph.Value]] = []
    for name, v in zip(names, outer_values, strict=True):
        if isinstance(v, graph.Constant) and v.nbytes <= MAX_INLINED_CONSTANT_BYTES:
            proto.initializer.append(onnx.numpy_helper.from_array(v.load(), name))
        elif v is not None:
            proto.input.append(onnx.ValueInfoProto(name=name, type=_type_proto(v.type)))
            read_outside.append((name, v))
    for info in proto.output:
        info.type.Clear()
    del proto.value_info[:]  # names of sizes there may have other values here
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in owner.opset_imports.items()]
    model = onnx.helper.make_model(proto, opset_imports=opsets)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        made = import_model(read_model(model)).graph
    except OutOfTime:
        raise
    except (SuperoptError, ValueError, TypeError, KeyError, RuntimeError) as e:
        raise UnreadableBody(f"its body cannot be read: {e}") from e
    inner = dict(zip((i.name for i in made.inputs), made.inputs, strict=True))
    change: dict[graph.Value, graph.Value] = {inner[name]: v for name, v in read_outside}
    own = made.inputs[: len(types)]
    return substitute_values(graph.Graph(own, made.outputs), change, recursive=False)[0]


def _type_proto(t: TensorType) -> onnx.TypeProto:
    dims = [d.name if isinstance(d, Size) else d for d in t.shape or ()]
    shape = [d for d in dims if not isinstance(d, Expr)]
    if t.dtype is None or t.shape is None or len(shape) < len(dims):
        raise UnreadableBody(f"a shape that is known only when it runs: {t}")
    return onnx.helper.make_tensor_type_proto(int(onnx_dtype(t.dtype)), shape)
