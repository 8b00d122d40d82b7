"""The address space that this process has left. LLVM, and much else that is written in C++, ends
the process where it gets no memory, so that it is asked for only where there is enough."""

from __future__ import annotations

import mmap
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

# What compiling takes at most, several times over: a kernel of half a million letters takes some
# 5 MB beside LLVM's own code and tables; and objects that are linked.
LLVM = 48 << 20
LETTER = 64


def left() -> int | None:
    """Bytes that may be mapped still; None where there is no limit, or nobody tells."""
    if resource is None or (most := resource.getrlimit(resource.RLIMIT_AS)[0]) < 0:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError):
        return None
    return max(most - pages * mmap.PAGESIZE, 0)


def ask(letters: int, besides: int = 0) -> None:
    """Raises MemoryError where LLVM may not get what it needs for a text, or for so many bytes of
    code. besides: bytes that are needed, too."""
    needs = LLVM + letters * LETTER + besides
    if (there := left()) is not None and there < needs:
        raise MemoryError(f"compiling takes up to {needs} bytes, and {there} are left")
