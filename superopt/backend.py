"""superopt as an ONNX backend: `superopt.backend.prepare(model).run(inputs)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from superopt.errors import UsageError
from superopt.onnx_io.source import read
from superopt.pipeline.compile import Executable
from superopt.pipeline.compile import compile as compiled


class Prepared(BackendRep):
    """A compiled model, by ONNX's interface."""

    def __init__(self, model: Executable) -> None:
        self.compiled = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in order, of the inputs in order, or by name."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            some = inputs if isinstance(inputs, Sequence) else [inputs]
            names = [i.name for i in self.compiled.model.graph.inputs]
            if len(some) > len(names):
                raise UsageError(
                    f"{len(some)} inputs", f"the model has {len(names)}", "leave the others out"
                )
            feeds = dict(zip(names, some, strict=False))  # others may have values of their own
        return tuple(self.compiled.run(feeds).values())


class SuperoptBackend(Backend):
    """ONNX's functions of a backend; the device is the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        if not cls.supports_device(device):
            raise UsageError(
                f"device {device!r}", "this backend runs on the CPU",
                'give "CPU", or use superopt.compile(model, target="cuda")',
            )  # fmt: skip
        super().prepare(model, device, **kwargs)
        return Prepared(compiled(read(model), threads=int(kwargs.get("threads", 1))))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = SuperoptBackend.prepare
run_model = SuperoptBackend.run_model
supports_device = SuperoptBackend.supports_device
