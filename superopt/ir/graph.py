"""Graphs: immutable nodes, interned, so that equal subgraphs are one object and `==` is `is`.

Value = Input | Constant | Node (its only result) | Item (one of a node's several results)

Names, doc strings and metadata are kept in side tables keyed by value, so that two equal
computations are one node whatever their names. The table of interned nodes holds them weakly:
unused nodes are freed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from superopt import guard
from superopt.ir.op import Attr, Attrs, InferError, Op, Payload, canonical_attrs, infer
from superopt.te.expr.dtype import from_numpy
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Input:
    """A graph input; each is distinct, whatever its name."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Constant:
    """A tensor known when the graph is built. `load()` reads it; `key` identifies its content."""

    type: TensorType
    key: object
    load: Callable[[], np.ndarray]
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Node:
    """An operator applied to values; None is an absent optional operand."""

    op: Op
    inputs: tuple[Value | None, ...]
    attrs: Attrs
    types: tuple[TensorType, ...]

    @property
    def type(self) -> TensorType:
        """Return the type of the only result."""
        (t,) = self.types
        return t

    def attr(self, name: str) -> Attr:
        for k, v in self.attrs:
            if k == name:
                return v
        raise KeyError(f"{self.op.name} has no attribute {name}")

    def __repr__(self) -> str:
        return f"<{self.op.title} {', '.join(map(str, self.types))}>"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Item:
    """Result number `index` of a node with several results."""

    node: Node
    index: int

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]


Value = Input | Constant | Node | Item


@dataclass(frozen=True, slots=True)
class Graph:
    """Outputs and inputs in order, including unused inputs. Graphs are equal if these are."""

    inputs: tuple[Input, ...]
    outputs: tuple[Value, ...]


_INTERNED: WeakValueDictionary[object, Node | Item | Constant] = WeakValueDictionary()


def intern_node(
    op: Op, inputs: tuple[Value | None, ...], attrs: Attrs, types: tuple[TensorType, ...]
) -> Node:
    """Return the interned node of these parts; `attrs` must be canonical and `types` correct."""
    key = (op, inputs, attrs)
    found = _INTERNED.get(key)
    if found is not None:
        return found  # type: ignore[return-value]
    made = Node(op, inputs, attrs, types)
    _INTERNED[key] = made
    return made


def node(op: Op, inputs: Sequence[Value | None], **attrs: Attr) -> Node:
    """Return `op` applied to `inputs`: attributes canonical, types inferred, interned.

    Raises InferError if the operands do not fit.
    """
    args = tuple(inputs)
    while args and args[-1] is None:
        args = args[:-1]
    types = tuple(None if v is None else v.type for v in args)
    full = canonical_attrs(op, types, attrs)
    return intern_node(op, args, full, infer(op, types, full))


def opaque_node(
    op: Op, inputs: Sequence[Value | None], payload: Payload, types: Sequence[TensorType]
) -> Node:
    """Return a node without a tensor expression; it is never merged with another one."""
    if not op.opaque:
        raise InferError(f"{op.name} has a tensor expression")
    return intern_node(op, tuple(inputs), (("payload", payload),), tuple(types))


def results(n: Node) -> tuple[Value, ...]:
    """Return the results of a node."""
    if len(n.types) == 1:
        return (n,)
    return tuple(result(n, i) for i in range(len(n.types)))


def result(n: Node, index: int) -> Value:
    """Return result number `index` of `n`."""
    if len(n.types) == 1 and index == 0:
        return n
    key = (n, index)
    found = _INTERNED.get(key)
    if found is None:
        found = Item(n, index)
        _INTERNED[key] = found
    return found


def constant(
    array: np.ndarray | None = None,
    *,
    type: TensorType | None = None,
    key: object = None,
    load: Callable[[], np.ndarray] | None = None,
    nbytes: int | None = None,
) -> Constant:
    """Return a constant from an array (identified by its content), or lazily from `load` under
    `key`."""
    if array is not None:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        array.flags.writeable = False
        type = TensorType(from_numpy(array.dtype), array.shape)
        key = key or content_key(array)
        held = array
        load, nbytes = (lambda: held), array.nbytes
    if type is None or load is None or key is None:
        raise TypeError("a constant needs an array, or type, key and load")
    found = _INTERNED.get(("constant", key))
    if found is None:
        found = Constant(type, key, load, nbytes or 0)
        _INTERNED[("constant", key)] = found
    return found  # type: ignore[return-value]


HASHED_BYTES = 64 << 20  # of a constant, between two looks at the time


def content_key(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """Return what identifies a tensor's content: dtype, shape, and the bytes or their digest."""
    if array.dtype == object:
        raw = repr(array.tolist()).encode()
    else:
        raw = np.ascontiguousarray(array).tobytes() if array.nbytes <= 64 else b""
        if not raw and array.size:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            digest = hashlib.blake2b(digest_size=16)
            for start in range(0, flat.size, HASHED_BYTES):
                if start:
                    guard.check_time("reading constants")
                digest.update(flat.data[start : start + HASHED_BYTES])
            raw = digest.digest()
    return (str(array.dtype), array.shape, raw)


def operands(v: Value) -> tuple[Value, ...]:
    """Return the operands of the node that computes `v`."""
    match v:
        case Node(_, inputs, _, _):
            return tuple(i for i in inputs if i is not None)
        case Item(n, _):
            return (n,) if len(n.types) == 1 else tuple(i for i in n.inputs if i is not None)
        case _:
            return ()


def producer(v: Value) -> Node | None:
    """Return the node that computes `v`; None for inputs and constants."""
    match v:
        case Node():
            return v
        case Item(n, _):
            return n
        case _:
            return None


def nodes(roots: Graph | Iterable[Value], known: Container[Node] = ()) -> list[Node]:
    """Return every node that the roots need, operands before users, in a deterministic order;
    without those in `known`, which contains what its nodes need."""
    stack: list[tuple[Node, bool]] = []
    order: list[Node] = []
    seen: set[Node] = set()
    outs = roots.outputs if isinstance(roots, Graph) else tuple(roots)
    for root in reversed(outs):
        n = producer(root)
        if n is not None:
            stack.append((n, False))
    while stack:
        n, done = stack.pop()
        if done:
            order.append(n)
            continue
        if n in seen or n in known:
            continue
        seen.add(n)
        stack.append((n, True))
        for v in reversed(n.inputs):
            kind = type(v)  # faster than `producer`, which this is
            if kind is Node:
                p = v
            elif kind is Item:
                p = v.node  # type: ignore[union-attr]
            else:
                continue
            if p not in seen:
                stack.append((p, False))  # type: ignore[arg-type]
    return order


def constants(roots: Graph | Iterable[Value]) -> list[Constant]:
    """Return every constant that the roots use, in order of first use."""
    outs = roots.outputs if isinstance(roots, Graph) else tuple(roots)
    found: dict[Constant, None] = {}
    for n in nodes(outs):
        for v in n.inputs:
            if isinstance(v, Constant):
                found[v] = None
    for v in outs:
        if isinstance(v, Constant):
            found[v] = None
    return list(found)


def users(g: Graph) -> dict[Value, list[Node]]:
    """Return for every value the nodes that read it, in order."""
    out: dict[Value, list[Node]] = {}
    for n in nodes(g):
        for v in dict.fromkeys(i for i in n.inputs if i is not None):
            out.setdefault(v, []).append(n)
    return out


def replace(g: Graph, change: Mapping[Value, Value], order: Iterable[Node] | None = None) -> Graph:
    """Return `g` with each key replaced by its value (which must not depend on a key: a cycle).

    Types must agree. Everything downstream is rebuilt, everything else shared. `order` is
    `nodes(g)` if the caller has it.
    """
    new: dict[Value, Value] = dict(change)

    def get(v: Value) -> Value:
        return new.get(v, v)

    for n in nodes(g) if order is None else order:
        if n in new:
            continue
        changed = False
        for v in n.inputs:
            if v is not None and v in new:
                changed = True
                break
        if not changed:
            continue
        inputs = tuple(None if v is None else get(v) for v in n.inputs)
        made = intern_node(n.op, inputs, n.attrs, n.types)
        if made is n:
            continue
        if len(n.types) == 1:
            new[n] = made
        else:
            for i in range(len(n.types)):
                new.setdefault(result(n, i), result(made, i))
    return Graph(g.inputs, tuple(get(v) for v in g.outputs))


def depends_on(roots: Iterable[Value], targets: Iterable[Value]) -> bool:
    """True if any of `roots` depends on any of `targets` (a root that is a target counts)."""
    goal = set(targets)
    stack = list(roots)
    seen: set[Value] = set()
    while stack:
        v = stack.pop()
        if v in goal:
            return True
        if v in seen:
            continue
        seen.add(v)
        stack.extend(operands(v))
    return False


def walk(g: Graph) -> Iterator[Value]:
    """Yield every value that a node of the graph computes, operands first."""
    for n in nodes(g):
        yield from results(n)
