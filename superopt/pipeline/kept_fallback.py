"""The cache of models that run entirely in ONNX Runtime: another process opens the session, and
loads neither the compiler nor LLVM.

A key is the digest of the model's files (SHA-256), the options, the processor's flags, superopt's
own files and the store of measurements. Under it are the model's interface, and an entry for each
set of sizes at which nothing was compiled, or one for all sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from superopt.cost.folder import store_file
from superopt.cost.machine import machine
from superopt.errors import SuperoptError
from superopt.kernels.runtime import file_cache as files
from superopt.ort import runtime
from superopt.pipeline import entries
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.fallback import Fallback

if TYPE_CHECKING:
    from superopt.ir import graph as ir_graph

Sizes = Sequence[tuple[str, int]]
KIND = "fallback"
ALL = "all sizes"


@dataclass(frozen=True, slots=True)
class Options:
    """What a model is compiled with. store: the file of measurements."""

    threads: int
    allowed: Allowed
    store: Path | None

    def key(self, digest: str) -> str:
        """Return the key of a model whose files have this digest."""
        may = self.allowed
        about = (
            entries.FORMAT, KIND, digest, self.threads, may.float_class, may.partial,
            machine().flags_digest, np.__version__, sys.version, entries.own_files(),
            entries.state_of(store_file(self.store)),
        )  # fmt: skip
        return entries.sum_of(about)


@dataclass(slots=True)
class Kept:
    """The cache entries of a model in a file. cached_fallback: the session, once it is open;
    load_graph: returns the model's graph."""

    key: str
    path: Path
    threads: int
    interface: entries.Interface
    graph: Callable[[], ir_graph.Graph]
    found: Fallback | None = field(default=None)

    def find(self, sizes: Sizes) -> Fallback | None:
        """Return the model in ONNX Runtime; None if it is not known to run there at these sizes, or
        if ONNX Runtime is not installed or rejects the file."""
        if (how := self._known(ALL) or self._known(sizes)) is None:
            return None
        if self.found is None:
            try:
                session = runtime.session_of_part(self.path, self.threads, *how)
            except SuperoptError:
                return None
            takes = tuple(p.name for p in self.interface.ports)
            self.found = Fallback(session, takes, self.interface.outputs, self.graph)
        return self.found

    def keep(self, sizes: Sizes | None, level: str, unsigned_weights: bool) -> None:
        """Store that nothing is compiled at these sizes (None: at any), and how the session is
        opened (`runtime.session`)."""
        key = entries.sum_of((self.key, ALL if sizes is None else sizes))
        files.write(entries.folder(), key, json.dumps((level, unsigned_weights)).encode(), KIND)

    def _known(self, sizes: Sizes | str) -> tuple[str, bool] | None:
        def parsed(held: bytes) -> tuple[str, bool]:
            level, unsigned_weights = json.loads(held)
            return str(level), bool(unsigned_weights)

        return entries.entry(entries.sum_of((self.key, sizes)), KIND, parsed)
