"""A kept GPU program for many sizes, as plain data: an image (image.py) with *words* in place of
numbers that depend on sizes. Words are values that are computed from the sizes before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from superopt.kernels.cuda.image import Function, Image, Lane, PortSpec, SliceSpec, Step

ARENA_ALIGNMENT = 256
CONSTANT, MEMORY, ARGUMENT = "constant", "memory", "argument"


@dataclass(frozen=True, slots=True)
class SizedPlace:
    """A buffer of `elements` (a word) of a type, by torch's name. region: CONSTANT, `number` bytes
    into the constants; MEMORY, as many bytes into the memory as the word `number` says; ARGUMENT,
    the program's argument `number`. offset: bytes beyond."""

    region: str
    number: int
    offset: int
    elements: int
    kind: str


@dataclass(frozen=True, slots=True)
class SizedStep:
    """A launch of a function; see image.Step. programs: a word. sizes: words that follow the
    addresses of `given`, as integers of 32 bits."""

    function: int
    programs: int
    given: tuple[SizedPlace, ...]
    sizes: tuple[int, ...]
    early: bool
    call: int


@dataclass(frozen=True, slots=True)
class SizedPort:
    """An argument: words of its shape, and the type of its elements."""

    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class SizedImage:
    """ports: `input_count` inputs, then the outputs. constant_bytes: of all constants. dots: see
    image.Image."""

    functions: tuple[Function, ...]
    steps: tuple[SizedStep, ...]
    calls: tuple[Lane, ...]
    ports: tuple[SizedPort, ...]
    input_count: int
    constant_bytes: int
    dots: str

    def at_sizes(self, words: Sequence[int], memory_bytes: int) -> SizedArena:
        """Return the image at given sizes. memory_bytes: of its memory."""
        memory_begin = _align(self.constant_bytes)
        ports_begin = end = memory_begin + _align(memory_bytes)
        ports: list[PortSpec] = []
        for p in self.ports:
            shape = tuple(words[n] for n in p.shape)
            ports.append((end, shape, p.kind))
            end += _align(prod(shape) * itemsize(p.kind))
        begins = {CONSTANT: 0, MEMORY: memory_begin}

        def place(p: SizedPlace) -> SliceSpec:
            if p.region == ARGUMENT:
                at = ports[p.number][0]
            else:
                at = begins[p.region] + (words[p.number] if p.region == MEMORY else p.number)
            return at + p.offset, words[p.elements], p.kind

        steps = tuple(
            Step(s.function, words[s.programs], tuple(map(place, s.given)), s.early, s.call,
                 tuple(words[n] for n in s.sizes))
            for s in self.steps if words[s.programs]
        )  # fmt: skip
        inputs, outputs = tuple(ports[: self.input_count]), tuple(ports[self.input_count :])
        made = Image(
            self.functions, steps, self.calls, inputs, outputs, end, self.constant_bytes, self.dots
        )
        return SizedArena(made, memory_begin, ports_begin)


@dataclass(frozen=True, slots=True)
class SizedArena:
    """An image at given sizes; where its memory and its arguments begin, which are allocations of
    their own."""

    image: Image
    memory_begin: int
    ports_begin: int


def _align(size: int) -> int:
    return -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT


def itemsize(kind: str) -> int:
    """Return the bytes of an element."""
    return 1 if kind == "bool" else int(kind.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def sized_image_to_dict(image: SizedImage) -> dict[str, Any]:
    """Return the image as JSON data."""
    return asdict(image)


def sized_image_from_dict(data: dict[str, Any]) -> SizedImage:
    """Parse that data. Raises ValueError, TypeError or LookupError if it is invalid."""

    def steps() -> Iterator[SizedStep]:
        for s in data["steps"]:
            given = tuple(SizedPlace(**p) for p in s["given"])
            yield SizedStep(**{**s, "given": given, "sizes": tuple(s["sizes"])})

    return SizedImage(
        tuple(Function(**f) for f in data["functions"]),
        tuple(steps()),
        tuple(Lane(int(c["lane"]), tuple(c["waits"])) for c in data["calls"]),
        tuple(SizedPort(tuple(p["shape"]), str(p["kind"])) for p in data["ports"]),
        int(data["input_count"]),
        int(data["constant_bytes"]),
        str(data["dots"]),
    )
