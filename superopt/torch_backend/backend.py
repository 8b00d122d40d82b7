"""The backend's function, which torch calls with each graph that it captures."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from superopt.api.compilation import compile as compile_model
from superopt.errors import SuperoptError, UsageError
from superopt.onnx_io.check.checker_server import avoid_forks
from superopt.torch_backend.compiled_graph import CompiledGraph, to_array
from superopt.torch_backend.onnx_graph import export_graph
from superopt.torch_backend.placeholders import (
    Outputs,
    Placeholders,
    UnsupportedGraphError,
    classify_outputs,
    classify_placeholders,
)

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable

LOG = logging.getLogger("superopt.torch")
OPTIONS = ("threads", "float_class", "precision", "specialize", "fallback")
FALLBACKS = ("eager", "inductor")
# Of outputs, by their root mean square: a graph that differs more from torch's result is not used.
TOLERANCES = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 2e-2, "tf32": 2e-2}
Graph = Callable[..., Sequence[Any]]


def superopt_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str = "default",
) -> Graph:
    """Compile a graph that torch.compile captured; see docs/howto/torch_compile.md.

    Args:
        graph: The graph, of torch's functions.
        example_inputs: Its arguments in the call that captured it.
        options: `options` of torch.compile: "threads" (default torch's), "float_class",
            "precision" and "specialize" as in `superopt.compile`, and "fallback": what runs graphs
            that superopt does not, "eager" or "inductor".
        mode: That of torch.compile; it has no effect.

    Returns:
        A function of such arguments.

    Raises:
        UsageError: An option is unknown.

    Example, in a program with torch:

        compiled = torch.compile(model.eval(), backend="superopt")
        with torch.no_grad():
            y = compiled(x)
    """
    own = dict(options or {})
    fallback = _check_options(own)
    try:
        return compile_graph(graph, example_inputs, own)
    except (UnsupportedGraphError, SuperoptError) as e:
        why = str(e).replace("\n", "; ")
    count = sum(n.op.startswith("call") for n in graph.graph.nodes)
    message = f"superopt: a graph of {count} operators runs in torch ({fallback}): {why}"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    if fallback == "inductor":
        from torch._inductor.compile_fx import compile_fx

        compiled: Graph = compile_fx(graph, list(example_inputs))
        return compiled
    eager: Graph = graph.forward
    return eager


def _check_options(options: dict[str, Any]) -> str:
    """Remove the fallback from the options and return it. Raises UsageError for unknown ones."""
    fallback = options.pop("fallback", FALLBACKS[0])
    unknown = [name for name in options if name not in OPTIONS]
    if unknown or fallback not in FALLBACKS:
        what = f"option {unknown[0]!r}" if unknown else f"fallback {fallback!r}"
        known = ", ".join(OPTIONS if unknown else FALLBACKS)
        raise UsageError(f"no {what} of the backend superopt", f"known are {known}", "change it")
    return str(fallback)


def compile_graph(
    graph: torch.fx.GraphModule, args: Sequence[Any], options: Mapping[str, Any]
) -> CompiledGraph:
    """Return the compiled graph, whose outputs for these arguments were compared with torch's.

    Raises UnsupportedGraphError, or what `superopt.compile` raises.
    """
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise UnsupportedGraphError("gradients are needed: call it in torch.no_grad()")
    kinds = {t.device.type for t in tensors}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda"}:
        raise UnsupportedGraphError(f"its tensors are on {', '.join(sorted(kinds)) or 'no device'}")
    given, outputs = classify_placeholders(graph.graph, args), classify_outputs(graph.graph)
    if not outputs.computed:
        raise UnsupportedGraphError("it computes nothing")
    args = [*args]
    for k, (n, axis) in given.sizes.items():  # a symbolic number that is read is guarded
        args[k] = args[given.tensors[n]].shape[axis]
    target = "cuda" if kinds == {"cuda"} else "cpu"
    make = partial(_compile, graph, given, outputs, target, options)
    made = CompiledGraph(make, given, outputs, args)
    _check_outputs(graph, made, args, TOLERANCES[str(options.get("precision", "fp32"))])
    return made


def _compile(
    graph: torch.fx.GraphModule,
    given: Placeholders,
    outputs: Outputs,
    target: str,
    options: Mapping[str, Any],
    args: Sequence[Any],
) -> Executable:
    """Return the executable of the graph with the parameters in `args`."""
    avoid_forks()  # torch has threads
    model = export_graph(graph, given, outputs, args)
    settings = {"threads": torch.get_num_threads(), **options}
    exe = compile_model(model, target=target, shapes=(), **settings)
    exe.run({
        p.name: to_array(args[k]) for p, k in zip(exe.input_ports, given.tensors, strict=True)
    })  # fmt: skip
    for node, why in exe.fallbacks():
        LOG.info("%s runs in onnxruntime: %s", node.op.title, why)
    LOG.info("compiled a graph of %d operators", len(graph.graph.nodes))
    return exe


def _check_outputs(
    graph: torch.fx.GraphModule, made: CompiledGraph, args: Sequence[Any], tolerance: float
) -> None:
    """Raise UnsupportedGraphError if outputs differ from torch's."""
    with torch.no_grad():
        wanted, got = graph(*args), made(*args)
    for k in made.outputs.computed:
        a, b = got[k], wanted[k]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise UnsupportedGraphError(
                f"output {k} is {a.dtype}{[*a.shape]}, in torch {b.dtype}{[*b.shape]}"
            )
        if not b.numel():
            continue
        if not b.is_floating_point():
            if not torch.equal(a, b):
                raise UnsupportedGraphError(f"output {k} differs from torch's")
            continue
        x, y = a.double(), b.double()
        same = (x == y) | (x.isnan() & y.isnan())
        error = torch.where(same, 0.0, (x - y).abs()).max()
        rms = torch.where(y.isfinite(), y, 0.0).square().mean().sqrt()
        if not error <= tolerance * rms:
            raise UnsupportedGraphError(
                f"output {k} differs from torch's by {error:.1e}, its rms is {rms:.1e}"
            )
