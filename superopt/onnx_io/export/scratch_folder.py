"""A private temporary folder."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class ScratchFolder:
    """A folder that is removed with this object, by `remove`, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="superopt-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, True)
