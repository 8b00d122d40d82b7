"""A model at an If whose condition only a call tells: programs for the condition and for each
branch with what follows it, of which a call runs two."""

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
    """The whole model, at an If.

    takes: the names of the model's inputs, in order; gives: of its outputs; graph: returns the
    model's graph. condition: the name of the value; prefix: computes it and what else the arms
    take; None where it is an input. by_name: runs the model on arrays by the inputs' names
    that are checked already.
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
        """The programs."""
        return (*(() if self.prefix is None else (self.prefix,)), *self.arms.values())

    def call(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The outputs by name, of the inputs in order."""
        return self.by_name(dict(zip(self.takes, arrays, strict=True)))

    def run(self, env: MutableMapping[ir_graph.Value, Any]) -> None:
        """Computes the graph's outputs from its inputs."""
        graph = self.graph()
        found = self.call([env[i] for i in graph.inputs])
        env.update(zip(graph.outputs, (found[name] for name in self.gives), strict=True))

    def runs(self, feeds: Mapping[str, Any]) -> Iterator[tuple[Executable, dict[str, Any]]]:
        """The programs that a call with these inputs runs, and their inputs."""
        values = dict(feeds)
        if self.prefix is not None:
            own = _of(self.prefix, values)
            yield self.prefix, own
            values |= self.prefix.run(own)
        arm = self.arms[truth(values[self.condition], self.condition)]
        yield arm, _of(arm, values)


def truth(value: Any, name: str) -> bool:
    """The condition's value. Raises ModelError where it has not one element."""
    if value.size != 1:
        raise ModelError(
            f"the condition {name!r} of an If has shape {list(value.shape)}",
            "ONNX says that it has one element", "correct the model, or give other inputs",
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
