"""A plan as text, for `superopt compile --dump` and golden tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from superopt.kernels.llvm.calls import Call
from superopt.kernels.loops.staging import equation
from superopt.plan.lowering.kernel_stages import kernel_stages
from superopt.plan.program.plan import Plan
from superopt.te.expr.node import Apply, Expr, Index, Load, Reduce
from superopt.te.expr.tensor import Tensor


def plan_text(p: Plan) -> str:
    """Return a plan's tensors with their definitions, one line each; then its kernel calls.

        t2[i0, i1]: f32[8, 4] = max(t1[i0, i1], 0)   # out, rows of 1 axis

    Tensors that a kernel computes for itself are indented above its result.
    """
    return "\n".join(_lines(p)) + "\n"


def _lines(p: Plan) -> Iterator[str]:
    names = _Names()
    for v, t in p.tensors.by_value.items():
        if isinstance(t, Tensor) and t.body is None and v in p.graph.inputs:
            yield f"input {names.name(t)}: {t.type}"
    for t in p.tensors.constants:
        yield f"constant {names.name(t)}: {t.type}"
    for t, now in p.definitions.items():
        for stage in kernel_stages(now, p.definitions)[:-1]:
            yield f"    {equation(names.rename_tensor(stage))}"
        definition = names.rename_tensor(
            Tensor(t.name, now.dtype, now.shape, now.axes, now.body), t
        )
        notes = ", ".join(_notes(p, t))
        yield equation(definition) + (f"   # {notes}" if notes else "")
    placed = p.tensors.placements
    for t, parts in p.tensors.parts.items():
        written = [
            f"{names.name(x.tensor)} at {x.begin}"
            + ("" if set(x.step) <= {1} else f" step {x.step}")
            + (
                f" at positions in {names.name(at.positions)}"
                if (at := placed.get(x.tensor))
                else ""
            )
            for x in parts
        ]
        yield f"{names.name(t)}: {t.type} is written by " + ", ".join(written)
    if p.outputs:
        yield "return " + ", ".join(map(names.name, p.outputs))
    order = p.stream_order
    for n, step in enumerate(p.steps):
        reads = ", ".join(map(names.name, step.reads))
        on = f" on stream {order.streams[n]}" if order else ""
        after = f" after steps {order.waits[n]}" if order and order.waits[n] else ""
        yield f"call {step.kernel.name}({reads}) -> {names.name(step.target)}{on}{after}"
    if p.program is not None:
        yield from map(_call_text, p.program.kernel_calls())
        yield f"memory {p.program.memory_bytes} bytes, constants {p.program.constant_bytes} bytes"


def _call_text(c: Call) -> str:
    *reads, target = (f"{ref.region} {ref.position}" for ref in c.arguments)
    return f"run {c.function}({', '.join(reads)}) -> {target}, in {c.chunks} chunks"


def _notes(p: Plan, t: Tensor) -> Iterator[str]:
    if t in p.layouts:
        yield f"layout {p.layouts[t]}"
    if t in p.batch_ranks:
        yield f"rows, selected by the first {p.batch_ranks[t]} axes"
    if t in p.partial_sums:
        yield "partial sums"
    if t in p.direct:
        yield "no Winograd or Strassen"
    if p.storage is not None and p.storage.dtype_of(t) != t.dtype:
        yield f"stored as {p.storage.dtype_of(t)}"


@dataclass(slots=True)
class _Names:
    """Unique names of tensors, in the order in which they are asked for: t, t.2, t.3."""

    names: dict[Tensor, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def name(self, t: Tensor) -> str:
        return self._leaf(t).name

    def rename_tensor(self, t: Tensor, known_as: Tensor | None = None) -> Tensor:
        """Return the definition with unique names."""
        body = None if t.body is None else self._expr(t.body)
        return Tensor(self.name(known_as or t), t.dtype, t.shape, t.axes, body)

    def _leaf(self, t: Tensor) -> Tensor:
        if t not in self.names:
            n = self.counts[t.name] = self.counts.get(t.name, 0) + 1
            self.names[t] = Tensor(t.name if n == 1 else f"{t.name}.{n}", t.dtype, t.shape)
        return self.names[t]

    def _expr(self, e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype):
                return Load(self._leaf(t), tuple(map(self._expr, index)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(self._expr, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, self._expr(body), dtype)
            case Index(element, bound):
                return Index(self._expr(element), self._expr(bound))
            case _:
                return e
