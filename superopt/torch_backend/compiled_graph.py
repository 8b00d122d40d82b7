"""Run a compiled graph on torch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from superopt.torch_backend.placeholders import Outputs, Placeholders

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable

Compile = Callable[[Sequence[Any]], "Executable"]


class CompiledGraph:
    """A function of the graph's arguments, which returns its outputs.

    Parameters and floats are constants of the code. It is compiled again for others: a step of an
    optimizer, or `load_state_dict`, changes a tensor's version or memory.
    """

    def __init__(
        self, compile_graph: Compile, given: Placeholders, outputs: Outputs, args: Sequence[Any]
    ) -> None:
        self.compile_graph, self.given, self.outputs = compile_graph, given, outputs
        self.lock = threading.Lock()
        self.exe: Executable | None = None
        self.versions: tuple[Any, ...] = ()
        self.input_names: tuple[str, ...] = ()
        self.compile(args)

    def compile(self, args: Sequence[Any]) -> None:
        """Compile the graph with the parameters in `args`."""
        versions = self._versions(args)
        exe = self.compile_graph(args)
        self.input_names = tuple(p.name for p in exe.input_ports)
        self.exe, self.versions = exe, versions

    def _versions(self, args: Sequence[Any]) -> tuple[Any, ...]:
        own = [args[k] for k in self.given.constants]
        floats = (float(args[k]) for k in self.given.floats)
        return (*map(_tensor_version, own), *floats)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self._versions(args) != self.versions:
            with self.lock:
                if self._versions(args) != self.versions:
                    self.compile(args)
        exe = self.exe
        assert exe is not None
        feeds = {
            name: to_array(args[k])
            for name, k in zip(self.input_names, self.given.tensors, strict=True)
        }
        found = [*exe.run(feeds).values()]
        out: list[Any] = [None] * self.outputs.count
        for k, a in zip(self.outputs.computed, found, strict=True):
            out[k] = to_tensor(a)
        for k, number in self.outputs.arguments.items():
            out[k] = args[number]
        return tuple(out)


def _tensor_version(t: torch.Tensor) -> tuple[int, int]:
    """Return what changes with a tensor's contents, as far as torch tells it."""
    return 0 if t.is_inference() else t._version, t.data_ptr()


def to_array(t: torch.Tensor) -> Any:
    """Return what superopt takes for a tensor: an array that shares its memory, or the tensor if it
    is on a GPU, or of a type that numpy lacks."""
    t = t.detach()
    if t.is_cuda or t.dtype == torch.bfloat16:
        return t
    return t.contiguous().numpy()


def to_tensor(a: Any) -> torch.Tensor:
    """Return a tensor that shares an array's memory."""
    if isinstance(a, torch.Tensor):
        return a.clone()  # on a GPU the program owns its outputs
    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(a)
