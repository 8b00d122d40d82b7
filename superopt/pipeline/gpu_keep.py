"""What is stored of a model compiled for a GPU; program_cache.py finds it."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir import graph as ir_graph
from superopt.kernels.cuda.image import image_to_dict
from superopt.kernels.runtime.module_image import export_image
from superopt.pipeline import entries
from superopt.pipeline.gpu_parts import Part, Variant
from superopt.pipeline.ports import dtype_of


def keep(key: str, sizes: Sequence[tuple[str, int]], v: Variant, device: str, dots: str) -> None:
    """Store a model that is one program whose element types have the same names in torch and
    numpy."""
    s, graph = v.steps[0] if len(v.steps) == 1 else None, v.model.graph
    if not isinstance(s, Part) or not set(graph.outputs) <= set(s.segment.outputs):
        return
    if not all(isinstance(i, ir_graph.Input) for i in s.segment.inputs):
        return
    ports = (*s.segment.inputs, *s.segment.outputs)
    tensors = (*s.running.inputs, *s.running.outputs)
    for value, x in zip(ports, tensors, strict=True):
        if str(x.dtype) != f"torch.{dtype_of(value.type)}":
            return
    if not entries.fits(s.running.constants.numel()):  # else all of it would be copied in vain
        return
    made = export_image(s.running, device, dots)
    if made is None:
        return
    about = {
        "image": image_to_dict(made.image),
        "takes": [graph.inputs.index(i) for i in s.segment.inputs],
        "gives": [s.segment.outputs.index(o) for o in graph.outputs],
        "options": {key: str(o) for key, o in s.program.options.items()},
    }
    own = entries.sum_of((key, sizes))
    entries.keep(own, about, [made.code], made.known_bytes)
