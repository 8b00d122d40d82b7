"""Convert a graph's values to tensors: the expressions of its nodes, each reading its operands'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import copysign

import numpy as np

from superopt.ir import graph
from superopt.ir.op import expression
from superopt.plan.lowering.dilated_conv_split import split_windows
from superopt.plan.lowering.growing_states import GrowingState, new_parts
from superopt.plan.lowering.integer_products import INTEGER_PRODUCT_OPS, split_integer_product
from superopt.plan.lowering.nbits_weights import has_constant_nbits_weights, nbits_product
from superopt.plan.lowering.polyphase import StridedPart, split_phases
from superopt.plan.lowering.scatter_into import ScatterInto
from superopt.plan.lowering.state_memories import StateMemory, first_part
from superopt.plan.lowering.updated_states import Placement, match_cache_write
from superopt.te.analysis.affine import rebuild
from superopt.te.analysis.bind_sizes import bind, bind_dim
from superopt.te.analysis.inline import make_index, substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Dim, Tensor, compute, const, product

MAX_INLINE_ELEMENTS = 1  # of constants that become literals in expressions


def is_exact_constant(number: float) -> bool:
    """True if an expression represents the number exactly. Literals are fractions, which have no
    negative zero; NaN tests need computed operands."""
    return number == number and (number != 0 or copysign(1, number) > 0)


@dataclass(slots=True)
class GraphTensors:
    """by_value: the tensor of each value. constants: the constant tensors and their loaders.
    copies: copies of inputs, kept only if they need a border. parts: for tensors without an
    expression, the parts written into them. overwriting_parts: parts that are written over others.
    placements: of parts that are written at positions in memory. nodes: the node of each tensor.
    memories: of inputs and outputs that are states. has_signed_bytes: products of 8-bit integers
    are of int8 by int8."""

    sizes: Mapping[str, int]
    has_signed_bytes: bool = False
    copies: dict[Tensor, Tensor] = field(default_factory=dict)
    parts: dict[Tensor, tuple[StridedPart, ...]] = field(default_factory=dict)
    overwriting_parts: set[Tensor] = field(default_factory=set)
    placements: dict[Tensor, Placement] = field(default_factory=dict)
    scatters: Mapping[graph.Node, ScatterInto] = field(default_factory=dict)
    memories: Mapping[graph.Value, StateMemory] = field(default_factory=dict)
    by_value: dict[graph.Value, Tensor | Const] = field(default_factory=dict)
    constants: dict[Tensor, Callable[[], np.ndarray]] = field(default_factory=dict)
    nodes: dict[Tensor, graph.Node] = field(default_factory=dict)

    def leaf(self, v: graph.Value) -> Tensor | Const:
        """Return the tensor of an input or constant."""
        if v not in self.by_value:
            t = v.type
            assert t.dtype is not None
            shape = self.shape(v)
            made: Tensor | Const = Tensor(f"x{len(self.by_value)}", t.dtype, shape)
            if isinstance(v, graph.Constant):
                count = te_index.dim(product(shape))
                small = count == MAX_INLINE_ELEMENTS and t.dtype.kind in "iufb"
                if small and is_exact_constant(number := v.load().reshape(()).item()):
                    made = const(number, t.dtype)
                else:
                    assert isinstance(made, Tensor)
                    self.constants[made] = v.load
            if isinstance(v, graph.Input):
                made = self.copy_input(made) if v not in self.memories else self.state_input(v)
            self.by_value[v] = made
        return self.by_value[v]

    def copy_input(self, t: Tensor | Const) -> Tensor | Const:
        """Return a copy of an input image, which can have a border."""
        if isinstance(t, Const) or t.rank < 3:
            return t
        out = compute(t.shape, lambda *i: t[i], name="copy")
        self.copies[out] = t
        return out

    def state_input(self, v: graph.Input) -> Tensor:
        """Return an input as the first part of its memory."""
        before = self.memories[v].before
        out = first_part(before, self.shape(v))
        self.copies[out] = before
        return out

    def add(self, n: graph.Node) -> None:
        """Add the results of a node with a tensor expression."""
        states = [v for v in graph.results(n) if v in self.memories]
        held = [self.memories[v].state for v in states]
        if not states or any(isinstance(s, GrowingState) and s.length == 0 for s in held):
            self.add_results(n)
        for v in states:
            self.by_value[v] = self.state_output(n, v)

    def state_output(self, n: graph.Node, v: graph.Value) -> Tensor:
        """Return an output as the first part of its memory, into which its new elements are
        written."""
        memory = self.memories[v]
        if not isinstance(memory.state, GrowingState):
            self.parts[memory.after] = (self.placed_part(n, v),)
            return first_part(memory.after, self.shape(v))
        given = next((i for i, m in self.memories.items() if m is memory and i is not v), None)
        axis, parts = memory.state.axis, []
        for new, begin in new_parts(memory.state, v, given):
            if 0 not in self.shape(new):
                at = tuple(begin if d == axis else 0 for d in range(memory.after.rank))
                parts.append(self.written_part(n, self.leaf(new), self.shape(new), at))
        self.parts[memory.after] = tuple(parts)
        return first_part(memory.after, self.shape(v))

    def placed_part(self, n: graph.Node, v: graph.Value) -> StridedPart:
        """Return the elements that are written into a state, at positions in memory."""
        write = match_cache_write(v)
        assert write is not None
        shape = self.shape(write.new)
        out = self.written_part(n, self.leaf(write.new), shape, (0,) * len(shape))
        if write.positions is not None:
            at = self.leaf(write.positions)
            if not isinstance(at, Tensor):
                raise NotImplementedError("a constant position")
            self.placements[out.tensor] = write.placement(at, self.shape(v)[write.axis])
        return out

    def add_results(self, n: graph.Node) -> None:
        if n in self.scatters:
            self.by_value[n] = self.scatter_tensor(n, self.scatters[n])
            return
        if has_constant_nbits_weights(n):
            self.by_value[n] = made = self.nbits_tensor(n)
            self.nodes[made] = n
            return
        types = tuple(None if v is None else v.type for v in n.inputs)
        outs = expression(n.op, types, n.attrs)
        if self.sizes:
            outs = tuple(bind(t, self.sizes) for t in outs)
        given = {f"a{k}": self.leaf(v) for k, v in enumerate(n.inputs) if v is not None}
        change = OperandReplacer(given)
        empty = 0 in outs[0].shape  # no part of it is written
        if n.op.name == "Concat" and n.op.domain == "" and len(given) > 1 and not empty:
            self.by_value[n] = self.concat_tensor(n, list(given.values()), outs[0])
            return
        for v, t in zip(graph.results(n), outs, strict=True):
            some = split_phases(t) or split_windows(t)
            if some:
                self.by_value[v] = whole = Tensor("phases", t.dtype, t.shape)
                self.parts[whole] = tuple(
                    replace(x, tensor=self.replace_operands(change, x)) for x in some
                )
            else:
                self.by_value[v] = change.tensor(t)
            is_product = n.op.name in INTEGER_PRODUCT_OPS and dict(n.attrs).get("group", 1) == 1
            if is_product and isinstance(given_sum := self.by_value[v], Tensor):
                self.by_value[v] = split = split_integer_product(
                    given_sum, self.constants, self.add_constant, self.has_signed_bytes
                )
                self.nodes[split] = n
        for x in change.tensors.values():
            if isinstance(x, Tensor) and x not in self.copies and x not in given.values():
                self.nodes[x] = n

    def nbits_tensor(self, n: graph.Node) -> Tensor:
        """Return a product with weights of few bits that are constants."""

        given = [None if v is None else self.leaf(v) for v in (n.inputs[0], *n.inputs[5:])]
        return nbits_product(n, *given, add=self.add_constant)

    def add_constant(
        self, name: str, dtype: DType, shape: tuple[Dim, ...], load: Callable[[], np.ndarray]
    ) -> Tensor:
        """Return a new constant tensor."""
        out = Tensor(f"{name}{len(self.constants)}", dtype, shape)
        self.constants[out] = load
        return out

    def replace_operands(self, change: OperandReplacer, part: StridedPart) -> Tensor:
        out = change.tensor(part.tensor)
        assert isinstance(out, Tensor)
        return out

    def scatter_tensor(self, n: graph.Node, p: ScatterInto) -> Tensor:
        """Return a tensor with others written over it."""
        for x in graph.nodes(p.values):
            if graph.results(x)[0] not in self.by_value:
                self.add(x)
        base = self.leaf(p.base)
        assert isinstance(base, Tensor)
        whole = Tensor("patched", base.dtype, base.shape)
        own = self.written_part(n, base, base.shape, (0,) * base.rank)
        over = [self.written_part(n, self.leaf(v), self.shape(v), at) for at, v in p.updates]
        self.overwriting_parts.update(x.tensor for x in over)
        self.parts[whole] = (own, *over)
        return whole

    def concat_tensor(
        self, n: graph.Node, operands: Sequence[Tensor | Const], out: Tensor
    ) -> Tensor:
        """Return a tensor that is written in parts by its operands."""
        axis = n.attr("axis")
        assert isinstance(axis, int)
        whole = Tensor("joined", out.dtype, out.shape)
        parts = []
        begin: Dim = 0
        for x in operands:
            size = 1 if isinstance(x, Const) else x.shape[axis]
            shape = (*out.shape[:axis], size, *out.shape[axis + 1 :])
            if size != 0:
                at = tuple(begin if d == axis else 0 for d in range(out.rank))
                parts.append(self.written_part(n, x, shape, at))
            begin = te_index.dim(te_index.as_index(begin) + size)
        self.parts[whole] = tuple(parts)
        return whole

    def written_part(
        self, n: graph.Node, x: Tensor | Const, shape: Sequence[Dim], offset: tuple[Dim, ...]
    ) -> StridedPart:
        """Return the part of a node's result that is computed as `x`, of this shape, at an
        offset."""
        held = compute(shape, lambda *i: x if isinstance(x, Const) else x[i])
        self.nodes[held] = n
        return StridedPart(held, offset, (1,) * len(shape))

    def shape(self, v: graph.Value) -> tuple[Dim, ...]:
        """Return the shape of a value; sizes that are not known are symbolic."""
        assert v.type.shape is not None
        return tuple(bind_dim(d, self.sizes) for d in v.type.shape)


@dataclass(slots=True)
class OperandReplacer:
    """Replaces operands by name with tensors or constants."""

    operands: Mapping[str, Tensor | Const]
    tensors: dict[Tensor, Tensor | Const] = field(default_factory=dict)
    memo: dict[int, tuple[Expr, Expr]] = field(default_factory=dict)

    def tensor(self, t: Tensor) -> Tensor | Const:
        if t not in self.tensors:
            if t.body is None:
                self.tensors[t] = self.operands[t.name]
            else:
                body = self.expr(t.body)
                self.tensors[t] = Tensor(t.name, t.dtype, t.shape, t.axes, body)
        return self.tensors[t]

    def expr(self, e: Expr) -> Expr:
        found = self.memo.get(id(e))
        if found is None:
            found = self.memo[id(e)] = (e, self._expr(e))
        return found[1]

    def _expr(self, e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype):
                new = self.tensor(t)
                if isinstance(new, Const):
                    return new
                return Load(new, tuple(self.expr(i) for i in index), dtype)
            case Apply(fn, args, dtype):
                some = tuple(self.expr(a) for a in args)
                return e if some == args else rebuild(fn, some, dtype)
            case Reduce(_, (Axis(extent=1) as a,), body, dtype) if body.dtype == dtype:
                return substitute_axes(
                    self.expr(body), {a: te_index.as_index(0)}
                )  # a sum of one term
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self.expr(body), dtype)
            case Index(element, bound):
                return make_index(self.expr(element), self.expr(bound))
        return e
