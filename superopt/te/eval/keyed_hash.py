"""Keyed 64-bit hashes of names and of arrays."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=1 << 14)
def keyed_hash(seed: int, name: str) -> int:
    """Return 64 bits for each seed and name."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix(x: np.ndarray) -> np.ndarray:
    """Return a bijection of unsigned 64-bit integers that diffuses every bit (the finalizer of
    splitmix64)."""
    if not x.ndim:  # numpy warns of overflow in scalars
        return np.asarray(mix(np.atleast_1d(x))[0])
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
