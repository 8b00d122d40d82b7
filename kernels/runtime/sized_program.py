"""Run an image for many sizes (cuda/sized_image.py): programs at given sizes share code, constants
and memory. On a device the first calls at given sizes launch the kernels one by one, the others
launch a CUDA graph."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from superopt.kernels.cuda.arena import Arena
from superopt.kernels.cuda.driver import BorrowedStream, Cuda, OwnedHandle, find_gpu, load_driver
from superopt.kernels.cuda.sized_image import SizedArena, SizedImage
from superopt.kernels.runtime.loaded_image import (
    DeviceProgram,
    InterpretedProgram,
    LastRun,
    LaunchList,
    interpreted_functions,
    interpreted_launches,
    list_launches,
    load_functions,
)

# Calls at given sizes before their launches are captured as a graph: further calls at these sizes
# are likely then, and a graph takes longer to make than to launch its kernels one by one.
MIN_CALLS_OF_GRAPH = 2
MEMORY_GROWTH = 1.25  # of memory that is too small: sizes may grow from call to call


class SizedProgram(Protocol):
    """A loaded image for many sizes."""

    image: SizedImage

    @property
    def number(self) -> int | None:
        """The GPU's number."""

    def at_sizes(
        self, words: Sequence[int], memory_bytes: int
    ) -> DeviceProgram | InterpretedProgram:
        """Return the program at given sizes. words: the image's; memory_bytes: of its memory."""

    def constant_blocks(self) -> dict[int, int]:
        """Return the bytes of its constants, which programs share, by identity."""

    def work_blocks(self) -> dict[int, int]:
        """Return the bytes of the memory that its programs share, by identity."""


class Constants(Protocol):
    """The constants of a program: the offset of each, its digest, and its bytes."""

    @property
    def offsets(self) -> tuple[int, ...]: ...
    @property
    def digests(self) -> tuple[str, ...]: ...
    @property
    def arrays(self) -> tuple[np.ndarray, ...]: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class InterpretedSizedProgram:
    """An image in Triton's interpreter."""

    image: SizedImage
    functions: list[Any]
    constants: Constants
    memory: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    number: int | None = None

    def at_sizes(self, words: Sequence[int], memory_bytes: int) -> InterpretedProgram:
        made = self.image.at_sizes(words, memory_bytes)
        if len(self.memory) < memory_bytes:
            self.memory = np.empty(memory_bytes, np.uint8)
        ports = np.zeros(max(made.image.size - made.ports_begin, 1), np.uint8)
        parts = (*self.constants.arrays, self.memory, ports)
        arena = Arena((*self.constants.offsets, made.memory_begin, made.ports_begin), parts)
        launches = interpreted_launches(made.image, self.functions, arena)
        return InterpretedProgramAtSizes(made.image, arena, launches, program=self)

    def constant_blocks(self) -> dict[int, int]:
        return {id(x): x.nbytes for x in self.constants.arrays}

    def work_blocks(self) -> dict[int, int]:
        return {id(self.memory): self.memory.nbytes}


@dataclass(slots=True, eq=False)
class InterpretedProgramAtSizes(InterpretedProgram):
    """A program at given sizes: in the memory of `program`, but for its inputs and outputs."""

    program: InterpretedSizedProgram = field(kw_only=True)

    @property
    def identity(self) -> int:
        return id(self.program)

    def constant_blocks(self) -> dict[int, int]:
        return self.program.constant_blocks()

    def work_blocks(self) -> dict[int, int]:
        *_, memory, ports = self.arena.parts
        return {id(memory): memory.nbytes, id(ports): ports.nbytes}


def interpret_sized_image(
    image: SizedImage, code: bytes, constants: Constants
) -> InterpretedSizedProgram:
    return InterpretedSizedProgram(image, interpreted_functions(image, code), constants)


@dataclass(slots=True, weakref_slot=True, eq=False)
class DeviceConstant:
    """A constant on a device."""

    memory: OwnedHandle
    size: int


@dataclass(slots=True, eq=False)
class DeviceConstants:
    """The constants on devices, weakly held by the GPU's number and the digest of their bytes:
    programs share them."""

    known: weakref.WeakValueDictionary[tuple[int, str], DeviceConstant] = field(
        default_factory=weakref.WeakValueDictionary
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, cuda: Cuda, constants: Constants) -> tuple[DeviceConstant, ...]:
        """Return constants on a device, which is current; copy those that are not there."""
        found = []
        with self.lock:
            for digest, array in zip(constants.digests, constants.arrays, strict=True):
                key = cuda.gpu.number, digest
                if (held := self.known.get(key)) is None:
                    held = DeviceConstant(cuda.allocate(array.nbytes), array.nbytes)
                    cuda.upload(held.memory.handle, array)
                    self.known[key] = held
                found.append(held)
            cuda.synchronize()  # then the arrays may be freed
        return tuple(found)


DEVICE_CONSTANTS = DeviceConstants()


@dataclass(slots=True, weakref_slot=True, eq=False)
class DeviceSizedProgram:
    """An image on a device. offsets: of the constants. memory: of calls, which are made one after
    the other; None before the first. owners: objects that the functions need."""

    image: SizedImage
    cuda: Cuda
    functions: list[Any]
    offsets: tuple[int, ...]
    constants: tuple[DeviceConstant, ...]
    last_run: LastRun
    owners: list[Any]
    memory: OwnedHandle | None = None
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        self.last_run.wait_before_release(self)

    @property
    def number(self) -> int | None:
        return self.cuda.gpu.number

    def at_sizes(self, words: Sequence[int], memory_bytes: int) -> DeviceProgramAtSizes:
        made = self.image.at_sizes(words, memory_bytes)
        with self.cuda.activate():
            ports = self.cuda.allocate(made.image.size - made.ports_begin)
            memory = self.reserve(memory_bytes)
            arena = self.arena(made, memory, ports)
            launches = self.list_launches(made, arena)
        return DeviceProgramAtSizes(
            made.image, self.cuda, arena, launches, self.last_run,
            program=self, made=made, ports=ports, memory=memory, memory_bytes=memory_bytes,
            held_bytes=self.memory_bytes,
        )  # fmt: skip

    def arena(
        self, made: SizedArena, memory: OwnedHandle, ports: OwnedHandle
    ) -> Arena[OwnedHandle]:
        begins = (*self.offsets, made.memory_begin, made.ports_begin)
        return Arena(begins, (*(c.memory for c in self.constants), memory, ports))

    def list_launches(self, made: SizedArena, arena: Arena[OwnedHandle]) -> LaunchList:
        return list_launches(made.image, self.functions, arena, ())

    def reserve(self, size: int) -> OwnedHandle:
        """Return memory of at least this size. The device is current."""
        if self.memory is None or self.memory_bytes < size:
            grown = max(size, int(self.memory_bytes * MEMORY_GROWTH))
            self.last_run.end.synchronize()  # the last call uses the memory
            self.memory, self.memory_bytes = None, 0
            self.memory, self.memory_bytes = self.cuda.allocate(grown), grown
        return self.memory

    def constant_blocks(self) -> dict[int, int]:
        return {id(c): c.size for c in self.constants}

    def work_blocks(self) -> dict[int, int]:
        return {id(self.memory): self.memory_bytes} if self.memory is not None else {}


@dataclass(slots=True, eq=False)
class DeviceProgramAtSizes(DeviceProgram):
    """A program at given sizes. memory: the memory of `program` for which it has launches, and
    which it holds; of it, memory_bytes are needed. ports: that of its inputs and outputs. calls:
    how many there were."""

    program: DeviceSizedProgram = field(kw_only=True)
    made: SizedArena = field(kw_only=True)
    ports: OwnedHandle = field(kw_only=True)
    memory: OwnedHandle = field(kw_only=True)
    memory_bytes: int = field(kw_only=True)
    held_bytes: int = field(kw_only=True)
    calls: int = 0

    @property
    def identity(self) -> int:
        return id(self.program)

    def launch_all(self, stream: int) -> None:
        memory = self.program.reserve(self.memory_bytes)
        if memory is not self.memory:  # it has grown
            self.memory, self.held_bytes, self.graph = memory, self.program.memory_bytes, None
            self.arena = self.program.arena(self.made, memory, self.ports)
            self.launches = self.program.list_launches(self.made, self.arena)
        self.calls += 1
        if self.graph is None and self.calls > MIN_CALLS_OF_GRAPH and self.launches.launches:
            self.graph = self.cuda.capture_graph(self.launch)
        if self.graph is not None:
            DeviceProgram.launch_all(self, stream)
            return
        with self.cuda.stream(BorrowedStream(stream)):
            self.launch()

    def constant_blocks(self) -> dict[int, int]:
        return self.program.constant_blocks()

    def work_blocks(self) -> dict[int, int]:
        ports = self.made.image.size - self.made.ports_begin
        return {id(self.memory): self.held_bytes, id(self.ports): ports}


def load_sized_on_device(
    image: SizedImage, code: bytes, constants: Constants, number: int | None = None
) -> DeviceSizedProgram:
    """Load an image on a GPU; see `load_on_device`."""
    cuda = Cuda(load_driver(), find_gpu(number))
    with cuda.activate():
        held = DEVICE_CONSTANTS.load(cuda, constants)
        functions, modules = load_functions(image, code, cuda, Arena((), ()))
        run = LastRun(cuda.Event())
    return DeviceSizedProgram(image, cuda, functions, constants.offsets, held, run, [*modules])
