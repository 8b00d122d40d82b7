"""Machine code in a saved model: the programs of a model, compiled for named processors, with the
recipes of their constants (artifact/constant_writer.py). saved_code.py loads them.

A section has small constants, the object files, and JSON: where each program's object files are,
its steps (stored_steps.py), and recipes by digest. The file's description says what the code needs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt import __version__
from superopt.compilation.artifact.constant_writer import ConstantWriter
from superopt.compilation.artifact.describe_recipes import WeightIndex
from superopt.compilation.cache import entries
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.cpu.saved_code import CODE_FORMAT, platform_name
from superopt.compilation.cpu.stored_steps import describe_steps, fixed_steps
from superopt.compilation.model.saved_source import WrittenCode
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.runtime.amx import bf16_instructions, integer_instructions
from superopt.kernels.runtime.engine import Machine, named_machine

if TYPE_CHECKING:
    from superopt.compilation.cpu.code_generator import CpuCodeGenerator
    from superopt.compilation.frontend.input_arrays import Sizes
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import Variant
    from superopt.onnx_io.read.source import Source

LOG = logging.getLogger("superopt.compile")


def compile_ahead(
    generator: CpuCodeGenerator,
    exe: Executable,
    variants: Mapping[Sizes, Variant],
    source: Source,
    names: Sequence[str],
) -> WrittenCode:
    """Return the code of programs for these processors. variants: for this one. source: the model
    that is saved beside it. Raises UsageError for an unknown name."""
    machines = {name: named_machine(name) for name in names}
    weights = WeightIndex(source.skeleton.blobs)
    described, sections = [], []
    for name, machine in machines.items():
        own = variants
        if machine != generator.machine:
            other = generator.compile_for(machine, exe)
            own = {key: other.variant(dict(key)) for key in variants}
        data, parts = _describe_programs(generator, machine, own, weights)
        described.append(
            {
                "name": name,
                "machine": [machine.cpu, machine.features, machine.width],
                "instructions": _instructions(generator, machine),
                "parts": parts,
                "digest": hashlib.sha256(data).hexdigest(),
            }
        )
        sections.append(data)
    interface = entries.ModelInterface(exe.input_ports, exe.output_names)
    about = {
        "format": CODE_FORMAT,
        "package": __version__,
        "platform": platform_name(),
        "offsets": object_offsets(),
        "interface": entries.interface_data(interface),
        "processors": described,
    }
    return WrittenCode(about, tuple(sections))


def _instructions(generator: CpuCodeGenerator, machine: Machine) -> list[str]:
    bf16 = generator.device.precision == "bf16"
    some = bf16_instructions(machine) if bf16 else "", integer_instructions(machine)
    return [*filter(None, some)]


def _describe_programs(
    generator: CpuCodeGenerator,
    machine: Machine,
    variants: Mapping[Sizes, Variant],
    weights: WeightIndex,
) -> tuple[bytes, list[int]]:
    """Return the section of a processor, and the bytes of its parts."""
    writer = ConstantWriter(weights)
    own = replace(generator, machine=machine)
    texts: list[bytes] = []
    programs: list[Any] = []
    for sizes, variant in variants.items():
        if not all(isinstance(s, NativeSegment) for s in variant):
            LOG.warning("parts run in onnxruntime: no machine code is saved for sizes %s", sizes)
            continue
        for s in variant:
            writer.add_program(s.program, s.code.constants)
        steps = fixed_steps(variant, own.program_image)
        values = variant.values
        made = describe_steps(steps, values.inputs, values.outputs, writer.write)
        if made is None:
            continue
        about, some = made
        begin = sum(map(len, texts))
        texts += some
        programs.append({"sizes": sizes, "steps": about, "text": [begin, sum(map(len, texts))]})
    text = json.dumps({"programs": programs, "recipes": writer.recipes}).encode()
    parts = writer.data(), b"".join(texts), text
    return b"".join(parts), [*map(len, parts)]
