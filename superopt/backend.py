"""superopt as an ONNX backend: `superopt.backend.prepare(model).run(inputs)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.backend.base import Backend, BackendRep

from superopt.compilation.cpu.load_compiler import compile_model as compiled
from superopt.compilation.model.executable import Executable
from superopt.errors import UsageError
from superopt.onnx_io.read.source import read_model


class PreparedModel(BackendRep):
    """A compiled model with ONNX's BackendRep interface."""

    def __init__(self, model: Executable) -> None:
        self.executable = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model on inputs given in order or by name; return the outputs in order."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            some = inputs if isinstance(inputs, Sequence) else [inputs]
            names = [i.name for i in self.executable.model.graph.inputs]
            if len(some) > len(names):
                raise UsageError(
                    f"{len(some)} inputs were given",
                    f"the model has {len(names)}",
                    "pass at most that many",
                )
            feeds = dict(zip(names, some, strict=False))  # the others may have default values
        return tuple(self.executable.run(feeds).values())


class SuperoptBackend(Backend):
    """ONNX's backend functions, for the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        if not cls.supports_device(device):
            raise UsageError(
                f"device {device!r}", "this backend supports only the CPU",
                'pass "CPU", or use superopt.compile(model, target="cuda")',
            )  # fmt: skip
        super().prepare(model, device, **kwargs)
        return PreparedModel(compiled(read_model(model), threads=int(kwargs.get("threads", 1))))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on inputs in order; return its outputs as numpy arrays.

        opset_version: the opset of the operator's definition, default the newest one.
        """
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        arrays = [np.asarray(x) for x in inputs]
        names = list(dict.fromkeys(filter(None, node.input)))
        if len(arrays) != len(names):
            raise UsageError(
                f"{len(arrays)} inputs given", f"{node.op_type} reads {', '.join(names) or 'none'}",
                "pass an array for each",
            )  # fmt: skip
        graph = helper.make_graph(
            [node], node.op_type,
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
                )
                for name, x in zip(names, arrays, strict=True)
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )  # fmt: skip
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        opsets = [helper.make_opsetid(node.domain, version)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        made = cls.prepare(shape_inference.infer_shapes(model), device, **kwargs)
        return made.run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = SuperoptBackend.prepare
run_model = SuperoptBackend.run_model
run_node = SuperoptBackend.run_node
supports_device = SuperoptBackend.supports_device
