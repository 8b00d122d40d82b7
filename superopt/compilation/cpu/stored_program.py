"""Programs as data of the disk cache: a description, and object files followed by small constants.
Each large packed constant is a file of its own (constant_files.py), which programs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cache.class_entries import (
    ReadConstants,
    WriteConstants,
    read_constants,
    write_constants,
)
from superopt.cost.disk_cache import record_written
from superopt.kernels.runtime.engine import Machine
from superopt.plan.program.constant_pool import PackedConstants
from superopt.plan.program.image import LoadedProgram, ProgramImage, load_image

if TYPE_CHECKING:
    from superopt.plan.program.program import Program

Description = dict[str, Any]


def describe_program(
    image: ProgramImage, constants: PackedConstants, write: WriteConstants = write_constants
) -> tuple[Description, Sequence[bytes]] | None:
    """Write the large constants of a program; return its description and its texts. None if they
    cannot be written. write: writes constants."""
    written = write(constants)
    if written is None:
        return None
    described, small, size = written
    record_written(size)
    sizes = image.constant_bytes, image.memory_bytes, image.workspace_bytes, image.call_count
    about = {
        "objects": [*map(len, image.objects)],
        "threads": image.threads,
        "enters": image.has_enter,
        "bytes": sizes,
        "constants": described,
    }
    return about, (*image.objects, *small)


def load_program(
    about: Description,
    texts: bytes,
    machine: Machine,
    load_plan: Callable[[], Program],
    read: ReadConstants = read_constants,
) -> LoadedProgram | None:
    """Return a program that was described; None if its constants are damaged. read: reads them."""
    ends = np.cumsum([0, *about["objects"]]).tolist()
    objects = tuple(texts[a:b] for a, b in pairwise(ends))
    image = ProgramImage(objects, about["threads"], about["enters"], *about["bytes"])
    constants = read(about["constants"], image.constant_bytes, texts[ends[-1] :])
    if constants is None:
        return None
    return load_image(image, constants, machine, load_plan)
