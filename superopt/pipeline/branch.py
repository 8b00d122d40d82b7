"""A model at an If with a dynamic condition: a program for the condition, and one for each branch
with the nodes after it. A call runs two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superopt.errors import ModelError
from superopt.pipeline.fallback import ByName

if TYPE_CHECKING:
    from superopt.ir import graph as ir_graph
    from superopt.pipeline.executable import Executable


@dataclass(frozen=True, slots=True)
class Branch:
    """The whole model at an If.

    input_names, output_names: of the model, in order; load_graph: returns the model's graph.
    condition: the name of the value; prefix: computes it and the other inputs of the branches; None
    if the condition is an input. named_call: runs the model on checked arrays by input name.
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    graph: Callable[[], ir_graph.Graph]
    condition: str
    prefix: Executable | None
    arms: Mapping[bool, Executable]
    by_name: ByName = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", _by_name(self))

    @property
    def parts(self) -> tuple[Executable, ...]:
        """The executables of the prefix and the branches."""
        return (*(() if self.prefix is None else (self.prefix,)), *self.arms.values())

    def call(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name, for the inputs in order."""
        return self.by_name(dict(zip(self.takes, arrays, strict=True)))

    def run(self, env: MutableMapping[ir_graph.Value, Any]) -> None:
        """Compute the graph's outputs from its inputs."""
        graph = self.graph()
        found = self.call([env[i] for i in graph.inputs])
        env.update(zip(graph.outputs, (found[name] for name in self.gives), strict=True))

    def runs(self, feeds: Mapping[str, Any]) -> Iterator[tuple[Executable, dict[str, Any]]]:
        """Yield the executables that a call with these inputs runs, with their inputs."""
        values = dict(feeds)
        if self.prefix is not None:
            own = _of(self.prefix, values)
            yield self.prefix, own
            values |= self.prefix.run(own)
        arm = self.arms[truth(values[self.condition], self.condition)]
        yield arm, _of(arm, values)


def truth(value: Any, name: str) -> bool:
    """Return the condition's value. Raises ModelError if it does not have exactly one element."""
    if value.size != 1:
        raise ModelError(
            f"the condition {name!r} of an If has shape {list(value.shape)}",
            "ONNX requires one element", "correct the model, or pass other inputs",
        )  # fmt: skip
    return bool(value.reshape(-1)[0])


def _of(exe: Executable, values: Mapping[str, Any]) -> dict[str, Any]:
    return {p.name: values[p.name] for p in exe.ports}


def _by_name(b: Branch) -> ByName:
    gives, condition, prefix = b.gives, b.condition, b.prefix
    arms = {taken: (exe.run, [p.name for p in exe.ports]) for taken, exe in b.arms.items()}
    first = None if prefix is None else (prefix.run, [p.name for p in prefix.ports])

    def call(feeds: dict[str, Any]) -> dict[str, Any]:
        values = dict(feeds)
        if first is not None:
            run, needs = first
            values |= run({name: values[name] for name in needs})
        run, needs = arms[truth(values[condition], condition)]
        values |= run({name: values[name] for name in needs})
        return {name: values[name] for name in gives}

    return call
