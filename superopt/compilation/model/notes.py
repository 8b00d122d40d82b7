"""Notes for users about a compiled model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from superopt.errors import SuperoptError
from superopt.ir import graph
from superopt.plan.graph.partition import NO_KERNEL_ERRORS, Segment
from superopt.report.formatting import phrases

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler

LOG = logging.getLogger("superopt.compile")
# Errors that say that an operator, a model or this machine does not support code.
NOT_SUPPORTED_ERRORS = (*NO_KERNEL_ERRORS, SuperoptError, MemoryError)
QUANTIZING_OPS = frozenset(
    ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
     "QAttention")
)  # fmt: skip


def compile_notes(c: Compiler, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return notes about the model at these sizes: branches chosen at a call, quantization that
    amplifies rounding differences, and how ONNX Runtime's integer products are kept exact."""
    return tuple(dict.fromkeys(_iter_notes(c, sizes)))


def log_fallbacks(
    sizes: Mapping[str, int], parts: Sequence[Segment], reason: Callable[[graph.Node], str]
) -> None:
    """Log the nodes of a compiled model that run in ONNX Runtime, by reason."""
    kernels = sum(len(s.nodes) for s in parts if s.native)
    nodes = [n for s in parts if not s.native for n in s.nodes]
    LOG.info(
        "compiled%s: %d nodes in kernels, %d in onnxruntime",
        "".join(f" {name}={n}" for name, n in sizes.items()), kernels, len(nodes),
    )  # fmt: skip
    why = {n: reason(n) or "it is between such nodes" for n in nodes}
    for text, count in Counter(why.values()).items():
        LOG.info("%d nodes run in onnxruntime: %s", count, text)
    for n, text in why.items():
        LOG.debug("%s runs in onnxruntime: %s", n.op.name, text)


def unsupported_text(e: Exception) -> str:
    """Return the text of an error because of which there are no kernels for several sizes. Errors
    that do not say so (NOT_SUPPORTED_ERRORS) are mistakes in superopt: the model runs without these
    kernels, and a warning is logged, at debug level with the traceback."""
    text = " ".join(f"{type(e).__name__}: {e}".split())
    if not isinstance(e, NOT_SUPPORTED_ERRORS):
        LOG.warning("an error in superopt: no program for several sizes: %s", text)
        LOG.debug("the traceback of %s", text, exc_info=e)
    return text


def _iter_notes(c: Compiler, sizes: Mapping[str, int]) -> Iterator[str]:
    if (at := c.compiler_for(sizes)) is not c:
        yield from _iter_notes(at, {})
        return
    if (b := c.control_flow()) is not None:
        yield f"each call selects a branch by the If's condition {b.condition!r}"
        for part in b.executables:
            for key in part.known_sizes():
                yield from _iter_notes(part.compiler, dict(key))
        return
    parts = c.partition(sizes)
    if any(not s.native for s in parts):
        yield from c.given_model.mode.notes
    if (found := quantizers_of_kernel_results(parts)) and any(s.native for s in parts):
        first = c.model.names.get(graph.result(found[0], 0), "")
        yield (
            f"{phrases.count_text(len(found), 'quantization')}, first {found[0].op.name} {first}, "
            "of kernel results: if a kernel's rounding differs from onnxruntime's (1e-7), a value "
            "may become the next integer, so that results differ by whole quantization steps"
        )


def quantizers_of_kernel_results(segments: Iterable[Segment]) -> list[graph.Node]:
    """Return the nodes that quantize kernel results, or values that depend on these."""
    reached: set[graph.Value] = set()
    out = []
    for s in segments:
        for n in s.nodes:
            depends = any(v in reached for v in n.inputs if v is not None)
            if depends and n.op.name in QUANTIZING_OPS:
                out.append(n)
            if depends or (s.native and _may_round_differently(n)):
                reached |= set(graph.results(n))
    return out


def _may_round_differently(n: graph.Node) -> bool:
    """True if a kernel's floats may differ from ONNX Runtime's."""
    return (
        any(t.dtype is not None and t.dtype.is_float for t in n.types)
        and n.op.name not in NON_ROUNDING_OPS
    )


# Operators that move elements or do not round.
NON_ROUNDING_OPS = frozenset(
    ("Reshape", "Transpose", "Identity", "Slice", "Concat", "Gather", "Squeeze", "Unsqueeze", "Pad",
     "Expand", "Flatten", "Split", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Where", "Cast",
     "DequantizeLinear")
)  # fmt: skip
