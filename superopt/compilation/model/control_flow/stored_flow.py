"""Models at an If or Loop in the disk cache: each part has a cache of its own, and the model's has
the interfaces of the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from superopt.compilation.cache.entries import ModelInterface, interface_data, parse_interface
from superopt.compilation.fallback.session_segment import SessionModel
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.model.control_flow.dynamic_if import (
    BRANCHES,
    PREFIX,
    ControlFlow,
    DynamicIf,
)
from superopt.compilation.model.control_flow.dynamic_loop import BODY, REST, DynamicLoop
from superopt.ir.loop_names import LoopNames

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.executable import Executable

Description = dict[str, Any]
LoadPart = Callable[[str, ModelInterface], "Executable"]


def describe_flow(flow: ControlFlow) -> Description | None:
    """Return what the disk cache keeps; None if an input of a part has a default."""
    ports = [p for exe in flow.executables for p in exe.input_ports]
    if any(p.has_default for p in ports):
        return None
    about = {
        "inputs": flow.input_names,
        "outputs": flow.output_names,
        "parts": {
            name: interface_data(ModelInterface(exe.input_ports, exe.output_names))
            for name, exe in flow.parts.items()
        },
    }
    if isinstance(flow, DynamicLoop):
        return {**about, "loop": asdict(flow.names)}
    return {**about, "condition": flow.condition}


def load_flow(
    about: Description,
    load_part: LoadPart,
    whole: SessionModel | None,
    load_compiler: Callable[[], Compiler],
) -> ControlFlow:
    """Return the programs that were described. load_part: returns the executable of a part. whole:
    the model for ONNX Runtime, which a loop needs."""
    parts = {name: load_part(name, parse_interface(p)) for name, p in about["parts"].items()}
    inputs, outputs = tuple(about["inputs"]), tuple(about["outputs"])

    def load_graph() -> Any:
        return load_compiler().model.graph

    if "condition" in about:
        arms = {taken: parts[name] for taken, name in BRANCHES.items()}
        return DynamicIf(inputs, outputs, load_graph, about["condition"], parts.get(PREFIX), arms)
    given: Any = {k: v if isinstance(v, str) else tuple(v) for k, v in about["loop"].items()}
    names = LoopNames(**given)

    @cache
    def load_whole() -> Fallback:
        session = None if whole is None else whole.open_session()
        if session is None:
            return load_compiler().fallback()
        return Fallback(session, inputs, outputs, load_graph)

    def call_whole(feeds: dict[str, Any]) -> dict[str, Any]:
        return load_whole().call([feeds[name] for name in inputs])

    return DynamicLoop(
        inputs, outputs, load_graph, names, parts.get(PREFIX), parts[BODY], parts.get(REST),
        call_whole,
    )  # fmt: skip
