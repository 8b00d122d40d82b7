"""Compiled models that are kept whole, so that another process has them soon.

A key is the digest of all that a compiled model is made from: the model's files (SHA-256), options,
the processor, superopt's own files and the store of measurements. Under it are the model's
interface, and for each set of sizes a program: its head and object files, and beside them its
constants as kernels read them, with sums that tell damage. What is not whole is compiled again.

That a file's digest is known is told by its place, size and times, as git does it: only of a file
that had been at rest when it was read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by name then
import numpy as np

from superopt.cost.folder import default_folder, store_file
from superopt.kernels import cache as files
from superopt.kernels.engine import VERSION, Machine
from superopt.kernels.enter import places
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.arrays import Port
from superopt.pipeline.native import Native, Whole
from superopt.plan.image import Image, aligned, ready

if TYPE_CHECKING:
    from superopt.plan.build import Program
    from superopt.plan.segments import Segment

FORMAT = 1
MOST = 4 << 30  # bytes of constants that are kept; what was not used for the longest time goes
_CHUNK = 1 << 20
_ABANDONED = 3600.0  # seconds
# How long a file must have been at rest: more than the clock's step, whether files' times have
# parts of seconds or not.
_FINE, _COARSE = 100_000_000, 2_100_000_000  # nanoseconds
Planned = Callable[[dict[str, str]], "tuple[Segment, Program]"]
_T = TypeVar("_T")


def folder() -> Path:
    return default_folder() / "ready"


@dataclass(frozen=True, slots=True)
class Options:
    """What a model is compiled with. store: where measurements are kept."""

    threads: int
    allowed: Allowed
    machine: Machine
    store: Path | None

    def key(self, digest: str) -> str:
        """Of a model whose files have this digest."""
        on, may = self.machine, self.allowed
        about = (
            FORMAT, digest, self.threads, may.float_class, may.partial, on.cpu, on.features,
            on.width, VERSION, np.__version__, sys.version, places(), own_files(),
            _state(store_file(self.store)),
        )  # fmt: skip
        return _digest(about)


@dataclass(frozen=True, slots=True)
class Interface:
    """What is asked of a model, and given."""

    ports: tuple[Port, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A model's entries."""

    key: str
    machine: Machine

    def interface(self) -> Interface | None:
        def parsed(held: bytes) -> Interface:
            about = json.loads(held)
            return Interface(tuple(map(_port, about["ports"])), tuple(about["outputs"]))

        return _read(self.key, "model", parsed)

    def keep_interface(self, i: Interface) -> None:
        ports = [{**asdict(p), "dtype": p.dtype and p.dtype.name} for p in i.ports]
        about = {"ports": ports, "outputs": i.outputs}
        files.write(folder(), self.key, json.dumps(about).encode(), "model")

    def find(self, sizes: Sequence[tuple[str, int]], planned: Planned) -> Native | None:
        """The program for these sizes; None where there is none that is whole. planned: gives its
        segment, and how it was planned with these options, when this is asked for."""

        def parsed(held: bytes) -> Native | None:
            head, _, rest = held.partition(b"\n")
            about = json.loads(head)
            ends = np.cumsum([0, *about["objects"]]).tolist()
            objects = tuple(rest[a:b] for a, b in pairwise(ends))
            image = Image(objects, about["threads"], about["enters"], *about["bytes"])
            constants = _constants(path, image.constants, about["check"])
            if constants is None:
                return None
            both = cache(lambda: planned(about["options"]))
            code = ready(image, constants, self.machine, lambda: both()[1])
            specs = tuple((tuple(shape), np.dtype(name)) for shape, name in about["specs"])
            whole = Whole(tuple(about["takes"]), dict(about["gives"]))
            return Native(code, specs, lambda: both()[0], whole)

        key = _digest((self.key, sizes))
        path = folder() / f"{key}.constants"
        return _read(key, "program", parsed)

    def keep(self, sizes: Sequence[tuple[str, int]], made: Native, image: Image) -> None:
        """Write down a program that is a whole model."""
        where, size = folder(), image.constants
        if made.whole is None or size > MOST // 2 or not files.private(where):
            return
        key, constants = _digest((self.key, sizes)), made.code.constants
        _trimmed(where, size)
        files.put(where / f"{key}.constants", constants.data)
        about = {
            "options": {key: str(o) for key, o in made.code.program.options.items()},
            "objects": [*map(len, image.objects)],
            "threads": image.threads,
            "enters": image.enters,
            "bytes": (image.constants, image.memory, image.workspace),
            "check": _check(_sums(constants)),
            "specs": [(shape, dtype.name) for shape, dtype in made.specs],
            "takes": made.whole.takes,
            "gives": [*made.whole.gives.items()],
        }
        held = b"\n".join((json.dumps(about).encode(), b"".join(image.objects)))
        files.write(where, key, held, "program")


def digest_of(path: Path) -> str | None:
    """The digest of a model's files, where that is known of these."""
    path = path.absolute()  # beside which others are
    state = _state(path)

    def parsed(held: bytes) -> str | None:
        about = json.loads(held)
        same = all(_state(Path(name)) == was for name, was in about["others"])
        return str(about["digest"]) if same else None

    return None if state is None else _read(_digest((FORMAT, str(path), state)), "digest", parsed)


@dataclass(frozen=True, slots=True)
class Watch:
    """Files before they are read; begun: when, in nanoseconds."""

    path: Path
    state: list[int] | None
    begun: int

    @classmethod
    def on(cls, path: Path) -> Watch:
        return cls(path.absolute(), _state(path), time.time_ns())

    def keep(self, digest: str, others: Sequence[Path]) -> None:
        """Write down the digest of the file, and of the others that it names, if it is what is
        there and was there."""
        states = [(str(p), _state(p)) for p in others]
        if not _at_rest(self.state, self.begun) or _state(self.path) != self.state:
            return
        if all(_at_rest(s, self.begun) for _, s in states):
            about = {"digest": digest, "others": states}
            key = _digest((FORMAT, str(self.path), self.state))
            files.write(folder(), key, json.dumps(about).encode(), "digest")


def _at_rest(state: list[int] | None, now: int) -> bool:
    if state is None:
        return False
    changed = max(state[-2:])
    fine = any(t % 1_000_000 for t in state[-2:])
    return now - changed > (_FINE if fine else _COARSE)


def _state(path: Path) -> list[int] | None:
    """What tells that a file is as it was; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@cache
def own_files() -> str:
    """Of superopt's own files, by their sizes and times, as Python itself tells whether to compile
    them again."""

    def within(at: str) -> Iterator[tuple[str, int, int]]:
        with os.scandir(at) as found:
            for entry in found:
                if entry.name.endswith((".py", ".rules")):
                    state = entry.stat()
                    yield entry.path, state.st_size, state.st_mtime_ns
                elif entry.name != "__pycache__" and entry.is_dir():
                    yield from within(entry.path)

    return _digest(sorted(within(str(Path(__file__).parent.parent))))


def _digest(about: object) -> str:
    return blake2b(json.dumps(about).encode(), digest_size=20).hexdigest()


def _read(key: str, kind: str, parsed: Callable[[bytes], _T | None]) -> _T | None:
    held = files.read(folder(), key, kind)
    try:
        return None if held is None else parsed(held)
    except (ValueError, TypeError, LookupError, MemoryError):  # the compiler says more of these
        return None


def _port(about: dict[str, Any]) -> Port:
    dtype = None if about["dtype"] is None else np.dtype(about["dtype"])
    shape = None if about["shape"] is None else tuple(about["shape"])
    return Port(about["name"], dtype, shape, about["text"], about["optional"])


def _sums(constants: np.ndarray) -> Iterator[int]:
    """Of the words of each chunk: they take no longer than reading memory does."""
    for at in range(0, len(constants), _CHUNK):
        yield int(np.add.reduce(constants[at : at + _CHUNK].view(np.uint64)))


def _check(sums: Iterator[int]) -> str:
    return _digest([*sums])


def _constants(path: Path, size: int, check: str) -> np.ndarray | None:
    """The bytes in the file; None where they are not these. Read, not mapped: large pages are
    faster to read than a file's."""
    out = aligned(size)
    sums: list[int] = []
    try:
        with path.open("rb", buffering=0) as file:
            for at in range(0, size, _CHUNK):  # a chunk is still in the cache when it is summed
                part = out[at : at + _CHUNK]
                if file.readinto(part.data) != len(part):
                    return None
                sums += _sums(part)
        os.utime(path)
    except OSError:
        return None
    return out if _check(iter(sums)) == check else None


def _trimmed(where: Path, more: int) -> None:
    """Make room for constants of so many bytes, and remove what writers left that were ended."""
    held = []
    for part in where.glob("*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _ABANDONED:
                part.unlink()
    for path in where.glob("*.constants"):
        try:
            state = path.stat()
        except OSError:
            continue
        held.append((state.st_mtime_ns, state.st_size, path))
    total = sum(size for _, size, _ in held)
    for _, size, path in sorted(held):
        if total + more <= MOST:
            break
        path.unlink(missing_ok=True)
        path.with_suffix(".program").unlink(missing_ok=True)
        total -= size
