"""A program on a GPU as it is launched: its kernels as they were compiled, and where in memory each
launch finds what it reads. All of it lies in one piece of memory, the *arena*: first what is known
ahead (constants and tables), then zeros. Plain data: nothing here knows how it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Place = tuple[
    int, int, str
]  # bytes into the arena, of how many elements, their type by torch's name
Port = tuple[int, tuple[int, ...], str]  # bytes into the arena, shape, and the elements' type


@dataclass(frozen=True, slots=True)
class Function:
    """name: in its text, which is machine code (Triton's text in the interpreter) from byte `begin`
    to `end` of all texts; of what the vendor's library computes: what (Kernel.library), and none.
    shared: bytes of memory of a block; threads: of one; alike: see gpu_launch.like_others."""

    name: str
    begin: int
    end: int
    shared: int = 0
    threads: int = 0
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A launch of a function. early: it may begin before the one before it has ended; call: which
    call of the program it belongs to."""

    function: int
    programs: int
    given: tuple[Place, ...]
    early: bool
    call: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A call: on which stream it runs, and which earlier ones on others it waits for."""

    lane: int = 0
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """size: bytes of the arena; known: of these, at its beginning, what is known ahead. dots: how
    the library multiplies float32, by Triton's name."""

    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    calls: tuple[Lane, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    size: int
    known: int
    dots: str

    @property
    def lanes(self) -> int:
        return 1 + max((c.lane for c in self.calls), default=0)


def described(i: Image) -> dict[str, Any]:
    """As JSON has it."""
    return asdict(i)


def parsed(about: dict[str, Any]) -> Image:
    """Raises ValueError, TypeError or LookupError for what is no such description."""
    steps = tuple(
        Step(int(s["function"]), int(s["programs"]), tuple(map(_place, s["given"])),
             bool(s["early"]), int(s["call"]))
        for s in about["steps"]
    )  # fmt: skip
    return Image(
        tuple(Function(**f) for f in about["functions"]),
        steps,
        tuple(Lane(int(c["lane"]), tuple(c["waits"])) for c in about["calls"]),
        tuple(map(_port, about["inputs"])),
        tuple(map(_port, about["outputs"])),
        int(about["size"]),
        int(about["known"]),
        str(about["dots"]),
    )


def _place(given: list[Any]) -> Place:
    at, size, kind = given
    return int(at), int(size), str(kind)


def _port(given: list[Any]) -> Port:
    at, shape, kind = given
    return int(at), tuple(map(int, shape)), str(kind)
