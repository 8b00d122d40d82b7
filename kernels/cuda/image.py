"""A kept GPU program as plain data: compiled kernels, and where in memory each launch finds its
operands. All buffers are in one allocation, the *arena*: first known data (constants and tables),
then zeros. Nothing here knows how it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SliceSpec = tuple[
    int, int, str
]  # bytes into the arena, of how many elements, their type by torch's name
PortSpec = tuple[int, tuple[int, ...], str]  # bytes into the arena, shape, and the elements' type


@dataclass(frozen=True, slots=True)
class Function:
    """name: in its code, which is bytes `begin` to `end` of all code (machine code; Triton text in
    the interpreter). For a vendor call: the call (Kernel.library), without code. shared: bytes of a
    block's shared memory; threads: of a block; alike: see launch.prefers_shared_memory."""

    name: str
    begin: int
    end: int
    shared: int = 0
    threads: int = 0
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A launch of a function. early: it may begin before the previous one has ended; call: the
    number of the program's call it belongs to. sizes: integers that follow the addresses."""

    function: int
    programs: int
    given: tuple[SliceSpec, ...]
    early: bool
    call: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """A call: its stream, and the earlier calls on other streams that it waits for."""

    lane: int = 0
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """size: bytes of the arena; known: bytes of known data at its beginning. dots: precision of
    fp32 products by the vendor, by Triton's name."""

    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    calls: tuple[Lane, ...]
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]
    size: int
    known: int
    dots: str

    @property
    def stream_count(self) -> int:
        return 1 + max((c.lane for c in self.calls), default=0)


def image_to_dict(image: Image) -> dict[str, Any]:
    """Return the image as JSON data."""
    return asdict(image)


def image_from_dict(description: dict[str, Any]) -> Image:
    """Parse that data. Raises ValueError, TypeError or LookupError if it is invalid."""
    steps = tuple(
        Step(int(s["function"]), int(s["programs"]), tuple(map(_place, s["given"])),
             bool(s["early"]), int(s["call"]))
        for s in description["steps"]
    )  # fmt: skip
    return Image(
        tuple(Function(**f) for f in description["functions"]),
        steps,
        tuple(Lane(int(c["lane"]), tuple(c["waits"])) for c in description["calls"]),
        tuple(map(_port, description["inputs"])),
        tuple(map(_port, description["outputs"])),
        int(description["size"]),
        int(description["known"]),
        str(description["dots"]),
    )


def _place(given: list[Any]) -> SliceSpec:
    at, size, kind = given
    return int(at), int(size), str(kind)


def _port(given: list[Any]) -> PortSpec:
    at, shape, kind = given
    return int(at), tuple(map(int, shape)), str(kind)
