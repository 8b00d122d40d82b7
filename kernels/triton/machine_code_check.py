"""Checks of a kernel's machine code against bugs of ptxas.

ptxas 12.8, which comes with Triton 3.6, compiles some kernels with two WGMMA products in a row such
that the second one's address comes from a register that nothing has written: an illegal access, or
a wrong result. (Attention with heads of 24 and 64 keys, four warps, sm_90; ptxas 12.9 does not.)
Such registers are uniform registers (UR), which correct code sets before all reads in program
order: one pass over the output of `nvdisasm`, which comes with Triton, finds reads before writes.

ptxas 12.8 and 12.9 also drop products. If the first use of a wgmma accumulator is a bitwise
operation (rounding to tf32 by a mask, an absolute value), each wgmma.mma_async becomes an empty
instruction, `HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ`, and the result is that of zeros. (GPT-2 in
tf32, probabilities times values: 90 % of the outputs were wrong.) Nothing else makes such an
instruction.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

MIN_CHECKED_PRODUCTS = 2  # in a row, from which registers are checked
DISASSEMBLY_TIMEOUT_SECONDS = 60  # of nvdisasm
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([\w.]+)\s*([^;]*);")
_REGISTER = re.compile(r"\bUR(\d+)")
_DROPPED_PRODUCT = re.compile(r"\bHGMMA\S*\s+RZ, gdesc\[URZ\]")


def is_sound(compiled: Any) -> bool:
    """True if a kernel compiled by Triton has all of its products and reads no register before it
    is written, or if that cannot be checked. Takes 0.3 s for kernels that use wgmma."""
    code = getattr(compiled, "asm", {})
    products = code["ptx"].count("wgmma.fence") if "cubin" in code else 0
    if not products:
        return True
    tool = _disassembler()
    if tool is None:
        return True
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code["cubin"])
        file.flush()
        try:
            how: Any = {
                "capture_output": True,
                "text": True,
                "timeout": DISASSEMBLY_TIMEOUT_SECONDS,
            }
            done = subprocess.run([tool, "-c", file.name], **how)
        except (OSError, subprocess.TimeoutExpired):
            return True
    if has_dropped_product(done.stdout):
        return False
    return products < MIN_CHECKED_PRODUCTS or not any(unwritten_register_reads(done.stdout))


def has_dropped_product(text: str) -> bool:
    """True if nvdisasm's text contains an empty product."""
    return _DROPPED_PRODUCT.search(text) is not None


def unwritten_register_reads(text: str) -> Iterator[str]:
    """Yield the instructions of nvdisasm's text that read a uniform register that no earlier one
    writes."""
    written: set[int] = set()
    for name, rest in _LINE.findall(text):
        first, *others = (x.strip() for x in rest.split(","))
        if name.startswith("R2UR") and first.startswith("P"):  # the predicate is written, too
            first, *others = others
        into = _REGISTER.fullmatch(first)
        writes = into is not None and name.startswith(("U", "S2UR", "R2UR"))
        for x in others if writes else (first, *others):
            some = [int(n) for n in _REGISTER.findall(x)]
            if "gdesc" in x:  # four registers, the last two of which describe the second operand
                some = [n + more for n in some for more in (2, 3)]
            if any(n not in written for n in some):
                yield f"{name} {rest}"
        if writes and into is not None:
            n = int(into[1])
            written |= {n, n + 1} if ".64" in name or ".WIDE" in name else {n}


@cache
def _disassembler() -> str | None:
    import triton

    found = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(found) if found.exists() else None
