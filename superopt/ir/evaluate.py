"""Evaluate a graph in a domain: each node by its tensor expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from superopt import guard
from superopt.ir.graph import Constant, Graph, Input, Node, Value, nodes, results
from superopt.ir.op import Attr, Attrs, InferError, Op, canonical_attrs, expression
from superopt.te.eval.domain import Domain, Reals
from superopt.te.eval.interpret import evaluate_all
from superopt.te.expr import index
from superopt.te.expr.dtype import DType, from_numpy
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import TensorType

OpaqueEvaluator = Callable[[Node, list[np.ndarray | None]], list[np.ndarray]]


def evaluate(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    domain: Domain | None = None,
    evaluate_opaque: OpaqueEvaluator | None = None,
    on_result: Callable[[Value, np.ndarray], None] | None = None,
) -> list[np.ndarray]:
    """Return the outputs of `graph` for inputs by name, in `domain` (by default real semantics).

    Symbolic sizes take the values of the feeds' shapes. `evaluate_opaque` computes nodes without a
    tensor expression. `on_result` is called with each value and its array. Intermediate results are
    dropped after their last use; outputs may share memory with feeds and constants.

    Raises ValueError for a missing feed or contradictory shapes, InferError for a node that does
    not fit its operands or is opaque without `evaluate_opaque`.
    """
    domain = domain or Reals()
    given = {i: load_feed(i, feeds, domain) for i in graph.inputs if i.name in feeds}
    sizes = infer_sizes(given, domain)
    held: dict[Value, np.ndarray] = {}
    held.update(given.items())
    order = nodes(graph)
    last_read = _last_reads(order, graph.outputs)

    def value(v: Value) -> np.ndarray:
        found = held.get(v)
        if found is not None:
            return found
        if isinstance(v, Constant):
            return v.load()  # converted to the domain by each node that reads it
        if isinstance(v, Input):
            raise ValueError(f"input {v.name}: {v.type} was not fed; given: {', '.join(feeds)}")
        raise KeyError(f"{v} has not been computed")

    for step, n in enumerate(order):
        guard.check_time("evaluating a graph")
        operands = [None if v is None else value(v) for v in n.inputs]
        if n.op.opaque:
            out = _evaluate_opaque(n, operands, evaluate_opaque, domain, sizes)
        else:
            types = [None if v is None else v.type for v in n.inputs]
            out = _evaluate_operator(n.op, concrete_attrs(n.attrs, sizes), operands, types, domain)
        del operands
        for v, array in zip(results(n), out, strict=True):
            if 0 in array.strides:  # a broadcast view: a reader may copy it
                guard.require_memory(
                    array.nbytes, f"the result of {n.op.name}, {list(array.shape)},"
                )
            if on_result is not None:
                on_result(v, array)
            if last_read.get(v, -1) > step:
                held[v] = array
        for used in n.inputs:
            if used is not None and last_read[used] == step:
                held.pop(used, None)
    return [_to_domain(value(v), v.type, domain) for v in graph.outputs]


def _last_reads(order: Sequence[Node], outputs: Sequence[Value]) -> dict[Value, int]:
    """Return the last step at which each value is read; an output is read after all steps."""
    reads = {v: step for step, n in enumerate(order) for v in n.inputs if v is not None}
    return reads | dict.fromkeys(outputs, len(order))


def _evaluate_opaque(
    n: Node,
    operands: Sequence[np.ndarray | None],
    evaluate_opaque: OpaqueEvaluator | None,
    domain: Domain,
    sizes: dict[str, int],
) -> list[np.ndarray]:
    """Return the results of an opaque node; add the sizes that only results determine."""
    if evaluate_opaque is None:
        raise InferError(f"{n.op.title} is opaque and evaluate_opaque was not given")
    types = [NO_TENSOR if v is None else v.type for v in n.inputs]
    pairs = zip(operands, types, strict=True)
    out = evaluate_opaque(n, [None if a is None else _to_domain(a, t, domain) for a, t in pairs])
    for declared, array in zip(n.types, out, strict=True):
        for axis, d in enumerate(declared.shape or ()):
            if isinstance(d, Size):
                sizes.setdefault(d.name, array.shape[axis])
    return out


def evaluate_node(
    op: Op,
    attrs: Mapping[str, Attr],
    arrays: Sequence[np.ndarray | None],
    domain: Domain | None = None,
    dtypes: Sequence[DType | None] | None = None,
) -> list[np.ndarray]:
    """Return the results of one operator. dtypes: the element types of its operands, if not the
    arrays'."""
    domain = domain or Reals()
    kinds = [None if a is None else from_numpy(a.dtype) for a in arrays]
    types = list(dtypes) if dtypes is not None else kinds
    some = [None if t is None else TensorType(t, None) for t in types]
    shapes = [
        None if a is None or t is None else TensorType(t.dtype, _tensor_shape(a, t, domain))
        for a, t in zip(arrays, some, strict=True)
    ]
    full = canonical_attrs(op, tuple(shapes), attrs)
    return _evaluate_operator(op, full, arrays, some, domain)


def node_results(
    n: Node, arrays: Sequence[np.ndarray | None], domain: Domain | None = None
) -> list[np.ndarray]:
    """Return the results of a graph node without symbolic sizes, from its operands' arrays."""
    domain = domain or Reals()
    types = [None if v is None else v.type for v in n.inputs]
    return _evaluate_operator(n.op, n.attrs, arrays, types, domain)


def _evaluate_operator(
    op: Op,
    attrs: Attrs,
    operands: Sequence[np.ndarray | None],
    declared: Sequence[TensorType | None],
    domain: Domain,
) -> list[np.ndarray]:
    types: list[TensorType | None] = []
    inputs: dict[str, np.ndarray] = {}
    for n, (array, t) in enumerate(zip(operands, declared, strict=True)):
        if array is None or t is None or t.dtype is None:
            types.append(None)
        else:
            types.append(TensorType(t.dtype, _tensor_shape(array, t, domain)))
            inputs[f"a{n}"] = array
    tensors = expression(op, tuple(types), attrs)
    return evaluate_all(tensors, inputs, domain)


def _to_domain(array: np.ndarray, t: TensorType, domain: Domain) -> np.ndarray:
    """Return an array of the domain: constants and opaque results may not be converted yet."""
    if t.dtype is None:
        return array
    return domain.load(array, TensorType(t.dtype, _tensor_shape(array, t, domain)))


NO_TENSOR = TensorType(None, None)


def _tensor_shape(array: np.ndarray, t: TensorType, domain: Domain) -> tuple[int, ...]:
    """Return the shape of the tensor of type `t` that `array` holds: real numbers, or elements of
    the domain, which have component axes, or another dtype if `t` has no rank."""
    assert t.dtype is not None
    lead = domain.component_shape(t.dtype)
    if not lead:
        return array.shape
    own = (
        array.dtype == domain.storage_dtype(t.dtype)
        if t.shape is None
        else array.ndim > len(t.shape)
    )
    return array.shape[len(lead) :] if own else array.shape


def load_feed(i: Input, feeds: Mapping[str, np.ndarray], domain: Domain) -> np.ndarray:
    """Return the feed of input `i` as an array of the domain; as it is if `i` has no known element
    type, as the result of an opaque node may: only opaque nodes read it."""
    dtype = i.type.dtype
    array = np.asarray(feeds[i.name])
    if dtype is None:
        return array
    shape = _tensor_shape(array, i.type, domain)
    if i.type.shape is not None and len(shape) != len(i.type.shape):
        raise ValueError(f"input {i.name} is {i.type}, but was fed an array of shape {shape}")
    try:
        return domain.load(array, TensorType(dtype, shape))
    except TypeError as e:
        raise ValueError(f"input {i.name}: {e}") from e


def infer_sizes(arrays: Mapping[Input, np.ndarray], domain: Domain) -> dict[str, int]:
    """Return the symbolic sizes from the shapes of the inputs; ValueError for a contradiction."""
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    composite: list[tuple[Input, int, Expr, int]] = []
    for i, array in arrays.items():
        if i.type.shape is None or i.type.dtype is None:
            continue
        shape = array.shape[len(domain.component_shape(i.type.dtype)) :]
        for axis, (d, n) in enumerate(zip(i.type.shape, shape, strict=True)):
            if isinstance(d, Size):
                if sizes.setdefault(d.name, n) != n:
                    raise ValueError(
                        f"{d.name} is {sizes[d.name]} in {source[d.name]} but {n} in axis {axis}"
                        f" of input {i.name}: {i.type}"
                    )
                source.setdefault(d.name, f"axis {axis} of input {i.name}")
            elif isinstance(d, Expr):
                composite.append((i, axis, d, n))
            elif d != n:
                raise ValueError(
                    f"input {i.name} is {i.type}, but was fed an array of shape {tuple(shape)}:"
                    f" axis {axis} is {n}, not {d}"
                )
    for i, axis, e, n in composite:
        if index.symbols(e) <= sizes.keys() and index.evaluate(e, sizes) != n:
            raise ValueError(
                f"axis {axis} of input {i.name} is {n}, not {e} = {index.evaluate(e, sizes)}"
            )
    return sizes


def concrete_attrs(attrs: Attrs, sizes: Mapping[str, int]) -> Attrs:
    """Return `attrs` with integers for symbolic sizes; ValueError names a size that no input
    binds."""

    def number(value: Attr) -> Attr:
        if isinstance(value, tuple):
            return tuple(number(v) for v in value)
        if isinstance(value, Expr):
            try:
                return index.evaluate(value, dict(sizes))
            except KeyError as e:
                raise ValueError(f"the size {e} of {value} is in the shape of no input") from None
        return value

    return tuple((k, number(v)) for k, v in attrs)
