"""What is always worth it before a graph becomes kernels: rules of the library, by name."""

from __future__ import annotations

from collections.abc import Collection

from superopt.ir import graph as g
from superopt.ir.fold import fold
from superopt.ir.substitute import Cycle, replace_all
from superopt.plan.channels_first import channels_first
from superopt.plan.fourier import as_products
from superopt.plan.recurrent_unrolled import unrolled
from superopt.plan.spread import spread
from superopt.plan.subpixel import subpixel
from superopt.plan.together import together
from superopt.plan.widen import widened
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.match import matches
from superopt.rules.rule import Rule
from superopt.rules.shipped import load_rules

WIDENED = "E2"  # the class of floats of what is not rounded in between
# Zeros around a picture belong to the convolution; batch normalisation goes into the weights before
# it, and what is left of that is a scale and a shift.
ALWAYS = {
    "padding.rules": ("pad-transpose",),
    "parts.rules": ("pad-value-zero",),
    "conv.rules": (
        "pad-conv", "pad-conv-bias", "pad-conv-line", "pad-conv-line-bias",
        "conv-bn", "conv-bias-bn", "conv-transpose-bn", "conv-transpose-bias-bn", "bn-affine",
    ),
    "gemm.rules": ("gemm-bn", "gemm-bn-trans"),
}  # fmt: skip


def simplified(
    graph: g.Graph,
    float_class: str = "E2",
    threads: int = 1,
    processor: bool = True,
    decided: Collection[int] = (),
) -> g.Graph:
    """Recurrent nodes as their steps, small floats computed as float32, constants computed, Fourier
    transforms as products, pictures with channels first, the rules ALWAYS applied wherever they
    match, if they change floats no more than the class says, transposed convolutions of one place
    as products, those of long strides as convolutions; and, on a processor, also those of short
    ones where that pays, and rows of one matrix multiplied with it at once.

    decided: the numbers of the outputs by which operators outside of the graph decide; these are
    rounded as decisions.py says.
    """
    graph = unrolled(graph, threads, separate=not processor)
    graph = fold(widened(graph, decided) if float_class >= WIDENED else graph, lazily=True).graph
    graph = fold(channels_first(as_products(graph)), lazily=True).graph
    for file, names in ALWAYS.items():
        for rule in load_rules(file, names):
            if rule.float_class <= float_class:
                graph = _applied(graph, rule)
    graph = fold(subpixel(spread(graph), float_class >= WIDENED, processor), lazily=True).graph
    return together(graph) if processor else graph


def _applied(graph: g.Graph, rule: Rule) -> g.Graph:
    while True:
        ctx = context(graph)
        change: dict[g.Value, g.Value] = {}
        for m in matches(rule, ctx):
            found = rewrite(m, ctx)
            if not isinstance(found, Refusal) and not any(v in change for v in found):
                change |= found
        if not change:
            return graph
        try:
            graph = replace_all(graph, change)
        except Cycle:
            return graph
