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
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from superopt.cost.disk_cache import limit_bytes, written
from superopt.cost.folder import ready_folder
from superopt.kernels.runtime import file_cache as files
from superopt.pipeline.arrays import Port

FORMAT = 2
_CHUNK = 1 << 20
# A file must have been at rest for longer than a clock tick, whether or not its times have
# fractions of seconds.
_FINE, _COARSE = 100_000_000, 2_100_000_000  # nanoseconds
_T = TypeVar("_T")


def folder() -> Path:
    return ready_folder()


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs and outputs of a model."""

    ports: tuple[Port, ...]
    outputs: tuple[str, ...]


def interface(key: str) -> Interface | None:
    """Return the interface cached under a model's key; None if there is no intact one."""

    def parsed(held: bytes) -> Interface:
        about = json.loads(held)
        return Interface(tuple(map(_port, about["ports"])), tuple(about["outputs"]))

    return entry(key, "model", parsed)


def keep_interface(key: str, i: Interface) -> None:
    ports = [{**asdict(p), "dtype": p.dtype and p.dtype.name} for p in i.ports]
    about = {"ports": ports, "outputs": i.outputs}
    files.write(folder(), key, json.dumps(about).encode(), "model")


def digest_of(path: Path) -> str | None:
    """Return the digest of a model's files if it is known for their current state."""
    path = path.absolute()  # other files are relative to it
    state = state_of(path)

    def parsed(held: bytes) -> str | None:
        about = json.loads(held)
        same = all(state_of(Path(name)) == was for name, was in about["others"])
        return str(about["digest"]) if same else None

    return None if state is None else entry(sum_of((FORMAT, str(path), state)), "digest", parsed)


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of a file before it is read; taken_at_ns: when."""

    path: Path
    state: list[int] | None
    begun: int

    @classmethod
    def on(cls, path: Path) -> Watch:
        return cls(path.absolute(), state_of(path), time.time_ns())

    def keep(self, digest: str, others: Sequence[Path]) -> None:
        """Store the digest of the file and of the other files that it names, if none of them has
        changed."""
        states = [(str(p), state_of(p)) for p in others]
        if not _at_rest(self.state, self.begun) or state_of(self.path) != self.state:
            return
        if all(_at_rest(s, self.begun) for _, s in states):
            about = {"digest": digest, "others": states}
            key = sum_of((FORMAT, str(self.path), self.state))
            files.write(folder(), key, json.dumps(about).encode(), "digest")


def _at_rest(state: list[int] | None, now: int) -> bool:
    if state is None:
        return False
    changed = max(state[-2:])
    fine = any(t % 1_000_000 for t in state[-2:])
    return now - changed > (_FINE if fine else _COARSE)


def state_of(path: Path) -> list[int] | None:
    """Return what identifies the state of a file; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


OWN = Path(__file__).parent.parent


@cache
def own_files() -> str:
    """Return a digest of superopt's own files by sizes and times, which is fast. A file that is
    changed in place has another ctime, whatever its mtime is set to."""
    states = ((e.path, e.stat()) for e in _own(str(OWN)))
    times = ((path, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in states)
    return sum_of(sorted(times))


@cache
def own_contents() -> str:
    """Return a digest of superopt's own files by contents (about 30 ms), for long-lived caches: it
    is the same for the same files at another path, and does not depend on times, which installers
    set."""
    each = (os.path.relpath(e.path, OWN) for e in _own(str(OWN)))
    return sum_of([(at, blake2b((OWN / at).read_bytes()).hexdigest()) for at in sorted(each)])


def _own(at: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(at) as found:
        for e in found:
            if e.name.endswith((".py", ".rules")):
                yield e
            elif e.name != "__pycache__" and e.is_dir():
                yield from _own(e.path)


def sum_of(about: object) -> str:
    return blake2b(json.dumps(about).encode(), digest_size=20).hexdigest()


def entry(key: str, kind: str, parsed: Callable[[bytes], _T | None]) -> _T | None:
    held = files.read(folder(), key, kind)
    try:
        return None if held is None else parsed(held)
    except (ValueError, TypeError, LookupError, MemoryError):  # the compiler reports the error
        return None


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of this name, of numpy or of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:  # one of ml_dtypes, which takes 8 ms to import
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return found


def _port(about: dict[str, Any]) -> Port:
    dtype = None if about["dtype"] is None else dtype_named(about["dtype"])
    shape = None if about["shape"] is None else tuple(about["shape"])
    return Port(about["name"], dtype, shape, about["text"], about["optional"])


def _sums(constants: np.ndarray) -> Iterator[int]:
    """Yield the sum of the words of each chunk; this takes no longer than reading the memory."""
    for at in range(0, len(constants), _CHUNK):
        yield int(np.add.reduce(constants[at : at + _CHUNK].view(np.uint64)))


def _check(sums: Iterator[int]) -> str:
    return sum_of([*sums])


def filled(key: str, out: np.ndarray, check: str) -> bool:
    """Read a program's constants into `out`; False if they do not match the checksum. They are
    read, not mapped: huge pages are faster to access than a file's."""
    sums: list[int] = []
    path = _place(key)
    try:
        with path.open("rb", buffering=0) as file:
            # The CPU cache still holds a chunk when it is summed.
            for at in range(0, len(out), _CHUNK):
                part = out[at : at + _CHUNK]
                if file.readinto(part.data) != len(part):
                    return False
                sums += _sums(part)
        os.utime(path)
    except OSError:
        return False
    return _check(iter(sums)) == check


def fits(size: int) -> bool:
    """True if constants of this size are cached."""
    return size <= limit_bytes() // 2


def keep(
    key: str, about: Mapping[str, object], texts: Sequence[bytes], constants: np.ndarray
) -> None:
    """Write a program: a description, its texts, and its constants, whose size is a multiple of 8
    bytes and whose checksum is put into the description as "check"."""
    size = len(constants)
    if not fits(size) or not files.ensure_private(folder()):
        return
    files.write_atomically(_place(key), constants.data)
    keep_program(key, {**about, "check": _check(_sums(constants))}, texts)
    written(size)


def keep_program(key: str, about: Mapping[str, object], texts: Sequence[bytes]) -> None:
    """Write a program's description and its texts."""
    text = json.dumps(about).encode()
    files.write(folder(), key, b"\n".join((text, b"".join(texts))), "program")


def program(key: str, parsed: Callable[[dict[str, Any], bytes], _T | None]) -> _T | None:
    """Return what `parse` makes of a program's description and texts; None if it returns None, or
    if there is no intact program."""

    def read(held: bytes) -> _T | None:
        head, _, rest = held.partition(b"\n")
        return parsed(json.loads(head), rest)

    return entry(key, "program", read)


def _place(key: str) -> Path:
    return folder() / f"{key}.constants"
