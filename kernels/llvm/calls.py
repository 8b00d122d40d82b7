"""Calls of kernels and loops of calls within a program, and their LLVM text.

A program is a sequence of calls and loops. A call passes the addresses of its buffers to a kernel.
A loop repeats a sequence of calls, whose addresses change with the iteration:

    address(i) = base + min(stride * i, max_offset) + toggle * (i % 2)    or `initial`, if i = 0

A slice of an input or output is accessed at a stride (the last slices overlap if they do not divide
the tensor), and a loop-carried state alternates between two buffers. The lanes of a loop are
independent sequences of calls, which threads share; threads also share the iterations of a loop
whose iterations are independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

PARAMETERS = "ptr %args, ptr %memory, ptr %constants, ptr %workspace"
ConstantTable = Mapping[int, int]  # index in the pointer table of each constant, by its offset
_BASES = {"argument": "args", "memory": "memory", "constant": "constants"}


@dataclass(frozen=True, slots=True)
class Ref:
    """The address of a buffer: argument number `position`, or `position` bytes into the region
    "memory" or "constant", plus `offset` bytes. With the region "word" the word of number
    `position` has the bytes into the memory. stride, toggle, max_offset, initial: see the
    module's formula; a `max_offset` of 0 is no bound."""

    region: str
    position: int
    offset: int = 0
    stride: int = 0
    toggle: int = 0
    max_offset: int = 0
    initial: Ref | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel's function with its buffers, once for each chunk. chunk_word: the word
    that has the number of chunks, if that depends on symbolic sizes."""

    function: str
    arguments: tuple[Ref, ...]
    chunks: int
    chunk_word: int | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """The calls of each lane, in order, `steps` times (at least 1). Lanes are independent; if
    `parallel`, so are iterations."""

    steps: int
    lanes: tuple[tuple[Call, ...], ...]
    parallel: bool = False

    @property
    def chunks(self) -> int:
        """The number of parts that threads may run concurrently."""
        return len(self.lanes) * (self.steps if self.parallel else 1)


def chunk_word(call: Call | Loop) -> int | None:
    """Return the word that has a call's number of chunks, if it depends on symbolic sizes."""
    return call.chunk_word if isinstance(call, Call) else None


def kernel_calls(calls: Iterable[Call | Loop]) -> Iterator[Call]:
    """Yield all calls; those within loops once."""
    for c in calls:
        if isinstance(c, Call):
            yield c
        else:
            yield from (inner for lane in c.lanes for inner in lane)


def references(calls: Iterable[Call | Loop]) -> Iterator[Ref]:
    """Yield all addresses that are passed to calls."""
    for c in kernel_calls(calls):
        for r in c.arguments:
            yield r
            if r.initial is not None:
                yield r.initial


def chunk_text(
    name: str, call: Call | Loop, table: ConstantTable | None = None, words_argument: int = 0
) -> Iterator[str]:
    """Yield the LLVM text of `void name(args, memory, constants, workspace, i64 chunk)`, which runs
    one chunk of a call, or one lane of a loop. words_argument: the argument that has the words."""
    if isinstance(call, Call):
        yield f"define private void @{name}({PARAMETERS}, i64 %chunk) {{"
        yield from _call_body(call, table, words_argument)
        yield "  ret void\n}"
        return
    for n, lane in enumerate(call.lanes):
        yield from _step_functions(f"{name}.lane{n}", lane, table)
    yield f"define private void @{name}({PARAMETERS}, i64 %chunk) {{\nentry:"
    each = call.steps if call.parallel else 1
    yield f"  %lane = udiv i64 %chunk, {each}"
    yield f"  %from = urem i64 %chunk, {each}"
    yield f"  %until = add i64 %from, {1 if call.parallel else call.steps}"
    cases = " ".join(f"i64 {n}, label %lane{n}" for n in range(len(call.lanes)))
    yield f"  switch i64 %lane, label %end [{cases}]"
    for n, lane in enumerate(call.lanes):
        yield f"lane{n}:"
        yield f"  %step{n} = phi i64 [%from, %entry], [%next{n}, %lane{n}]"
        for k in range(len(lane)):
            yield f"  call void @{name}.lane{n}.{k}({PARAMETERS}, i64 %step{n})"
        yield f"  %next{n} = add i64 %step{n}, 1"
        yield f"  %more{n} = icmp ult i64 %next{n}, %until"
        yield f"  br i1 %more{n}, label %lane{n}, label %end"
    yield "end:\n  ret void\n}"


def _step_functions(name: str, calls: Sequence[Call], table: ConstantTable | None) -> Iterator[str]:
    """Yield a function for one iteration of each call of a lane."""
    for n, call in enumerate(calls):
        yield f"define private void @{name}.{n}({PARAMETERS}, i64 %step) {{\nentry:"
        yield "  %odd = and i64 %step, 1"
        yield "  %is.first = icmp eq i64 %step, 0"
        addresses = list(_addresses(call.arguments, table, in_loop=True))
        yield from addresses
        if call.chunks == 1:
            yield _kernel_call(call, "0")
        else:
            yield "  br label %loop\nloop:"
            yield "  %chunk = phi i64 [0, %entry], [%next, %loop]"
            yield _kernel_call(call, "%chunk")
            yield "  %next = add i64 %chunk, 1"
            yield f"  %more = icmp ult i64 %next, {call.chunks}"
            yield "  br i1 %more, label %loop, label %done\ndone:"
        yield "  ret void\n}"


def _call_body(call: Call, table: ConstantTable | None, words_argument: int) -> Iterator[str]:
    if any(r.region == "word" for r in call.arguments):
        yield from words_pointer(words_argument)
    yield from _addresses(call.arguments, table, in_loop=False)
    yield _kernel_call(call, "%chunk")


def words_pointer(argument: int) -> Iterator[str]:
    """Yield the definition of %words, a program's argument of this number."""
    yield f"  %words.slot = getelementptr ptr, ptr %args, i64 {argument}"
    yield "  %words = load ptr, ptr %words.slot"


def _kernel_call(call: Call, chunk: str) -> str:
    given = "".join(f"ptr %at{j}, " for j in range(len(call.arguments)))
    return f"  call void @{call.function}({given}ptr %workspace, i64 {chunk})"


def _addresses(
    arguments: Sequence[Ref], table: ConstantTable | None, *, in_loop: bool
) -> Iterator[str]:
    """Yield the definitions of %at0, %at1, ...; in_loop: in iteration %step of a loop."""
    for j, r in enumerate(arguments):
        if not in_loop:
            yield from _base(f"at{j}", r, table)
            continue
        if not (r.stride or r.toggle or r.initial):
            yield from _base(f"at{j}", r, table)
            continue
        yield from _base(f"base{j}", r, table)
        if r.max_offset:
            yield f"  %unbounded{j} = mul i64 %step, {r.stride}"
            yield f"  %over{j} = icmp sgt i64 %unbounded{j}, {r.max_offset}"
            yield f"  %strided{j} = select i1 %over{j}, i64 {r.max_offset}, i64 %unbounded{j}"
        else:
            yield f"  %strided{j} = mul i64 %step, {r.stride}"
        yield f"  %toggled{j} = mul i64 %odd, {r.toggle}"
        yield f"  %moved{j} = add i64 %strided{j}, %toggled{j}"
        moved = f"  %{'at' if r.initial is None else 'later'}{j} = getelementptr i8, ptr %base{j}"
        yield f"{moved}, i64 %moved{j}"
        if r.initial is not None:
            yield from _base(f"first{j}", r.initial, table)
            yield f"  %at{j} = select i1 %is.first, ptr %first{j}, ptr %later{j}"


def _base(name: str, r: Ref, table: ConstantTable | None) -> Iterator[str]:
    if r.region == "word":
        yield f"  %{name}.word.at = getelementptr i64, ptr %words, i64 {r.position}"
        yield f"  %{name}.word = load i64, ptr %{name}.word.at"
        yield f"  %{name}.buffer = getelementptr i8, ptr %memory, i64 %{name}.word"
        yield f"  %{name} = getelementptr i8, ptr %{name}.buffer, i64 {r.offset}"
        return
    base = _BASES[r.region]
    number = r.position
    if r.region == "constant" and table is not None:
        number = table[r.position]
    elif r.region != "argument":
        yield f"  %{name} = getelementptr i8, ptr %{base}, i64 {r.position + r.offset}"
        return
    yield f"  %{name}.slot = getelementptr ptr, ptr %{base}, i64 {number}"
    if not r.offset:
        yield f"  %{name} = load ptr, ptr %{name}.slot"
        return
    yield f"  %{name}.array = load ptr, ptr %{name}.slot"
    yield f"  %{name} = getelementptr i8, ptr %{name}.array, i64 {r.offset}"
