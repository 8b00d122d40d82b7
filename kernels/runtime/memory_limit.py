"""Check the address space before LLVM runs: LLVM and other C++ code abort the process if an
allocation fails."""

from __future__ import annotations

import mmap
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

# Generous upper bounds: a kernel of half a million characters takes about 5 MB besides LLVM's own
# code and tables, and linked objects.
LLVM_BYTES = 48 << 20
BYTES_PER_CHARACTER = 64


def remaining_address_space() -> int | None:
    """Return the bytes that may still be mapped; None if unlimited or unknown."""
    if resource is None or (most := resource.getrlimit(resource.RLIMIT_AS)[0]) < 0:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (OSError, ValueError):
        return None
    return max(most - pages * mmap.PAGESIZE, 0)


def require_address_space(characters: int, extra_bytes: int = 0) -> None:
    """Raise MemoryError if LLVM may lack memory for a text, or for so many bytes of code.
    extra_bytes: needed besides."""
    needs = LLVM_BYTES + characters * BYTES_PER_CHARACTER + extra_bytes
    if (there := remaining_address_space()) is not None and there < needs:
        raise MemoryError(f"compiling needs up to {needs} bytes of address space, {there} are left")
