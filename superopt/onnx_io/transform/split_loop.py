"""Split a model at a Loop whose number of steps is known only at run time. The results are a model
of what the loop reads, one of its body, and one of the rest.

    y = f(Loop(n(x), s(x), body))  =>  n(x), s(x);  body;  f(the loop's results)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from superopt.ir import graph as ir_graph
from superopt.ir.loop_names import LoopNames
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.protos import replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.split_model import (
    forwarded_values,
    node_ancestors,
    prefix_model,
    prune_inputs,
    read_names,
    used_names,
    value_info,
    value_types,
    with_ancestors,
)
from superopt.te.expr import index
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType

MAX_TYPE_ROUNDS = 4  # until the types of states, which may lose sizes in a step, do not change
_UNKNOWN = index.as_index(Size("unknown") // 2)  # a size that `value_info` does not name


@dataclass(frozen=True, slots=True)
class SplitLoop:
    """A model split at a Loop. prefix: computes what the loop and the rest read; None if these are
    inputs. rest: None if the loop's and the prefix's values are all outputs."""

    names: LoopNames
    prefix: Source | None
    body: Source
    rest: Source | None


def loop_position(model: Model, n: ir_graph.Node) -> int | None:
    """Return the file position of a Loop in the main graph; None if it is elsewhere."""
    return model.origins[n].position if n in model.origins else None


def split_at_loop(model: Model, position: int) -> SplitLoop | None:
    """Split the model at a Loop. Return None if a value is not a tensor of a known type.

    Raises ModelError if one of the models is invalid by itself.
    """
    source = model.source
    proto = source.skeleton.new_proto()
    nodes, loop = list(proto.graph.node), proto.graph.node[position]
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    weights = {w.name for w in proto.graph.initializer}
    given = {i.name: i.type for i in model.graph.inputs if i.name not in weights}
    names = _loop_names(loop, body, weights, given.keys() | {x for n in nodes for x in n.output})
    if body.sparse_initializer or names is None:
        return None
    before = node_ancestors(nodes, list(read_names(loop)))
    made = {name: k for k in before for name in nodes[k].output if name}
    operands = [x for x in (names.trip, names.condition, *names.states, *names.captured) if x]
    rest = [n for k, n in enumerate(nodes) if k not in before and k != position]
    outputs = [v.name for v in proto.graph.output]
    needed = used_names(rest)
    read = [name for name in made if name in outputs or name in needed]
    own = [x for x in operands if x in made or x in weights]
    candidates = with_ancestors(
        nodes, made, list(dict.fromkeys((*(x for x in own if x in made), *read)))
    )
    candidates += [x for x in dict.fromkeys(own) if x in weights]
    first = [nodes[k] for k in sorted(before)]
    types = value_types(source, first, candidates) if candidates else {}
    passed, again = forwarded_values(nodes, made, read, types, set(outputs))
    computed = tuple(dict.fromkeys((*own, *passed)))
    known: dict[str, TensorType] = {**given, **types}
    if any(x in known and known[x].dtype is None for x in (*operands, *passed)):
        return None
    prefix = prefix_model(source, first, computed) if computed else None
    split = _body_model(source, body, names, known)
    if split is None:
        return None
    body_model, states, slices = split
    results = {k: t for k, t in zip(names.finals, states, strict=True) if k}
    results |= {k: _stack_type(t) for k, t in zip(names.stacked, slices, strict=True) if k}
    dropped = {position, *(before - again)}
    entering = {name: known[name] for name in passed} | results
    rest_model = _rest_model(source, dropped, entering, {*outputs} - {*made} - results.keys())
    return SplitLoop(names, prefix, body_model, rest_model)


def _loop_names(
    loop: onnx.NodeProto, body: onnx.GraphProto, weights: set[str], outer: set[str]
) -> LoopNames | None:
    trip, condition, *states = (*loop.input, "")[: max(len(loop.input), 2)]
    count = len(states)
    inner = {name for n in body.node for name in n.output} | {v.name for v in body.input}
    captured = [x for n in body.node for x in read_names(n)] + [v.name for v in body.output]
    captured = [x for x in dict.fromkeys(captured) if x in outer and x not in inner]
    results = [*loop.output, *[""] * (len(body.output) - 1 - len(loop.output))]
    if len(body.input) != count + 2 or "" in states or body.output[0].name in weights:
        return None
    return LoopNames(
        trip, condition, tuple(states), tuple(captured), tuple(results[:count]),
        tuple(results[count:]), tuple(v.name for v in body.input),
        tuple(v.name for v in body.output),
    )  # fmt: skip


def _body_model(
    source: Source, body: onnx.GraphProto, names: LoopNames, known: Mapping[str, TensorType]
) -> tuple[Source, list[TensorType], list[TensorType]] | None:
    """Return the model of a step, and the types of its states and slices. A size of a state that
    changes is unknown."""
    states = [known[x] for x in names.states]
    number, going = names.body_inputs[:2]
    for _ in range(MAX_TYPE_ROUNDS):
        infos = [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
        ]
        infos += [value_info(x, t) for x, t in zip(names.body_inputs[2:], states, strict=True)]
        infos += [value_info(x, known[x]) for x in names.captured]
        made = _body_source(source, body, infos, list(dict.fromkeys(names.body_outputs)))
        found = import_model(made).graph.outputs
        types = {x: v.type for x, v in zip(dict.fromkeys(names.body_outputs), found, strict=True)}
        after = [types[x] for x in names.body_outputs[1 : 1 + len(states)]]
        merged = [_common_type(a, b) for a, b in zip(states, after, strict=True)]
        if any(t is None for t in merged):
            return None
        if merged == states:
            return made, states, [types[x] for x in names.body_outputs[1 + len(states) :]]
        states = [t for t in merged if t is not None]
    return None


def _common_type(a: TensorType, b: TensorType) -> TensorType | None:
    """Return the type of values of both types: sizes that differ are unknown."""
    if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return None
    same = (x if x == y else _UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(a.dtype, tuple(same))


def _stack_type(t: TensorType) -> TensorType:
    """Return the type of values of this type along a new first axis."""
    return TensorType(t.dtype, None if t.shape is None else (_UNKNOWN, *t.shape))


def _body_source(
    source: Source, body: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
) -> Source:  # fmt: skip
    proto = source.skeleton.new_proto()
    nodes = list(body.node)
    live = [nodes[k] for k in sorted(node_ancestors(nodes, outputs))]
    replace_nodes(proto.graph, live)
    del proto.graph.input[:], proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.initializer.extend(body.initializer)
    proto.graph.input.extend(inputs)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    prune_inputs(proto.graph, used_names(live) | {*outputs})
    return source.with_proto(proto)


def _rest_model(
    source: Source, dropped: set[int], entering: Mapping[str, TensorType], outputs: set[str]
) -> Source | None:
    """Return the model of these outputs without the nodes at the positions `dropped`. entering:
    values that it reads as inputs."""
    if not outputs:
        return None
    proto = source.skeleton.new_proto()
    graph = proto.graph
    nodes = [n for k, n in enumerate(graph.node) if k not in dropped]
    for n in nodes:
        n.output[:] = ["" if name in entering else name for name in n.output]  # computed twice
    kept = [onnx.ValueInfoProto.FromString(v.SerializeToString())
            for v in graph.output if v.name in outputs]  # fmt: skip
    replace_nodes(graph, [nodes[k] for k in sorted(node_ancestors(nodes, outputs))])
    del graph.output[:], graph.value_info[:]
    graph.output.extend(kept)
    used = used_names(graph.node) | outputs
    graph.input.extend(value_info(name, t) for name, t in entering.items() if name in used)
    prune_inputs(graph, used)
    return source.with_proto(proto)
