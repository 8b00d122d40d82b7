"""Models of EPContext nodes: compiled groups of nodes as libraries, and the other nodes.

An EPContext node names, or holds, a context: the text that context_file.h describes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from superopt import __version__
from superopt.compilation.cpu.library.export_library import LibraryNames
from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.read.protos import replace_nodes
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.split_model import read_names, value_info
from superopt.ort_plugin.library import PROVIDER_NAME
from superopt.ort_plugin.node_groups import fixed_initializers, group_ports, is_constant
from superopt.te.expr.tensor import TensorType

CONTEXT_SUFFIX = ".superopt_ctx"
CONTEXT_HEADER = "superopt context 1\n"
DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Part:
    """A group of nodes as a model of its own. positions: of its nodes in the file."""

    positions: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: Source


def extract_part(
    source: Source, group: Sequence[int], types: Mapping[str, TensorType]
) -> Part | None:
    """Return a group of nodes as a model over the same weights; None if a type is unknown, or if
    it reads or computes a value that is not a tensor. types: of values, by name."""
    proto = source.skeleton.new_proto()
    inputs, outputs = group_ports(proto, group)
    known = {n: t for n, t in types.items() if t.dtype is not None and t.shape is not None}
    if not outputs or not known.keys() >= {*inputs, *outputs}:
        return None
    own = {v.name: v for v in (*proto.graph.input, *proto.graph.output)}
    ports = {n: own[n] if n in own else value_info(n, known[n]) for n in (*inputs, *outputs)}
    nodes = [proto.graph.node[k] for k in sorted(group)]
    constants = needed_constants(proto.graph.node, nodes)
    replace_nodes(proto.graph, [*constants, *nodes])
    for field, names in ((proto.graph.input, inputs), (proto.graph.output, outputs)):
        replace_messages(field, [ports[n] for n in names])
    keep_initializers(proto)
    del proto.graph.value_info[:]
    return Part(tuple(group), tuple(inputs), tuple(outputs), source.with_proto(proto))


def needed_constants(
    among: Sequence[onnx.NodeProto], readers: Sequence[onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """Return the Constant nodes that some nodes read."""
    read = {name for n in readers for name in read_names(n)}
    return [n for n in among if is_constant(n) and read.intersection(n.output)]


def keep_initializers(model: onnx.ModelProto) -> None:
    """Remove initializers that no node reads and no output is."""
    g = model.graph
    read = {name for n in g.node for name in read_names(n)} | {v.name for v in g.output}
    dense = [t for t in g.initializer if t.name in read]
    sparse = [t for t in g.sparse_initializer if t.values.name in read]
    for field, kept in ((g.initializer, dense), (g.sparse_initializer, sparse)):
        replace_messages(field, kept)


def replace_messages(field: MutableSequence[Any], kept: Sequence[Any]) -> None:
    """Let a repeated field have some of its messages."""
    copies = [type(t).FromString(t.SerializeToString()) for t in kept]
    del field[:]
    field.extend(copies)


def context_text(variants: Sequence[LibraryNames]) -> str:
    """Return the context of a part: its libraries, of which the first that a processor can run is
    used. Files are in the context's folder."""
    lines = []
    for names in variants:
        library, _, weights = names.files
        lines.append(f"library\t{library.name}\t{names.prefix}\t{weights.name}\n")
    return f"{CONTEXT_HEADER}{''.join(lines)}end\n"


def embedded_context(variants: Sequence[LibraryNames]) -> bytes:
    """Return the context of a part with its libraries and weights."""
    blob, lines = b"", []

    def append(path: Path) -> str:
        nonlocal blob
        data = path.read_bytes()
        blob += data
        return f"@{len(blob) - len(data)}+{len(data)}"

    for names in variants:
        library, _, weights = names.files
        lines.append(f"library\t{append(library)}\t{names.prefix}\t{append(weights)}\n")
    text = f"{CONTEXT_HEADER}{''.join(lines)}end\n"
    return text.encode() + blob


def context_node(part: Part, name: str, context: bytes, embed: bool) -> onnx.NodeProto:
    """Return the node of a part. context: the path of the context's file, or the context itself."""
    return onnx.helper.make_node(
        "EPContext",
        part.inputs,
        part.outputs,
        name,
        domain=DOMAIN,
        main_context=1,
        embed_mode=int(embed),
        ep_cache_context=context,
        source=PROVIDER_NAME,
        partition_name=name,
        ep_sdk_version=__version__,
    )


def context_model(
    source: Source,
    parts: Mapping[str, Part],
    contexts: Mapping[str, bytes],
    types: Mapping[str, TensorType],
    fixed_sizes: Mapping[str, int],
    embed: bool,
) -> onnx.ModelProto:
    """Return the model, with stubs, in which EPContext nodes take the places of parts. parts,
    contexts: by name."""
    model = source.skeleton.new_proto()
    g = model.graph
    taken = {k for part in parts.values() for k in part.positions}
    made = [context_node(p, name, contexts[name], embed) for name, p in parts.items()]
    rest = [n for k, n in enumerate(g.node) if k not in taken]
    read = {name for n in rest for name in read_names(n)} | {v.name for v in g.output}
    rest = [n for n in rest if not is_constant(n) or read.intersection(n.output)]
    old = fixed_initializers(model)
    replace_nodes(g, in_order([*made, *rest]))
    keep_initializers(model)
    if old and model.ir_version < OVERRIDABLE_SINCE_IR_VERSION:  # initializers are inputs there
        kept = fixed_initializers(model)
        replace_messages(g.input, [v for v in g.input if v.name not in old or v.name in kept])
    declared = {v.name for v in (*g.input, *g.output, *g.value_info)}
    g.value_info.extend(
        value_info(name, types[name])
        for p in parts.values() for name in p.outputs if name not in declared
    )  # fmt: skip
    for v in (*g.input, *g.output):
        for d in v.type.tensor_type.shape.dim:
            if d.dim_param in fixed_sizes:
                d.dim_value = fixed_sizes[d.dim_param]
    if DOMAIN not in {o.domain for o in model.opset_import}:
        model.opset_import.add(domain=DOMAIN, version=1)
    return model


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes in topological order, and otherwise in the given one."""
    producers = {name: k for k, n in enumerate(nodes) for name in n.output if name}
    done: dict[int, None] = {}
    todo = [*range(len(nodes))[::-1]]
    while todo:
        k = todo[-1]
        missing = [
            producers[name] for name in read_names(nodes[k])
            if name in producers and producers[name] not in done and producers[name] != k
        ] if k not in done else []  # fmt: skip
        if missing:
            todo += missing
        else:
            done[todo.pop()] = None
    return [nodes[k] for k in done]
