"""Several kernels as one function: `run(ptr args, ptr memory, ptr constants, ptr workspace)`.

args is a table of pointers, to the inputs and outputs of a call. The others are one piece of memory
each, in which buffers lie at fixed places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PLACES = ("argument", "memory", "constant")


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a buffer is: number `at` of the arguments, or `at` bytes into memory or constants."""

    place: str
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel's function, with its buffers, for each of its chunks."""

    function: str
    given: tuple[Ref, ...]
    chunks: int


def run_text(calls: Sequence[Call], name: str = "run") -> str:
    """LLVM's text of the function."""
    lines = []
    kinds = {c.function: len(c.given) for c in calls}
    for f, count in kinds.items():
        lines.append(f"declare void @{f}({', '.join(['ptr'] * (count + 1))}, i64)")
    lines.append(
        f"define void @{name}(ptr %args, ptr %memory, ptr %constants, ptr %workspace) {{\nentry:"
    )
    arguments = sorted({r.at for c in calls for r in c.given if r.place == "argument"})
    for n in arguments:
        lines.append(f"  %slot{n} = getelementptr ptr, ptr %args, i64 {n}")
        lines.append(f"  %arg{n} = load ptr, ptr %slot{n}")
    before = "entry"
    for k, call in enumerate(calls):
        given = []
        for j, r in enumerate(call.given):
            if r.place == "argument":
                given.append(f"ptr %arg{r.at}")
                continue
            base = "memory" if r.place == "memory" else "constants"
            lines.append(f"  %at{k}.{j} = getelementptr i8, ptr %{base}, i64 {r.at}")
            given.append(f"ptr %at{k}.{j}")
        shown = ", ".join([*given, "ptr %workspace"])
        if call.chunks == 1:
            lines.append(f"  call void @{call.function}({shown}, i64 0)")
            continue
        lines.append(f"  br label %loop{k}")
        lines.append(f"loop{k}:")
        lines.append(f"  %chunk{k} = phi i64 [0, %{before}], [%next{k}, %loop{k}]")
        lines.append(f"  call void @{call.function}({shown}, i64 %chunk{k})")
        lines.append(f"  %next{k} = add i64 %chunk{k}, 1")
        lines.append(f"  %more{k} = icmp ult i64 %next{k}, {call.chunks}")
        lines.append(f"  br i1 %more{k}, label %loop{k}, label %done{k}")
        lines.append(f"done{k}:")
        before = f"done{k}"
    return "\n".join([*lines, "  ret void", "}", ""])
