"""The steps of a class of sizes as data of the disk cache. The values that they read and give have
numbers there; those of a loaded class are these numbers, so that it needs no graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from superopt.compilation.cache import entries
from superopt.compilation.cache.class_entries import (
    ReadConstants,
    WriteConstants,
    read_constants,
    write_constants,
)
from superopt.compilation.cpu.native_segment import NativeSegment, SymbolicSegment
from superopt.compilation.cpu.stored_program import Description, describe_program, load_program
from superopt.compilation.fallback.session_segment import (
    OrtSegment,
    SessionModel,
    SessionPart,
    StepValues,
    SymbolicOrtSegment,
)
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.model.classes.empty_outputs import SymbolicEmptyOutputs
from superopt.compilation.model.classes.runtime_sizes import (
    RuntimeSize,
    RuntimeSizedCode,
    RuntimeSizedSegment,
)
from superopt.compilation.model.steps import ModelBinding
from superopt.errors import RuntimeMismatch
from superopt.plan.program.size_formulas import SizeFormulas

if TYPE_CHECKING:
    from superopt.compilation.model.size_classes import SymbolicStep
    from superopt.kernels.runtime.engine import Machine
    from superopt.ort.sessions import Session
    from superopt.plan.program.constant_pool import PackedConstants
    from superopt.plan.program.image import CountCall, LoadedProgram, ProgramImage
    from superopt.plan.program.program import Program


class _NotStoredError(Exception):
    """A step, or what it needs, cannot be stored."""


@dataclass(slots=True)
class _Writer:
    """numbers: of values. texts: bytes that descriptions refer to. write: writes constants."""

    numbers: dict[Any, int]
    write: WriteConstants = write_constants
    texts: list[bytes] = field(default_factory=list)

    def add_text(self, text: bytes) -> tuple[int, int]:
        """Return where the text begins and ends."""
        begin = sum(map(len, self.texts))
        self.texts.append(text)
        return begin, begin + len(text)

    def known_numbers(self, values: Sequence[Any]) -> list[int]:
        if any(v not in self.numbers for v in values):
            raise _NotStoredError
        return [self.numbers[v] for v in values]

    def new_numbers(self, values: Sequence[Any]) -> list[int]:
        return [self.numbers.setdefault(v, len(self.numbers)) for v in values]


@dataclass(frozen=True, slots=True)
class StoredSteps:
    """The steps of a class. values: the model's inputs, and its outputs, which may be constants."""

    steps: tuple[SymbolicStep, ...]
    values: StepValues


@dataclass(frozen=True, slots=True)
class FixedSegment:
    """Kernels for fixed sizes as a step of a class. image: what the disk cache keeps; None if they
    came from there."""

    step: NativeSegment
    image: ProgramImage | None = None
    formulas: ClassVar[None] = None
    programs: ClassVar[tuple[()]] = ()

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> NativeSegment:
        """Return the kernels."""
        return self.step


@dataclass(frozen=True, slots=True, eq=False)
class StoredConstant:
    """A constant that is an output of a model."""

    array: np.ndarray

    def load(self) -> np.ndarray:
        return self.array


def describe_steps(
    steps: Sequence[SymbolicStep | FixedSegment],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    write: WriteConstants = write_constants,
) -> tuple[Description, list[bytes]] | None:
    """Return the description and the texts of the steps of a class; None if they cannot be stored.
    inputs, outputs: of the model. write: writes constants."""
    out = _Writer({v: n for n, v in enumerate(inputs)}, write)
    try:
        described = [_describe_step(s, out) for s in steps]
        given = [_describe_output(v, out) for v in outputs]
    except _NotStoredError:
        return None
    return {"inputs": len(inputs), "steps": described, "outputs": given}, out.texts


@dataclass(frozen=True, slots=True)
class _Reader:
    """texts: bytes that descriptions refer to. read: reads constants."""

    texts: bytes
    machine: Machine
    read: ReadConstants


def load_steps(
    about: Description, texts: bytes, machine: Machine, read: ReadConstants = read_constants
) -> StoredSteps | None:
    """Return the steps that were described; None if files that they need are damaged, all of which
    are removed then. read: reads constants."""
    given = _Reader(texts, machine, read)
    steps = []
    for each in about["steps"]:
        with suppress(_NotStoredError):
            steps.append(_load_step(each, given))
    if len(steps) < len(about["steps"]):
        return None
    outputs = tuple(_load_output(each, texts) for each in about["outputs"])
    return StoredSteps(tuple(steps), StepValues(tuple(range(about["inputs"])), outputs))


def fixed_steps(
    steps: Sequence[Any], program_image: Callable[[NativeSegment], ProgramImage]
) -> tuple[SymbolicStep | FixedSegment, ...]:
    """Return the steps of a program for fixed sizes as those of a class. program_image: returns the
    code of one."""
    out: list[Any] = []
    for s in steps:
        match s:
            case NativeSegment():
                out.append(FixedSegment(s, program_image(s)))
            case OrtSegment():
                known = [spec for spec in s.output_specs if spec is not None]
                dtypes = tuple(None if spec is None else spec[1] for spec in s.output_specs)
                out.append(SymbolicOrtSegment(s, _fixed_shapes(sh for sh, _ in known), dtypes))
            case RuntimeSizedSegment():
                out.append(s.code)
            case _:
                out.append(s)
    return tuple(out)


def _fixed_shapes(shapes: Iterable[tuple[int, ...]]) -> SizeFormulas:
    texts = tuple(tuple(map(str, shape)) for shape in shapes)
    return SizeFormulas((), (), (), "0", "0", texts)


def describe_fallback(
    whole: Fallback, model: SessionModel
) -> tuple[Description, list[bytes]] | None:
    """Return the description and the texts of a model that runs in ONNX Runtime."""
    names = tuple(dict.fromkeys(whole.output_names))
    inputs = {name: ("input", name) for name in whole.input_names}
    values = StepValues(tuple(inputs.values()), tuple(("output", name) for name in names))
    part = SessionPart(values, inputs, names, lambda: whole.session, lambda: model)
    unknown = (None,) * len(names)
    step = SymbolicOrtSegment(OrtSegment(part, whole.session, unknown), _fixed_shapes(()), unknown)
    outputs = [("output", name) for name in whole.output_names]
    return describe_steps((step,), values.inputs, outputs)


def describe_whole(
    about: Description, model: SessionModel | None
) -> tuple[Description, Sequence[bytes]]:
    """Return a description with a model for ONNX Runtime, and its texts."""
    if model is None:
        return about, ()
    out = _Writer({})
    return {**about, "whole": _describe_model(model, out)}, out.texts


def parse_whole(about: Description, texts: bytes) -> SessionModel | None:
    """Return the model for ONNX Runtime of a description; None if it has none."""
    return _parse_model(about["whole"], texts) if "whole" in about else None


def _describe_output(v: Any, out: _Writer) -> int | Description:
    if v in out.numbers:
        return out.numbers[v]
    if (load := getattr(v, "load", None)) is None:
        raise _NotStoredError
    array = np.ascontiguousarray(load())
    return {
        "text": out.add_text(array.tobytes()), "dtype": array.dtype.name, "shape": array.shape
    }  # fmt: skip


def _load_output(about: int | Description, texts: bytes) -> Any:
    if isinstance(about, int):
        return about
    dtype = entries.parse_dtype(about["dtype"])
    flat = np.frombuffer(texts[slice(*about["text"])], dtype)
    return StoredConstant(flat.reshape(about["shape"]))


def _describe_step(s: SymbolicStep | FixedSegment, out: _Writer) -> Description:
    match s:
        case FixedSegment():
            own = s.step
            return {
                "kind": "fixed kernels",
                **_describe_values(own.segment, out),
                **_describe_code(s.image, own.code.constants, own.binding, out),
                "specs": [(shape, t.name) for shape, t in own.output_specs],
            }
        case SymbolicSegment():
            return {"kind": "kernels", **_describe_values(s.load_segment(), out),
                    **_describe_kernels(s, out)}  # fmt: skip
        case SymbolicOrtSegment():
            return {
                "kind": "session", "shapes": s.shapes.as_json(), "dtypes": _dtype_names(s.dtypes),
                **_describe_part(s.segment.part, out),
            }  # fmt: skip
        case RuntimeSizedCode():
            return {
                "kind": "runtime sizes",
                **_describe_values(s.segment, out),
                "bindings": [(b.name, b.input_number, b.axis) for b in s.bindings],
                "shapes": s.shapes.as_json(),
                "dtypes": _dtype_names(s.dtypes),
                "programs": [_describe_kernels(p, out) for p in s.programs],
                "model inputs": out.known_numbers(s.model_inputs),
                "part": _describe_part(s.load_part(), out),
            }
        case SymbolicEmptyOutputs():
            return {
                "kind": "empty", "outputs": out.new_numbers(s.outputs),
                "shapes": s.shapes.as_json(), "dtypes": _dtype_names(s.dtypes),
            }  # fmt: skip
    raise _NotStoredError


def _load_step(about: Description, given: _Reader) -> SymbolicStep:
    values = StepValues(tuple(about.get("inputs", ())), tuple(about["outputs"]))
    match about["kind"]:
        case "kernels":
            return _load_kernels(about, values, given)
        case "fixed kernels":
            code, binding = _load_code(about, given)
            specs = tuple((tuple(sh), entries.parse_dtype(t)) for sh, t in about["specs"])
            load_segment: Any = lambda: values  # noqa: E731  runs need no more of a segment
            return FixedSegment(NativeSegment(code, specs, load_segment, binding))
    shapes, dtypes = SizeFormulas.from_json(about["shapes"]), _parse_dtypes(about["dtypes"])
    match about["kind"]:
        case "session":
            part, model = _load_part(about, given.texts)
            if (session := model.open_session()) is None:
                raise _NotStoredError
            unknown = (None,) * len(part.output_names)
            return SymbolicOrtSegment(OrtSegment(part, session, unknown), shapes, dtypes)
        case "runtime sizes":
            part, _ = _load_part(about["part"], given.texts)
            return RuntimeSizedCode(
                values,
                tuple(RuntimeSize(*b) for b in about["bindings"]),
                shapes,
                _known(dtypes),
                tuple(_load_kernels(p, values, given) for p in about["programs"]),
                tuple(about["model inputs"]),
                lambda: part,
            )
        case "empty":
            return SymbolicEmptyOutputs(values.outputs, shapes, _known(dtypes))
    raise _NotStoredError


def _describe_values(s: Any, out: _Writer) -> Description:
    """Return the numbers of the values of a segment."""
    return {"inputs": out.known_numbers(s.inputs), "outputs": out.new_numbers(s.outputs)}


def _describe_kernels(s: Any, out: _Writer) -> Description:
    return {
        **_describe_code(s.image, s.code.constants, s.binding, out),
        "formulas": s.formulas.as_json(),
        "output dtypes": _dtype_names(s.output_dtypes), "example": dict(s.example),
    }  # fmt: skip


def _load_kernels(about: Description, values: StepValues, given: _Reader) -> SymbolicSegment:
    code, binding = _load_code(about, given)
    formulas = SizeFormulas.from_json(about["formulas"])
    dtypes = _known(_parse_dtypes(about["output dtypes"]))
    load_segment: Any = lambda: values  # noqa: E731  runs need no more of a segment
    return SymbolicSegment(code, formulas, dtypes, load_segment, about["example"], binding)


def _describe_code(
    image: ProgramImage | None,
    constants: PackedConstants,
    binding: ModelBinding | None,
    out: _Writer,
) -> Description:
    made = None if image is None else describe_program(image, constants, out.write)
    if made is None:
        raise _NotStoredError
    about, texts = made
    bound = binding and (
        binding.input_numbers,
        [*binding.output_numbers.items()],
        [*binding.state_axes.items()],
    )
    return {**about, "text": out.add_text(b"".join(texts)), "binding": bound}


def _load_code(about: Description, given: _Reader) -> tuple[LoadedProgram, ModelBinding | None]:
    texts = given.texts[slice(*about["text"])]
    code = load_program(about, texts, given.machine, _no_plan, given.read)
    if code is None:
        raise _NotStoredError
    if about["binding"] is None:
        return code, None
    takes, gives, states = about["binding"]
    return code, ModelBinding(tuple(takes), dict(gives), dict(states))


def _no_plan() -> Program:
    raise NotImplementedError("the plan of a cached program")


def _describe_part(part: SessionPart, out: _Writer) -> Description:
    values = out.known_numbers([*part.inputs.values()])
    return {
        **_describe_model(part.load_model(), out),
        "inputs": [*zip(part.inputs, values, strict=True)],
        "names": part.output_names, "outputs": out.new_numbers(part.segment.outputs),
    }  # fmt: skip


def _describe_model(model: SessionModel, out: _Writer) -> Description:
    return {
        "model": out.add_text(model.data), "weights": model.weights, "threads": model.threads,
        "level": model.level, "unsigned": model.unsigned_weights,
    }  # fmt: skip


def _parse_model(about: Description, texts: bytes) -> SessionModel:
    weights = tuple((digest, size, check) for digest, size, check in about["weights"])
    how = about["threads"], about["level"], about["unsigned"]
    return SessionModel(texts[slice(*about["model"])], weights, *how)


def _load_part(about: Description, texts: bytes) -> tuple[SessionPart, SessionModel]:
    model = _parse_model(about, texts)

    def load_session() -> Session:
        if (session := model.open_session()) is None:
            raise RuntimeMismatch(
                "a cached part of the model cannot be opened in onnxruntime",
                "its files are damaged or gone",
                "empty the cache",
            )
        return session

    inputs = {str(name): int(n) for name, n in about["inputs"]}
    values = StepValues(tuple(inputs.values()), tuple(about["outputs"]))
    return SessionPart(values, inputs, tuple(about["names"]), load_session, lambda: model), model


def _dtype_names(dtypes: Sequence[np.dtype | None]) -> list[str | None]:
    return [None if t is None else t.name for t in dtypes]


def _parse_dtypes(names: Sequence[str | None]) -> tuple[np.dtype | None, ...]:
    return tuple(None if name is None else entries.parse_dtype(name) for name in names)


def _known(dtypes: Sequence[np.dtype | None]) -> tuple[np.dtype, ...]:
    return tuple(t for t in dtypes if t is not None)
