"""The inputs and outputs of a graph of torch.compile: tensors, parameters, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


class UnsupportedGraphError(Exception):
    """Why a graph is run by torch."""


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The arguments of a graph, by their numbers.

    tensors: what each call passes; constants: parameters and buffers; floats: numbers, as tensors
    without axes; sizes: of each other number, the index in `tensors` and the axis that it is the
    size of. dynamic_axes: of each tensor, its axes of symbolic sizes.
    """

    tensors: tuple[int, ...]
    constants: tuple[int, ...]
    floats: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]
    dynamic_axes: tuple[tuple[int, ...], ...]


def classify_placeholders(graph: torch.fx.Graph, examples: Sequence[Any]) -> Placeholders:
    """Return what the arguments are. Raises UnsupportedGraphError for numbers that are no sizes of
    tensors."""
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    tensors: list[int] = []
    constants: list[int] = []
    floats: list[int] = []
    numbers: list[int] = []
    for k, (node, example) in enumerate(zip(nodes, examples, strict=True)):
        if not isinstance(example, torch.Tensor):
            numbers.append(k)
        elif getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            floats.append(k)
        elif _is_static(node, example):
            constants.append(k)
        else:
            tensors.append(k)
    axes = [_symbolic_axes(nodes[k]) for k in tensors]
    sizes = {}
    for k in numbers:
        symbol = _symbol(nodes[k].meta.get("example_value"))
        places = ((n, axis) for n, own in enumerate(axes) for axis, s in own.items() if s == symbol)
        if symbol is None or (place := next(places, None)) is None:
            raise UnsupportedGraphError(f"argument {nodes[k].name} is a number")
        sizes[k] = place
    given = tuple(tensors), tuple(constants), tuple(floats)
    return Placeholders(*given, sizes, tuple(map(tuple, axes)))


def _is_static(node: torch.fx.Node, example: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter or buffer of the module, which stays the same."""
    about = node.meta.get("tensor_dict") or {}
    return isinstance(example, torch.nn.Parameter) or "_dynamo_static_input_type" in about


def _symbolic_axes(node: torch.fx.Node) -> dict[int, str]:
    """Return the symbols of a tensor's axes that are not of a fixed size."""
    shape = node.meta["example_value"].shape
    return {k: str(d.node.expr) for k, d in enumerate(shape) if isinstance(d, torch.SymInt)}


def _symbol(value: Any) -> str | None:
    return str(value.node.expr) if isinstance(value, torch.SymInt) else None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a graph. arguments: of those that are arguments, their numbers; computed: the
    positions of the others; count: of all, of which the remaining ones are None."""

    arguments: dict[int, int]
    computed: tuple[int, ...]
    count: int


def classify_outputs(graph: torch.fx.Graph) -> Outputs:
    """Return what the outputs are.

    Raises UnsupportedGraphError for outputs that share the memory of an argument, and for numbers.
    """
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    numbers = {n: k for k, n in enumerate(nodes)}
    (values,) = next(n for n in graph.nodes if n.op == "output").args
    memories = {_memory(n) for n in nodes} - {None}
    arguments, computed = {}, []
    for k, v in enumerate(values):
        if v in numbers:
            arguments[k] = numbers[v]
        elif isinstance(v, torch.fx.Node):
            if not isinstance(v.meta.get("example_value"), torch.Tensor):
                raise UnsupportedGraphError(f"output {v.name} is no tensor")
            if _memory(v) in memories:
                raise UnsupportedGraphError(f"output {v.name} is a view of an argument")
            computed.append(k)
        elif v is not None:
            raise UnsupportedGraphError(f"output {k} is {v!r}")
    return Outputs(arguments, tuple(computed), len(values))


def _memory(node: torch.fx.Node) -> int | None:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    out: int = value.untyped_storage()._cdata
    return out
