"""Launches on several streams: torch's, or the driver's (driver.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

FULL_WAIT_LABEL = "waits for others"  # suffix of the name of a launch that does not begin early
# A kernel that moves so many bytes with so little shared memory streams data: its loads are in
# flight in L1, which is the rest of that memory.
STREAMING_BYTES, SMALL_SHARED_BYTES = 12 << 20, 1 << 13
# name, function, number of programs, arguments, options of the call
LaunchRecord = tuple[str, Any, int, list[Any], dict[str, Any]]


class Lane(Protocol):
    """A call: its stream, and the earlier calls on other streams that it waits for."""

    @property
    def lane(self) -> int: ...
    @property
    def waits(self) -> tuple[int, ...]: ...


class LaunchSequence(Protocol):
    """calls: of a program; call_numbers: the call of each launch; side_streams: streams beside the
    current one."""

    @property
    def calls(self) -> Sequence[Lane]: ...
    @property
    def launches(self) -> Sequence[LaunchRecord]: ...
    @property
    def call_numbers(self) -> Sequence[int]: ...
    @property
    def side_streams(self) -> Sequence[Any]: ...


def must_wait(calls: Sequence[Lane], counts: Sequence[int]) -> list[list[bool]]:
    """Return for each launch of each call, of which there are `counts`, whether it must wait for
    the end of the previous launch. The first one on its stream must, and so must one behind a wait
    for another stream, even if that wait belongs to an earlier call without launches."""
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


def prefers_shared_memory(tensors: Sequence[Any], shared: int) -> bool:
    """True if a kernel should use the same shared memory carveout as others, the largest: only then
    can a launch begin while another kernel still runs. shared: bytes of a block."""
    moved = sum(x.numel() * x.element_size() for x in tensors if not isinstance(x, int))
    return moved < STREAMING_BYTES or shared > SMALL_SHARED_BYTES


def launch_in_order(r: LaunchSequence) -> None:
    """Launch everything on the current stream."""
    for _, function, programs, given, how in r.launches:
        function[(programs,)](*given, **how)


def launch_on_streams(r: LaunchSequence, cuda: Any) -> None:
    """Launch everything on the current stream and its side streams, which begin and end with it.
    cuda: torch.cuda, or an object with the part of its interface used here."""
    main = cuda.current_stream()
    streams = [main, *r.side_streams]
    begin = _record_event(main, cuda)
    for s in r.side_streams:
        s.wait_event(begin)
    wanted = {m for c in r.calls for m in c.waits}
    over: dict[int, Any] = {}
    own: dict[int, list[LaunchRecord]] = {}
    for n, launch in zip(r.call_numbers, r.launches, strict=True):
        own.setdefault(n, []).append(launch)
    for n, call in enumerate(r.calls):  # also calls without launches: others wait through them
        stream = streams[call.lane]
        for m in call.waits:
            stream.wait_event(over[m])
        with cuda.stream(stream):
            for _, function, programs, given, how in own.get(n, ()):
                function[(programs,)](*given, **how)
        if n in wanted:
            over[n] = _record_event(stream, cuda)
    for s in r.side_streams:
        main.wait_event(_record_event(s, cuda))


def _record_event(stream: Any, cuda: Any) -> Any:
    """Record and return an event at the end of the stream's work so far."""
    event = cuda.Event()
    event.record(stream)
    return event
