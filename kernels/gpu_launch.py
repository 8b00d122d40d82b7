"""Launches on several streams: torch's, or the driver's own (gpu_driver.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

LATE = "waits for others"  # what a launch is called that does not begin early
# What moves so many bytes with little shared memory of its own is a stream of reads: these wait
# in the first cache, which is what is left of that memory.
STREAM, LITTLE = 12 << 20, 1 << 13
# Its name, function, programs, what it is given, and what else its function is told.
Launch = tuple[str, Any, int, list[Any], dict[str, Any]]


class Lane(Protocol):
    """A call: on which stream it runs, and which earlier ones on others it waits for."""

    @property
    def lane(self) -> int: ...
    @property
    def waits(self) -> tuple[int, ...]: ...


class Launched(Protocol):
    """calls: those of a program; numbers: which call a launch is of; beside: streams beside the
    current one."""

    @property
    def calls(self) -> Sequence[Lane]: ...
    @property
    def launches(self) -> Sequence[Launch]: ...
    @property
    def numbers(self) -> Sequence[int]: ...
    @property
    def beside(self) -> Sequence[Any]: ...


def late(calls: Sequence[Lane], counts: Sequence[int]) -> list[list[bool]]:
    """Of each launch of each call, of which there are so many: must it wait until what is before
    it has ended? So must the first one on its stream, and behind a wait for another stream, also
    one that a call before it was to do that launches nothing."""
    out: list[list[bool]] = []
    begun, owed = {0}, set[int]()
    for call, count in zip(calls, counts, strict=True):
        if call.waits or call.lane not in begun:
            owed.add(call.lane)
        begun.add(call.lane)
        out.append([n == 0 and call.lane in owed for n in range(count)])
        if count:
            owed.discard(call.lane)
    return out


def like_others(given: Sequence[Any], shared: int) -> bool:
    """Is a kernel to divide a multiprocessor's memory as the others do, with as much shared memory
    as there is? One begins where another one still runs only then. shared: bytes of a block."""
    moved = sum(x.numel() * x.element_size() for x in given)
    return moved < STREAM or shared > LITTLE


def in_order(r: Launched) -> None:
    """All launches, one after the other."""
    for _, function, programs, given, how in r.launches:
        function[(programs,)](*given, **how)


def forked(r: Launched, cuda: Any) -> None:
    """All launches on the current stream and those beside it, which begin and end with it. cuda:
    torch.cuda, or what has as much of it as is used here."""
    main = cuda.current_stream()
    streams = [main, *r.beside]
    begin = _over(main, cuda)
    for s in r.beside:
        s.wait_event(begin)
    wanted = {m for c in r.calls for m in c.waits}
    over: dict[int, Any] = {}
    own: dict[int, list[Launch]] = {}
    for n, launch in zip(r.numbers, r.launches, strict=True):
        own.setdefault(n, []).append(launch)
    for n, call in enumerate(r.calls):  # also of those that launch nothing: others wait through it
        stream = streams[call.lane]
        for m in call.waits:
            stream.wait_event(over[m])
        with cuda.stream(stream):
            for _, function, programs, given, how in own.get(n, ()):
                function[(programs,)](*given, **how)
        if n in wanted:
            over[n] = _over(stream, cuda)
    for s in r.beside:
        main.wait_event(_over(s, cuda))


def _over(stream: Any, cuda: Any) -> Any:
    """An event: what was asked of the stream so far has ended."""
    event = cuda.Event()
    event.record(stream)
    return event
