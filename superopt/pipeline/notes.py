"""Notes for users about a compiled model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from superopt.ir import graph
from superopt.pipeline.arrays import symbolic
from superopt.plan.graph.partition import Segment
from superopt.report import words

if TYPE_CHECKING:
    from superopt.pipeline.compile import Compiler

QUANTIZERS = frozenset(
    ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
     "QAttention")
)  # fmt: skip


def notes(c: Compiler, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return notes about the model at these sizes: branches chosen at a call, quantization that
    amplifies rounding differences, and how ONNX Runtime's integer products are kept exact."""
    return tuple(dict.fromkeys(_notes(c, sizes)))


def _notes(c: Compiler, sizes: Mapping[str, int]) -> Iterator[str]:
    if (at := c.at(sizes)) is not c:
        yield from _notes(at, {})
        return
    if (b := c.branch()) is not None:
        yield f"each call selects a branch by the If's condition {b.condition!r}"
        for part in b.parts:
            known = part.variants or ({} if symbolic(part.ports) else {(): []})
            for key in known:
                yield from _notes(part.compiler, dict(key))
        return
    parts = c.split(sizes)
    if any(not s.native for s in parts):
        yield from c.original.mode.notes
    if (found := amplified(parts)) and any(s.native for s in parts):
        first = c.model.names.get(graph.result(found[0], 0), "")
        yield (
            f"{words.count(len(found), 'quantization')}, first {found[0].op.name} {first}, of "
            "kernel results: if a kernel's rounding differs from onnxruntime's (1e-7), a value may "
            "become the next integer, so that results differ by whole quantization steps"
        )


def amplified(parts: Iterable[Segment]) -> list[graph.Node]:
    """Return the nodes that quantize kernel results, or values that depend on these."""
    reached: set[graph.Value] = set()
    out = []
    for s in parts:
        for n in s.nodes:
            depends = any(v in reached for v in n.inputs if v is not None)
            if depends and n.op.name in QUANTIZERS:
                out.append(n)
            if depends or (s.native and _rounds(n)):
                reached |= set(graph.results(n))
    return out


def _rounds(n: graph.Node) -> bool:
    """True if a kernel's floats may differ from ONNX Runtime's."""
    return any(t.dtype is not None and t.dtype.is_float for t in n.types) and n.op.name not in MOVES


# Operators that move elements or do not round.
MOVES = frozenset(
    ("Reshape", "Transpose", "Identity", "Slice", "Concat", "Gather", "Squeeze", "Unsqueeze", "Pad",
     "Expand", "Flatten", "Split", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Where", "Cast",
     "DequantizeLinear")
)  # fmt: skip
