"""How threads share the chunks of a program's kernels: LLVM text of `work` and of what `run` calls.

The chunks of a kernel are partitioned: each thread has the same part in each call, so that its data
stays in its core's caches. Each part has a ticket word: the kernel's number in the upper half, the
next chunk in the lower. Incrementing it takes a chunk: first from the thread's own part, then from
the others'. `work` is the loop of the other threads until they are stopped: they wait for a new
number, take chunks, and add those of a part to the finished ones when the part has no more: one
word that all threads increment for each chunk would cost 0.1 us a chunk. Until a thread has added
its chunks the kernel does not end, so that all of them are of this kernel. Nobody waits for a
thread that has taken nothing, for instance because its processor is busy; and a kernel of one chunk
has no synchronization. Idle threads spin, then sleep (a futex on Linux).

Where numbers of chunks depend on symbolic sizes, each run writes them to the end of `state`. It
writes its first number before: a thread that is late with a ticket of the run before sees by that
number that the ticket is old, whichever number of chunks it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superopt.kernels.llvm.calls import PARAMETERS, Call, Loop, load_word, words_pointer

# Offsets of words in `state`, initially 0, each in a cache line of its own; the table of pointers
# is in one line, and the tickets come last.
(
    NUMBER_WORD,
    DONE_WORD,
    WAKE_WORD,
    SLEEPERS_WORD,
    STOP_WORD,
    BASE_WORD,
    ARGS_WORD,
    JOINED_WORD,
    TICKETS_WORD,
) = range(0, 72, 8)
WORDS_PER_LINE = 8
MAX_PARTS = 64  # of a kernel's chunks
COUNTS_WORD = TICKETS_WORD + WORDS_PER_LINE * MAX_PARTS  # where these depend on symbolic sizes
STATE_BYTES = 8 * COUNTS_WORD
SPINS_BEFORE_SLEEP = 4000  # polls for work before a thread sleeps
SPINS_BEFORE_YIELD = 20000  # polls for the last chunks before the processor is yielded


GROUPS_PER_THREAD = 16  # few threads wait at the end, and few take tickets


def _group_sizes(k: int, call: Call | Loop, threads: int) -> tuple[str, str, list[str]]:
    """Return the number of a kernel's chunks, and of the chunks in a group; and, where they depend
    on symbolic sizes, the text that computes them from %words."""
    share = GROUPS_PER_THREAD * threads
    word = call.chunk_word
    if word is None:
        return str(call.chunks), str(max(1, call.chunks // share)), []
    return (
        f"%count{k}",
        f"%size{k}",
        [
            *load_word(f"count{k}", word),
            f"  %part{k} = udiv i64 %count{k}, {share}",
            f"  %few{k} = icmp eq i64 %part{k}, 0",
            f"  %size{k} = select i1 %few{k}, i64 1, i64 %part{k}",
        ],
    )


def chunk_group_function(
    k: int, call: Call | Loop, threads: int, words_argument: int
) -> tuple[int, list[str]]:
    """Return the number of chunk groups of a kernel, and a function that runs one."""
    chunks, size, lines = _group_sizes(k, call, threads)
    count = -(-call.chunks // max(1, call.chunks // (GROUPS_PER_THREAD * threads)))
    return count, [
        f"define private void @group{k}({PARAMETERS}, i64 %group) {{\nentry:",
        *((*words_pointer(words_argument), *lines) if lines else ()),
        f"  %begin = mul i64 %group, {size}",
        f"  %next = add i64 %begin, {size}",
        f"  %over = icmp ugt i64 %next, {chunks}",
        f"  %end = select i1 %over, i64 {chunks}, i64 %next",
        "  br label %loop",
        "loop:",
        "  %chunk = phi i64 [%begin, %entry], [%after, %loop]",
        f"  call void @call{k}({PARAMETERS}, i64 %chunk)",
        "  %after = add i64 %chunk, 1",
        "  %more = icmp ult i64 %after, %end",
        "  br i1 %more, label %loop, label %done",
        "done:\n  ret void\n}",
    ]


def chunk_dispatch(calls: Sequence[Call | Loop]) -> Iterator[str]:
    """Yield the dispatcher: run chunk group `chunk` of kernel number `k`."""
    yield f"define private void @chunk(i64 %k, {PARAMETERS}, i64 %chunk) {{"
    yield "  switch i64 %k, label %none ["
    for k in range(len(calls)):
        yield f"    i64 {k}, label %call{k}"
    yield "  ]"
    for k in range(len(calls)):
        yield f"call{k}:"
        yield f"  call void @group{k}({PARAMETERS}, i64 %chunk)"
        yield "  ret void"
    yield "none:\n  ret void\n}"


def word_pointer(name: str, index: int) -> str:
    return f"  %{name} = getelementptr i64, ptr %state, i64 {index}"


def _pause(system: str) -> str:
    return f"  call void {_PAUSES[_is_x86(system)]}"


def _is_x86(system: str) -> bool:
    return system.startswith("x86_64-")


def system_declarations(system: str) -> Iterator[str]:
    """Yield the declarations of the functions of a system. system: as "x86_64-linux"."""
    yield f"declare void {_PAUSES[_is_x86(system)].replace('i32 1', 'i32')}"
    if _is_windows(system):
        yield "declare i32 @SwitchToThread()"
        yield "declare i32 @WaitOnAddress(ptr, ptr, i64, i32)"
        yield "declare void @WakeByAddressAll(ptr)"
        return
    yield "declare i32 @sched_yield()"
    yield "declare i64 @syscall(i64, ...)"


_PAUSES = {True: "@llvm.x86.sse2.pause()", False: "@llvm.aarch64.hint(i32 1)"}


def _is_windows(system: str) -> bool:
    return system.endswith("-windows")


def _yield_processor(name: str, system: str) -> str:
    function = "SwitchToThread" if _is_windows(system) else "sched_yield"
    return f"  %{name} = call i32 @{function}()"


def _load_count(symbolic: bool) -> Iterator[str]:
    """Yield the definition of %all, the number of chunk groups of kernel %k."""
    if symbolic:
        yield f"  %place.k = add i64 %k, {COUNTS_WORD}"
        yield "  %slot = getelementptr i64, ptr %state, i64 %place.k"
        yield "  %all = load atomic i64, ptr %slot acquire, align 8"
        return
    yield "  %slot = getelementptr [1 x i64], ptr @chunks, i64 0, i64 %k"
    yield "  %all = load i64, ptr %slot"


def count_stores(
    calls: Sequence[Call | Loop], counts: Sequence[int], threads: int, words_argument: int
) -> Iterator[str]:
    """Yield the text that writes the number of each kernel's chunk groups to `state`."""
    yield from words_pointer(words_argument)
    for k, call in enumerate(calls):
        chunks, size, lines = _group_sizes(k, call, threads)
        yield from lines
        groups = str(counts[k])
        if lines:
            yield f"  %more{k} = add i64 {chunks}, {size}"
            yield f"  %last{k} = sub i64 %more{k}, 1"
            yield f"  %groups{k} = udiv i64 %last{k}, {size}"
            groups = f"%groups{k}"
        yield word_pointer(f"groups{k}.at", COUNTS_WORD + k)
        yield f"  store atomic i64 {groups}, ptr %groups{k}.at release, align 8"


def drain_function(n: int, parts: int, symbolic: bool) -> Iterator[str]:
    """Yield `drain`: take chunks of the thread's own part, then of others', until none is left."""
    yield "define private i64 @free(i64 %word, i64 %part, ptr %state) {"
    yield "  %number = lshr i64 %word, 32"
    yield "  %next = and i64 %word, 4294967295"
    yield f"  %k = urem i64 %number, {n}"
    yield from _load_count(symbolic)
    yield "  %after = add i64 %part, 1"
    for name, part in (("begin", "part"), ("end", "after")):
        yield f"  %{name}.all = mul i64 %all, %{part}"
        yield f"  %{name} = udiv i64 %{name}.all, {parts}"
    yield "  %chunk = add i64 %begin, %next"
    yield "  %left = icmp ult i64 %chunk, %end"
    if symbolic:
        yield word_pointer("base", BASE_WORD)
        yield "  %first = load atomic i64, ptr %base acquire, align 8"
        yield "  %ahead = sub i64 %number, %first"
        yield f"  %in.run = icmp ult i64 %ahead, {n}"
        yield "  %not.zero = icmp ne i64 %number, 0"
        yield "  %told = and i1 %in.run, %not.zero"
    else:
        yield "  %told = icmp ne i64 %number, 0"
    yield "  %some = and i1 %left, %told"
    yield "  %out = select i1 %some, i64 %chunk, i64 -1"
    yield "  ret i64 %out\n}"
    yield "define private void @drain(i64 %own, ptr %state, ptr %workspace) {\nentry:"
    yield word_pointer("done", DONE_WORD)
    yield word_pointer("at", ARGS_WORD)
    yield "  br label %part"
    yield "part:"
    yield "  %n = phi i64 [0, %entry], [%n.next, %following]"
    yield "  %n.own = add i64 %own, %n"
    yield f"  %i = urem i64 %n.own, {parts}"
    yield f"  %line = mul i64 %i, {WORDS_PER_LINE}"
    yield f"  %place = add i64 %line, {TICKETS_WORD}"
    yield "  %ticket = getelementptr i64, ptr %state, i64 %place"
    yield "  br label %look"
    yield "look:"
    yield "  %taken = phi i64 [0, %part], [%taken.now, %do]"
    yield "  %seen = load atomic i64, ptr %ticket acquire, align 8"
    yield "  %seen.chunk = call i64 @free(i64 %seen, i64 %i, ptr %state)"
    yield "  %some = icmp sge i64 %seen.chunk, 0"
    yield "  br i1 %some, label %take, label %none"
    yield "take:"
    yield "  %got = atomicrmw add ptr %ticket, i64 1 acq_rel"
    yield "  %chunk = call i64 @free(i64 %got, i64 %i, ptr %state)"
    yield "  %mine = icmp sge i64 %chunk, 0"
    yield "  br i1 %mine, label %do, label %none"
    yield "do:"
    yield "  %number = lshr i64 %got, 32"
    yield f"  %k = urem i64 %number, {n}"
    for j, name in enumerate(("args", "memory", "constants")):
        yield f"  %at{j} = getelementptr i64, ptr %at, i64 {j}"
        yield f"  %{name} = load ptr, ptr %at{j}"
    yield f"  call void @chunk(i64 %k, {PARAMETERS}, i64 %chunk)"
    yield "  %taken.now = add i64 %taken, 1"
    yield "  br label %look"
    yield "none:"
    yield "  %has.taken = icmp ne i64 %taken, 0"
    yield "  br i1 %has.taken, label %report, label %following"
    yield "report:"
    yield "  %was = atomicrmw add ptr %done, i64 %taken acq_rel"
    yield "  br label %following"
    yield "following:"
    yield "  %n.next = add i64 %n, 1"
    yield f"  %more = icmp ult i64 %n.next, {parts}"
    yield "  br i1 %more, label %part, label %end"
    yield "end:\n  ret void\n}"


def share_function(system: str, parts: int, symbolic: bool) -> Iterator[str]:
    """Yield `share`: let all threads run the chunks of kernel number %k."""
    yield "define private void @share(i64 %k, i64 %base, ptr %workspace, ptr %state) {\nentry:"
    yield word_pointer("number", NUMBER_WORD)
    yield word_pointer("done", DONE_WORD)
    yield from _load_count(symbolic)
    yield "  store atomic i64 0, ptr %done monotonic, align 8"
    yield "  %new = add i64 %base, %k"
    yield "  %first = shl i64 %new, 32"
    for i in range(parts):
        yield word_pointer(f"ticket{i}", TICKETS_WORD + WORDS_PER_LINE * i)
        yield f"  store atomic i64 %first, ptr %ticket{i} release, align 8"
    yield "  store atomic i64 %new, ptr %number seq_cst, align 8"
    yield word_pointer("sleepers", SLEEPERS_WORD)
    yield word_pointer("wake", WAKE_WORD)
    yield "  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8"
    yield "  %some = icmp ne i64 %asleep, 0"
    yield "  br i1 %some, label %rouse, label %left"
    yield "rouse:"
    yield "  %told = atomicrmw add ptr %wake, i64 1 seq_cst"
    yield _wake(system)
    yield "  br label %left"
    yield "left:"
    yield "  call void @drain(i64 0, ptr %state, ptr %workspace)"
    yield "  br label %wait"
    yield "wait:"
    yield "  %tries = phi i64 [0, %left], [%again, %spin], [0, %give]"
    yield "  %finished = load atomic i64, ptr %done acquire, align 8"
    yield "  %over = icmp uge i64 %finished, %all"
    yield "  br i1 %over, label %end, label %spin.or"
    yield "spin.or:"
    yield f"  %long = icmp ugt i64 %tries, {SPINS_BEFORE_YIELD}"
    yield "  br i1 %long, label %give, label %spin"
    yield "give:"
    yield _yield_processor("ignored", system)
    yield "  br label %wait"
    yield "spin:"
    yield _pause(system)
    yield "  %again = add i64 %tries, 1"
    yield "  br label %wait"
    yield "end:\n  ret void\n}"


def _wake(system: str) -> str:
    """Return the call that wakes all threads which sleep on %wake; only Linux and Windows have such
    sleep."""
    if _is_windows(system):
        return "  call void @WakeByAddressAll(ptr %wake)"
    return _futex(system, "i64 1, i64 2147483647")


def _sleep(system: str) -> Iterator[str]:
    """Yield the call that sleeps until %wake is woken, if its lower half is %low."""
    if _is_windows(system):
        yield "  store i32 %low, ptr %low.at"
        yield "  %woken = call i32 @WaitOnAddress(ptr %wake, ptr %low.at, i64 4, i32 -1)"
    else:
        yield _futex(system, "i64 0, i32 %low")


def _futex(system: str, arguments: str) -> str:
    """Return the futex call on Linux; elsewhere a yield of the processor."""
    if not system.endswith("-linux"):
        return _yield_processor("none", system)
    number = 202 if _is_x86(system) else 98
    return (
        f"  %woken = call i64 (i64, ...) @syscall(i64 {number}, ptr %wake, {arguments}, ptr null)"
    )


def worker_function(system: str) -> Iterator[str]:
    yield "define void @work(ptr %state, ptr %workspace) {\nentry:"
    if _is_windows(system):
        yield "  %low.at = alloca i32"
    for name, at in (
        ("number", NUMBER_WORD),
        ("wake", WAKE_WORD),
        ("sleepers", SLEEPERS_WORD),
        ("stop", STOP_WORD),
        ("joined", JOINED_WORD),
    ):
        yield word_pointer(name, at)
    yield "  %before = atomicrmw add ptr %joined, i64 1 monotonic"
    yield "  %own = add i64 %before, 1"
    yield "  br label %look"
    yield "look:"
    yield "  %seen = load atomic i64, ptr %number acquire, align 8"
    yield "  call void @drain(i64 %own, ptr %state, ptr %workspace)"
    yield "  br label %idle"
    yield "idle:"
    yield "  %tries = phi i64 [0, %look], [%more, %spin], [0, %rested]"
    yield "  %ended = load atomic i64, ptr %stop acquire, align 8"
    yield "  %quit = icmp ne i64 %ended, 0"
    yield "  br i1 %quit, label %end, label %ask"
    yield "ask:"
    yield "  %now = load atomic i64, ptr %number acquire, align 8"
    yield "  %other = icmp ne i64 %now, %seen"
    yield "  br i1 %other, label %look, label %tire"
    yield "tire:"
    yield _pause(system)
    yield "  %more = add i64 %tries, 1"
    yield f"  %tired = icmp ugt i64 %more, {SPINS_BEFORE_SLEEP}"
    yield "  br i1 %tired, label %sleep, label %spin"
    yield "spin:"
    yield "  br label %idle"
    yield "sleep:"
    # A sleeper registers first, then polls again: work announced in between sees the sleeper, and
    # changes the word on which it would sleep.
    yield "  %word = load atomic i64, ptr %wake seq_cst, align 8"
    yield "  %low = trunc i64 %word to i32"
    yield "  %one.more = atomicrmw add ptr %sleepers, i64 1 seq_cst"
    yield "  %stopped = load atomic i64, ptr %stop seq_cst, align 8"
    yield "  %leave = icmp ne i64 %stopped, 0"
    yield "  %last = load atomic i64, ptr %number seq_cst, align 8"
    yield "  %new = icmp ne i64 %last, %seen"
    yield "  %stay = or i1 %leave, %new"
    yield "  br i1 %stay, label %up, label %rest"
    yield "rest:"
    yield from _sleep(system)
    yield "  br label %up"
    yield "up:"
    yield "  %one.less = atomicrmw sub ptr %sleepers, i64 1 seq_cst"
    yield "  br label %rested"
    yield "rested:"
    yield "  br label %idle"
    yield "end:\n  ret void\n}"
