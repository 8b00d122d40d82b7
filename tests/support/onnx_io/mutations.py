"""Single ways to damage a model, in place; what is chosen depends on the random numbers alone."""

import random
from collections.abc import Sequence
from typing import TypeVar

import onnx
from onnx import AttributeProto, TensorProto

T = TypeVar("T")

EXTREMES = (0, -1, 1, 7, 100, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
KINDS = (AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING, AttributeProto.INTS)


class Unfit(Exception):
    """This model has nothing that the mutation could change."""


def pick(items: Sequence[T], rng: random.Random) -> T:
    if not items:
        raise Unfit
    return rng.choice(items)


def nodes_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the graph, of the subgraphs in it and of the functions."""
    found: list[onnx.NodeProto] = []
    todo = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while todo:
        node = todo.pop(0)
        found.append(node)
        todo += [inner for attribute in node.attribute for inner in attribute.g.node]
    return found


def tensors_of(model: onnx.ModelProto) -> list[TensorProto]:
    attributes = [a.t for node in nodes_of(model) for a in node.attribute if a.HasField("t")]
    return [*model.graph.initializer, *attributes]


def attributes_of(model: onnx.ModelProto) -> list[AttributeProto]:
    return [attribute for node in nodes_of(model) for attribute in node.attribute]


def types_of(model: onnx.ModelProto) -> list[onnx.TypeProto.Tensor]:
    return [info.type.tensor_type for info in (*model.graph.input, *model.graph.output)]


def bodies_of(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [a.g for a in attributes_of(model) if a.HasField("g")]


def drop_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.input], rng)
    del node.input[rng.randrange(len(node.input))]


def drop_all_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick([n for n in nodes_of(model) if n.input], rng).input[:]


def repeat_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.input], rng)
    node.input.extend([node.input[0]] * rng.choice([1, 9]))


def blank_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.input], rng)
    node.input[rng.randrange(len(node.input))] = ""


def dangling_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.input], rng)
    node.input[rng.randrange(len(node.input))] = "nowhere"


def swap_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if len(n.input) > 1], rng)
    node.input[0], node.input[1] = node.input[1], node.input[0]


def read_itself(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.input and n.output], rng)
    node.input[0] = node.output[0]


def cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = model.graph
    later = rng.randrange(1, len(graph.node))
    first = pick([n for n in list(graph.node)[:later] if n.input], rng)
    first.input[0] = graph.node[later].output[0]


def reverse_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def other_value(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [t.name for t in model.graph.initializer] + [i.name for i in model.graph.input]
    node = pick([n for n in nodes_of(model) if n.input], rng)
    node.input[rng.randrange(len(node.input))] = pick(names, rng)


def same_output(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [n for n in nodes_of(model) if n.output]
    pick(nodes[1:], rng).output[0] = nodes[0].output[0]


def output_named_as_input(model: onnx.ModelProto, rng: random.Random) -> None:
    pick([n for n in nodes_of(model) if n.output], rng).output[0] = model.graph.input[0].name


def no_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick(nodes_of(model), rng).output[:]


def repeat_node(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.append(pick(list(model.graph.node), rng))


def drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def drop_first_node(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[0]


def repeat_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.initializer.append(pick(list(model.graph.initializer), rng))


def drop_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def nameless_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(list(model.graph.initializer), rng).name = ""


def repeat_graph_input(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.input.append(model.graph.input[0])


def drop_graph_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.input[:]


def unmade_output(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.output[0].name = "unmade"


def drop_graph_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.output[:]


def unknown_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(nodes_of(model), rng).op_type = rng.choice(["Unheard", "", "conv", "Affine"])


def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    operators = ["Relu", "MatMul", "Reshape", "Conv", "If", "Loop", "TopK", "Einsum", "Split"]
    pick(nodes_of(model), rng).op_type = rng.choice(operators)


def other_domain(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(nodes_of(model), rng).domain = rng.choice(["ai.onnx", "ai.onnx.ml", "not.imported"])


def retype_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(attributes_of(model), rng).type = rng.choice(KINDS)


def untyped_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(attributes_of(model), rng).ClearField("type")


def drop_attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick([n for n in nodes_of(model) if n.attribute], rng).attribute[:]


def repeat_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for n in nodes_of(model) if n.attribute], rng)
    node.attribute.append(node.attribute[0])


def unknown_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    new = pick(nodes_of(model), rng).attribute.add()
    new.name, new.type, new.i = "unheard", AttributeProto.INT, 1


def extreme_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    numeric = [a for a in attributes_of(model) if a.ints or a.HasField("i")]
    attribute = pick(numeric, rng)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(EXTREMES)
    else:
        attribute.i = rng.choice(EXTREMES)


def long_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = pick([a for a in attributes_of(model) if a.ints], rng)
    attribute.ints.extend([1] * rng.choice([1, 5, 5000]))


def empty_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick([a for a in attributes_of(model) if a.ints], rng).ints[:]


def negative_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = pick([t for t in tensors_of(model) if t.dims], rng)
    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([-1, -(2**63)])


def huge_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = pick([t for t in tensors_of(model) if t.dims], rng)
    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([2**31, 2**40, 2**63 - 1])


def overflowing_dims(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(tensors_of(model), rng).dims.extend([2**32, 2**32])  # 2**64 elements: 0 if it wraps


def another_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(tensors_of(model), rng).dims.append(rng.choice([0, 1, 2, 3]))


def fewer_bytes(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = pick([t for t in tensors_of(model) if t.raw_data], rng)
    tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data))]


def more_bytes(model: onnx.ModelProto, rng: random.Random) -> None:
    pick([t for t in tensors_of(model) if t.raw_data], rng).raw_data += b"\0" * rng.choice([1, 64])


def no_data(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(tensors_of(model), rng).ClearField("raw_data")


def data_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(tensors_of(model), rng).float_data.extend([1.0, 2.0])


def other_dtype(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(tensors_of(model), rng).data_type = rng.choice([0, 1, 6, 7, 8, 10, 16, 22, 99, -1])


def escaping_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = pick(tensors_of(model), rng)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    locations = ["", "../secret", "/etc/passwd", "missing.bin", "#superopt/0", "a\0b", "C:\\x"]
    tensor.external_data.add(key="location", value=rng.choice(locations))
    tensor.external_data.add(key="offset", value=rng.choice(["0", "-1", "x", str(2**63)]))


def wrong_type(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(types_of(model), rng).elem_type = rng.choice([0, 1, 7, 8, 9, 10, 99, -1])


def wrong_declared_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    declared = pick([t for t in types_of(model) if t.shape.dim], rng)
    chosen = rng.choice([-1, 0, 3, 2**31, 2**50, 2**63 - 1, -(2**63)])
    declared.shape.dim[rng.randrange(len(declared.shape.dim))].dim_value = chosen


def wrong_declared_rank(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(types_of(model), rng).shape.dim.add().dim_value = rng.choice([1, 2, 2**40])


def untyped_value(model: onnx.ModelProto, rng: random.Random) -> None:
    info = pick([*model.graph.input, *model.graph.output], rng)
    info.ClearField("type")


def shapeless_value(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(types_of(model), rng).ClearField("shape")


def contradicting_info(model: onnx.ModelProto, rng: random.Random) -> None:
    name = pick([n.output[0] for n in model.graph.node if n.output], rng)
    info = onnx.helper.make_tensor_value_info(name, rng.choice([1, 7, 9]), rng.choice([[], [17]]))
    model.graph.value_info.append(info)


def wrong_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice([-1, 0, 1, 5, 9, 9999, 2**40])


def no_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.opset_import[rng.randrange(len(model.opset_import)) :]


def wrong_ir_version(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ir_version = rng.choice([-1, 0, 1, 2, 3, 99, 2**60])


def no_graph(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ClearField("graph")


def nothing_in_graph(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.Clear()
    model.graph.name = rng.choice(["", "graph"])


def repeat_metadata(model: onnx.ModelProto, rng: random.Random) -> None:
    model.metadata_props.append(model.metadata_props[0])


def lost_capture(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick([n for body in bodies_of(model) for n in body.node], rng)
    node.input[rng.randrange(len(node.input))] = "captured_from_nowhere"


def empty_body(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(bodies_of(model), rng).Clear()


def body_without_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick(bodies_of(model), rng).node[:]


def body_without_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick([b for b in bodies_of(model) if b.input], rng).input[:]


def body_without_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del pick(bodies_of(model), rng).output[:]


def shadowing_body(model: onnx.ModelProto, rng: random.Random) -> None:
    pick([n for body in bodies_of(model) for n in body.node], rng).output[0] = "x"


def nested_bodies(model: onnx.ModelProto, rng: random.Random) -> None:
    body = pick(bodies_of(model), rng)
    for _ in range(rng.choice([3, 30])):
        inner = onnx.GraphProto()
        inner.CopyFrom(body)
        del body.node[:]
        branches = {"then_branch": inner, "else_branch": inner}
        names = [output.name for output in inner.output]
        body.node.append(onnx.helper.make_node("If", ["cond"], names, **branches))
        if body.ByteSize() > 100_000:
            break


def recursive_function(model: onnx.ModelProto, rng: random.Random) -> None:
    function = pick(list(model.functions), rng)
    function.opset_import.add(domain=function.domain, version=1)
    node = function.node[0]
    node.op_type, node.domain = function.name, function.domain


def doubling_functions(model: onnx.ModelProto, rng: random.Random) -> None:
    """Sixty functions, each of which calls the one before twice: 2**60 nodes."""
    function = pick(list(model.functions), rng)
    function.opset_import.add(domain=function.domain, version=1)
    before = function.name
    for level in range(60):
        new = model.functions.add()
        new.CopyFrom(function)
        new.name = f"Level{level}"
        del new.node[:], new.attribute[:]
        for source, target in (("a", "middle"), ("middle", "b")):
            new.node.add(
                op_type=before, domain=function.domain, input=[source, "w"], output=[target]
            )
        before = new.name
    pick([n for n in model.graph.node if n.domain == function.domain], rng).op_type = before


def missing_function(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(list(model.functions), rng).name = "Another"


def repeat_function(model: onnx.ModelProto, rng: random.Random) -> None:
    model.functions.append(pick(list(model.functions), rng))


def function_reads_outside(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(list(model.functions), rng).node[0].input[0] = "x"


def function_without_output(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(list(model.functions), rng).output[0] = "unmade"
