"""What is stored of a model compiled for a GPU; program_cache.py finds it."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.compilation.cache import entries
from superopt.compilation.cuda.device import CudaDevice
from superopt.compilation.cuda.segments import GpuSegment
from superopt.compilation.frontend.graph_ports import numpy_dtype
from superopt.compilation.model.steps import Variant
from superopt.kernels.cuda.image import image_to_dict
from superopt.kernels.runtime.module_image import export_image


def store_variant(
    key: str, sizes: Sequence[tuple[str, int]], variant: Variant, device: CudaDevice
) -> None:
    """Store a model that is one program whose element types have the same names in torch and
    numpy."""
    s = variant.bound_step
    if not isinstance(s, GpuSegment) or s.binding is None:
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
    made = export_image(s.gpu_program, device.torch_device, device.dot_precision)
    if made is None:
        return
    about = {
        "image": image_to_dict(made.image),
        "takes": s.binding.input_numbers,
        "gives": [*s.binding.output_numbers.items()],
        "options": {key: str(o) for key, o in s.program.options.items()},
    }
    own = entries.digest_json((key, sizes))
    entries.write_program_and_constants(own, about, [made.code], made.known_bytes)
