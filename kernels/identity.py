"""What tells kernels apart: a digest of the tile-level form, whatever its buffers are called."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from superopt import te
from superopt.kernels.tile import For, Kernel, Stmt, Store
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load

SIZE = 10  # bytes of a digest


def identity(kernel: Kernel) -> str:
    """Of kernels that become the same code. Their names are none of it."""
    return _Written(kernel).digest()


@lru_cache
def sources() -> str:
    """Of this package's own text: another version of it writes other code."""
    found = blake2b(digest_size=SIZE)
    for folder in (Path(__file__).parent, Path(te.__file__).parent):
        for path in sorted(folder.glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


class _Written:
    """Expressions as text, with each number's type; buffers are told by their places."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known: dict[Expr | None, str] = {}
        self.places: dict[Tensor, str] = {}
        for n, p in enumerate(kernel.params):
            self.places[p] = f"p{n}"
        for n, (t, _) in enumerate(kernel.scratch):
            self.places[t] = f"s{n}"
        for n, (t, _) in enumerate(kernel.tables):
            self.places[t] = f"t{n}"

    def digest(self) -> str:
        k = self.kernel
        lines = [f"{p.type}" for p in k.params]
        lines += [f"{scope} {t.type}" for t, scope in k.scratch]
        lines += [f"{t.type} {a.dtype} {a.shape} {a.tobytes().hex()}" for t, a in k.tables]
        lines += [f"packed {self.places[p.buffer]}" for p in k.packs]
        for s in k.body:
            self.stmt(s, lines)
        return blake2b("\n".join(lines).encode(), digest_size=SIZE).hexdigest()

    def stmt(self, s: Stmt, lines: list[str]) -> None:
        if isinstance(s, For):
            lines.append(f"for {_axis(s.axis)} {s.kind} {{")
            for inner in s.body:
                self.stmt(inner, lines)
            lines.append("}")
            return
        axes, over = " ".join(map(_axis, s.axes)), ""
        if not isinstance(s, Store):
            over = f"{s.fn} {' '.join(map(_axis, s.over))}"
        where = ",".join(map(self.expr, s.index))
        lines.append(f"{self.places[s.buffer]}[{where}]={self.expr(s.value)} {axes}|{over}")

    def expr(self, e: Expr) -> str:
        match e:
            case Axis(name):
                return name
            case Const(value, dtype):
                return f"{value}:{dtype}"
            case Apply(fn, args, dtype):
                found = self.known.get(e)
                if found is None:
                    found = f"{fn}:{dtype}({','.join(map(self.expr, args))})"
                    self.known[e] = found
                return found
            case Load(tensor, index):
                return f"{self.places[tensor]}[{','.join(map(self.expr, index))}]"
            case Index(element, bound):
                return f"at({self.expr(element)},{self.expr(bound)})"
        raise NotImplementedError(f"{type(e).__name__} in a tile: {e}")


def _axis(a: Axis) -> str:
    return f"{a.name}<{a.extent}"
