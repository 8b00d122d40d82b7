"""Segments that run in sessions of ONNX Runtime. This module loads neither the compiler nor ONNX,
so that a cached model starts fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from superopt.compilation.cache import constant_files
from superopt.cost.cache_folders import constants_folder
from superopt.errors import RuntimeMismatch, SuperoptError
from superopt.ort import sessions

if TYPE_CHECKING:
    import numpy as np

    from superopt.compilation.runtime.output_buffers import ArraySpec
    from superopt.plan.program.image import CountCall
    from superopt.plan.program.size_formulas import SizeFormulas

ValueArrays = dict[Any, Any]
# Open sessions by their models and options: classes of sizes share them.
_SESSIONS: WeakValueDictionary[tuple[bytes, int, str, bool], sessions.Session] = (
    WeakValueDictionary()
)


@dataclass(frozen=True, slots=True)
class StepValues:
    """The values that a step reads and gives, as those of a Segment."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SessionModel:
    """A model for a session. data: a ModelProto. weights: the constant files that have its large
    initializers, each with its digest, bytes and checksum. level, unsigned_weights: see
    `load_session`."""

    data: bytes
    weights: tuple[constant_files.FileChecksum, ...]
    threads: int
    level: str
    unsigned_weights: bool

    def open_session(self) -> sessions.Session | None:
        """Return a session; None if a file is damaged or ONNX Runtime does not open the model."""
        arrays = [constant_files.read_constant(*w) for w in self.weights]  # removes damaged ones
        if any(a is None for a in arrays):
            return None
        folder = constants_folder() if self.weights else None
        how = self.threads, self.level, self.unsigned_weights
        key = blake2b(self.data).digest(), *how
        if (found := _SESSIONS.get(key)) is None:
            try:
                found = sessions.load_part_session(self.data, *how, weights=folder)
            except SuperoptError:
                return None
            _SESSIONS[key] = found
        return found


@dataclass(frozen=True, slots=True)
class SessionPart:
    """A part of a model for ONNX Runtime. segment: a Segment, or its values. inputs: values by
    input name. load_session: opens it. load_model: returns what the disk cache keeps."""

    segment: Any
    inputs: Mapping[str, Any]
    output_names: tuple[str, ...]
    load_session: Callable[[], sessions.Session]
    load_model: Callable[[], SessionModel]

    def open_segment(self, output_specs: tuple[ArraySpec | None, ...] | None = None) -> OrtSegment:
        """Return it with its session. output_specs: see OrtSegment; None: all are unknown."""
        specs = (None,) * len(self.output_names) if output_specs is None else output_specs
        return OrtSegment(self, self.load_session(), specs)


@dataclass(frozen=True, slots=True)
class OrtSegment:
    """A segment in ONNX Runtime. output_specs: planned shapes and types of the outputs that kernels
    read; None for others."""

    part: SessionPart
    session: sessions.Session
    output_specs: tuple[ArraySpec | None, ...]

    @property
    def segment(self) -> Any:
        """The segment, or its values."""
        return self.part.segment

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The values that it reads, by input name."""
        return self.part.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.part.output_names

    def run(self, env: ValueArrays) -> None:
        """Run the segment. Raises RuntimeMismatch if an output differs from its planned shape or
        type."""
        feeds = {name: env[v] for name, v in self.inputs.items()}
        found = sessions.run(self.session, feeds, self.output_names)
        check_outputs(self, list(found.values()))
        env.update(zip(self.segment.outputs, found.values(), strict=True))


def check_outputs(s: OrtSegment, arrays: Sequence[Any]) -> None:
    """Raise RuntimeMismatch if an output differs from its planned shape or type."""
    for name, x, spec in zip(s.output_names, arrays, s.output_specs, strict=True):
        if spec is not None and (x.shape != spec[0] or x.dtype != spec[1]):
            raise RuntimeMismatch(
                f"{name} is {x.dtype}{list(x.shape)} in onnxruntime",
                f"shape inference gives {spec[1]}{list(spec[0])}",
                "correct the model's shapes, or run it in onnxruntime",
            )


@dataclass(frozen=True, slots=True)
class SymbolicOrtSegment:
    """A segment in ONNX Runtime, whose session runs at any sizes. segment: at the sizes for which
    it was made. shapes: formulas of the shapes of the outputs whose types are known. dtypes: of all
    outputs; None if the type is not known."""

    segment: OrtSegment
    shapes: SizeFormulas
    dtypes: tuple[np.dtype | None, ...]
    formulas: ClassVar[None] = None
    programs: ClassVar[tuple[()]] = ()

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> OrtSegment:
        """Return the segment at given sizes, on the same session."""
        shapes = iter(self.shapes.at_sizes(sizes).output_shapes)
        specs = tuple(None if t is None else (next(shapes), t) for t in self.dtypes)
        return replace(self.segment, output_specs=specs)
