"""The tile-level form: loops around statements on tiles. Every target prints it.

A statement computes a *tile*: all elements over its tile axes, which have small constant extents.
Its value is an expression over tile axes and loop axes, with loads of buffers. A buffer has a
scope:

    global    a parameter, in memory
    local     scratch of the kernel, in a cache
    register  a tile, alive from its first store to the end of the loop around that

A product of two loads that is reduced over tile axes is a dot; targets with matrix instructions use
one, others add products one after the other.

The kind of a loop says how its steps run:

    serial    one after the other
    parallel  concurrently, in any order, by threads of a processor or programs of a GPU
    unroll    one after the other, unrolled

A target rejects kinds that it does not support.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.te.expr import index as te_index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor

LOOP_KINDS = ("serial", "parallel", "unroll")
# Indices, each with an exclusive upper bound: beyond these a statement neither reads nor stores.
# Registers have any value there.
Limits = tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, for all `axes` within `limits`; vectors run along the last one."""

    buffer: Tensor
    index: tuple[Expr, ...]
    value: Expr
    axes: tuple[Axis, ...] = ()
    limits: Limits = ()

    def __str__(self) -> str:
        how = f"{_axes_text(self.axes)}{_limits_text(self.limits)}"
        return f"{_element_text(self.buffer, self.index)} = {self.value}{how}"


@dataclass(frozen=True, slots=True)
class Update:
    """buffer[index] = fn(buffer[index], value), for all `axes` and, in order, `over`, within
    `limits`."""

    buffer: Tensor
    index: tuple[Expr, ...]
    fn: str
    value: Expr
    axes: tuple[Axis, ...] = ()
    over: tuple[Axis, ...] = ()
    limits: Limits = ()

    def __str__(self) -> str:
        axes = f"{_axes_text((*self.axes, *self.over))}{_limits_text(self.limits)}"
        return f"{_element_text(self.buffer, self.index)} {self.fn}= {self.value}{axes}"


@dataclass(frozen=True, slots=True)
class For:
    """The body for each value of `axis` below its extent, and below `until` if given: an integer
    expression, of 32 bits on a GPU and 64 bits on a CPU, evaluated when the loop begins. begin: on
    a CPU, the first value, an index; 0 if None."""

    axis: Axis
    body: tuple[Stmt, ...]
    kind: str = "serial"
    until: Expr | None = None
    begin: Expr | None = None


Stmt = Store | Update | For


def bind(axis: Axis, value: Expr, *body: Stmt) -> For:
    """Return the body for one value of `axis`, an index below its extent, which is computed
    once."""
    return For(axis, body, until=next_index(value), begin=value)


def bound_value(s: For) -> Expr | None:
    """Return the value of the axis that a loop of one iteration (`bind`) has; None for another
    loop."""
    return s.begin if s.begin is not None and s.until == next_index(s.begin) else None


def next_index(value: Expr) -> Expr:
    return te_index.as_index(value + 1)


def flat_statements(body: Sequence[Stmt]) -> Iterator[Store | Update]:
    """Yield the statements inside all loops."""
    for s in body:
        if isinstance(s, For):
            yield from flat_statements(s.body)
        else:
            yield s


@dataclass(frozen=True, slots=True)
class Pack:
    """A constant in a kernel's reading order: buffer[axes] = source[index]."""

    source: Tensor
    buffer: Tensor
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the buffers `params`, results last; `scratch` buffers have scopes.

    tables: small buffers of compile-time constants. packs: parameters that are packed constants.
    library: a vendor call in place of the body: "mm ROWS TERMS COLUMNS", a matrix product, or the
    texts of vendor/cudnn.py and vendor/sdpa.py. programs: on a GPU, the number of persistent
    programs that share the iterations of parallel loops; 0: one for each. sizes: the names of the
    symbolic sizes, which are another parameter: a pointer to their values. instructions: those for
    groups of terms that it uses (kernels/processor.py); empty for none. passes: the
    input of each lowering pass, by name, for printing.
    """

    name: str
    params: tuple[Tensor, ...]
    body: tuple[Stmt, ...]
    scratch: tuple[tuple[Tensor, str], ...] = ()
    tables: tuple[tuple[Tensor, np.ndarray], ...] = ()
    packs: tuple[Pack, ...] = ()
    passes: tuple[tuple[str, object], ...] = field(default=(), compare=False, repr=False)
    library: str = ""
    programs: int = 0
    sizes: tuple[str, ...] = ()
    instructions: str = ""

    def __str__(self) -> str:
        head = ", ".join(f"{p.name}: {p.type}" for p in self.params)
        lines = [f"{self.name}({head})"]
        lines += [f"  {scope} {t.name}: {t.type}" for t, scope in self.scratch]
        lines += [f"  {self.programs} programs in turns"] if self.programs else []
        lines += [f"  by {self.instructions}"] if self.instructions else []
        return "\n".join([*lines, *_lines(self.body, "  ")])


def _lines(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
    for s in body:
        if isinstance(s, For):
            kind = "" if s.kind == "serial" else f" {s.kind}"
            begin = "" if s.begin is None else f" from {s.begin}"
            until = "" if s.until is None else f" and {s.until}"
            yield f"{indent}for {s.axis.name} < {s.axis.extent}{until}{begin}{kind}"
            yield from _lines(s.body, indent + "  ")
        else:
            yield f"{indent}{s}"


def _element_text(buffer: Tensor, index: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(str, index))}]"


def _limits_text(limits: Limits) -> str:
    return "".join(f" where {i} < {n}" for i, n in limits)


def _axes_text(axes: tuple[Axis, ...]) -> str:
    return " for " + ", ".join(f"{a.name} < {a.extent}" for a in axes) if axes else ""
