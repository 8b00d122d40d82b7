"""Assign offsets in one block of memory to buffers; buffers with disjoint lifetimes may share it.

Greedy by size, as in Pisarchyk and Lee, Efficient memory management for deep neural net inference,
arXiv:2001.03288, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNED = 64
# Buffers that are kept separate for their zero borders cost cache: their lines are fetched in each
# run and evict others. From this size on, borders are written anew if the bytes saved are at least
# this multiple of the bytes written.
LARGE = 1 << 15
CLEARED = 2


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer's bytes, its first and last step of use, and its contents outside of its lifetime:
    only buffers with equal `contents` share memory (borders of zeros stay zero).

    clear_bytes: the bytes that are written in each run if it shares memory with others
    nevertheless; None if nothing writes them.
    """

    bytes: int
    first: int
    last: int
    keeps: object = None
    clear: int | None = None


def offsets(lives: Sequence[Life]) -> tuple[list[int], int, set[int], int]:
    """Return the offset of each buffer, the total bytes, the indices of buffers whose borders are
    cleared, and the bytes, which come first, of those whose borders stay."""
    out = [0] * len(lives)
    apart: dict[object, list[int]] = {}
    for n, x in enumerate(lives):
        apart.setdefault(x.keeps, []).append(n)
    free = apart.pop(None, [])
    cleared: set[int] = set()
    end = 0
    for group in apart.values():
        placed, top = _shared([lives[n] for n in group], free=False)
        clear = [lives[n].clear for n in group]
        if top >= LARGE and None not in clear and CLEARED * sum(c or 0 for c in clear) <= top:
            free += group
            cleared.update(group)
            continue
        for n, at in zip(group, placed, strict=True):
            out[n] = end + at
        end += top
    placed, top = _shared([lives[n] for n in free], free=True)
    for n, at in zip(free, placed, strict=True):
        out[n] = end + at
    return out, end + top, cleared, end


def _shared(lives: Sequence[Life], free: bool) -> tuple[list[int], int]:
    """Return offsets and their end. any_offset: a buffer may begin anywhere, else only where
    another one of its kind does."""
    out = [0] * len(lives)
    done: list[int] = []
    top = 0
    for n in sorted(range(len(lives)), key=lambda k: -lives[k].bytes):
        size = -(-lives[n].bytes // ALIGNED) * ALIGNED
        busy = sorted(
            (out[k], out[k] + -(-lives[k].bytes // ALIGNED) * ALIGNED)
            for k in done
            if lives[k].first <= lives[n].last and lives[n].first <= lives[k].last
        )
        at = 0
        for begin, finish in busy:
            if begin - at >= size and free:
                break
            if begin > at and not free:
                break
            at = max(at, finish)
        out[n] = at
        done.append(n)
        top = max(top, at + size)
    return out, top
