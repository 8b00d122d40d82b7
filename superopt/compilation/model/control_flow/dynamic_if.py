"""A model at an If with a dynamic condition: a program for the condition, and one for each branch
with the nodes after it. A call runs two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superopt.errors import ModelError

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.ir import graph as ir_graph

PREFIX = "prefix"  # the name of the part before an If or Loop
BRANCHES = {True: "then", False: "else"}  # the names of the branches


class ControlFlow(ABC):
    """input_names, output_names: of the model, in order; load_graph: returns the model's graph.
    condition: the name of the value that decides. prefix: computes what the other parts read; None
    if these are inputs."""

    __slots__ = ()

    if TYPE_CHECKING:  # subclasses have these as fields

        @property
        def input_names(self) -> tuple[str, ...]: ...
        @property
        def output_names(self) -> tuple[str, ...]: ...
        @property
        def load_graph(self) -> Callable[[], ir_graph.Graph]: ...
        @property
        def condition(self) -> str: ...
        @property
        def prefix(self) -> Executable | None: ...

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Executable]:
        """The executables of its parts by the parts' names."""

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The executables of its parts."""
        return tuple(self.parts.values())

    @abstractmethod
    def named_call(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs by name for checked arrays by input name."""

    @abstractmethod
    def select_parts(
        self, values: Mapping[str, Any]
    ) -> Iterator[tuple[Executable, dict[str, Any]]]:
        """Yield the executables that run after the prefix, with their inputs. values: by name, the
        model's inputs and what the prefix computes."""

    def selected_executables(
        self, feeds: Mapping[str, Any]
    ) -> Iterator[tuple[Executable, dict[str, Any]]]:
        """Yield the executables that a call with these inputs runs, with their inputs."""
        if self.prefix is not None:
            yield self.prefix, select_inputs(self.prefix, feeds)
        yield from self.select_parts(self.run_prefix(feeds))

    def run_prefix(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's inputs and what the prefix computes from them, by name."""
        if self.prefix is None:
            return dict(feeds)
        return {**feeds, **self.prefix.run(select_inputs(self.prefix, feeds))}

    def call(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name, for the inputs in order."""
        return self.named_call(dict(zip(self.input_names, arrays, strict=True)))

    def run(self, env: MutableMapping[ir_graph.Value, Any]) -> None:
        """Compute the graph's outputs from its inputs."""
        graph = self.load_graph()
        found = self.call([env[i] for i in graph.inputs])
        env.update(zip(graph.outputs, (found[name] for name in self.output_names), strict=True))


def condition_value(value: Any, name: str) -> bool:
    """Return the condition's value. Raises ModelError if it does not have exactly one element."""
    if value.size != 1:
        raise ModelError(
            f"the condition {name!r} of an If or Loop has shape {list(value.shape)}",
            "ONNX requires one element", "correct the model, or pass other inputs",
        )  # fmt: skip
    return bool(value.reshape(-1)[0])


def select_inputs(exe: Executable, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of an executable among values by name."""
    return {p.name: values[p.name] for p in exe.input_ports}


@dataclass(frozen=True, slots=True)
class DynamicIf(ControlFlow):
    """The whole model at an If; see ControlFlow. branches: compute the outputs where the condition
    is true, and where it is false."""

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    load_graph: Callable[[], ir_graph.Graph]
    condition: str
    prefix: Executable | None
    branches: Mapping[bool, Executable]

    @property
    def parts(self) -> Mapping[str, Executable]:
        """The executables of the prefix and the branches."""
        first = {} if self.prefix is None else {PREFIX: self.prefix}
        return {**first, **{BRANCHES[taken]: exe for taken, exe in self.branches.items()}}

    def select_parts(
        self, values: Mapping[str, Any]
    ) -> Iterator[tuple[Executable, dict[str, Any]]]:
        arm = self.branches[condition_value(values[self.condition], self.condition)]
        yield arm, select_inputs(arm, values)

    def named_call(self, feeds: dict[str, Any]) -> dict[str, Any]:
        values = self.run_prefix(feeds)
        ((arm, own),) = self.select_parts(values)
        values |= arm.run(own)
        return {name: values[name] for name in self.output_names}
