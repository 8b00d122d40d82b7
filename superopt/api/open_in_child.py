"""Open a model file in a child process.

The first calls of a model whose programs are not in the cache run in ONNX Runtime, while the child
that opened the model compiles a class of their sizes (`shape_policy`): this process needs neither
the compiler nor the memory that it takes.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from superopt.compilation.cache import entries
from superopt.compilation.frontend.input_arrays import ShapePattern, has_symbolic_sizes
from superopt.compilation.model.flow_programs import background_flow
from superopt.compilation.model.onnxruntime_calls import onnxruntime_fallback
from superopt.compilation.model.specialize import CHILD_MODULE, start_compiler
from superopt.compilation.runtime import child_process
from superopt.ort import sessions

if TYPE_CHECKING:
    from superopt.compilation.fallback.whole_model import MappedModel
    from superopt.compilation.model.device import Device
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.shape_policy import Specialize
    from superopt.compilation.runtime.child_process import Child
    from superopt.onnx_io.read.scan import ModelScan
    from superopt.onnx_io.read.source import Source

MIN_OPEN_TIMEOUT_S: Final = 120.0  # limit for opening a model, and for its bytes:
OPEN_BYTES_PER_SECOND: Final = 20e6
CONTROL_FLOW: Final = frozenset({"If", "Loop"})  # whose programs a child compiles for a call


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What a child found. scan: of the model. digest: of its files. child: waits for sizes; None:
    it compiles nothing."""

    scan: ModelScan | None
    digest: str
    interface: entries.ModelInterface
    child: Child | None


def compiles_in_child(device: Device, specialize: Specialize) -> bool:
    """True if a child process may compile a model for the first calls."""
    may = specialize == "background" and child_process.CAN_RUN_CHILDREN and sessions.is_installed()
    return may and device.has_size_classes and device.compiles_in_background


def has_size_classes(found: ModelScan | None) -> bool:
    """True if the programs of a model are for classes of sizes, which are those of axes."""
    if found is None or not found.symbols:
        return False
    return all(name.isidentifier() for name in found.symbols if name)


def may_branch(found: ModelScan | None) -> bool:
    """True if a model has an If or Loop, which may be known when it is compiled."""
    return found is not None and bool(found.op_types & CONTROL_FLOW)


def open_in_child(
    path: Path,
    open_model: Callable[..., Executable],
    arguments: tuple[Any, ...],
    meanwhile: Callable[[], object],
) -> OpenedModel | None:
    """Return what a child found that opened a model file; None if it cannot serve the model, or
    failed: then this process opens the file, or reports why it cannot. open_model: calls
    `print_description`. meanwhile: is called before this process waits for that."""
    from superopt.onnx_io.read.scan import scan_model

    state = entries.file_state(path)
    if state is None or not has_size_classes(scan := scan_model(path)):
        return None
    try:
        child = child_process.start_child(CHILD_MODULE)
    except OSError:  # no memory for another process
        return None
    used = False
    try:
        child.send(pickle.dumps((open_model, arguments, True)))
        meanwhile()
        line = child.read_line(MIN_OPEN_TIMEOUT_S + state[2] / OPEN_BYTES_PER_SECOND)
        if not line or entries.file_state(path) != state:
            return None
        found: Mapping[str, Any] = json.loads(line)
        if not found["is_served"]:
            return None
        used = bool(found["has_kernels"])
        interface = entries.parse_interface(found["interface"])
        return OpenedModel(scan, found["digest"], interface, child if used else None)
    finally:
        if not used:
            child.close()


@dataclass(slots=True)
class ReadAhead:
    """Reads a model, with its digest, and writes its large weights for a session in threads while
    the compiler is imported. mapped: the result of that."""

    import_compiler: Callable[[], object]
    mapped: list[MappedModel | None] = field(default_factory=list)

    def read(self, path: Path) -> Source:
        """Return the model."""
        from superopt.compilation.fallback.mapped_weights import map_large_weights
        from superopt.onnx_io.read.source import read_model

        source = read_model(path)
        works = (lambda: source.sha256, lambda: self.mapped.append(map_large_weights(source)))
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for each in threads:
            each.start()
        self.import_compiler()
        for each in threads:
            each.join()
        return source


def print_description(exe: Executable, digest: str, ahead: ReadAhead) -> None:
    """In a child: write a session for the parent to the disk cache, and print what the parent needs
    (`OpenedModel`)."""
    from superopt.compilation.fallback.mapped_weights import map_large_weights

    compiler, ports = exe.compiler, exe.input_ports
    is_served = (
        not any(p.has_default for p in ports)  # whose values the compiler has
        and has_symbolic_sizes(ports)
        and ShapePattern.of_ports(ports) is not None
    )
    if is_served and exe.session_cache is not None and not compiler.is_all_fallback:
        given = compiler.given_model
        given.mapped = ahead.mapped[0] if ahead.mapped else map_large_weights(given.source)
        exe.session_cache.store_session(given)
    interface = entries.ModelInterface(ports, exe.output_names)
    found = {
        "digest": digest, "interface": entries.interface_data(interface), "is_served": is_served,
        "has_kernels": not compiler.is_all_fallback,
    }  # fmt: skip
    print(json.dumps(found), flush=True)


def prepare_first_calls(exe: Executable, path: Path, opened: OpenedModel | None) -> None:
    """Let the first calls run in ONNX Runtime while a child compiles a class of their sizes; or, if
    ONNX Runtime does not run the model, compile it. path: of the model. opened: what the child
    found that opened it."""
    from superopt.onnx_io.read.scan import scan_model

    policy, classes = exe.shape_policy, exe.size_classes
    child = None if opened is None else opened.child
    classes.read()
    if not classes.classes and classes.is_supported:
        scan = scan_model(path) if opened is None else opened.scan
        exe.may_branch = may_branch(scan)
        if exe.may_branch:
            classes.any_sizes = background_flow(exe, compile_new=False)
    if classes.classes or classes.any_sizes or not classes.is_supported:
        is_compiled = bool(classes.classes or classes.any_sizes)
        policy.first_in_background = policy.is_first_due = not is_compiled
        policy.compiles_classes = is_compiled
        if child is not None:
            child.close()
        return
    if child is None and not has_size_classes(scan):
        return
    try:
        exe.keep_child(child or start_compiler(exe, is_urgent=True))
    except OSError:  # no memory for another process
        return
    with exe.exclusive():
        is_running = onnxruntime_fallback(exe) is not None
        policy.first_in_background = policy.is_first_due = is_running
        if not policy.first_in_background and (unused := exe.take_child()) is not None:
            unused.close()
