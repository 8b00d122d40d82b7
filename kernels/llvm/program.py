"""The LLVM text of a program: several kernels as one function, for one thread or several.

    void run(ptr args, ptr memory, ptr constants, ptr workspace, ptr state)
    void work(ptr state, ptr workspace)

args: table of pointers to a call's inputs and outputs. Buffers lie at fixed offsets of memory and
constants. Each thread has its own workspace. With `table`, constants is a table of pointers to a
program's constants in the order of their offsets, so that programs can share them.

The thread that calls `run` executes the kernels in order; chunk_threads.py shares their chunks.

With timing, `run` has another parameter, `ptr times`: it reads the clock at the start and after
each kernel (CLOCK_BYTES each: seconds and nanoseconds).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from superopt.kernels.llvm.calls import (
    PARAMETERS,
    Loop,
    chunk_text,
    kernel_calls,
    load_word,
    words_pointer,
)
from superopt.kernels.llvm.calls import Call as Call
from superopt.kernels.llvm.calls import Ref as Ref
from superopt.kernels.llvm.chunk_threads import (
    ARGS_WORD,
    BASE_WORD,
    MAX_PARTS,
    chunk_dispatch,
    chunk_group_function,
    count_stores,
    drain_function,
    share_function,
    system_declarations,
    word_pointer,
    worker_function,
)

CLOCK_BYTES = 16


def program_text(
    calls: Sequence[Call | Loop],
    threads: int = 1,
    system: str = "x86_64-linux",
    timed: bool = False,
    table: Mapping[int, int] | None = None,
    words_argument: int = 0,
) -> str:
    """Return the LLVM text of the functions; without `work` for one thread. system: as
    "x86_64-linux" (`host_system`). words_argument: the argument that has the words of symbolic
    sizes.

    table: index in the pointer table of each constant, by its offset; None if constants are one
    block of memory.
    """
    kinds = {c.function: len(c.arguments) for c in kernel_calls(calls)}
    lines = [
        f"declare void @{f}({', '.join(['ptr'] * (count + 1))}, i64)" for f, count in kinds.items()
    ]
    lines += [
        line
        for k, c in enumerate(calls)
        for line in chunk_text(f"call{k}", c, table, words_argument)
    ]
    lines += _clock_function() if timed else ()
    if threads == 1:
        lines += _single_thread_run(calls, timed, words_argument)
    else:
        lines += _multithreaded_functions(calls, system, threads, timed, words_argument)
    return "\n".join([*lines, ""])


def number_entry_points(text: str, number: int) -> str:
    """Return a program's text with a number behind the names of `run` and `work`."""
    for name in ("run", "work"):  # no function of the program calls them
        text = text.replace(f"define void @{name}(", f"define void @{name}{number}(")
    return text


def _clock_function() -> Iterator[str]:
    """Yield a function that stores the clock as entry `n` of times."""
    yield "declare i32 @clock_gettime(i32, ptr)"
    yield "define private void @stamp(ptr %times, i64 %n) {"
    yield f"  %at = getelementptr [{CLOCK_BYTES} x i8], ptr %times, i64 %n"
    yield f"  %failed = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %at)"
    yield "  ret void\n}"


_MONOTONIC = 6 if sys.platform == "darwin" else 1  # clock id


def _run_header(timed: bool) -> Iterator[str]:
    yield f"define void @run({PARAMETERS}, ptr %state{', ptr %times' * timed}) {{\nentry:"
    yield from _clock_read(0, timed)


def _clock_read(n: int, timed: bool) -> Iterator[str]:
    if timed:
        yield f"  call void @stamp(ptr %times, i64 {n})"


def _single_thread_run(
    calls: Sequence[Call | Loop], timed: bool, words_argument: int
) -> Iterator[str]:
    yield from _run_header(timed)
    before = "entry"
    if any(c.chunk_word is not None for c in calls):
        yield from words_pointer(words_argument)
    for k, call in enumerate(calls):
        count = str(call.chunks)
        if (word := call.chunk_word) is not None:
            yield from load_word(f"count{k}", word)
            count = f"%count{k}"
        if count == "1":
            yield f"  call void @call{k}({PARAMETERS}, i64 0)"
            yield from _clock_read(k + 1, timed)
            continue
        yield f"  br label %loop{k}"
        yield f"loop{k}:"
        yield f"  %chunk{k} = phi i64 [0, %{before}], [%next{k}, %loop{k}]"
        yield f"  call void @call{k}({PARAMETERS}, i64 %chunk{k})"
        yield f"  %next{k} = add i64 %chunk{k}, 1"
        yield f"  %more{k} = icmp ult i64 %next{k}, {count}"
        yield f"  br i1 %more{k}, label %loop{k}, label %done{k}"
        yield f"done{k}:"
        yield from _clock_read(k + 1, timed)
        before = f"done{k}"
    yield "  ret void\n}"


def _multithreaded_functions(
    calls: Sequence[Call | Loop], system: str, threads: int, timed: bool, words_argument: int
) -> Iterator[str]:
    n = len(calls)
    symbolic = any(c.chunk_word is not None for c in calls)
    groups = [chunk_group_function(k, c, threads, words_argument) for k, c in enumerate(calls)]
    for _, lines in groups:
        yield from lines
    yield from system_declarations(system)
    if not symbolic:
        numbers = ", ".join(f"i64 {c}" for c, _ in groups)
        yield f"@chunks = private constant [{n} x i64] [{numbers}]"
    yield from chunk_dispatch(calls)
    parts = min(threads, MAX_PARTS)
    yield from drain_function(n, parts, symbolic)
    yield from share_function(system, parts, symbolic)
    stores = list(count_stores(calls, [c for c, _ in groups], threads, words_argument))
    yield from _multithreaded_run(calls, timed, stores if symbolic else ())
    yield from worker_function(system)


def _multithreaded_run(
    calls: Sequence[Call | Loop], timed: bool, stores: Sequence[str]
) -> Iterator[str]:
    n = len(calls)
    yield from _run_header(timed)
    yield word_pointer("at", ARGS_WORD)
    for j, name in enumerate(("args", "memory", "constants")):
        yield f"  %at{j} = getelementptr i64, ptr %at, i64 {j}"
        yield f"  store ptr %{name}, ptr %at{j}"
    yield word_pointer("base", BASE_WORD)
    yield "  %old = load i64, ptr %base"
    yield f"  %next = add i64 %old, {n}"
    yield "  %large = icmp ugt i64 %next, 2147483647"
    yield f"  %number = select i1 %large, i64 {n}, i64 %next"  # never 0
    if stores:
        yield "  store atomic i64 %number, ptr %base seq_cst, align 8"
    else:
        yield "  store i64 %number, ptr %base"
    yield from stores
    for k, call in enumerate(calls):
        if call.chunks == 1 and call.chunk_word is None:
            yield f"  call void @call{k}({PARAMETERS}, i64 0)"
        else:
            yield f"  call void @share(i64 {k}, i64 %number, ptr %workspace, ptr %state)"
        yield from _clock_read(k + 1, timed)
    yield "  ret void\n}"
