"""onnxruntime in this process: load a model, run it on arrays.

What may crash, hang or exhaust the memory runs in a worker instead (`superopt.ort.worker`).
"""

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from superopt import guard
from superopt.errors import ModelError, UsageError
from superopt.ort.values import FOREIGN, Feeds, Value, element_of, from_ort, native, to_ort

Source = bytes | str | os.PathLike[str]
"""A model: its bytes, or the path of its file (then external data lies beside it)."""

# onnxruntime's own graph optimizations, weakest first; `layout` is missing in older versions.
_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}


_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # since 1.20


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a loaded model; a dim without a size is a name or None."""

    name: str
    type: str  # as onnxruntime writes it: tensor(float), seq(tensor(float)), ...
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model, its memory freed with the last reference."""

    raw: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def installed() -> bool:
    """Whether there is an onnxruntime, without the time it takes to import it."""
    return importlib.util.find_spec("onnxruntime") is not None


def _ort() -> ModuleType:
    # Read when onnxruntime is imported; since 1.29 it reports home unless told not to.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            "onnxruntime is not there",
            f"measuring and checking models needs it: {error}",
            'pip install "superopt-onnx[ort]"',
        ) from error
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)
    module: ModuleType = onnxruntime
    return module


def available() -> str | None:
    """The version of onnxruntime, None where it cannot be imported."""
    try:
        return str(_ort().__version__)
    except UsageError:
        return None


def levels() -> tuple[str, ...]:
    """The graph optimization levels of the installed onnxruntime, weakest first."""
    known = _ort().GraphOptimizationLevel
    return tuple(name for name, attribute in _LEVELS.items() if hasattr(known, attribute))


def session(
    model: Source,
    threads: int = 1,
    level: str = "all",
    unsigned_weights: bool = False,
    weights: Path | None = None,
) -> Session:
    """Loads a model for the CPU with a fixed number of threads.

    unsigned_weights: int8 weights are multiplied as uint8 where products by int8 would saturate
    (onnxruntime's session option `session.x64quantprecision`). weights: the folder of the external
    data of a model that is given as bytes.

    Raises ModelError where onnxruntime refuses the model, UsageError for an unknown level or a
    number of threads below 1.
    """
    ort = _ort()
    if level not in levels():
        raise UsageError(
            f"no graph optimization level {level!r}",
            f"onnxruntime {ort.__version__} has {', '.join(levels())}",
            "name one of those",
        )
    if threads < 1:
        raise UsageError(
            f"{threads} threads", "a session runs on one thread at least", "give 1 or more"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[level])
    if unsigned_weights:
        options.add_session_config_entry("session.x64quantprecision", "1")
    if weights is not None:
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights))
    given = model if isinstance(model, bytes) else os.fspath(model)
    if isinstance(given, str) and not Path(given).is_file():
        raise ModelError(f"no model at {given}", "there is no such file", "check the path")
    try:
        raw = ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen exception types without a common base
        raise ModelError(
            "onnxruntime does not load the model", plain(error), "check it with onnx.checker"
        ) from error
    return Session(raw, _ports(raw.get_inputs()), _ports(raw.get_outputs()))


def session_of_part(
    model: Source, threads: int = 1, level: str = "all", unsigned_weights: bool = False
) -> Session:
    """As `session`, for what has to run: where onnxruntime's optimizations refuse what they made
    themselves, as some of quantized nodes do, without these."""
    try:
        more: dict[str, Any] = {"unsigned_weights": True} if unsigned_weights else {}
        return session(model, threads, level, **more)
    except ModelError:
        return session(model, threads, levels()[0])


def _ports(raw: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(Port(p.name, p.type, tuple(p.shape)) for p in raw)


def plain(error: BaseException) -> str:
    """An error's text on one line, without onnxruntime's prefix, of bearable length."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", r"\1: ", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= 600 else text[:597] + "..."


def plainly(session: Session, outputs: Sequence[str]) -> bool:
    """Are all inputs, and these outputs, tensors of numbers that numpy has?"""
    wanted = [p for p in session.outputs if p.name in outputs]
    some = [p.type for p in (*session.inputs, *wanted)]
    other = {*FOREIGN, "string"}
    return all(t.startswith("tensor(") and element_of(t) not in other for t in some)


def caller(session: Session) -> Callable[[list[str], dict[str, Any], Any], list[Any]]:
    """What runs it with arrays of its inputs' types, by names of outputs and inputs. onnxruntime's
    own `run` looks at all of them first, which takes a microsecond, as a small model itself does.
    """
    inner = getattr(session.raw, "_sess", None)
    found: Callable[[list[str], dict[str, Any], Any], list[Any]]
    found = getattr(inner, "run", None) or session.raw.run
    return found


def run_options() -> Any:
    """onnxruntime's RunOptions for a run inside a guard: at its end the run fails, after the node
    (of a subgraph, too) that it is at. None, which are the usual ones, where there is no end."""
    limits = guard.current()
    if limits.end == guard.NO_LIMIT:
        return None
    found = limits.held.get("onnxruntime")
    if found is None:
        found = limits.held["onnxruntime"] = _ort().RunOptions()
        limits.at_end(lambda: setattr(found, "terminate", True))
    return found


def run(session: Session, feeds: Feeds, outputs: Sequence[str] | None = None) -> dict[str, Value]:
    """The outputs (all, or those named) for the given inputs, by name.

    Takes and gives arrays of every ONNX dtype; the dtypes numpy lacks as ml_dtypes arrays.
    Raises ModelError where onnxruntime refuses the inputs or fails while running.
    """
    ort = _ort()
    check_names(session, feeds)
    types = {port.name: port.type for port in session.outputs}
    wanted = list(types) if outputs is None else list(outputs)
    if unknown := [name for name in wanted if name not in types]:
        raise ModelError(
            f"no output {unknown[0]!r}",
            f"the model's outputs are {', '.join(map(repr, types))}",
            "name one of those",
        )
    foreign = [name for name in wanted if element_of(types[name]) in FOREIGN]
    try:
        given = {name: to_ort(ort, value) for name, value in feeds.items()}
        if not foreign:
            return dict(zip(wanted, session.raw.run(wanted, given, run_options()), strict=True))
        values = _as_ort_values(ort, given, foreign[0])
        found = session.raw.run_with_ort_values(wanted, values, run_options())
        return {name: from_ort(value) for name, value in zip(wanted, found, strict=True)}
    except ModelError:
        raise
    except Exception as error:  # see session()
        guard.check_time("running a model in onnxruntime")
        raise ModelError(
            "onnxruntime does not run the model", plain(error), "compare with its inputs' types"
        ) from error


def check_names(session: Session, feeds: Feeds) -> None:
    """Raises ModelError for an input without a value.  More values than inputs are onnxruntime's
    to judge: an initializer that may be overridden is no input to it, yet may be fed."""
    for port in session.inputs:
        if port.name not in feeds:
            raise ModelError(
                f"no value for input {port.name!r}",
                f"values were given for {', '.join(map(repr, feeds)) or 'none'}",
                f"give a {port.type} of shape {list(port.shape)}",
            )


def _as_ort_values(ort: Any, given: dict[str, Any], foreign: str) -> dict[str, Any]:
    values = {}
    for name, value in given.items():
        if isinstance(value, ort.OrtValue):
            values[name] = value
        elif value is None or isinstance(value, list) or value.dtype == object:
            raise ModelError(
                f"output {foreign!r} cannot be read in one run with input {name!r}",
                "onnxruntime takes strings and sequences in one interface and gives bfloat16, "
                "8-bit floats and 4-bit integers in another",
                f"cast {foreign!r} to float in the model",
            )
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(native(value))
    return values
