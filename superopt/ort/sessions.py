"""onnxruntime in this process: load a model, run it on arrays.

Whatever may crash, hang or exhaust the memory runs in a worker instead (`superopt.ort.worker`).
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
from superopt.ort.tensors import (
    EXTENDED_DTYPES,
    Feeds,
    Value,
    as_native,
    element_name,
    from_ort,
    to_ort,
)

Source = bytes | str | os.PathLike[str]
"""A model: its bytes, or the path of its file (with external data beside it)."""

# onnxruntime's graph optimization levels, weakest first; older versions lack `layout`.
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


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Session:
    """A loaded model, freed with the last reference."""

    raw: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def is_installed() -> bool:
    """True if onnxruntime is installed; does not import it."""
    return importlib.util.find_spec("onnxruntime") is not None


def _ort() -> ModuleType:
    # Read when onnxruntime is imported; since 1.29 it sends telemetry by default.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            "onnxruntime is not installed",
            f"measuring and checking models needs it: {error}",
            'pip install "superopt-onnx[ort]"',
        ) from error
    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(4)
    module: ModuleType = onnxruntime
    return module


def installed_version() -> str | None:
    """Return the version of onnxruntime, None if it cannot be imported."""
    try:
        return str(_ort().__version__)
    except UsageError:
        return None


def optimization_levels() -> tuple[str, ...]:
    """Return the graph optimization levels of the installed onnxruntime, weakest first."""
    known = _ort().GraphOptimizationLevel
    return tuple(name for name, attribute in _LEVELS.items() if hasattr(known, attribute))


def new_session_options(threads: int, level: str = "all") -> Any:
    """Return the options of a session; see `load_session`."""
    ort = _ort()
    if level not in optimization_levels():
        raise UsageError(
            f"unknown graph optimization level {level!r}",
            f"onnxruntime {ort.__version__} has {', '.join(optimization_levels())}",
            "choose one of those",
        )
    if threads < 1:
        raise UsageError(
            f"{threads} threads", "a session needs at least one thread", "pass 1 or more"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[level])
    return options


def load_session(
    model: Source,
    threads: int = 1,
    level: str = "all",
    unsigned_weights: bool = False,
    weights: Path | None = None,
    options: Any = None,
) -> Session:
    """Load a model for the CPU with a fixed number of threads.

    unsigned_weights: multiply int8 weights as uint8 where products by int8 would saturate
    (onnxruntime's session option `session.x64quantprecision`). weights: the folder of the external
    data of a model given as bytes. options: of the session, from `new_session_options`. Raises
    ModelError if onnxruntime rejects the model, UsageError for an unknown level or fewer than 1
    thread.
    """
    ort = _ort()
    options = new_session_options(threads, level) if options is None else options
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
            "onnxruntime cannot load the model", error_text(error), "check it with onnx.checker"
        ) from error
    return Session(raw, _ports(raw.get_inputs()), _ports(raw.get_outputs()))


def load_part_session(
    model: Source,
    threads: int = 1,
    level: str = "all",
    unsigned_weights: bool = False,
    weights: Path | None = None,
) -> Session:
    """Load a model as `load_session` does; if onnxruntime rejects the result of its own
    optimizations, as for some quantized nodes, load it without these."""
    given: dict[str, Any] = {} if weights is None else {"weights": weights}
    try:
        more: dict[str, Any] = {"unsigned_weights": True} if unsigned_weights else {}
        return load_session(model, threads, level, **more, **given)
    except ModelError:
        return load_session(model, threads, optimization_levels()[0], **given)


def _ports(raw: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(Port(p.name, p.type, tuple(p.shape)) for p in raw)


def error_text(error: BaseException) -> str:
    """Return an error's text on one line, without onnxruntime's prefix, at most 600 characters."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", r"\1: ", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= 600 else text[:597] + "..."


def has_numpy_types(session: Session, outputs: Sequence[str]) -> bool:
    """True if all inputs, and these outputs, are tensors of dtypes that numpy has."""
    wanted = [p for p in session.outputs if p.name in outputs]
    some = [p.type for p in (*session.inputs, *wanted)]
    other = {*EXTENDED_DTYPES, "string"}
    return all(t.startswith("tensor(") and element_name(t) not in other for t in some)


def raw_run_function(session: Session) -> Callable[[list[str], dict[str, Any], Any], list[Any]]:
    """Return the function that runs a session with arrays of its inputs' types, by names of outputs
    and inputs.

    onnxruntime's own `run` checks all of them first, which takes a microsecond, as a small model
    itself does.
    """
    inner = getattr(session.raw, "_sess", None)
    found: Callable[[list[str], dict[str, Any], Any], list[Any]]
    found = getattr(inner, "run", None) or session.raw.run
    return found


def run_options() -> Any:
    """Return onnxruntime's RunOptions inside a guard: at its deadline the run fails after the
    current node (also inside a subgraph). None, the default options, without a deadline."""
    limits = guard.current_guard()
    if limits.deadline == guard.NO_LIMIT:
        return None
    found = limits.resources.get("onnxruntime")
    if found is None:
        found = limits.resources["onnxruntime"] = _ort().RunOptions()
        limits.on_deadline(lambda: setattr(found, "terminate", True))
    return found


def run(session: Session, feeds: Feeds, outputs: Sequence[str] | None = None) -> dict[str, Value]:
    """Run a session and return the outputs (all, or those named) by name.

    Takes and returns arrays of every ONNX dtype; dtypes that numpy lacks are ml_dtypes arrays.
    Raises ModelError if onnxruntime rejects the inputs or fails.
    """
    ort = _ort()
    check_feeds(session, feeds)
    types = {port.name: port.type for port in session.outputs}
    wanted = list(types) if outputs is None else list(outputs)
    if unknown := [name for name in wanted if name not in types]:
        raise ModelError(
            f"no output {unknown[0]!r}",
            f"the model's outputs are {', '.join(map(repr, types))}",
            "name one of those",
        )
    foreign = [name for name in wanted if element_name(types[name]) in EXTENDED_DTYPES]
    try:
        given = {name: to_ort(ort, value) for name, value in feeds.items()}
        if not foreign:
            return dict(zip(wanted, session.raw.run(wanted, given, run_options()), strict=True))
        values = _as_ort_values(ort, given, foreign[0])
        found = session.raw.run_with_ort_values(wanted, values, run_options())
        return {name: from_ort(value) for name, value in zip(wanted, found, strict=True)}
    except ModelError:
        raise
    except Exception as error:  # see load_session
        guard.check_time("running a model in onnxruntime")
        raise ModelError(
            "onnxruntime cannot run the model",
            error_text(error),
            "compare the arrays with the inputs' types",
        ) from error


def check_feeds(session: Session, feeds: Feeds) -> None:
    """Raise ModelError for an input without a value.

    Additional values are checked by onnxruntime: an overridable initializer is not an input, yet
    may be fed.
    """
    for port in session.inputs:
        if port.name not in feeds:
            raise ModelError(
                f"no value for input {port.name!r}",
                f"values were given for {', '.join(map(repr, feeds)) or 'none'}",
                f"pass a {port.type} of shape {list(port.shape)}",
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
            values[name] = ort.OrtValue.ortvalue_from_numpy(as_native(value))
    return values
