"""Compiled models for a GPU in a cache, and programs that CUDA's driver runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

import superopt
from superopt.compilation.cache import entries
from superopt.compilation.cuda import device as cuda_device
from superopt.compilation.cuda import program_cache
from superopt.compilation.cuda.device import CudaDevice
from superopt.compilation.fallback.fallback_cache import interface_key
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.kernels.cuda import driver as cuda_driver
from superopt.kernels.runtime import loaded_image
from superopt.kernels.runtime.module_image import export_image
from tests.support.compilation.recurrent import recurrent
from tests.support.gpu import fake_cuda
from tests.support.gpu.models import MODELS, branches


def compile(path: Path, precision: str = "fp16", **how: Any) -> Any:
    return superopt.compile(path, target="cuda", precision=precision, **how)


CASES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{n: MODELS[n] for n in ("a block", "heads", "layer norm", "of a long sum", "scalars")},
    "columns": MODELS["columns"], "turned": MODELS["turned"], "branches": branches,
    "of few channels": MODELS["of few channels"], "rows of a table": MODELS["rows of a table"],
    "an LSTM": lambda: recurrent("LSTM", hidden=16, batch=2),
    "an LSTM of more rows": lambda: recurrent("LSTM", hidden=16, batch=16),
}  # fmt: skip


def by_driver(
    path: Path, monkeypatch: pytest.MonkeyPatch, device: fake_cuda.Device, **how: Any
) -> Any:
    """A model that was kept, in a process that has a GPU: its program is the interpreter's, and
    runs by a driver that is none."""
    exe = compile(path, **how)
    digest = entries.known_digest(path)
    assert digest is not None
    allowed = AllowedTransforms(how.get("float_class", "E2"))
    given = {name: x for name, x in how.items() if name != "float_class"}
    options = CompileOptions("cuda", allowed=allowed, precision="fp16", **given)
    driver = fake_cuda.driver(device)
    for module in (cuda_driver, loaded_image):
        monkeypatch.setattr(module, "load_driver", lambda: driver)
    found = cuda_driver.find_gpu()
    assert (found.name, found.capability) == (fake_cuda.NAME.decode(), fake_cuda.CAPABILITY)
    where = CudaDevice("cuda", "fp16", found.name, found.capability)
    about = entries.ModelInterface(exe.input_ports, exe.output_names)
    entries.write_interface(interface_key(options, digest), about)
    key = program_cache.open_program_cache(options, where, digest, lambda: exe.compiler).key
    exe.compiler.generator.store_variant(key, (), exe.variant({}))
    program = exe.variant({}).only_step.gpu_program
    made = export_image(program, exe.device.torch_device, exe.device.dot_precision)
    assert made is not None
    device.image = made.image
    monkeypatch.setattr(cuda_device, "find_device", lambda precision: where)
    return compile(path, **how)
