"""The contents of the weights file of a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from superopt.plan.program.call_context import ALIGNMENT_BYTES
from superopt.plan.program.constant_pool import PackedConstants
from superopt.report.compilation.exported_library import DerivedConstant

_WORDS_PER_CHUNK = 1 << 20  # of a prefix sum
# Returns how a constant is made, by its number and its bytes; None if it is stored.
Describe = Callable[[int, np.ndarray], DerivedConstant | None]


@dataclass(slots=True)
class WeightFile:
    """Arrays at offsets that are multiples of 64 bytes. places: by digest of packed constants, each
    of which is there once, whatever programs read it: its offset, or how it is made. sources: the
    offsets of what several are made of, likewise."""

    arrays: list[np.ndarray] = field(default_factory=list)
    size: int = 0
    places: dict[str, int | DerivedConstant] = field(default_factory=dict)
    sources: dict[bytes, int] = field(default_factory=dict)

    def add_constants(
        self, constants: PackedConstants, describe: Describe
    ) -> tuple[int | DerivedConstant, ...]:
        """Add those that are not there; return the place of each. describe: see `Describe`."""
        for n, digest in enumerate(constants.digests):
            if digest not in self.places:
                array = constants.arrays[n]
                made = describe(n, array)
                self.places[digest] = self.add(array) if made is None else made
        return tuple(self.places[digest] for digest in constants.digests)

    def add(self, array: np.ndarray) -> int:
        """Add an array; return its offset."""
        at = self.size
        self.arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self.size += align_up(array.nbytes)
        return at

    def add_source(self, array: np.ndarray) -> int:
        """Add an array that constants are made of, unless it is there; return its offset."""
        held = np.ascontiguousarray(array)
        key = blake2b(held.reshape(-1).view(np.uint8).data, digest_size=16).digest()
        if key not in self.sources:
            self.sources[key] = self.add(held)
        return self.sources[key]

    def chunks(self) -> Iterator[np.ndarray]:
        for a in self.arrays:
            yield a
            yield np.zeros(-len(a) % ALIGNMENT_BYTES, np.uint8)

    def digest(self) -> str:
        found = blake2b(digest_size=16)
        for part in self.chunks():
            found.update(part.data)
        return found.hexdigest()

    def checksums(self) -> tuple[int, int]:
        """Return the sum of the 64-bit words modulo 2^64, and the sum of its prefix sums, which
        depends on the order of the words."""
        first = second = 0
        for a in self.arrays:
            words = np.concatenate([a, np.zeros(-len(a) % ALIGNMENT_BYTES, np.uint8)]).view("<u8")
            for k in range(0, len(words), _WORDS_PER_CHUNK):
                running = np.cumsum(words[k : k + _WORDS_PER_CHUNK], dtype=np.uint64)
                second += first * len(running) + int(np.sum(running, dtype=np.uint64))
                first += int(running[-1])
        return first % 2**64, second % 2**64


def align_up(n: int) -> int:
    """Return the least multiple of 64 that is at least n."""
    return -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
