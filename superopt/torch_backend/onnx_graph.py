"""A graph of torch.compile as an ONNX model whose weights are the module's memory."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from superopt.torch_backend.placeholders import Outputs, Placeholders, UnsupportedGraphError

if TYPE_CHECKING:
    from superopt.onnx_io.read.source import ModelLike


@dataclass(frozen=True, slots=True)
class Float:
    """Takes the place of a tensor of one number, which a graph reads by `item`."""

    value: float

    def item(self) -> float:
        return self.value


class TensorFunction(torch.nn.Module):  # type: ignore[misc]  # torch may be absent
    """The graph as a function of its tensors: parameters are constants, sizes are computed."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        given: Placeholders,
        outputs: Outputs,
        args: Sequence[Any],
    ) -> None:
        super().__init__()
        self.graph, self.given, self.outputs = graph, given, outputs
        for k in given.constants:
            self.register_buffer(f"argument{k}", args[k].detach())
        self.floats = {k: Float(float(args[k])) for k in given.floats}

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args: dict[int, Any] = dict(zip(self.given.tensors, tensors, strict=True))
        args |= {k: getattr(self, f"argument{k}") for k in self.given.constants}
        args |= self.floats
        args |= {k: tensors[n].shape[axis] for k, (n, axis) in self.given.sizes.items()}
        found = self.graph(*(args[k] for k in range(len(args))))
        return tuple(found[k] for k in self.outputs.computed)


def export_graph(
    graph: torch.fx.GraphModule, given: Placeholders, outputs: Outputs, args: Sequence[Any]
) -> ModelLike:
    """Return the ONNX model of a graph; its inputs and outputs are in order.

    Raises UnsupportedGraphError if the graph changes an argument, or an operator has no ONNX form.
    """
    tensors = tuple(args[k].detach() for k in given.tensors)
    axes = tuple(dict.fromkeys(own, torch.export.Dim.AUTO) for own in given.dynamic_axes)
    function = TensorFunction(graph, given, outputs, args).eval()
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with (
            warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad(),
            torch._guards.tracing(None),  # its guards are not those of the call being captured
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            program = torch.export.export(
                function, tensors, dynamic_shapes=(axes,) if axes else None, strict=False
            )
            program = program.run_decompositions({})  # functions without side effects
            about = program.graph_signature
            if about.user_inputs_to_mutate or about.buffers_to_mutate:
                raise UnsupportedGraphError("it changes an argument in place")
            made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False)
    except UnsupportedGraphError:
        raise
    except Exception as e:
        why = str(e).strip().splitlines() or [""]
        raise UnsupportedGraphError(f"{type(e).__name__}: {why[0][:200]}") from e
    finally:
        log.setLevel(level)
    if made is None:
        raise UnsupportedGraphError("torch.onnx exports nothing")
    out: ModelLike = made.model
    return out
