"""A model's large initializers as files of the disk cache, which ONNX Runtime maps.

ONNX Runtime copies the weights of an .onnx file: opening it takes 1.7 times the file's bytes. It
maps weights that are external data, so that pages of weights which its kernels pack are released,
and only the rows of a table that are read become resident (bert_2l, 147 MiB: a peak of 97 MiB
instead of 247). Files of the cache are never written in place, as the user's may be, and they are
the same files as those of packed constants in the original layout.
"""

from __future__ import annotations

from typing import Final

from superopt.compilation.cache import constant_files, entries
from superopt.compilation.fallback.whole_model import MappedModel
from superopt.cost.disk_cache import record_written
from superopt.onnx_io.external_weights import large_initializers, with_external_weights
from superopt.onnx_io.read.source import Source

MIN_MAPPED_TENSOR_BYTES: Final = 1 << 20  # smaller initializers are copied
MIN_MAPPED_MODEL_BYTES: Final = 32 << 20  # total of such initializers; smaller models are copied


def map_large_weights(source: Source) -> MappedModel | None:
    """Return the model with its large initializers in files of the cache.

    None if these are small or external data already, or if the cache cannot store them.
    """
    large = large_initializers(source, MIN_MAPPED_TENSOR_BYTES)
    total = sum(region.size for region in large.values())
    if total < MIN_MAPPED_MODEL_BYTES or not entries.is_cacheable(total):
        return None
    digests: dict[str, str] = {}
    for name, region in large.items():
        digest = constant_files.write_region(region)
        if digest is None:
            return None
        digests[name] = digest
    files = {name: constant_files.constant_path(d).name for name, d in digests.items()}
    data = with_external_weights(source, files)
    record_written(total)
    sums = [constant_files.file_checksum(d) for d in dict.fromkeys(digests.values())]
    weights = tuple(w for w in sums if w is not None)
    return None if data is None or len(weights) < len(sums) else MappedModel(data, weights)
