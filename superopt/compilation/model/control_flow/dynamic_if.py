"""A model at an If with a dynamic condition: a program for the condition, and one for each branch
with the nodes after it. A call runs two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superopt.compilation.fallback.whole_model import NamedCall
from superopt.compilation.frontend.input_arrays import static_bytes
from superopt.errors import ModelError

if TYPE_CHECKING:
    from superopt.compilation.model.executable import Executable
    from superopt.ir import graph as ir_graph

PREFIX = "prefix"  # the name of the part before an If or Loop
MAX_PREFIX_BYTES = 64  # of the inputs of a prefix whose results are remembered
MAX_KNOWN_PREFIXES = 64  # results that are remembered
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

    def run_programs(self, feeds: dict[str, Any]) -> dict[str, Any] | None:
        """Return the outputs as `named_call`, without ONNX Runtime; None if only that has them."""
        return self.named_call(feeds)

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
    run_arms: NamedCall = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_arms", _named_call(self))

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
        return self.run_arms(feeds)


def _named_call(b: DynamicIf) -> NamedCall:
    """Return the function that computes the outputs by name from checked inputs by name."""
    gives, condition, prefix = b.output_names, b.condition, b.prefix
    arms = {
        taken: (exe.run, [p.name for p in exe.input_ports], exe.output_names == gives)
        for taken, exe in b.branches.items()
    }
    first = None if prefix is None else _prefix_call(prefix, condition, gives)

    def call(feeds: dict[str, Any]) -> dict[str, Any]:
        values = feeds
        if first is None:
            taken = condition_value(feeds[condition], condition)
        else:
            found, taken = first(feeds)
            values = {**feeds, **found}
        run, needs, gives_all = arms[taken]
        out = run({name: values[name] for name in needs})
        if gives_all:
            return out
        values = {**values, **out}
        return {name: values[name] for name in gives}

    return call


def _prefix_call(
    prefix: Executable, condition: str, wanted: Collection[str]
) -> Callable[[Mapping[str, Any]], tuple[dict[str, Any], bool]]:
    """Return a function from values by name to the outputs of the prefix and the condition's value.
    A prefix of small inputs, such as a sampling rate, is a set of kernels whose results are
    remembered, if no output is one of the model, in `wanted`: callers may write to that."""
    run, needs = prefix.run, [p.name for p in prefix.input_ports]
    known: dict[Any, tuple[dict[str, Any], bool]] = {}

    def call(values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        found = run({name: values[name] for name in needs})
        return found, condition_value(found[condition], condition)

    def recall(values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        key = tuple([values[name].tobytes() for name in needs])
        found = known.get(key)
        if found is None:
            found = call(values)
            variants = tuple(prefix.variants.values())
            if variants and all(v.bound_step is not None for v in variants):
                if len(known) >= MAX_KNOWN_PREFIXES:
                    known.clear()
                known[key] = found
        return found

    sizes = [static_bytes(p) for p in prefix.input_ports]
    small = all(n is not None for n in sizes) and sum(filter(None, sizes)) <= MAX_PREFIX_BYTES
    return recall if small and not {*wanted} & {*prefix.output_names} else call
