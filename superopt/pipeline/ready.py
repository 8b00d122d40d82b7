"""Compiled models of the processor that are kept whole, so that another process has them soon
(entries.py). A model's key is made from its files (SHA-256), options, the processor, superopt's own
files and the store of measurements; a program is its description and object files, and beside them
its constants as kernels read them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.cost.folder import store_file
from superopt.kernels.engine import VERSION, Machine
from superopt.kernels.enter import places
from superopt.pipeline import entries
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.native import Native, Whole
from superopt.plan.image import Image, aligned, ready

if TYPE_CHECKING:
    from superopt.plan.build import Program
    from superopt.plan.segments import Segment

Planned = Callable[[dict[str, str]], "tuple[Segment, Program]"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a model is compiled with. store: where measurements are kept."""

    threads: int
    allowed: Allowed
    machine: Machine
    store: Path | None

    def key(self, digest: str) -> str:
        """Of a model whose files have this digest."""
        on, may = self.machine, self.allowed
        about = (
            entries.FORMAT, digest, self.threads, may.float_class, may.partial, on.cpu, on.features,
            on.width, VERSION, np.__version__, sys.version, places(), entries.own_files(),
            entries.state_of(store_file(self.store)),
        )  # fmt: skip
        return entries.sum_of(about)


@dataclass(frozen=True, slots=True)
class Kept:
    """A model's entries."""

    key: str
    machine: Machine

    def find(self, sizes: Sequence[tuple[str, int]], planned: Planned) -> Native | None:
        """The program for these sizes; None where there is none that is whole. planned: gives its
        segment, and how it was planned with these options, when this is asked for."""

        def parsed(about: dict[str, Any], texts: bytes) -> Native | None:
            ends = np.cumsum([0, *about["objects"]]).tolist()
            objects = tuple(texts[a:b] for a, b in pairwise(ends))
            image = Image(objects, about["threads"], about["enters"], *about["bytes"])
            constants = aligned(image.constants)
            if not entries.filled(key, constants, about["check"]):
                return None
            both = cache(lambda: planned(about["options"]))
            code = ready(image, constants, self.machine, lambda: both()[1])
            specs = tuple((tuple(shape), np.dtype(name)) for shape, name in about["specs"])
            whole = Whole(tuple(about["takes"]), dict(about["gives"]))
            return Native(code, specs, lambda: both()[0], whole)

        key = entries.sum_of((self.key, sizes))
        return entries.program(key, parsed)

    def keep(self, sizes: Sequence[tuple[str, int]], made: Native, image: Image) -> None:
        """Write down a program that is a whole model."""
        if made.whole is None:
            return
        about = {
            "options": {key: str(o) for key, o in made.code.program.options.items()},
            "objects": [*map(len, image.objects)],
            "threads": image.threads,
            "enters": image.enters,
            "bytes": (image.constants, image.memory, image.workspace),
            "specs": [(shape, dtype.name) for shape, dtype in made.specs],
            "takes": made.whole.takes,
            "gives": [*made.whole.gives.items()],
        }
        key = entries.sum_of((self.key, sizes))
        entries.keep(key, about, image.objects, made.code.constants)
