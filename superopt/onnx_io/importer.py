"""ONNX to graph. Nothing is lost: what has no tensor expression is carried as an opaque node.

Small integer tensors are followed as size expressions (Shape, Gather, Concat, ... chains), by the
naive reading of the operators' own tensor expressions; operands that ONNX passes as tensors and we
keep as attributes (the shape of a Reshape) take their values from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as oir

from superopt.ir import graph as g
from superopt.ir.op import Attr, InferError, Op, Payload, canonical_attrs, expression
from superopt.onnx_io.capture import captured
from superopt.onnx_io.infer import declared_types
from superopt.onnx_io.schema import attribute_value, is_redundant, operator, schema
from superopt.onnx_io.source import Source
from superopt.onnx_io.tensors import ConstantPool
from superopt.onnx_io.types import dtype_of
from superopt.te import index as ix
from superopt.te.dtype import BOOL, DType
from superopt.te.expr import Dim, TensorType
from superopt.te.naive import Undecided, elements
from superopt.te.node import Expr, Size

SMALL = 1024  # elements of an integer tensor that are followed as size expressions
Known = np.ndarray  # dtype object; elements are ints or size expressions


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What ONNX says of a node beside its meaning."""

    name: str
    doc: str
    props: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A graph and everything that ONNX keeps beside it, so that export restores it.

    names: the name of each value; opaque: for nodes without tensor expression, (name, why);
    sizes: symbolic size to the (input, axis) where a caller binds it; symbols: the file's name of
    each symbolic size to ours; tensors: the ONNX tensor behind each constant; overridable: inputs
    with a default value; declared: what the file says of each value.
    """

    source: Source
    graph: g.Graph
    opset: int
    names: Mapping[g.Value, str]
    info: Mapping[g.Node, NodeInfo]
    tensors: Mapping[g.Constant, oir.TensorProtocol]
    overridable: Mapping[g.Input, oir.Value]
    opaque: tuple[tuple[str, str], ...]
    sizes: Mapping[str, tuple[str, int]]
    symbols: Mapping[str, str]
    declared: Mapping[g.Value, oir.Value]


@dataclass(slots=True)
class _State:
    """What the import builds up; frozen into a Model at its end."""

    source: Source
    opset: int
    domains: Mapping[str, int]
    functions: frozenset[tuple[str, str]]
    pool: ConstantPool
    types: Callable[[str], tuple[DType | None, tuple[int | str | None, ...] | None]]
    values: dict[oir.Value, g.Value] = field(default_factory=dict)
    known: dict[g.Value, Known] = field(default_factory=dict)
    names: dict[g.Value, str] = field(default_factory=dict)
    info: dict[g.Node, NodeInfo] = field(default_factory=dict)
    opaque: list[tuple[str, str]] = field(default_factory=list)
    symbols: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    declared: dict[g.Value, oir.Value] = field(default_factory=dict)


def import_model(source: Source) -> Model:
    """The graph of `source` (already validated), with its symbolic sizes kept symbolic."""
    model = source.model
    top = model.graph
    domains = dict(model.opset_imports)
    state = _State(
        source,
        domains.get("", 1),
        domains,
        frozenset((f.domain, f.name) for f in model.functions.values()),
        ConstantPool(),
        declared_types(source),
    )
    inputs: list[g.Input] = []
    overridable: dict[g.Input, oir.Value] = {}
    initial = dict(top.initializers)
    constant_inputs = model.ir_version < 4  # before IR 4 every initializer is listed as an input
    for v in top.inputs:
        if v.name in initial and constant_inputs:
            continue
        made = g.Input(v.name or "", _input_type(state, v))
        inputs.append(made)
        state.values[v] = made
        state.names[made] = made.name
        if v.name in initial:
            overridable[made] = v
    state.pool.add([t for v in initial.values() if (t := v.const_value) is not None])
    for name, v in initial.items():
        if v in state.values or v.const_value is None:
            continue
        _define(state, v, state.pool.constant(v.const_value), name)
    for n in top:
        _node(state, n)
    graph = g.Graph(tuple(inputs), tuple(state.values[v] for v in top.outputs))
    return Model(
        source,
        graph,
        state.opset,
        state.names,
        state.info,
        state.pool.tensors,
        overridable,
        tuple(state.opaque),
        state.sizes,
        state.symbols,
        state.declared,
    )


def _define(state: _State, v: oir.Value, made: g.Value, name: str | None) -> None:
    state.values[v] = made
    if name:
        state.names.setdefault(made, name)
    if isinstance(made, g.Constant) and _followed(made.type):
        state.known[made] = _exact(made.load())


def _exact(array: np.ndarray) -> Known:
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = [int(e) for e in array.reshape(-1)]
    return out


def _followed(t: TensorType) -> bool:
    """Is this a small tensor of integers, whose elements are worth following?"""
    if t.dtype is None or t.shape is None or not (t.dtype.is_int or t.dtype == BOOL):
        return False
    count = 1
    for d in t.shape:
        if not isinstance(d, int):
            return False
        count *= d
    return count <= SMALL


def _symbol(state: _State, text: str) -> Size:
    """The size named `text`, under a name that our syntax can print."""
    if text not in state.symbols:
        base = re.sub(r"\W", "_", text) or "d"
        base = base if not base[0].isdigit() else f"d{base}"
        taken = set(state.symbols.values())
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        state.symbols[text] = name
    return Size(state.symbols[text])


def _shape(
    state: _State, dims: tuple[int | str | None, ...] | None, where: str
) -> tuple[Dim, ...] | None:
    if dims is None:
        return None
    return tuple(
        d if isinstance(d, int) else _symbol(state, d if d else f"{where}_d{axis}")
        for axis, d in enumerate(dims)
    )


def _input_type(state: _State, v: oir.Value) -> TensorType:
    name = v.name or "input"
    if not isinstance(v.type, oir.TensorType):
        return TensorType(None, None)
    dims = None
    if v.shape is not None:
        dims = tuple(d if isinstance(d, int) else d.value for d in v.shape)
    shape = _shape(state, dims, name)
    for axis, d in enumerate(shape or ()):
        if isinstance(d, Size):
            state.sizes.setdefault(d.name, (name, axis))
    return TensorType(dtype_of(v.type.dtype), shape)


def _node(state: _State, n: oir.Node) -> None:
    if n.op_type == "Constant" and n.domain == "" and _constant(state, n):
        return
    made, why = _plain(state, n)
    if made is None:
        made = _opaque(state, n)
        state.opaque.append((n.name or n.outputs[0].name or n.op_type, f"{n.op_type}: {why}"))
    state.info.setdefault(
        made, NodeInfo(n.name or "", n.doc_string or "", tuple(n.metadata_props.items()))
    )
    for i, v in enumerate(n.outputs):
        value = g.item(made, i)
        follow = not made.op.opaque and _followed(value.type)
        if follow and (found := _follow(state, made, i)) is not None:
            state.known[value] = found
            if all(isinstance(e, int) for e in found.reshape(-1)):
                kind = value.type.dtype
                assert kind is not None
                value = state.pool.of_array(found, kind)
                state.known[value] = found
        _define(state, v, value, v.name)
        if v.type is not None and v.name:
            state.declared.setdefault(value, v)


def _constant(state: _State, n: oir.Node) -> bool:
    tensor = oir.convenience.get_const_tensor(n.outputs[0])
    if tensor is None or tensor.dtype == oir.DataType.UNDEFINED:
        return False
    state.pool.add([tensor])
    _define(state, n.outputs[0], state.pool.constant(tensor), n.outputs[0].name)
    return True


def _plain(state: _State, n: oir.Node) -> tuple[g.Node | None, str]:
    """The node by its tensor expression, or (None, why not)."""
    if (n.domain, n.op_type) in state.functions:
        return None, "a local function"
    version = state.domains.get(n.domain)
    found = None if version is None else operator(n.op_type, n.domain, version)
    if found is None or version is None:
        kind = "no tensor expression" if n.domain in ("", "ai.onnx") else f"domain {n.domain}"
        return None, f"{kind} (opset {version})"
    try:
        operands, attrs = _bind(state, n, found, version)
        types = tuple(None if v is None else v.type for v in operands)
        full = canonical_attrs(found, types, attrs)
        results = expression(found, types, full)
        if len(n.outputs) > len(results):
            return None, f"{len(n.outputs)} outputs asked, the expression gives {len(results)}"
        kinds = tuple(t.type for t in results)
        return g.intern_node(found, tuple(operands), full, kinds), ""
    except (InferError, TypeError) as e:
        return None, str(e)


def _bind(
    state: _State, n: oir.Node, op: Op, version: int
) -> tuple[list[g.Value | None], dict[str, Attr]]:
    s = schema(n.op_type, version, n.domain)
    assert s is not None
    attrs: dict[str, Attr] = {}
    for key, a in n.attributes.items():
        if key in op.attrs:
            attrs[key] = attribute_value(key, a)
            if op.name == "ConstantOfShape":
                attrs["dtype"] = dtype_of(a.as_tensor().dtype)
        elif not is_redundant(key, n.op_type):
            raise InferError(f"attribute {key} has no meaning in the expression")
    for key, default in s.attributes.items():
        if key in op.attrs and key not in attrs and default is not None:
            attrs[key] = tuple(default) if isinstance(default, list) else default  # type: ignore[arg-type,assignment]
    if "num_outputs" in op.attrs and "num_outputs" not in s.attributes:
        attrs["num_outputs"] = len(n.outputs)  # Split before opset 18
    given = [None if v is None else state.values[v] for v in n.inputs]
    operands: list[g.Value | None] = []
    for position, value in enumerate(given):
        formal = s.operands[min(position, len(s.operands) - 1)]
        if formal.name in op.attrs and not formal.variadic:
            if value is not None:
                attrs[formal.name] = _as_attr(state, value, formal.name)
                if op.name == "Range":
                    attrs["dtype"] = value.type.dtype
        else:
            operands.append(value)
    while operands and operands[-1] is None:
        operands.pop()
    return operands, attrs


def _as_attr(state: _State, value: g.Value, name: str) -> Attr:
    """The value of a shape-like operand; InferError when it depends on data."""
    found = state.known.get(value)
    if found is not None:
        return tuple(found) if found.ndim else found.item()
    if isinstance(value, g.Constant) and value.nbytes <= 64 * SMALL:
        array = value.load()
        if array.ndim == 0:
            return array.item()  # type: ignore[no-any-return]
        if array.ndim == 1:
            return tuple(array.tolist())
    raise InferError(f"{name} depends on data")


def _follow(state: _State, n: g.Node, index: int) -> Known | None:
    """The elements of a small integer result as sizes, None where they depend on data."""
    tensor = expression(n.op, tuple(None if v is None else v.type for v in n.inputs), n.attrs)[
        index
    ]
    inputs: dict[str, Callable[[tuple[int, ...]], object]] = {}
    for i, v in enumerate(n.inputs):
        if v is None or (v.type.dtype is not None and v not in state.known):
            continue
        table = state.known[v]
        inputs[f"a{i}"] = table.__getitem__
    try:
        out = elements(tensor, inputs)
    except (Undecided, KeyError, TypeError, ZeroDivisionError, IndexError, OverflowError):
        return None
    flat = [ix.dim(e) if isinstance(e, Expr) else e for e in out.reshape(-1)]
    if not all(isinstance(e, (int, np.integer, Expr, bool)) for e in flat):
        return None
    done = np.empty(out.shape, object)
    done.reshape(-1)[:] = [e if isinstance(e, Expr) else int(e) for e in flat]
    return done


def _opaque(state: _State, n: oir.Node) -> g.Node:
    outer = captured(n)
    inputs = [None if v is None else state.values[v] for v in n.inputs]
    inputs += [state.values[v] for v in outer]
    types: list[TensorType] = []
    for i, v in enumerate(n.outputs):
        dtype, dims = state.types(v.name) if v.name else (None, None)
        where = v.name or f"{n.name or n.op_type}_{i}"
        types.append(TensorType(dtype, _shape(state, dims, where)))
    carrier = Op(n.op_type, None, domain=n.domain)
    label = n.name or (n.outputs[0].name if n.outputs else "") or n.op_type
    return g.opaque(carrier, inputs, Payload(n, label), types)
