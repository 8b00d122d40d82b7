"""The cache of models that run entirely in ONNX Runtime: another process opens the session, and
loads neither the compiler nor LLVM.

A key is the digest of the model's files (SHA-256), the options, the processor's flags, superopt's
own files and the store of measurements. Under it are the model's interface, and an entry for each
set of sizes at which nothing was compiled, or one for all sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from superopt.compilation.cache import constant_files, entries
from superopt.compilation.fallback.whole_model import Fallback, MappedModel
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.cost.cache_folders import constants_folder, store_path
from superopt.cost.machine import this_machine
from superopt.errors import ModelError, SuperoptError
from superopt.kernels.runtime import file_cache as files
from superopt.ort import sessions

if TYPE_CHECKING:
    from superopt.compilation.fallback.ort_segment import GivenModel
    from superopt.ir import graph as ir_graph

FALLBACK_KIND = "fallback"
ALL_SIZES = "all sizes"
SESSION = "session"  # for sizes that have no program


def interface_key(options: CompileOptions, digest: str) -> str:
    """Return the key of a model whose files have this digest."""
    o = options
    about = (
        entries.FORMAT_VERSION, FALLBACK_KIND, digest, o.target, o.threads, o.allowed.float_class,
        o.allowed.partial_rules, o.precision, o.vendor, o.streams, this_machine().flags_digest,
        np.__version__, sys.version, entries.package_state("onnxruntime"),
        entries.package_state_digest(),
        entries.file_state(store_path(o.store)),
    )  # fmt: skip
    return entries.digest_json(about)


@dataclass(slots=True)
class FallbackCache:
    """The cache entries of a model in a file. state: of the file with the digest of the key.
    cached_fallback: the session, once it is open; load_graph: returns the model's graph."""

    key: str
    path: Path
    state: list[int] | None
    threads: int
    interface: entries.ModelInterface
    load_graph: Callable[[], ir_graph.Graph]
    cached_fallback: Fallback | None = field(default=None)

    def find_fallback(self, sizes: Sizes) -> Fallback | None:
        """Return the model in ONNX Runtime; None if it is not known to run there at these sizes, or
        if ONNX Runtime is not installed or rejects the file."""
        if (how := self._session_options(ALL_SIZES) or self._session_options(sizes)) is None:
            return None
        if self.cached_fallback is None:
            try:
                session = self._load_file(*how)
            except SuperoptError:
                return None
            self.cached_fallback = self._fallback(session)
        return self.cached_fallback

    def is_all_fallback(self) -> bool:
        """True if the model is known to run entirely in ONNX Runtime."""
        return self._session_options(ALL_SIZES) is not None

    def find_session(self) -> Fallback | None:
        """Return the model in ONNX Runtime as `store_session` stored it; None if it is not intact,
        or if ONNX Runtime is not installed or rejects it."""

        def parse_entry(held: bytes) -> tuple[str, bool, MappedModel]:
            header, _, data = held.partition(b"\n")
            level, unsigned_weights, weights = json.loads(header)
            mapped = MappedModel(data, tuple((str(d), int(n), str(c)) for d, n, c in weights))
            return str(level), bool(unsigned_weights), mapped

        key, threads = entries.digest_json((self.key, SESSION)), self.threads
        if (found := entries.read_entry(key, FALLBACK_KIND, parse_entry)) is None:
            return None
        level, unsigned, mapped = found
        try:
            if not mapped.data:
                session = self._load_file(level, unsigned)
            elif all(map(constant_files.is_intact, mapped.weights)):
                folder = constants_folder()
                session = sessions.load_session(mapped.data, threads, level, unsigned, folder)
            else:
                return None
        except SuperoptError:
            return None
        return self._fallback(session)

    def _load_file(self, level: str, unsigned_weights: bool) -> sessions.Session:
        """Return a session of the file. Raises ModelError if it has changed."""
        session = sessions.load_part_session(self.path, self.threads, level, unsigned_weights)
        if entries.file_state(self.path) != self.state:
            raise ModelError(f"{self.path} has changed", "it is another model", "compile it again")
        return session

    def store_session(self, given: GivenModel) -> None:
        """Store how the session was opened: of weights in the cache, or of the file."""
        mapped = given.mapped or MappedModel(b"", ())
        if given.mapped is None and given.source.current_path() is None:
            return
        header = json.dumps((given.mode.level, given.mode.unsigned_weights, mapped.weights))
        key = entries.digest_json((self.key, SESSION))
        data = header.encode() + b"\n" + mapped.data
        files.write(entries.cache_folder(), key, data, FALLBACK_KIND)

    def _fallback(self, session: sessions.Session) -> Fallback:
        takes = tuple(p.name for p in self.interface.input_ports)
        return Fallback(session, takes, self.interface.output_names, self.load_graph)

    def store_fallback(self, sizes: Sizes | None, level: str, unsigned_weights: bool) -> None:
        """Store that nothing is compiled at these sizes (None: at any), and how the session is
        opened (`runtime.session`)."""
        key = entries.digest_json((self.key, ALL_SIZES if sizes is None else sizes))
        files.write(
            entries.cache_folder(),
            key,
            json.dumps((level, unsigned_weights)).encode(),
            FALLBACK_KIND,
        )

    def _session_options(self, sizes: Sizes | str) -> tuple[str, bool] | None:
        def parse_entry(held: bytes) -> tuple[str, bool]:
            level, unsigned_weights = json.loads(held)
            return str(level), bool(unsigned_weights)

        return entries.read_entry(
            entries.digest_json((self.key, sizes)), FALLBACK_KIND, parse_entry
        )
