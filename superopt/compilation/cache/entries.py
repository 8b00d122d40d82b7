"""The cache of compiled models on disk, for all targets.

A key is the digest of everything that a compiled model depends on. Under it are the model's
interface, and for each set of sizes a program and its constants, with checksums. Damaged entries
are compiled again.

The digest of a file is remembered by the file's path, size and times, as git does: only for a file
that had been at rest when it was read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from superopt.compilation.frontend.input_arrays import InputPort, ValueLimit
from superopt.cost.cache_folders import ready_folder
from superopt.cost.disk_cache import limit_bytes, record_written
from superopt.kernels.runtime import file_cache as files

FORMAT_VERSION = 3
_CHUNK_BYTES = 1 << 20
# A file must have been at rest for longer than a clock tick, whether or not its times have
# fractions of seconds.
_MIN_REST_NS, _MIN_REST_WHOLE_SECONDS_NS = 100_000_000, 2_100_000_000  # nanoseconds
_T = TypeVar("_T")


def cache_folder() -> Path:
    return ready_folder()


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """The inputs and outputs of a model."""

    input_ports: tuple[InputPort, ...]
    output_names: tuple[str, ...]


def read_interface(key: str) -> ModelInterface | None:
    """Return the interface cached under a model's key; None if there is no intact one."""

    return read_entry(key, "model", lambda data: parse_interface(json.loads(data)))


def write_interface(key: str, interface: ModelInterface) -> None:
    files.write(cache_folder(), key, json.dumps(interface_data(interface)).encode(), "model")


def interface_data(interface: ModelInterface) -> dict[str, Any]:
    """Return an interface as JSON data; see `parse_interface`."""
    ports = [{**asdict(p), "dtype": p.dtype and p.dtype.name} for p in interface.input_ports]
    return {"ports": ports, "outputs": interface.output_names}


def parse_interface(data: Mapping[str, Any]) -> ModelInterface:
    """Return the interface that `interface_data` gave."""
    return ModelInterface(tuple(map(_parse_port, data["ports"])), tuple(data["outputs"]))


def known_digest(path: Path) -> str | None:
    """Return the digest of a model's files if it is known for their current state."""
    path = path.absolute()  # other files are relative to it
    state = file_state(path)

    def parse_entry(data: bytes) -> str | None:
        header = json.loads(data)
        same = all(file_state(Path(name)) == was for name, was in header["others"])
        return str(header["digest"]) if same else None

    return (
        None
        if state is None
        else read_entry(digest_json((FORMAT_VERSION, str(path), state)), "digest", parse_entry)
    )


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """The state of a file before it is read; taken_at_ns: when."""

    path: Path
    state: list[int] | None
    taken_at_ns: int

    @classmethod
    def take(cls, path: Path) -> FileSnapshot:
        return cls(path.absolute(), file_state(path), time.time_ns())

    def store_digest(self, digest: str, other_files: Sequence[Path]) -> None:
        """Store the digest of the file and of the other files that it names, if none of them has
        changed."""
        states = [(str(p), file_state(p)) for p in other_files]
        if not _is_at_rest(self.state, self.taken_at_ns) or file_state(self.path) != self.state:
            return
        if all(_is_at_rest(s, self.taken_at_ns) for _, s in states):
            header = {"digest": digest, "others": states}
            key = digest_json((FORMAT_VERSION, str(self.path), self.state))
            files.write(cache_folder(), key, json.dumps(header).encode(), "digest")


def _is_at_rest(state: list[int] | None, taken_at_ns: int) -> bool:
    if state is None:
        return False
    changed = max(state[-2:])
    fine = any(t % 1_000_000 for t in state[-2:])
    return taken_at_ns - changed > (_MIN_REST_NS if fine else _MIN_REST_WHOLE_SECONDS_NS)


def file_state(path: Path) -> list[int] | None:
    """Return what identifies the state of a file; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


PACKAGE_FOLDER = Path(__file__).parents[2]


@cache
def package_state(name: str) -> list[int] | None:
    """Return the state of a package's files, without importing it; None if it is not installed."""
    found = find_spec(name)
    return None if found is None or found.origin is None else file_state(Path(found.origin))


@cache
def package_state_digest() -> str:
    """Return a digest of superopt's own files by sizes and times, which is fast. A file that is
    changed in place has another ctime, whatever its mtime is set to."""
    states = ((e.path, e.stat()) for e in _package_files(str(PACKAGE_FOLDER)))
    times = ((path, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in states)
    return digest_json(sorted(times))


@cache
def package_content_digest() -> str:
    """Return a digest of superopt's own files by contents (about 30 ms), for long-lived caches: it
    is the same for the same files at another path, and does not depend on times, which installers
    set."""
    each = (os.path.relpath(e.path, PACKAGE_FOLDER) for e in _package_files(str(PACKAGE_FOLDER)))
    return digest_json(
        [(at, blake2b((PACKAGE_FOLDER / at).read_bytes()).hexdigest()) for at in sorted(each)]
    )


def _package_files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        for e in found:
            if e.name.endswith((".py", ".rules")):
                yield e
            elif e.name != "__pycache__" and e.is_dir():
                yield from _package_files(e.path)


def digest_json(data: object) -> str:
    return blake2b(json.dumps(data).encode(), digest_size=20).hexdigest()


def read_entry(key: str, kind: str, parse: Callable[[bytes], _T | None]) -> _T | None:
    data = files.read(cache_folder(), key, kind)
    try:
        return None if data is None else parse(data)
    except (ValueError, TypeError, LookupError, MemoryError):  # the compiler reports the error
        return None


def parse_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of this name, of numpy or of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:  # one of ml_dtypes, which takes 8 ms to import
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return found


def _parse_port(data: dict[str, Any]) -> InputPort:
    dtype = None if data["dtype"] is None else parse_dtype(data["dtype"])
    shape = None if data["shape"] is None else tuple(data["shape"])
    limits = tuple(ValueLimit(**x) for x in data["limits"])
    return InputPort(data["name"], dtype, shape, data["type_text"], data["has_default"], limits)


def _chunk_sums(constants: np.ndarray) -> Iterator[int]:
    """Yield the sum of the words of each chunk; this takes no longer than reading the memory."""
    for at in range(0, len(constants), _CHUNK_BYTES):
        yield int(np.add.reduce(constants[at : at + _CHUNK_BYTES].view(np.uint64)))


def _checksum(sums: Iterator[int]) -> str:
    return digest_json([*sums])


def read_constants(key: str, out: np.ndarray, checksum: str) -> bool:
    """Read a program's constants into `out`; False if they do not match the checksum. They are
    read, not mapped: huge pages are faster to access than a file's."""
    sums: list[int] = []
    path = _constants_path(key)
    try:
        with path.open("rb", buffering=0) as file:
            # The CPU cache still holds a chunk when it is summed.
            for at in range(0, len(out), _CHUNK_BYTES):
                part = out[at : at + _CHUNK_BYTES]
                if file.readinto(part.data) != len(part):
                    return False
                sums += _chunk_sums(part)
        os.utime(path)
    except OSError:
        return False
    return _checksum(iter(sums)) == checksum


def is_cacheable(size: int) -> bool:
    """True if constants of this size are cached."""
    return size <= limit_bytes() // 2


def write_program_and_constants(
    key: str, description: Mapping[str, object], texts: Sequence[bytes], constants: np.ndarray
) -> None:
    """Write a program: a description, its texts, and its constants, whose size is a multiple of 8
    bytes and whose checksum is put into the description as "check"."""
    size = len(constants)
    if not is_cacheable(size) or not files.ensure_private(cache_folder()):
        return
    files.write_atomically(_constants_path(key), constants.data)
    write_program(key, {**description, "check": _checksum(_chunk_sums(constants))}, texts)
    record_written(size)


def write_program(key: str, description: Mapping[str, object], texts: Sequence[bytes]) -> None:
    """Write a program's description and its texts."""
    text = json.dumps(description).encode()
    files.write(cache_folder(), key, b"\n".join((text, b"".join(texts))), "program")


def read_program(key: str, parse: Callable[[dict[str, Any], bytes], _T | None]) -> _T | None:
    """Return what `parse` makes of a program's description and texts; None if it returns None, or
    if there is no intact program."""

    def read(data: bytes) -> _T | None:
        head, _, rest = data.partition(b"\n")
        return parse(json.loads(head), rest)

    return read_entry(key, "program", read)


def _constants_path(key: str) -> Path:
    return cache_folder() / f"{key}.constants"
