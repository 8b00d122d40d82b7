"""Nodes of a runtime's optimized model, each as a small model to time.

They may be of domains of the runtime's own, as onnxruntime's convolutions on blocked channels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from superopt.onnx_io.export.stand_in_file import MIN_SHARED_BYTES, StandInFile

_MAX_KEPT_ELEMENTS = 64  # of a constant whose values matter, as of a shape or an exponent
_DRAWN_FLOATS = 1 << 14  # which are repeated
_ELEMENT_TYPES = {
    "float": onnx.TensorProto.FLOAT, "double": onnx.TensorProto.DOUBLE,
    "float16": onnx.TensorProto.FLOAT16, "bool": onnx.TensorProto.BOOL,
    **{f"{u}int{n}": onnx.TensorProto.DataType.Value(f"{u}int{n}".upper())
       for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
_ELEMENT_NAMES = {value: name for name, value in _ELEMENT_TYPES.items()}
ResultTypes = Mapping[str, Sequence[tuple[str, Sequence[int]]]]  # by the node's name


@dataclass(frozen=True, slots=True)
class RuntimeValue:
    """An operand or result of a node. kind: of its elements, as "float". value: of a constant whose
    values matter, else None."""

    kind: str
    shape: tuple[int, ...]
    is_constant: bool = False
    value: onnx.TensorProto | None = None

    def __str__(self) -> str:
        return f"{'const ' * self.is_constant}{self.kind}{list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeNode:
    """A node of an optimized model. key: equal for nodes of equal time. node: without names.
    imports: versions of domains."""

    key: str
    node: onnx.NodeProto
    operands: tuple[RuntimeValue | None, ...]
    results: tuple[RuntimeValue | None, ...]
    imports: tuple[tuple[str, int], ...]
    ir_version: int


def read_runtime_nodes(model: bytes, results: ResultTypes) -> list[tuple[str, RuntimeNode]] | None:
    """Return the nodes of an optimized model, with their names; None if one cannot be timed alone:
    a type is not known, it has no name, or it contains a graph. results: types of each node's
    results."""
    proto = onnx.load_model_from_string(model)
    known: dict[str, RuntimeValue] = {}
    for i in proto.graph.input:
        kind = _ELEMENT_NAMES.get(i.type.tensor_type.elem_type)
        dims = tuple(d.dim_value for d in i.type.tensor_type.shape.dim)
        if kind is not None:
            known[i.name] = RuntimeValue(kind, dims)
    for t in proto.graph.initializer:
        if (kind := _ELEMENT_NAMES.get(t.data_type)) is None:
            continue
        matters = math.prod(t.dims) <= _MAX_KEPT_ELEMENTS or kind not in ("float", "float16")
        known[t.name] = RuntimeValue(kind, tuple(t.dims), True, t if matters else None)
    imports = tuple(sorted((o.domain, o.version) for o in proto.opset_import))
    out = []
    for n in proto.graph.node:
        types = results.get(n.name)
        named = [name for name in n.output if name]
        if types is None or len(types) != len(named):
            return None
        if any(a.HasField("g") or a.graphs for a in n.attribute):
            return None
        if any(name and name not in known for name in n.input):
            return None
        for name, (kind, shape) in zip(named, types, strict=True):
            if kind in _ELEMENT_TYPES:
                known[name] = RuntimeValue(kind, tuple(shape))
        if any(name not in known for name in named):
            return None
        operands = tuple(known[name] if name else None for name in n.input)
        made = tuple(known[name] if name else None for name in n.output)
        out.append((n.name, _runtime_node(n, operands, made, imports, proto.ir_version)))
    return out


def _runtime_node(
    n: onnx.NodeProto,
    operands: tuple[RuntimeValue | None, ...],
    results: tuple[RuntimeValue | None, ...],
    imports: tuple[tuple[str, int], ...],
    ir_version: int,
) -> RuntimeNode:
    bare = onnx.NodeProto(op_type=n.op_type, domain=n.domain)
    bare.attribute.extend(sorted(n.attribute, key=lambda a: a.name))
    digest = hashlib.blake2b(bare.SerializeToString(deterministic=True), digest_size=8)
    digest.update(repr(imports).encode())
    for o in operands:
        if o is not None and o.value is not None:
            digest.update(onnx.numpy_helper.to_array(o.value).tobytes())
    # Which operands are one value matters, too: a square reads one.
    names = [name for name in n.input if name]
    same = [names.index(name) for name in names]
    digest.update(repr(same).encode())
    op = f"{n.domain}.{n.op_type}" if n.domain else n.op_type
    key = f"{op}({', '.join(map(str, operands))}) {digest.hexdigest()}"
    bare.input.extend(n.input)
    return RuntimeNode(key, bare, operands, results, imports, ir_version)


@dataclass(slots=True)
class _ModelBuilder:
    """Inputs and nodes of a model that is built."""

    rng: np.random.Generator
    weights: StandInFile
    has_stand_ins: bool = False
    inputs: dict[str, RuntimeValue] = field(default_factory=dict)
    graph: onnx.GraphProto = field(default_factory=lambda: onnx.GraphProto(name="nodes"))
    drawn: np.ndarray | None = None

    def add(self, n: RuntimeNode) -> None:
        """Add a copy of a node, with weights of its own."""
        number = len(self.graph.node)
        made = onnx.NodeProto(op_type=n.node.op_type, domain=n.node.domain)
        made.attribute.extend(n.node.attribute)
        given: dict[str, str] = {}
        for name, o in zip(n.node.input, n.operands, strict=True):
            if o is None:
                made.input.append("")
                continue
            if name not in given:
                given[name] = self._operand(o, f"c{number}_{len(given)}", len(given))
            made.input.append(given[name])
        for k, v in enumerate(n.results):
            made.output.append("" if v is None else f"y{number}_{k}")
            if v is not None:
                self.graph.output.append(_value_info(f"y{number}_{k}", v.kind, None))
        self.graph.node.append(made)

    def _operand(self, o: RuntimeValue, name: str, place: int) -> str:
        if not o.is_constant:
            given = _input_name(o, place)
            self.inputs[given] = o
            return given
        t = onnx.TensorProto()
        size = math.prod(o.shape) * _numpy_type(o.kind).itemsize
        if o.value is not None:
            t.CopyFrom(o.value)
        elif size >= MIN_SHARED_BYTES:
            t.dims.extend(o.shape)
            t.data_type = _ELEMENT_TYPES[o.kind]
            self.weights.fill(t, size)
            self.has_stand_ins = True
        else:
            if self.drawn is None:
                self.drawn = self.rng.standard_normal(_DRAWN_FLOATS, np.float32)
            t.dims.extend(o.shape)
            t.data_type = _ELEMENT_TYPES[o.kind]
            t.raw_data = np.resize(self.drawn.astype(_numpy_type(o.kind)), o.shape).tobytes()
        t.name = name
        self.graph.initializer.append(t)
        return name


def models_of_nodes(
    groups: Sequence[Iterable[RuntimeNode]], weights: StandInFile
) -> list[bytes | Path]:
    """Return a model of the nodes of each group, or its file beside `weights`; all models take the
    same inputs."""
    builders, imports, ir_version = [], dict[str, int](), 0
    for nodes in groups:
        b = _ModelBuilder(np.random.default_rng(0), weights)
        for n in nodes:
            b.add(n)
            imports |= dict(n.imports)
            ir_version = max(ir_version, n.ir_version)
        builders.append(b)
    inputs = {name: o for b in builders for name, o in b.inputs.items()}
    out: list[bytes | Path] = []
    for number, b in enumerate(builders, 1):
        b.graph.input.extend(_value_info(name, o.kind, o.shape) for name, o in inputs.items())
        made = onnx.ModelProto(ir_version=ir_version, graph=b.graph)
        made.opset_import.extend(
            onnx.OperatorSetIdProto(domain=d, version=v) for d, v in imports.items()
        )
        data: bytes = made.SerializeToString()
        out.append(weights.write_model(data, number) if b.has_stand_ins else data)
    return out


def drawn_inputs(groups: Sequence[Iterable[RuntimeNode]]) -> dict[str, np.ndarray]:
    """Return values of the inputs of `models_of_nodes`: normal floats, ones."""
    drawn = np.random.default_rng(0).standard_normal(_DRAWN_FLOATS, np.float32)
    out = {}
    for n in (n for nodes in groups for n in nodes):
        for name, o in _input_names(n).values():
            kind = _numpy_type(o.kind)
            some = drawn.astype(kind) if kind.kind == "f" else np.ones(1, kind)
            out[name] = np.resize(some, o.shape)
    return out


def _input_names(n: RuntimeNode) -> dict[str, tuple[str, RuntimeValue]]:
    """Return the inputs that a node reads in a model that is built, by its operands' names."""
    found: dict[str, tuple[str, RuntimeValue]] = {}
    names = dict.fromkeys(name for name, o in zip(n.node.input, n.operands, strict=True) if o)
    for place, name in enumerate(names):
        o = n.operands[list(n.node.input).index(name)]
        if o is not None and not o.is_constant:
            found[name] = _input_name(o, place), o
    return found


def _input_name(o: RuntimeValue, place: int) -> str:
    return f"x{place}_{o.kind}_{'_'.join(map(str, o.shape))}"


def _value_info(name: str, kind: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, _ELEMENT_TYPES[kind], shape)


def _numpy_type(kind: str) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(_ELEMENT_TYPES[kind]))
