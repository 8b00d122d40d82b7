"""One file with the data of all large weights of models that are only timed.

A part of a large model has weights of hundreds of megabytes, whose values do not matter. To draw,
serialize and parse them takes longer than to time the part. As external data in one file, each
where another begins a page later, they take no time: onnxruntime maps the file. Their contents
differ, because onnxruntime packs equal weights once, and they would stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as oir

from superopt import guard
from superopt.onnx_io.export.scratch_folder import ScratchFolder
from superopt.onnx_io.import_.constants import tensor_dims

MIN_SHARED_BYTES = 1 << 20  # of a weight in the file; smaller ones may decide what is fused
_MAX_WEIGHTS = 256  # with places of their own
_PAGE_BYTES = 4096
_DRAWN_FLOATS = (1 << 20) + 1  # that are repeated: no two pages are equal
_NAME = "weights.data"


@dataclass(slots=True)
class StandInFile:
    """The file, a little larger than the largest weight, and models beside it that refer to it. All
    are removed with this object."""

    size: int = 0
    _folder: ScratchFolder | None = field(default=None, repr=False)
    _count: int = 0

    def replace_weights(self, model: oir.Model) -> bool:
        """Let the large float initializers of a model refer to the file. Return whether there are
        any."""
        found = False
        for name, v in model.graph.initializers.items():
            t = v.const_value
            if t is None or t.nbytes < MIN_SHARED_BYTES or not t.dtype.is_floating_point():
                continue
            offset, folder = self._place(t.nbytes), self._grow(t.nbytes)
            shape = oir.Shape(tensor_dims(t))
            v.const_value = oir.ExternalTensor(
                _NAME, offset, t.nbytes, t.dtype, shape=shape, name=name, base_dir=folder
            )
            found = True
        return found

    def fill(self, tensor: onnx.TensorProto, size: int) -> None:
        """Let a tensor of so many bytes refer to the file."""
        self._grow(size)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": _NAME, "offset": self._place(size), "length": size}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))

    def write_model(self, data: bytes, number: int = 0) -> Path:
        """Write a model beside the file, instead of the one with this number before it; return its
        path."""
        path = self._grow(0) / f"model{number}.onnx"
        path.write_bytes(data)
        return path

    def _place(self, size: int) -> int:
        """Return the next offset."""
        self._count += 1
        return self._count % _MAX_WEIGHTS * _PAGE_BYTES

    def _grow(self, size: int) -> Path:
        """Return the folder of the file, which has room for so many bytes at every place
        afterwards."""
        if self._folder is None:
            self._folder = ScratchFolder()
        wanted = size + _MAX_WEIGHTS * _PAGE_BYTES
        if size and wanted > self.size:
            drawn = np.random.default_rng(0).standard_normal(_DRAWN_FLOATS, np.float32).tobytes()
            with (self._folder.path / _NAME).open("ab") as file:
                while self.size < wanted:
                    guard.check_time("writing stand-ins for weights")
                    self.size += file.write(drawn)
        return self._folder.path
