"""The text format of graphs; it parses back to the same graph.

graph {
  x: f32[batch, 3, 224, 224]
  w = const f32[64, 3, 7, 7] "blake2:5e1f..."
  b = const f32[2] [0.5, -1.0]
  %0 = Conv(x, w, pads=(3, 3, 3, 3), strides=(2, 2))
  %1, %2 = Split(%0, axis=1, split=(32, 32))
  return %1, %2
}

Applications, attributes and sizes use Python's expression syntax (as rules do), parsed with `ast`
and never evaluated. Attributes with their default values are omitted. Constants of at most 16
elements show their values; others show a label, and `parse_graph` needs them passed in. A name that
is not a plain identifier is quoted.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from superopt.errors import UsageError
from superopt.ir.graph import (
    Constant,
    Graph,
    Input,
    Node,
    Value,
    constant,
    constants,
    content_key,
    node,
    nodes,
    results,
)
from superopt.ir.op import REQUIRED, Attrs, InferError, Op, Payload, Types, canonical_attrs
from superopt.ir.syntax import (
    RESULT,
    MalformedText,
    expression,
    is_plain_name,
    parse_attr,
    parse_type,
    quote,
    show_attr,
    show_type,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import DTYPES, DType, to_numpy
from superopt.te.expr.tensor import TensorType

MAX_SHOWN_ELEMENTS = 16
MAX_DIGEST_BYTES = (
    1 << 20
)  # labels of larger constants are made from their keys, not their contents

# --- printing -------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def _explicit_attrs(op: Op, types: Types, attrs: Attrs) -> Attrs:
    kept = dict(attrs)
    for key, value in attrs:
        if op.attrs.get(key, REQUIRED) is REQUIRED:
            continue
        fewer = {k: v for k, v in kept.items() if k != key}
        try:
            same = value == op.attrs[key] or canonical_attrs(op, types, fewer) == attrs
        except (InferError, TypeError, ValueError, AttributeError, AssertionError):
            same = False
        if same:
            kept = fewer
    return tuple((k, kept[k]) for k in op.attrs if k in kept)


def explicit_attrs(n: Node) -> Attrs:
    """Return the attributes that differ from the defaults, in the operator's order."""
    if n.op.opaque:
        return ()
    return _explicit_attrs(n.op, tuple(None if v is None else v.type for v in n.inputs), n.attrs)


def constant_label(c: Constant) -> str:
    """Return the label of a constant that is not shown: a digest of its content, or its key."""
    match c.key:
        case (str(), tuple(), bytes(raw)):
            digest = raw if len(raw) == 16 else hashlib.blake2b(raw, digest_size=16).digest()
            return f"blake2:{digest.hex()}"
        case _ if c.nbytes <= MAX_DIGEST_BYTES:
            raw = content_key(c.load())[2]
            digest = raw if len(raw) == 16 else hashlib.blake2b(raw, digest_size=16).digest()
            return f"blake2:{digest.hex()}"
        case key:
            return f"key:{key}"


def _shown_values(c: Constant) -> str | None:
    """Return the elements of a small constant in row-major order; None where the text would not
    restore the bits."""
    dtype, shape = c.type.dtype, c.type.shape
    if dtype is None or shape is None or dtype.kind == "c" or c.nbytes > MAX_DIGEST_BYTES:
        return None
    count = 1
    for d in shape:
        count *= d if isinstance(d, int) else MAX_SHOWN_ELEMENTS + 1
    if count > MAX_SHOWN_ELEMENTS:
        return None
    array = c.load()
    plain = {"f": float, "b": bool, "s": str}.get(dtype.kind, int)
    elements = [plain(e) for e in array.reshape(-1)]
    if dtype.is_float:
        elements = [float("nan") if e != e else e for e in elements]  # as it will be parsed
    again = _array(elements, dtype, array.shape)
    if content_key(again) != content_key(array):
        return None  # a NaN with a payload
    shown = [show_attr(e) for e in elements]
    return shown[0] if not shape else f"[{', '.join(shown)}]"


def _array(elements: list[object], dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(elements, dtype=to_numpy(dtype)).reshape(shape)


def _name_values(g: Graph, names: Mapping[Value, str]) -> dict[Value, str]:
    """Return a unique text for every value of the graph."""
    out: dict[Value, str] = {}
    taken: set[str] = set()

    def take(v: Value, wish: str) -> None:
        name, n = wish, 0
        while name in taken:
            n += 1
            name = f"{wish}~{n}"
        taken.add(name)
        out[v] = name if is_plain_name(name) else quote(name)

    for i in g.inputs:
        take(i, i.name)
    unnamed = 0
    for c in constants(g):
        take(c, names.get(c, f"c{unnamed}"))
        unnamed += c not in names
    count = 0
    for made in nodes(g):
        for v in results(made):
            out[v] = f"%{count}"
            count += 1
    for v in g.outputs:
        if isinstance(v, Input) and v not in out:
            take(v, v.name)
    return out


def show_node(n: Node, name: Mapping[Value, str]) -> str:
    """Return `Conv(x, w, strides=(2, 2))`, with operands named by `name`."""
    given = ["None" if v is None else name[v] for v in n.inputs]
    given += [f"{k}={show_attr(v)}" for k, v in explicit_attrs(n)]
    text = f"{n.op.title}({', '.join(given)})"
    if not n.op.opaque:
        return text
    labels = ", ".join(quote(str(v)) for _, v in n.attrs if isinstance(v, Payload))
    return f"opaque {text} {labels}: {', '.join(map(show_type, n.types))}"


def show_graph(g: Graph, names: Mapping[Value, str] | None = None) -> str:
    """Return the text of `g`. names: names for constants (inputs have their own)."""
    name = _name_values(g, names or {})
    lines = [f"  {name[i]}: {show_type(i.type)}" for i in g.inputs]
    for c in constants(g):
        shown = _shown_values(c)
        text = quote(constant_label(c)) if shown is None else shown
        lines.append(f"  {name[c]} = const {show_type(c.type)} {text}")
    for n in nodes(g):
        left = ", ".join(name[v] for v in results(n))
        lines.append(f"  {left} = {show_node(n, name)}")
    lines.append("  return " + ", ".join(name[v] for v in g.outputs))
    return "\n".join(["graph {", *lines, "}"]) + "\n"


# --- parsing --------------------------------------------------------------------------------------


def _name_of(e: ast.expr) -> str:
    match e:
        case ast.Name(name):
            return name
        case ast.Constant(str(name)):
            return f'"{name}' if RESULT.fullmatch(name) else name
        case _:
            raise MalformedText(f"{ast.unparse(e)} is not a name")


_CONST = re.compile(r"(.*?)\s*=\s*const\s+(\w+)\[([^\]]*)\]\s*(.*)", re.DOTALL)
_APPLY = re.compile(r"((?:%\d+\s*,\s*)*%\d+)\s*=\s*(.*)", re.DOTALL)
_INPUT = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\w+)\s*:\s*(.*)""", re.DOTALL)


def _parse_tensor_type(kind: str, dims: str) -> TensorType:
    return parse_type(expression(f"{kind}[{dims or '()'}]"))


def _parse_constant(kind: str, dims: str, text: str, constants: Mapping[str, Constant]) -> Constant:
    type = _parse_tensor_type(kind, dims)
    e = expression(text)
    if isinstance(e, ast.Constant) and isinstance(e.value, str) and type.dtype != DTYPES["string"]:
        if e.value not in constants:
            raise MalformedText(
                f"constant {e.value} has {type} elements that are not in the text: pass it in"
            )
        return constants[e.value]
    if type.dtype is None or type.shape is None:
        raise MalformedText(f"a constant of unknown type {type}")
    v = parse_attr(e)
    shape = tuple(index.evaluate(d, {}) for d in type.shape)
    try:
        return constant(_array(list(v) if isinstance(v, tuple) else [v], type.dtype, shape))
    except (ValueError, TypeError, OverflowError) as why:
        raise MalformedText(f"{text} does not fill {type}: {why}") from None


def _parse_application(text: str, env: Mapping[str, Value], ops: Mapping[str, Op]) -> Node:
    if text.startswith("opaque "):
        raise MalformedText("an opaque node cannot be parsed: its content is not in the text")
    match expression(text):
        case ast.Call(ast.Name(name), args, keywords):
            pass
        case e:
            raise MalformedText(f"{ast.unparse(e)} is not an application such as Add(x, y)")
    if name not in ops:
        raise MalformedText(f"there is no operator {name}")
    inputs: list[Value | None] = []
    for a in args:
        if isinstance(a, ast.Constant) and a.value is None:
            inputs.append(None)
            continue
        if (key := _name_of(a)) not in env:
            raise MalformedText(f"{ast.unparse(a)} is not defined above")
        inputs.append(env[key])
    attrs = {k.arg: parse_attr(k.value) for k in keywords if k.arg is not None}
    try:
        return node(ops[name], inputs, **attrs)
    except InferError as why:
        raise MalformedText(str(why)) from None


def parse_graph(
    text: str,
    ops: Mapping[str, Op],
    *,
    constants: Mapping[str, Constant] | None = None,
    inputs: Mapping[str, Input] | None = None,
    source: str = "<text>",
) -> Graph:
    """Return the graph that `text` describes.

    ops: the operators by name. constants: the constants that the text names by label. inputs:
    existing inputs by name (others are created). UsageError names the source and the line.
    """
    known, own = constants or {}, inputs or {}
    env: dict[str, Value] = {}
    order: list[Input] = []
    outputs: tuple[Value, ...] | None = None
    for number, line in _lines(text):
        try:
            if outputs is not None:
                raise MalformedText("a line after return")
            if line.startswith("return"):
                e = expression(f"({line[6:]},)" if line[6:].strip() else "()")
                assert isinstance(e, ast.Tuple)
                undefined = [ast.unparse(i) for i in e.elts if _name_of(i) not in env]
                if undefined:
                    raise MalformedText(f"{', '.join(undefined)} is not defined above")
                outputs = tuple(env[_name_of(i)] for i in e.elts)
            elif m := _APPLY.fullmatch(line):
                given = results(_parse_application(m[2], env, ops))
                left = [s.strip().replace("%", "_r") for s in m[1].split(",")]
                if len(left) != len(given):
                    raise MalformedText(f"{len(left)} names for {len(given)} results")
                for key, v in zip(left, given, strict=True):
                    _define(env, key, v)
            elif m := _CONST.fullmatch(line):
                _define(env, _name_of(expression(m[1])), _parse_constant(m[2], m[3], m[4], known))
            elif m := _INPUT.fullmatch(line):
                key = _name_of(expression(m[1]))
                kind, _, dims = m[2].strip().partition("[")
                made = own.get(key.removeprefix('"')) or Input(
                    key.removeprefix('"'), _parse_tensor_type(kind, dims.removesuffix("]"))
                )
                order.append(made)
                _define(env, key, made)
            else:
                raise MalformedText("not an input, a constant, an application or return")
        except MalformedText as why:
            raise UsageError(
                f"{source}:{number}: {why}", f"in the line {line!r}", "See superopt/ir/text.py."
            ) from None
    if outputs is None:
        raise UsageError(f"{source}: the graph has no return line")
    return Graph(tuple(order), outputs)


def _define(env: dict[str, Value], key: str, v: Value) -> None:
    if key in env:
        raise MalformedText(f"{key} is defined twice")
    env[key] = v


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the numbered lines between `graph {` and `}`."""
    rows = [(n, row.strip()) for n, row in enumerate(text.split("\n"), 1)]
    rows = [(n, row) for n, row in rows if row and not row.startswith("#")]
    if len(rows) < 2 or rows[0][1] != "graph {" or rows[-1][1] != "}":
        raise UsageError("a graph's text starts with `graph {` and ends with `}`")
    return iter(rows[1:-1])
