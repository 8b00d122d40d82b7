"""Digests of kernels and of what they compute, independent of buffer names."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from superopt import te
from superopt.kernels.algorithms.problem import MAX_WINOGRAD_TILE, Problem
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import U32
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Reduce, Size
from superopt.te.expr.symbolic_int import example_sizes
from superopt.te.expr.tensor import Tensor

DIGEST_BYTES = 10  # of a digest


def kernel_digest(kernel: Kernel) -> str:
    """Return the digest of a kernel: equal for kernels with the same code. Names do not count."""
    w = _Serializer()
    w.kernel(kernel)
    return w.digest()


def problem_digest(p: Problem) -> str:
    """Return the digest of a problem: equal for problems with the same candidate kernels. It
    depends on whether Winograd and Strassen are allowed, and Winograd's tiles."""
    return _problem_digest(p, _Serializer())


def cost_digest(p: Problem) -> str:
    """Return the digest of a problem's cost: equal also for problems that differ only in axes of
    one element."""
    return _problem_digest(p, _CostSerializer())


def _problem_digest(p: Problem, w: _Serializer) -> str:
    w.sizes = {name: n for n, name in enumerate(example_sizes())}
    w.tensor(p.tensor)
    places = [(w.places[t], t) for t in w.places if t.body is None or t is p.tensor]
    w.lines += [
        f"{n} {w.type_text(t)} {_layout_text(p.layouts.get(t))} {t in p.constants}"
        for n, t in places
    ]
    tile = "" if p.max_winograd_tile == MAX_WINOGRAD_TILE else f"-{p.max_winograd_tile}"
    products = f"-{p.bf16_instructions}" if p.bf16_instructions else ""
    products += f"-{p.integer_instructions}" if _has_bytes(p) else ""
    products += f"-{p.sum_limit.bit_length()}" if p.sum_limit else ""
    return f"{w.digest()}-{p.width}{tile if p.allow_winograd else '-plain'}{products}"


def _has_bytes(p: Problem) -> bool:
    """True if the problem's tensor reads integers of 8 bits, or words of these or smaller ones."""
    assert p.tensor.body is not None
    read = [e.dtype for e in loads(p.tensor.body)]
    return any(x == U32 or (x.is_int and x.bits == 8) for x in read)


def _layout_text(layout: Layout | ScatteredLayout | None) -> str:
    if isinstance(layout, ScatteredLayout):
        at = ", ".join(map(str, layout.index))
        return f"{layout.layout} of {layout.shape} at {at} for {layout.axes}"
    return str(layout or "")


@lru_cache
def sources_digest() -> str:
    """Return the digest of the sources of kernels and te: another version generates other code."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for folder in (Path(__file__).parents[1], Path(te.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


class _Serializer:
    """Expressions as text with constants' types; buffers are numbered."""

    def __init__(self) -> None:
        self.known: dict[Expr, str] = {}
        self.places: dict[Tensor, str] = {}
        self.lines: list[str] = []
        self.sizes: dict[str, int] = {}  # the numbers of symbolic ones

    def type_text(self, t: Tensor) -> str:
        return str(t.type)

    def index_text(self, load: Load) -> str:
        return ",".join(map(self.expr, load.index))

    def digest(self) -> str:
        return blake2b("\n".join(self.lines).encode(), digest_size=DIGEST_BYTES).hexdigest()

    def kernel(self, k: Kernel) -> None:
        for n, p in enumerate(k.params):
            self.places[p] = f"p{n}"
        for n, (t, _) in enumerate(k.scratch):
            self.places[t] = f"s{n}"
        for n, (t, _) in enumerate(k.tables):
            self.places[t] = f"t{n}"
        self.sizes = {name: n for n, name in enumerate(k.sizes)}
        self.lines += [f"{p.type}" for p in k.params]
        self.lines += [f"{scope} {t.type}" for t, scope in k.scratch]
        self.lines += [f"{t.type} {a.dtype} {a.shape} {a.tobytes().hex()}" for t, a in k.tables]
        self.lines += [f"packed {self.places[p.buffer]}" for p in k.packs]
        self.lines += [k.library] if k.library else []
        self.lines += [f"{k.programs} programs"] if k.programs else []
        self.lines += [f"by {k.instructions}"] if k.instructions else []
        for s in k.body:
            self.stmt(s)

    def tensor(self, t: Tensor) -> str:
        """Return the name of a tensor, whose definition is written at its first use."""
        if t not in self.places:
            name = self.places[t] = f"v{len(self.places)}"
            if t.body is not None:
                axes = " ".join(map(_axis_text, t.axes))
                self.lines.append(f"{name} {self.type_text(t)}[{axes}] = {self.expr(t.body)}")
        return self.places[t]

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, For):
            until = "" if s.until is None else f" until {self.expr(s.until)}"
            self.lines.append(f"for {_axis_text(s.axis)} {s.kind}{until} {{")
            for inner in s.body:
                self.stmt(inner)
            self.lines.append("}")
            return
        axes, over = " ".join(map(_axis_text, s.axes)), ""
        if not isinstance(s, Store):
            over = f"{s.fn} {' '.join(map(_axis_text, s.over))}"
        where = ",".join(map(self.expr, s.index))
        ends = "".join(f" {self.expr(i)}<{self.expr(n)}" for i, n in s.limits)
        self.lines.append(
            f"{self.places[s.buffer]}[{where}]={self.expr(s.value)} {axes}|{over}{ends}"
        )

    def expr(self, e: Expr) -> str:
        match e:
            case Axis(name):
                return name
            case Size(name):
                return f"size {self.sizes[name]}"
            case Const(value, dtype):
                return f"{value}:{dtype}"
            case Apply(fn, args, dtype):
                found = self.known.get(e)
                if found is None:
                    found = f"{fn}:{dtype}({','.join(map(self.expr, args))})"
                    self.known[e] = found
                return found
            case Load(tensor):
                return f"{self.tensor(tensor)}[{self.index_text(e)}]"
            case Reduce(fn, axes, body):
                return f"{fn}({self.expr(body)} for {' '.join(map(_axis_text, axes))})"
            case Index(element, bound):
                return f"at({self.expr(element)},{self.expr(bound)})"
        raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


class _CostSerializer(_Serializer):
    """Without axes of one element."""

    def type_text(self, t: Tensor) -> str:
        return f"{t.dtype}[{', '.join(str(n) for n in t.shape if n != 1)}]"

    def index_text(self, load: Load) -> str:
        at = zip(load.index, load.tensor.shape, strict=True)
        return ",".join(self.expr(i) for i, n in at if n != 1)

    def expr(self, e: Expr) -> str:
        return "0:index" if isinstance(e, Axis) and e.extent == 1 else super().expr(e)


def _axis_text(a: Axis) -> str:
    return f"{a.name}<{a.extent}"
