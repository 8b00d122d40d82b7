"""Compiled models that are kept: what is in files, for whatever they are compiled.

A key is the digest of all that a compiled model is made from. Under it are the model's interface,
and for each set of sizes a program, and beside it its constants, with sums that tell damage. What
is not whole is compiled again.

That a file's digest is known is told by its place, size and times, as git does it: only of a file
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
# How long a file must have been at rest: more than the clock's step, whether files' times have
# parts of seconds or not.
_FINE, _COARSE = 100_000_000, 2_100_000_000  # nanoseconds
_T = TypeVar("_T")


def folder() -> Path:
    return ready_folder()


@dataclass(frozen=True, slots=True)
class Interface:
    """What is asked of a model, and given."""

    ports: tuple[Port, ...]
    outputs: tuple[str, ...]


def interface(key: str) -> Interface | None:
    """The interface that is kept under a model's key; None where there is none that is whole."""

    def parsed(held: bytes) -> Interface:
        about = json.loads(held)
        return Interface(tuple(map(_port, about["ports"])), tuple(about["outputs"]))

    return entry(key, "model", parsed)


def keep_interface(key: str, i: Interface) -> None:
    ports = [{**asdict(p), "dtype": p.dtype and p.dtype.name} for p in i.ports]
    about = {"ports": ports, "outputs": i.outputs}
    files.write(folder(), key, json.dumps(about).encode(), "model")


def digest_of(path: Path) -> str | None:
    """The digest of a model's files, where that is known of these."""
    path = path.absolute()  # beside which others are
    state = state_of(path)

    def parsed(held: bytes) -> str | None:
        about = json.loads(held)
        same = all(state_of(Path(name)) == was for name, was in about["others"])
        return str(about["digest"]) if same else None

    return None if state is None else entry(sum_of((FORMAT, str(path), state)), "digest", parsed)


@dataclass(frozen=True, slots=True)
class Watch:
    """Files before they are read; begun: when, in nanoseconds."""

    path: Path
    state: list[int] | None
    begun: int

    @classmethod
    def on(cls, path: Path) -> Watch:
        return cls(path.absolute(), state_of(path), time.time_ns())

    def keep(self, digest: str, others: Sequence[Path]) -> None:
        """Write down the digest of the file, and of the others that it names, if it is what is
        there and was there."""
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
    """What tells that a file is as it was; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


OWN = Path(__file__).parent.parent


@cache
def own_files() -> str:
    """Of superopt's own files, by their sizes and times, for what must be ready at once. A file
    that is changed in place has another ctime, whatever its mtime is set to."""
    states = ((e.path, e.stat()) for e in _own(str(OWN)))
    times = ((path, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in states)
    return sum_of(sorted(times))


@cache
def own_contents() -> str:
    """Of superopt's own files, by what is in them (some 30 ms), for what is kept for long: of the
    same files at another place it is the same, and other ones have another, whatever their times
    are, which installers set."""
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
    except (ValueError, TypeError, LookupError, MemoryError):  # the compiler says more of these
        return None


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of this name, of numpy's or of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:  # it is one of those, which take 8 ms to import
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return found


def _port(about: dict[str, Any]) -> Port:
    dtype = None if about["dtype"] is None else dtype_named(about["dtype"])
    shape = None if about["shape"] is None else tuple(about["shape"])
    return Port(about["name"], dtype, shape, about["text"], about["optional"])


def _sums(constants: np.ndarray) -> Iterator[int]:
    """Of the words of each chunk: they take no longer than reading memory does."""
    for at in range(0, len(constants), _CHUNK):
        yield int(np.add.reduce(constants[at : at + _CHUNK].view(np.uint64)))


def _check(sums: Iterator[int]) -> str:
    return sum_of([*sums])


def filled(key: str, out: np.ndarray, check: str) -> bool:
    """Read a program's constants into bytes; False where they are not these. Read, not mapped:
    large pages are faster to read than a file's."""
    sums: list[int] = []
    path = _place(key)
    try:
        with path.open("rb", buffering=0) as file:
            # A chunk is still in the cache when it is summed.
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
    """Are constants of so many bytes kept?"""
    return size <= limit_bytes() // 2


def keep(
    key: str, about: Mapping[str, object], texts: Sequence[bytes], constants: np.ndarray
) -> None:
    """Write down a program: a description, texts that belong to it, and its constants, of a
    multiple of 8 bytes, whose sums are put into the description as "check"."""
    size = len(constants)
    if not fits(size) or not files.ensure_private(folder()):
        return
    files.write_atomically(_place(key), constants.data)
    keep_program(key, {**about, "check": _check(_sums(constants))}, texts)
    written(size)


def keep_program(key: str, about: Mapping[str, object], texts: Sequence[bytes]) -> None:
    """Write down a program's description, and texts that belong to it."""
    text = json.dumps(about).encode()
    files.write(folder(), key, b"\n".join((text, b"".join(texts))), "program")


def program(key: str, parsed: Callable[[dict[str, Any], bytes], _T | None]) -> _T | None:
    """What `parsed` makes of a program's description and its texts; None where it makes nothing of
    it, or there is none that is whole."""

    def read(held: bytes) -> _T | None:
        head, _, rest = held.partition(b"\n")
        return parsed(json.loads(head), rest)

    return entry(key, "program", read)


def _place(key: str) -> Path:
    return folder() / f"{key}.constants"
