"""Calls of kernels and loops of calls within a program, and their LLVM text.

A program is a sequence of calls and loops. A call passes the addresses of its buffers to a kernel.
A loop repeats a sequence of calls, whose addresses change with the iteration:

    address(i) = base + min(stride * i, max_offset) + toggle * (i % 2)    or `initial`, if i = 0

A slice of an input or output is accessed at a stride (the last slices overlap if they do not divide
the tensor), and a loop-carried state alternates between two buffers. The lanes of a loop are
independent sequences of calls, which threads share; threads also share the iterations of a loop
whose iterations are independent.

What depends on symbolic sizes is a word: a value that is computed before a run and passed in a
table, the last argument.
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
    module's formula; a `max_offset` of 0 is no bound. words: which of "offset", "stride", "toggle"
    and "max_offset" are not the bytes, but the number of the word that has them."""

    region: str
    position: int
    offset: int = 0
    stride: int = 0
    toggle: int = 0
    max_offset: int = 0
    initial: Ref | None = None
    words: frozenset[str] = frozenset()

    @property
    def moves(self) -> bool:
        """True if it differs between iterations of a loop."""
        fixed = (self.stride, self.toggle, self.initial) == (0, 0, None)
        return not fixed or bool(self.words & {"stride", "toggle"})

    @property
    def is_bounded(self) -> bool:
        return self.max_offset != 0 or "max_offset" in self.words


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
    `parallel`, so are iterations. step_word: the word that has the number of steps, if that depends
    on symbolic sizes. chunk_word: likewise, of `chunks`."""

    steps: int
    lanes: tuple[tuple[Call, ...], ...]
    parallel: bool = False
    step_word: int | None = None
    chunk_word: int | None = None

    @property
    def chunks(self) -> int:
        """The number of parts that threads may run concurrently."""
        return len(self.lanes) * (self.steps if self.parallel else 1)


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
        if _reads_words(call):
            yield from words_pointer(words_argument)
        yield from _addresses(call.arguments, table, in_loop=False)
        yield _kernel_call(call, "%chunk")
        yield "  ret void\n}"
        return
    for n, lane in enumerate(call.lanes):
        yield from _step_functions(f"{name}.lane{n}", lane, table, words_argument)
    yield f"define private void @{name}({PARAMETERS}, i64 %chunk) {{\nentry:"
    steps = str(call.steps)
    if call.step_word is not None:
        yield from words_pointer(words_argument)
        yield from load_word("steps", call.step_word)
        steps = "%steps"
    each = steps if call.parallel else "1"
    yield f"  %lane = udiv i64 %chunk, {each}"
    yield f"  %from = urem i64 %chunk, {each}"
    yield f"  %until = add i64 %from, {'1' if call.parallel else steps}"
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


def _step_functions(
    name: str, calls: Sequence[Call], table: ConstantTable | None, words_argument: int
) -> Iterator[str]:
    """Yield a function for one iteration of each call of a lane."""
    for n, call in enumerate(calls):
        yield f"define private void @{name}.{n}({PARAMETERS}, i64 %step) {{\nentry:"
        yield "  %odd = and i64 %step, 1"
        yield "  %is.first = icmp eq i64 %step, 0"
        if _reads_words(call):
            yield from words_pointer(words_argument)
        yield from _addresses(call.arguments, table, in_loop=True)
        count = str(call.chunks)
        if call.chunk_word is not None:
            yield from load_word("count", call.chunk_word)
            count = "%count"
        if count == "1":
            yield _kernel_call(call, "0")
        else:
            yield "  br label %loop\nloop:"
            yield "  %chunk = phi i64 [0, %entry], [%next, %loop]"
            yield _kernel_call(call, "%chunk")
            yield "  %next = add i64 %chunk, 1"
            yield f"  %more = icmp ult i64 %next, {count}"
            yield "  br i1 %more, label %loop, label %done\ndone:"
        yield "  ret void\n}"


def _reads_words(call: Call) -> bool:
    """True if a call's addresses or its number of chunks depend on symbolic sizes."""
    return call.chunk_word is not None or any(
        r.region == "word" or r.words for r in references([call])
    )


def words_pointer(argument: int) -> Iterator[str]:
    """Yield the definition of %words, a program's argument of this number."""
    yield f"  %words.slot = getelementptr ptr, ptr %args, i64 {argument}"
    yield "  %words = load ptr, ptr %words.slot"


def load_word(name: str, number: int) -> Iterator[str]:
    """Yield the definition of %name, the word of this number."""
    yield f"  %{name}.at = getelementptr i64, ptr %words, i64 {number}"
    yield f"  %{name} = load i64, ptr %{name}.at"


def _define_bytes(name: str, r: Ref, part: str) -> Iterator[str]:
    """Yield the definition of %name, the bytes of a part of an address."""
    number: int = getattr(r, part)
    if part in r.words:
        yield from load_word(name, number)
    else:
        yield f"  %{name} = add i64 0, {number}"


def _kernel_call(call: Call, chunk: str) -> str:
    given = "".join(f"ptr %at{j}, " for j in range(len(call.arguments)))
    return f"  call void @{call.function}({given}ptr %workspace, i64 {chunk})"


def _addresses(
    arguments: Sequence[Ref], table: ConstantTable | None, *, in_loop: bool
) -> Iterator[str]:
    """Yield the definitions of %at0, %at1, ...; in_loop: in iteration %step of a loop."""
    for j, r in enumerate(arguments):
        if not in_loop or not r.moves:
            yield from _base(f"at{j}", r, table)
            continue
        yield from _base(f"base{j}", r, table)
        yield from _define_bytes(f"stride{j}", r, "stride")
        yield from _define_bytes(f"toggle{j}", r, "toggle")
        yield f"  %{'unbounded' if r.is_bounded else 'strided'}{j} = mul i64 %step, %stride{j}"
        if r.is_bounded:
            yield from _define_bytes(f"most{j}", r, "max_offset")
            yield f"  %over{j} = icmp sgt i64 %unbounded{j}, %most{j}"
            yield f"  %strided{j} = select i1 %over{j}, i64 %most{j}, i64 %unbounded{j}"
        yield f"  %toggled{j} = mul i64 %odd, %toggle{j}"
        yield f"  %moved{j} = add i64 %strided{j}, %toggled{j}"
        moved = f"  %{'at' if r.initial is None else 'later'}{j} = getelementptr i8, ptr %base{j}"
        yield f"{moved}, i64 %moved{j}"
        if r.initial is not None:
            yield from _base(f"first{j}", r.initial, table)
            yield f"  %at{j} = select i1 %is.first, ptr %first{j}, ptr %later{j}"


def _base(name: str, r: Ref, table: ConstantTable | None) -> Iterator[str]:
    """Yield the definition of %name, the address of a buffer in the first iteration."""
    if r.region == "word":
        yield from load_word(f"{name}.word", r.position)
        yield f"  %{name}.start = getelementptr i8, ptr %memory, i64 %{name}.word"
    elif r.region == "argument" or (r.region == "constant" and table is not None):
        number = r.position if r.region == "argument" or table is None else table[r.position]
        yield f"  %{name}.slot = getelementptr ptr, ptr %{_BASES[r.region]}, i64 {number}"
        yield f"  %{name}.start = load ptr, ptr %{name}.slot"
    else:
        yield f"  %{name}.start = getelementptr i8, ptr %{_BASES[r.region]}, i64 {r.position}"
    yield from _define_bytes(f"{name}.offset", r, "offset")
    yield f"  %{name} = getelementptr i8, ptr %{name}.start, i64 %{name}.offset"
