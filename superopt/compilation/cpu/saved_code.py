"""Load machine code out of a saved model (machine_code.py), without the compiler."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from superopt import __version__
from superopt.compilation.artifact.constant_reader import ConstantReader
from superopt.compilation.cache import entries
from superopt.compilation.cpu.device import CpuDevice
from superopt.compilation.cpu.stored_steps import load_steps
from superopt.compilation.frontend.input_arrays import Sizes, sorted_sizes
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.saved_model import SavedModel
from superopt.compilation.model.steps import Variant
from superopt.errors import SuperoptError
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.processor import TILE_INSTRUCTIONS
from superopt.kernels.runtime.amx import request_amx
from superopt.kernels.runtime.engine import Machine, host
from superopt.kernels.runtime.target_cpu import missing_features
from superopt.onnx_io.export.section_file import damaged_file_error

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler

LOG = logging.getLogger("superopt.compile")
CODE_FORMAT = 1


def platform_name() -> str:
    """Return what object files are for."""
    return f"{sys.platform} {platform.machine().lower()}"


def open_code(
    saved: SavedModel, threads: int | None, load_compiler: Callable[[], Compiler]
) -> Executable | None:
    """Return the executable of a saved model's machine code; None if this processor, this version
    of superopt, or so many threads need other code, which is logged. Raises UsageError for damaged
    code."""
    assert saved.contents is not None
    reason, number = _find_processor(saved, threads)
    if number is None:
        LOG.warning("%s: kernels are compiled: %s", saved.label, reason)
        return None
    weights = saved.contents.weights
    with ThreadPoolExecutor(1) as pool:
        is_checked = pool.submit(weights.check)
        try:
            out = _load_programs(saved, number, load_compiler)
        except SuperoptError:
            raise
        except Exception as e:  # any error in parsing what its digest admits
            is_checked.result()
            raise damaged_file_error(weights.path, f"{type(e).__name__}: {e}") from None
        is_checked.result()
    return out


def _find_processor(saved: SavedModel, threads: int | None) -> tuple[str, int | None]:
    """Return the number of the processor's code with the most instruction sets that this one has;
    else a reason."""
    assert saved.contents is not None
    assert saved.contents.code is not None
    about = saved.contents.code
    made_by = about["package"], about["format"]
    if made_by != (__version__, CODE_FORMAT):
        return f"their code is of superopt {about['package']}", None
    if about["platform"] != platform_name():
        return f"their code is for {about['platform']}", None
    if threads not in (None, saved.threads):
        return f"their code is for {saved.threads} threads", None
    here, found, reasons = host(), [], []
    for n, each in enumerate(about["processors"]):
        machine = Machine(*each["machine"])
        if missing := missing_features(machine.features, here.features):
            reasons.append(f"code for {each['name']} needs {', '.join(missing[:4])}")
        elif {*each["instructions"]} & {*TILE_INSTRUCTIONS} and not request_amx():
            reasons.append(f"code for {each['name']} needs AMX, which the system does not permit")
        else:
            found.append((machine.features.count("+"), n))
    return "; ".join(reasons), max(found)[1] if found else None


def _load_programs(
    saved: SavedModel, number: int, load_compiler: Callable[[], Compiler]
) -> Executable:
    contents = saved.contents
    assert contents is not None
    assert contents.code is not None
    code = contents.code
    each, section = code["processors"][number], contents.processors[number]
    view = section.region.view()
    if hashlib.sha256(view).hexdigest() != each["digest"]:
        why = f"the code for {each['name']} does not match its digest"
        raise damaged_file_error(section.path, why)
    data_size, text_size, _ = each["parts"]
    ends = data_size, data_size + text_size
    held = json.loads(bytes(view[ends[1] :]))
    texts = bytes(view[ends[0] : ends[1]])
    machine = Machine(*each["machine"])
    reader = ConstantReader(held["recipes"], contents.weight_views(), view[:data_size])
    keeps_entry = tuple(code["offsets"] or ()) == (object_offsets() or ())
    compiler = cache(load_compiler)
    programs: dict[Sizes, Any] = {
        tuple((str(name), int(n)) for name, n in p["sizes"]): p for p in held["programs"]
    }

    def find(sizes: Sizes) -> Variant | None:
        if (p := programs.get(sizes)) is None:
            return None
        steps = p["steps"] if keeps_entry else _without_entries(p["steps"])
        loaded = load_steps(steps, texts[slice(*p["text"])], machine, reader.read)
        if loaded is None:
            return None
        at = tuple(s.at_sizes(dict(sizes)) for s in loaded.steps)

        def load_model() -> Any:
            return compiler().compiler_for(dict(sizes)).model

        return Variant(at, load_model, {}, given_values=loaded.values)

    interface = entries.parse_interface(code["interface"])
    device = CpuDevice(saved.threads, saved.precision)
    out = Executable(interface.input_ports, interface.output_names, device, compiler, find)
    for sizes in saved.sizes:
        out.runnable(dict(sorted_sizes(sizes)))
    return out


def _without_entries(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return steps without the entry that reads objects of another Python: the last object file."""
    steps = [
        {**s, "objects": s["objects"][:-1], "enters": False} if s.get("enters") else s
        for s in about["steps"]
    ]
    return {**about, "steps": steps}
