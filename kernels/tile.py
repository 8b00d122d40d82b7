"""The tile-level form: loops around statements on tiles. What every target prints.

A statement computes a *tile*: all elements over its tile axes, which have small constant extents.
Its value is an expression over tile axes and the axes of the loops around it, in which loads are of
buffers. Where a buffer lies is its scope:

    global    a parameter, in memory
    local     scratch of the kernel, in a cache
    register  a tile: it lives from its first store to the end of the loop that this is in

A product of two loads that is summed over tile axes is a dot; a target with matrix instructions
takes it as one, the others add its products one after the other. Where a schedule says by which
instruction, its name (intrinsic.py) is with the update.

A loop's kind says how its steps are done:

    serial         one after the other
    parallel       in any order, and at once, by threads of a processor
    block, thread  in any order, and at once, by the blocks of a GPU's grid, and by threads of one
    unroll         one after the other, written out

A target refuses the kinds that it has no way to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr

KINDS = ("serial", "parallel", "block", "thread", "unroll")


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, for all `axes`; the last of these runs along vectors."""

    buffer: Tensor
    index: tuple[Expr, ...]
    value: Expr
    axes: tuple[Axis, ...] = ()

    def __str__(self) -> str:
        return f"{_at(self.buffer, self.index)} = {self.value}{_over(self.axes)}"


@dataclass(frozen=True, slots=True)
class Update:
    """buffer[index] = fn(buffer[index], value), for all `axes` and, one after the other, `over`.

    intrinsic: the name of what computes this for the last of `axes` and `over`.
    """

    buffer: Tensor
    index: tuple[Expr, ...]
    fn: str
    value: Expr
    axes: tuple[Axis, ...] = ()
    over: tuple[Axis, ...] = ()
    intrinsic: str = ""

    def __str__(self) -> str:
        axes = _over((*self.axes, *self.over))
        by = f" by {self.intrinsic}" if self.intrinsic else ""
        return f"{_at(self.buffer, self.index)} {self.fn}= {self.value}{axes}{by}"


@dataclass(frozen=True, slots=True)
class For:
    """The body for each value of `axis` below its extent, or below `until` where that is less: a
    number of 32 bits, which is known when the loop begins."""

    axis: Axis
    body: tuple[Stmt, ...]
    kind: str = "serial"
    until: Expr | None = None


Stmt = Store | Update | For


def flat(body: Sequence[Stmt]) -> Iterator[Store | Update]:
    """The statements within all loops."""
    for s in body:
        if isinstance(s, For):
            yield from flat(s.body)
        else:
            yield s


@dataclass(frozen=True, slots=True)
class Pack:
    """A constant as a kernel reads it: buffer[axes] = source[index], in the order of its loops."""

    source: Tensor
    buffer: Tensor
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the buffers `params`, the results last; `scratch` are its own, with scopes.

    tables: small buffers whose numbers are known, and become part of the code. packs: parameters
    that are constants in another order. library: what a library computes in the body's place, of
    the parameters: "mm ROWS TERMS COLUMNS", a product of matrices, or what gpu_convolution.py and
    gpu_sdpa.py say. programs: on a GPU,
    where parallel loops have steps for more, each of so many programs takes one after the other; 0:
    one for each. passes: what it was before each pass that made it, by the pass' name; to be
    printed.
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

    def __str__(self) -> str:
        head = ", ".join(f"{p.name}: {p.type}" for p in self.params)
        lines = [f"{self.name}({head})"]
        lines += [f"  {scope} {t.name}: {t.type}" for t, scope in self.scratch]
        lines += [f"  {self.programs} programs in turns"] if self.programs else []
        return "\n".join([*lines, *_lines(self.body, "  ")])


def _lines(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
    for s in body:
        if isinstance(s, For):
            kind = "" if s.kind == "serial" else f" {s.kind}"
            until = "" if s.until is None else f" and {s.until}"
            yield f"{indent}for {s.axis.name} < {s.axis.extent}{until}{kind}"
            yield from _lines(s.body, indent + "  ")
        else:
            yield f"{indent}{s}"


def _at(buffer: Tensor, index: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(str, index))}]"


def _over(axes: tuple[Axis, ...]) -> str:
    return " for " + ", ".join(f"{a.name} < {a.extent}" for a in axes) if axes else ""
