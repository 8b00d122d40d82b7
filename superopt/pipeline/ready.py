"""The cache of compiled CPU programs (entries.py): another process loads them instead of compiling.
A model's key is the digest of its files (SHA-256), options, the processor, superopt's own files and
the store of measurements. A program is its description and object files. Large packed constants are
separate files (constant_files.py), which programs share; small ones follow the object files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.cost.disk_cache import written
from superopt.cost.folder import store_file
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.runtime import file_cache as files
from superopt.kernels.runtime.engine import LLVMLITE_VERSION, Machine
from superopt.pipeline import constant_files, entries
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.native import Native, Whole
from superopt.plan.program.constant_pool import CONSTANT_POOL, PackedConstants
from superopt.plan.program.image import ProgramImage, aligned_zeros, load_image

if TYPE_CHECKING:
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program

SECONDS = "seconds"  # kind of the entry with the compile time
INLINE_BYTES = 1 << 14  # of a constant that is stored with its program's description
Planned = Callable[[dict[str, str]], "tuple[Segment, Program]"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a model is compiled with. store: the file of measurements."""

    threads: int
    allowed: Allowed
    machine: Machine
    store: Path | None

    def key(self, digest: str) -> str:
        """Return the key of a model whose files have this digest."""
        on, may = self.machine, self.allowed
        about = (
            entries.FORMAT,
            digest,
            self.threads,
            may.float_class,
            may.partial,
            on.cpu,
            on.features,
            on.width,
            LLVMLITE_VERSION,
            np.__version__,
            sys.version,
            object_offsets(),
            entries.own_files(),
            entries.state_of(store_file(self.store)),
        )
        return entries.sum_of(about)


@dataclass(frozen=True, slots=True)
class Kept:
    """The cached programs of a model."""

    key: str
    machine: Machine

    def find(self, sizes: Sequence[tuple[str, int]], planned: Planned) -> Native | None:
        """Return the program for these sizes; None if there is no intact one. replan: returns its
        segment and its plan with these options; called on demand."""

        def parsed(about: dict[str, Any], texts: bytes) -> Native | None:
            ends = np.cumsum([0, *about["objects"]]).tolist()
            objects = tuple(texts[a:b] for a, b in pairwise(ends))
            image = ProgramImage(objects, about["threads"], about["enters"], *about["bytes"])
            constants = _constants(about["constants"], image.constant_bytes, texts[ends[-1] :])
            if constants is None:
                return None
            both = cache(lambda: planned(about["options"]))
            code = load_image(image, constants, self.machine, lambda: both()[1])
            specs = tuple(
                (tuple(shape), entries.dtype_named(name)) for shape, name in about["specs"]
            )
            whole = Whole(tuple(about["takes"]), dict(about["gives"]))
            return Native(code, specs, lambda: both()[0], whole)

        key = entries.sum_of((self.key, sizes))
        return entries.program(key, parsed)

    def seconds(self) -> float | None:
        """Return the time that compiling the model for further sizes took; None if unknown."""
        return entries.entry(entries.sum_of((self.key, SECONDS)), SECONDS, float)

    def keep_seconds(self, seconds: float) -> None:
        """Store the expected time of compiling for further sizes."""
        key = entries.sum_of((self.key, SECONDS))
        files.write(entries.folder(), key, repr(seconds).encode(), SECONDS)

    def keep(self, sizes: Sequence[tuple[str, int]], made: Native, image: ProgramImage) -> None:
        """Store a program that is a whole model."""
        held = made.code.constants
        large = [a for a in held.arrays if len(a) > INLINE_BYTES]
        if made.whole is None or not entries.fits(sum(map(len, large))):
            return
        about = {
            "options": {key: str(o) for key, o in made.code.program.options.items()},
            "objects": [*map(len, image.objects)],
            "threads": image.threads,
            "enters": image.has_enter,
            "bytes": (image.constant_bytes, image.memory_bytes, image.workspace_bytes),
            "specs": [(shape, dtype.name) for shape, dtype in made.specs],
            "takes": made.whole.takes,
            "gives": [*made.whole.gives.items()],
        }
        described, size = [], 0
        small: list[bytes] = []
        for at, digest, a in zip(held.offsets, held.digests, held.arrays, strict=True):
            check = ""
            if len(a) > INLINE_BYTES:
                check = constant_files.checksum(a)
                if not constant_files.keep(digest, a):
                    return
                size += len(a)
            else:
                small.append(a.tobytes())
            described.append((at, digest, len(a), check))
        key = entries.sum_of((self.key, sizes))
        texts = (*image.objects, *small)
        entries.keep_program(key, {**about, "constants": described}, texts)
        written(size + sum(map(len, texts)))


def _constants(about: list[list[Any]], size: int, small: bytes) -> PackedConstants | None:
    """Return a program's constants; None if one of them is damaged. size: of all of them."""
    arrays = []
    inline = aligned_zeros(len(small))
    inline[:] = np.frombuffer(small, np.uint8)
    at = 0
    for _, digest, length, check in about:
        if check:
            found = constant_files.read(digest, length, check)
        else:
            found = CONSTANT_POOL.add(digest, inline[at : at + length])
            at += length
        if found is None:
            return None
        arrays.append(found)
    places, digests = (tuple(c[n] for c in about) for n in (0, 1))
    return PackedConstants(places, size, digests, tuple(arrays))
