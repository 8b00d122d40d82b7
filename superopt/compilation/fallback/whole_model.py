"""A whole model in ONNX Runtime: the file as given, so that results are bitwise those of the
runtime. Importing this module loads neither the compiler nor onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superopt.errors import ModelError
from superopt.ort import sessions

if TYPE_CHECKING:
    from superopt.compilation.cache.constant_files import FileChecksum
    from superopt.ir import graph as ir_graph

NamedCall = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MappedModel:
    """data: a ModelProto whose large initializers are external data in the folder of packed
    constants. weights: these files."""

    data: bytes
    weights: tuple[FileChecksum, ...]


@dataclass(frozen=True, slots=True)
class Fallback:
    """A session of the whole model.

    input_names, output_names: of the model, in order; load_graph: returns the model's graph, which
    calls do not need. named_call: runs the session on checked arrays by input name; None if numpy
    lacks the type of an input or output.
    """

    session: sessions.Session
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    load_graph: Callable[[], ir_graph.Graph]
    named_call: NamedCall | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "named_call", _named_call(self))

    def call(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name, for the inputs in order. Raises ModelError if ONNX Runtime
        rejects the inputs."""
        feeds = dict(zip(self.input_names, arrays, strict=True))
        try:
            found = sessions.run(self.session, feeds, tuple(dict.fromkeys(self.output_names)))
        except ModelError as e:
            inputs = ", ".join(f"{name}: {_type_text(a)}" for name, a in feeds.items())
            raise ModelError(e.what, f"{e.why}; the inputs: {inputs}", e.todo) from e
        return {name: found[name] for name in self.output_names}

    def run(self, env: MutableMapping[ir_graph.Value, Any]) -> None:
        """Compute the graph's outputs from its inputs. `env` holds the inputs only, in order, of
        this graph or of the same graph at other sizes."""
        found = self.call([*env.values()])
        env.update(
            zip(self.load_graph().outputs, (found[name] for name in self.output_names), strict=True)
        )


def _type_text(value: Any) -> str:
    """Return the type of an array as ports are printed: f32[3, 4]; or of a non-tensor."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    short = f"{dtype.kind}{8 * dtype.itemsize}" if dtype.kind in "fiu" else dtype.name
    return f"{short}{list(value.shape)}"


def _named_call(f: Fallback) -> NamedCall | None:
    """Return the function that runs the session on checked inputs by name; None if numpy lacks the
    type of an input or output."""
    if not sessions.has_numpy_types(f.session, f.output_names):
        return None
    run, gives, options = (
        sessions.raw_run_function(f.session),
        list(f.output_names),
        sessions.run_options,
    )
    if len(gives) == 1:
        (name,) = gives
        return lambda feeds: {name: run(gives, feeds, options())[0]}
    return lambda feeds: dict(zip(gives, run(gives, feeds, options()), strict=True))
