"""A model's large initializers as files of the cache on disk, for onnxruntime to map.

onnxruntime copies the weights of an .onnx file into memory of its own: opening it takes 1.7 times
the file's bytes. Weights that are external data it maps, so that those which its kernels pack are
given back afterwards, and of tables only the rows that are read are resident (bert_2l, 147 MiB:
a peak of 97 MiB instead of 247). The cache's files are never written in place, as the user's may
be, and are the same as those of packed constants in the original's layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from superopt.cost.disk_cache import written
from superopt.cost.folder import constants_folder
from superopt.onnx_io.external_weights import large_initializers, with_external_weights
from superopt.onnx_io.read.source import Source
from superopt.pipeline import constant_files, entries

MAPPED_TENSOR_BYTES: Final = 1 << 20  # from which on an initializer is a file
MAPPED_MODEL_BYTES: Final = 32 << 20  # of such initializers, from which on a model has files


@dataclass(frozen=True, slots=True)
class MappedModel:
    """data: of a ModelProto whose large initializers are external data in `folder`."""

    data: bytes
    folder: Path


def mapped_model(source: Source) -> MappedModel | None:
    """The model with its large initializers in files of the cache.

    None where these are small or external data already, and where the cache does not take them."""
    large = large_initializers(source, MAPPED_TENSOR_BYTES)
    total = sum(region.size for region in large.values())
    if total < MAPPED_MODEL_BYTES or not entries.fits(total):
        return None
    files: dict[str, str] = {}
    for name, region in large.items():
        digest = constant_files.keep_region(region)
        if digest is None:
            return None
        files[name] = f"{digest}{constant_files.SUFFIX}"
    data = with_external_weights(source, files)
    written(total)
    return None if data is None else MappedModel(data, constants_folder())
