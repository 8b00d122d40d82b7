"""The cache of compiled CPU programs (entries.py): another process loads them instead of compiling.
A model's key is the digest of its files (SHA-256), options, the processor, superopt's own files and
the store of measurements. A program is its description and object files. Large packed constants are
separate files (constant_files.py), which programs share; small ones follow the object files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cache import entries
from superopt.compilation.cache.class_entries import (
    class_key,
    read_class_formulas,
    read_constants,
    write_class_formulas,
    write_constants,
)
from superopt.compilation.cpu.native_segment import NativeSegment, SymbolicSegment
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.size_classes import SizeClass
from superopt.compilation.model.steps import ModelBinding, Variant
from superopt.cost.cache_folders import store_path
from superopt.cost.disk_cache import record_written
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.runtime import file_cache as files
from superopt.kernels.runtime.engine import LLVMLITE_VERSION, Machine, host
from superopt.plan.program.constant_pool import PackedConstants
from superopt.plan.program.image import LoadedProgram, ProgramImage, load_image
from superopt.plan.program.size_formulas import SizeFormulas

if TYPE_CHECKING:
    from superopt.compilation.cpu.device import CpuDevice
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.state_programs import StateNames
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program

COMPILE_SECONDS_KIND = "seconds"  # kind of the entry with the compile time
Replan = Callable[[dict[str, str]], "tuple[Segment, Program]"]


def open_program_cache(
    options: CompileOptions, device: CpuDevice, digest: str, load_compiler: Callable[[], Compiler]
) -> CpuProgramCache:
    """Return the cached programs of a model whose files have this digest."""
    machine = host()
    about = (
        entries.FORMAT_VERSION,
        digest,
        options.threads,
        options.allowed.float_class,
        options.allowed.partial_rules,
        machine.cpu,
        machine.features,
        machine.width,
        LLVMLITE_VERSION,
        np.__version__,
        sys.version,
        object_offsets(),
        entries.package_state("onnxruntime"),
        entries.package_state_digest(),
        entries.file_state(store_path(options.store)),
    )
    return CpuProgramCache(entries.digest_json(about), machine, load_compiler)


@dataclass(frozen=True, slots=True)
class CpuProgramCache:
    """The cached programs of a model. load_compiler: returns its compiler, for their plans."""

    key: str
    machine: Machine
    load_compiler: Callable[[], Compiler]

    def find(self, sizes: Sizes) -> Variant | None:
        """Return the program for these sizes; None if there is no intact one."""

        def replan(options: dict[str, str]) -> tuple[Segment, Program]:
            return self.load_compiler().replan(dict(sizes), options)

        found = self.find_program(sizes, replan)
        if found is None:
            return None
        return Variant((found,), lambda: self.load_compiler().compiler_for(dict(sizes)).model)

    def store(self, sizes: Sizes, variant: Variant, expected_seconds: float) -> None:
        """Store a program that is a whole model. expected_seconds: of compiling for further
        sizes."""
        step = variant.bound_step
        if isinstance(step, NativeSegment):
            generator: Any = self.load_compiler().generator
            self.store_program(sizes, step, generator.program_image(step))
            self.store_compile_seconds(expected_seconds)

    def find_program(self, sizes: Sizes, replan: Replan) -> NativeSegment | None:
        """Return the program for these sizes; None if there is no intact one. replan: returns its
        segment and its plan with these options; called on demand."""

        def parse_program(about: dict[str, Any], texts: bytes) -> NativeSegment | None:
            both = cache(lambda: replan(about["options"]))
            code = self._load_code(about, texts, lambda: both()[1])
            if code is None:
                return None
            specs = tuple(
                (tuple(shape), entries.parse_dtype(name)) for shape, name in about["specs"]
            )
            return NativeSegment(code, specs, lambda: both()[0], _parse_binding(about))

        key = entries.digest_json((self.key, sizes))
        return entries.read_program(key, parse_program)

    def find_classes(self) -> Sequence[SizeClass] | None:
        """Return the programs for classes of sizes; None if the model is known to have none."""
        found = read_class_formulas(self.key)
        if found is None:
            return None
        return [
            SizeClass(
                each, cache(partial(self._find_steps, each)), lambda: self.load_compiler().model
            )
            for each in found
        ]

    def store_class(self, made: SizeClass | None) -> None:
        """Store a program for a class of sizes; None: the model has none."""
        known = [] if made is None else [c.formulas for c in self.find_classes() or ()]
        if made is not None:
            step = (*(made.load_steps() or ()), None)[0]
            if not isinstance(step, SymbolicSegment) or step.image is None or step.binding is None:
                return  # it has parts in ONNX Runtime
            about = {"example": step.example, "dtypes": [d.name for d in step.output_dtypes]}
            key = class_key(self.key, made.formulas)
            if not _write_program(key, about, step.image, step.code.constants, step.binding):
                return
            known.append(made.formulas)
        write_class_formulas(self.key, known)

    def with_states(self, names: StateNames) -> CpuProgramCache:
        """Return the cache of the programs that keep these states in place."""
        key = entries.digest_json((self.key, names))
        return CpuProgramCache(key, self.machine, lambda: self.load_compiler().with_states(names))

    def _find_steps(self, formulas: SizeFormulas) -> tuple[SymbolicSegment] | None:
        """Return the only step of a class; None if it is not intact."""

        def load_segment() -> Segment:
            return self.load_compiler().class_segment(example)

        def no_plan() -> Program:
            raise NotImplementedError("the plan of a cached program for a class of sizes")

        def parse_program(about: dict[str, Any], texts: bytes) -> SymbolicSegment | None:
            example.update(about["example"])
            code = self._load_code(about, texts, no_plan)
            if code is None:
                return None
            dtypes = tuple(map(entries.parse_dtype, about["dtypes"]))
            return SymbolicSegment(
                code, formulas, dtypes, load_segment, example, _parse_binding(about)
            )

        example: dict[str, int] = {}
        found = entries.read_program(class_key(self.key, formulas), parse_program)
        return None if found is None else (found,)

    def _load_code(
        self, about: dict[str, Any], texts: bytes, load_plan: Callable[[], Program]
    ) -> LoadedProgram | None:
        """Return the code of a cached program; None if its constants are damaged."""
        ends = np.cumsum([0, *about["objects"]]).tolist()
        objects = tuple(texts[a:b] for a, b in pairwise(ends))
        image = ProgramImage(objects, about["threads"], about["enters"], *about["bytes"])
        constants = read_constants(about["constants"], image.constant_bytes, texts[ends[-1] :])
        if constants is None:
            return None
        return load_image(image, constants, self.machine, load_plan)

    def compile_seconds(self) -> float | None:
        """Return the time that compiling the model for further sizes took; None if unknown."""
        return entries.read_entry(
            entries.digest_json((self.key, COMPILE_SECONDS_KIND)), COMPILE_SECONDS_KIND, float
        )

    def store_compile_seconds(self, seconds: float) -> None:
        """Store the expected time of compiling for further sizes."""
        key = entries.digest_json((self.key, COMPILE_SECONDS_KIND))
        files.write(entries.cache_folder(), key, repr(seconds).encode(), COMPILE_SECONDS_KIND)

    def store_program(self, sizes: Sizes, segment: NativeSegment, image: ProgramImage) -> None:
        """Store a program that is a whole model."""
        if segment.binding is None:
            return
        about = {
            "options": {key: str(o) for key, o in segment.code.program.options.items()},
            "specs": [(shape, dtype.name) for shape, dtype in segment.output_specs],
        }
        key = entries.digest_json((self.key, sizes))
        _write_program(key, about, image, segment.code.constants, segment.binding)


def _write_program(
    key: str,
    about: Mapping[str, object],
    image: ProgramImage,
    constants: PackedConstants,
    binding: ModelBinding,
) -> bool:
    """Write a program with its description; False if its constants cannot be written."""
    written = write_constants(constants)
    if written is None:
        return False
    described, small, size = written
    whole = {
        **about,
        "objects": [*map(len, image.objects)],
        "threads": image.threads,
        "enters": image.has_enter,
        "bytes": (
            image.constant_bytes, image.memory_bytes, image.workspace_bytes, image.call_count
        ),
        "takes": binding.input_numbers,
        "gives": [*binding.output_numbers.items()],
        "states": [*binding.state_axes.items()],
        "constants": described,
    }  # fmt: skip
    texts = (*image.objects, *small)
    entries.write_program(key, whole, texts)
    record_written(size + sum(map(len, texts)))
    return True


def _parse_binding(about: Mapping[str, Any]) -> ModelBinding:
    return ModelBinding(tuple(about["takes"]), dict(about["gives"]), dict(about["states"]))
