"""Merge the kernels of gated products loop by loop, with the gates in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from superopt.kernels.algorithms.build import BuiltKernel
from superopt.kernels.llvm.address import flat_index, merge_div_mod
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store
from superopt.te.expr.node import Apply, Expr, Load
from superopt.te.expr.tensor import Tensor, cast


def merged_kernel(
    gates: Sequence[BuiltKernel],
    last: BuiltKernel,
    gate_buffers: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> Kernel:
    """Merge kernels into one of `inputs`. gate_buffers: the tensors through which the last one
    reads the gates."""
    every = (*gates, last)
    buffers = dict(zip(last.reads, last.kernel.params, strict=False))
    outs = {g.kernel.params[-1]: buffers.pop(x) for g, x in zip(gates, gate_buffers, strict=True)}
    body, registers = _merge_bodies([x.kernel.body for x in every], outs)
    same: dict[Tensor, Tensor] = {}
    for g in gates:
        for x, buffer in zip(g.reads, g.kernel.params, strict=False):
            same[buffer] = buffers.setdefault(x, buffer)
            if same[buffer].shape != buffer.shape:
                raise NotImplementedError(f"{x.name} is read in two layouts")
    params = (*(buffers[x] for x in inputs), last.kernel.params[-1])
    scratch = (*(x for k in every for x in k.kernel.scratch), *((r, "register") for r in registers))
    packs = {p.buffer: p for k in every for p in k.kernel.packs if p.buffer in params}
    body = tuple(_with_shared_buffers(s, same) for s in body)
    return Kernel("kernel", params, body, scratch, packs=tuple(packs.values()))


def _merge_bodies(
    bodies: Sequence[Sequence[Stmt]], outs: Mapping[Tensor, Tensor]
) -> tuple[tuple[Stmt, ...], list[Tensor]]:
    """Merge statements loop by loop. Gates' stores to `outs` become registers, which are returned
    too, and the last product reads these."""
    kept: dict[Tensor, tuple[tuple[Expr, ...], Load]] = {}

    def go(some: Sequence[Sequence[Stmt]]) -> Iterator[Stmt]:
        if len({len(x) for x in some}) > 1:
            raise NotImplementedError("the products have different statements")
        for level in zip(*some, strict=True):
            loops = [s for s in level if isinstance(s, For)]
            if len({(s.axis, s.kind) for s in loops}) > 1:
                names = " and ".join(dict.fromkeys(s.axis.name for s in loops))
                raise NotImplementedError(f"the loops {names} differ")
            if len(loops) == len(level) and loops[0].kind != "unroll":
                yield replace(loops[0], body=tuple(go([s.body for s in loops])))
            else:
                yield from map(one, level)

    def one(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer in outs:
            gate = Tensor("gate", s.buffer.dtype, tuple(a.extent for a in s.axes))
            kept[outs[s.buffer]] = s.index, Load(gate, s.axes, gate.dtype)
            return Store(gate, s.axes, s.value, s.axes)
        return replace(s, value=_read_gate_registers(s.value, kept)) if isinstance(s, Store) else s

    body = tuple(go(bodies))
    return body, [x.tensor for _, x in kept.values()]


def _read_gate_registers(e: Expr, kept: Mapping[Tensor, tuple[tuple[Expr, ...], Load]]) -> Expr:
    """Return `e` reading gates from registers. kept: each gate's store index, and the register
    load."""
    match e:
        case Load(x, at) if x in kept:
            place, read = kept[x]
            if _canonical_index(x, at) != _canonical_index(x, place):
                raise NotImplementedError("the products are stored in different orders")
            return read
        case Apply("cast", (Load(x) as load,), dtype) if x in kept:
            return cast(_read_gate_registers(load, kept), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_read_gate_registers(a, kept) for a in args), dtype)
    return e


def _canonical_index(t: Tensor, index: Sequence[Expr]) -> Expr:
    """Return the offset in canonical form, however rows are made of axes."""
    flat = flat_index(t, index)
    return merge_div_mod(flat) or flat


def _with_shared_buffers(s: Stmt, same: Mapping[Tensor, Tensor]) -> Stmt:
    """Return the statement with buffers that both kernels read unified."""

    def go(e: Expr) -> Expr:
        match e:
            case Load(x, index, dtype):
                return Load(same.get(x, x), tuple(map(go, index)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return e

    match s:
        case For():
            return replace(s, body=tuple(_with_shared_buffers(x, same) for x in s.body))
    return replace(s, value=go(s.value), index=tuple(map(go, s.index)))
