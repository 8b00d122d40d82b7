"""The cache of compiled CPU programs (entries.py): another process loads them instead of compiling.
A model's key is the digest of its files (SHA-256), options, the processor, superopt's own files and
the store of measurements. A program is its description and object files. Large packed constants are
separate files (constant_files.py), which programs share; small ones follow the object files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cache import constant_files, entries
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.steps import ModelBinding, Variant
from superopt.cost.cache_folders import store_path
from superopt.cost.disk_cache import record_written
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.runtime import file_cache as files
from superopt.kernels.runtime.engine import LLVMLITE_VERSION, Machine, host
from superopt.plan.program.constant_pool import CONSTANT_POOL, PackedConstants
from superopt.plan.program.image import ProgramImage, aligned_zeros, load_image

if TYPE_CHECKING:
    from superopt.compilation.cpu.device import CpuDevice
    from superopt.compilation.model.compiler import Compiler
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program

COMPILE_SECONDS_KIND = "seconds"  # kind of the entry with the compile time
MAX_INLINE_BYTES = 1 << 14  # of a constant that is stored with its program's description
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
            ends = np.cumsum([0, *about["objects"]]).tolist()
            objects = tuple(texts[a:b] for a, b in pairwise(ends))
            image = ProgramImage(objects, about["threads"], about["enters"], *about["bytes"])
            constants = _read_constants(about["constants"], image.constant_bytes, texts[ends[-1] :])
            if constants is None:
                return None
            both = cache(lambda: replan(about["options"]))
            code = load_image(image, constants, self.machine, lambda: both()[1])
            specs = tuple(
                (tuple(shape), entries.parse_dtype(name)) for shape, name in about["specs"]
            )
            whole = ModelBinding(tuple(about["takes"]), dict(about["gives"]))
            return NativeSegment(code, specs, lambda: both()[0], whole)

        key = entries.digest_json((self.key, sizes))
        return entries.read_program(key, parse_program)

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
        held = segment.code.constants
        large = [a for a in held.arrays if len(a) > MAX_INLINE_BYTES]
        if segment.binding is None or not entries.is_cacheable(sum(map(len, large))):
            return
        about = {
            "options": {key: str(o) for key, o in segment.code.program.options.items()},
            "objects": [*map(len, image.objects)],
            "threads": image.threads,
            "enters": image.has_enter,
            "bytes": (image.constant_bytes, image.memory_bytes, image.workspace_bytes),
            "specs": [(shape, dtype.name) for shape, dtype in segment.output_specs],
            "takes": segment.binding.input_numbers,
            "gives": [*segment.binding.output_numbers.items()],
        }
        described, size = [], 0
        small: list[bytes] = []
        for at, digest, a in zip(held.offsets, held.digests, held.arrays, strict=True):
            check = ""
            if len(a) > MAX_INLINE_BYTES:
                check = constant_files.checksum(a)
                if not constant_files.write_constant(digest, a):
                    return
                size += len(a)
            else:
                small.append(a.tobytes())
            described.append((at, digest, len(a), check))
        key = entries.digest_json((self.key, sizes))
        texts = (*image.objects, *small)
        entries.write_program(key, {**about, "constants": described}, texts)
        record_written(size + sum(map(len, texts)))


def _read_constants(
    entries_data: list[list[Any]], size: int, inline_bytes: bytes
) -> PackedConstants | None:
    """Return a program's constants; None if one of them is damaged. size: of all of them."""
    arrays = []
    inline = aligned_zeros(len(inline_bytes))
    inline[:] = np.frombuffer(inline_bytes, np.uint8)
    at = 0
    for _, digest, length, check in entries_data:
        if check:
            found = constant_files.read_constant(digest, length, check)
        else:
            found = CONSTANT_POOL.add(digest, inline[at : at + length])
            at += length
        if found is None:
            return None
        arrays.append(found)
    places, digests = (tuple(c[n] for c in entries_data) for n in (0, 1))
    return PackedConstants(places, size, digests, tuple(arrays))
