"""What became of the weights of a model that was written with external data."""

from __future__ import annotations

import os
from pathlib import Path

from superopt.errors import ModelError
from superopt.guard import size_text
from superopt.onnx_io.read.source import read_model


def weights_summary(output: Path, model: Path) -> list[str]:
    """Return a sentence for each data file of a written model: whether it is one of `model`'s own,
    which must stay where it is, or was written."""
    if not output.is_file() or os.path.samefile(output, model):
        return []
    try:
        held, written = (read_model(path).skeleton.files.values() for path in (model, output))
    except ModelError:
        return []  # another process has changed them since
    own, found = {os.path.realpath(b.name) for b in held}, []
    for backing in written:
        size = size_text(len(backing.view))
        if os.path.realpath(backing.name) in own:
            found.append(f"{output.name} reads {backing.name} ({size}) of {model.name}: not copied")
        else:
            found.append(f"wrote {backing.name} ({size})")
    return found
