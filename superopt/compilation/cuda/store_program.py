"""What is stored of a model compiled for a GPU; program_cache.py finds it."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.compilation.cache import entries
from superopt.compilation.cuda.segments import GpuSegment, Variant
from superopt.compilation.frontend.graph_ports import numpy_dtype
from superopt.ir import graph as ir_graph
from superopt.kernels.cuda.image import image_to_dict
from superopt.kernels.runtime.module_image import export_image


def store_variant(
    key: str, sizes: Sequence[tuple[str, int]], variant: Variant, device: str, dot_precision: str
) -> None:
    """Store a model that is one program whose element types have the same names in torch and
    numpy."""
    s, graph = variant.steps[0] if len(variant.steps) == 1 else None, variant.model.graph
    if not isinstance(s, GpuSegment) or not set(graph.outputs) <= set(s.segment.outputs):
        return
    if not all(isinstance(i, ir_graph.Input) for i in s.segment.inputs):
        return
    ports = (*s.segment.inputs, *s.segment.outputs)
    tensors = (*s.gpu_program.inputs, *s.gpu_program.outputs)
    for value, x in zip(ports, tensors, strict=True):
        if str(x.dtype) != f"torch.{numpy_dtype(value.type)}":
            return
    if not entries.is_cacheable(
        s.gpu_program.constants.numel()
    ):  # else all of it would be copied in vain
        return
    made = export_image(s.gpu_program, device, dot_precision)
    if made is None:
        return
    about = {
        "image": image_to_dict(made.image),
        "takes": [graph.inputs.index(i) for i in s.segment.inputs],
        "gives": [s.segment.outputs.index(o) for o in graph.outputs],
        "options": {key: str(o) for key, o in s.program.options.items()},
    }
    own = entries.digest_json((key, sizes))
    entries.write_program_and_constants(own, about, [made.code], made.known_bytes)
