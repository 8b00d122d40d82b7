"""Where in one piece of memory each buffer lies: those that are not in use at once may share it.

Greedy by size, as in Pisarchyk and Lee, Efficient memory management for deep neural net inference,
arXiv:2001.03288, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer's bytes, the steps from its first to its last use, and what its contents are when it
    is not in use: only buffers of equal `keeps` share memory (borders of zeros stay zeros)."""

    bytes: int
    first: int
    last: int
    keeps: object = None


def offsets(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Where each buffer begins, and how many bytes there are in all."""
    out = [0] * len(lives)
    end = 0
    for keeps in dict.fromkeys(x.keeps for x in lives):
        group = [n for n, x in enumerate(lives) if x.keeps == keeps]
        placed, top = _shared([lives[n] for n in group], keeps is None)
        for n, at in zip(group, placed, strict=True):
            out[n] = end + at
        end += top
    return out, end


def _shared(lives: Sequence[Life], free: bool) -> tuple[list[int], int]:
    """free: a buffer may begin anywhere; else only where another one of its kind does."""
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
