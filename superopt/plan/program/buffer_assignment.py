"""Assign offsets in one block of memory to buffers; buffers with disjoint lifetimes may share it.

Greedy by size, as in Pisarchyk and Lee, Efficient memory management for deep neural net inference,
arXiv:2001.03288, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 64
# Buffers that are kept separate for their zero borders cost cache: their lines are fetched in each
# run and evict others. From this size on, borders are written anew if the bytes saved are at least
# this multiple of the bytes written.
MIN_CLEARED_BYTES = 1 << 15
MIN_CLEAR_SAVING = 2


@dataclass(frozen=True, slots=True)
class BufferLife:
    """A buffer's bytes, its first and last step of use, and its contents outside of its lifetime:
    only buffers with equal `contents` share memory (borders of zeros stay zero).

    clear_bytes: the bytes that are written in each run if it shares memory with others
    nevertheless; None if nothing writes them.
    """

    bytes: int
    first: int
    last: int
    contents: object = None
    clear_bytes: int | None = None


def assign_offsets(lives: Sequence[BufferLife]) -> tuple[list[int], int, set[int], int]:
    """Return the offset of each buffer, the total bytes, the indices of buffers whose borders are
    cleared, and the bytes, which come first, of those whose borders stay."""
    out = [0] * len(lives)
    apart: dict[object, list[int]] = {}
    for n, x in enumerate(lives):
        apart.setdefault(x.contents, []).append(n)
    free = apart.pop(None, [])
    cleared: set[int] = set()
    end = 0
    for group in apart.values():
        placed, top = _pack_lives([lives[n] for n in group], any_offset=False)
        clear = [lives[n].clear_bytes for n in group]
        if (
            top >= MIN_CLEARED_BYTES
            and None not in clear
            and MIN_CLEAR_SAVING * sum(c or 0 for c in clear) <= top
        ):
            free += group
            cleared.update(group)
            continue
        for n, at in zip(group, placed, strict=True):
            out[n] = end + at
        end += top
    placed, top = _pack_lives([lives[n] for n in free], any_offset=True)
    for n, at in zip(free, placed, strict=True):
        out[n] = end + at
    return out, end + top, cleared, end


def _pack_lives(lives: Sequence[BufferLife], any_offset: bool) -> tuple[list[int], int]:
    """Return offsets and their end. any_offset: a buffer may begin anywhere, else only where
    another one of its kind does."""
    out = [0] * len(lives)
    done: list[int] = []
    top = 0
    for n in sorted(range(len(lives)), key=lambda k: -lives[k].bytes):
        size = -(-lives[n].bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        busy = sorted(
            (out[k], out[k] + -(-lives[k].bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
            for k in done
            if lives[k].first <= lives[n].last and lives[n].first <= lives[k].last
        )
        at = 0
        for begin, finish in busy:
            if begin - at >= size and any_offset:
                break
            if begin > at and not any_offset:
                break
            at = max(at, finish)
        out[n] = at
        done.append(n)
        top = max(top, at + size)
    return out, top
