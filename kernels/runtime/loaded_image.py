"""Run a module image (cuda/image.py): on the device through the CUDA driver, as one CUDA graph; or
in Triton's interpreter. torch is imported only if needed: for vendor calls, in the interpreter, and
for torch tensors as inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  # registers numpy's bfloat16
import numpy as np

from superopt.kernels.cuda.arena import Arena
from superopt.kernels.cuda.driver import (
    Cuda,
    Event,
    OwnedHandle,
    find_gpu,
    load_driver,
    load_function,
    load_module,
    torch_stream,
)
from superopt.kernels.cuda.image import Image, Lane, PortSpec, SliceSpec, Step
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.cuda.launch import LaunchRecord, launch_in_order, launch_on_streams
from superopt.kernels.cuda.sized_image import SizedImage
from superopt.kernels.triton.module import VendorFunction, define_functions


@dataclass(slots=True)
class LaunchList:
    """The launches of a program, as gpu_launch takes them."""

    calls: Sequence[Lane]
    launches: list[LaunchRecord]
    call_numbers: list[int]
    side_streams: Sequence[Any] = ()


class _ImageMemory:
    """The memory of a program whose constants are at the start of its arena."""

    __slots__ = ()
    if TYPE_CHECKING:
        image: Image
        arena: Arena[Any]

    @property
    def identity(self) -> int:
        """What programs that share memory have in common."""
        return id(self)

    def constant_blocks(self) -> dict[int, int]:
        """Return the bytes of the constants that it holds, by identity."""
        return {id(self.arena): self.image.known}

    def work_blocks(self) -> dict[int, int]:
        """Return the bytes of each other block of memory that it holds, by identity."""
        return {id(self): self.image.size - self.image.known}


@dataclass(slots=True, eq=False)
class InterpretedProgram(_ImageMemory):
    """A program in Triton's interpreter. arena: its memory, shared with torch's tensors."""

    image: Image
    arena: Arena[np.ndarray]
    launches: LaunchList
    number: int | None = None  # of a GPU

    def run(self, arrays: Sequence[np.ndarray], as_tensors: bool) -> list[np.ndarray]:
        """Return the outputs for inputs in order: arrays of the image's dtypes."""
        into = [self._array(port) for port in self.image.inputs]
        own = [x.__array_interface__["data"][0] for x in into]
        places = WrittenRanges.from_ranges((at, x.nbytes) for at, x in zip(own, into, strict=True))
        for to, x in zip(into, places.copy_aliased(arrays, own), strict=True):
            np.copyto(to, x)
        with np.errstate(all="ignore"):  # it also computes masked-off elements
            launch_in_order(self.launches)
        return [self._array(port).copy() for port in self.image.outputs]

    def buffers(self) -> list[Any]:
        """Return torch tensors of the input buffers."""
        import torch

        return [torch.from_numpy(self._array(port)) for port in self.image.inputs]

    def _array(self, port: PortSpec) -> np.ndarray:
        at, shape, kind = port
        part, begin = self.arena.find(at)
        return part[begin : begin + port_bytes(port)].view(np.dtype(kind)).reshape(shape)


def load_interpreted(image: Image, code: bytes, known_bytes: np.ndarray) -> InterpretedProgram:
    """Load an image into the interpreter. code: of functions; known_bytes: the arena's first
    bytes."""
    memory = np.zeros(image.size, np.uint8)
    memory[: image.known] = known_bytes
    arena = Arena((0,), (memory,))
    launches = interpreted_launches(image, interpreted_functions(image, code), arena)
    return InterpretedProgram(image, arena, launches)


def interpreted_functions(image: Image | SizedImage, code: bytes) -> list[Any]:
    """Return the functions of an image. code: of all."""
    made: list[Any] = []
    for f in image.functions:
        if f.begin == f.end:
            made.append(VendorFunction(f.name, image.dots))
        else:
            made.append(define_functions(code[f.begin : f.end].decode(), [f.name])[f.name])
    return made


def interpreted_launches(
    image: Image, functions: Sequence[Any], arena: Arena[np.ndarray]
) -> LaunchList:
    """Return the launches of an image in this memory."""
    import torch

    def view(place: SliceSpec) -> Any:
        at, size, kind = place
        kind_ = getattr(torch, kind)
        part, begin = arena.find(at)
        return torch.from_numpy(part)[begin : begin + size * kind_.itemsize].view(kind_)

    out = LaunchList(image.calls, [], [])
    for s in image.steps:
        f = image.functions[s.function]
        given = [*map(view, s.given), *s.sizes]
        out.launches.append((f.name, functions[s.function], s.programs, given, {}))
        out.call_numbers.append(s.call)
    return out


@dataclass(slots=True, eq=False)
class LastRun:
    """The end of the last call of programs that share memory, on `stream`."""

    end: Event
    stream: int = 0

    def wait_before_release(self, owner: object) -> None:
        """Wait for it before an object is released whose memory or machine code it uses. A
        finalizer does so, not `__del__`: those of a cycle run in any order, so that the event might
        not exist any more."""
        weakref.finalize(owner, _wait_for_event, self.end).atexit = False

    def wait_on(self, stream: int) -> None:
        """Make a stream wait for it, if that is another one."""
        if stream != self.stream:
            self.end.block_stream(stream)
            self.stream = stream


def _wait_for_event(event: Event) -> None:
    with suppress(Exception), event.cuda.activate():  # the process may be about to end
        event.synchronize()


@dataclass(slots=True, weakref_slot=True, eq=False)
class DeviceProgram(_ImageMemory):
    """A program on a GPU. arena: its memory; graph: all launches; owners: objects these need;
    last_run: for which calls on other streams wait; input_ranges: of the inputs, from the first
    call on; outputs: torch tensors of these, once requested."""

    image: Image
    cuda: Cuda
    arena: Arena[OwnedHandle]
    launches: LaunchList
    last_run: LastRun
    owners: list[Any] = field(default_factory=list)
    graph: OwnedHandle | None = None
    input_ranges: WrittenRanges | None = None
    outputs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last_run.wait_before_release(self)

    @property
    def number(self) -> int | None:
        """The GPU's number."""
        return self.cuda.gpu.number

    def run(self, arrays: Sequence[Any], as_tensors: bool) -> list[Any]:
        """Return the outputs for inputs in order: arrays, or tensors on the device, of the image's
        dtypes. as_tensors: return tensors, which the program owns."""
        d = self.cuda.driver
        held: list[Any] = []  # alive until they are copied
        with self.cuda.activate():
            stream = torch_stream(self.cuda.gpu.number)
            self.last_run.wait_on(stream)
            own = [address(self.arena, at) for at, _, _ in self.image.inputs]
            if self.input_ranges is None:
                sizes = map(port_bytes, self.image.inputs)
                self.input_ranges = WrittenRanges.from_ranges(zip(own, sizes, strict=True))
            for at, x in zip(own, self.input_ranges.copy_aliased(arrays, own), strict=True):
                if isinstance(x, np.ndarray):
                    held.append(np.ascontiguousarray(x))
                    self.cuda.upload(at, held[-1], stream)
                else:
                    held.append(x.resolve_neg().contiguous())
                    size, place = x.numel() * x.element_size(), held[-1].data_ptr()
                    if place != at:  # else it was written in place
                        d("cuMemcpyDtoDAsync_v2", at, place, size, stream)
            self.launch_all(stream)
            self.last_run.end.record_on(stream)
            if as_tensors:
                self.outputs = self.outputs or [self._tensor(p) for p in self.image.outputs]
                return list(self.outputs)
            out = []
            for port in self.image.outputs:
                at, shape, kind = port
                out.append(np.empty(shape, np.dtype(kind)))
                place = address(self.arena, at)
                d("cuMemcpyDtoHAsync_v2", out[-1].ctypes.data, place, out[-1].nbytes, stream)
            d("cuStreamSynchronize", stream)
        return out

    def buffers(self) -> list[Any]:
        """Return torch tensors of the input buffers."""
        with self.cuda.activate():
            return [self._tensor(port) for port in self.image.inputs]

    def launch_all(self, stream: int) -> None:
        """Launch the program on a stream."""
        assert self.graph is not None
        self.cuda.driver("cuGraphLaunch", self.graph.handle, stream)

    def launch(self) -> None:
        if self.launches.side_streams:
            launch_on_streams(self.launches, self.cuda)
        else:
            launch_in_order(self.launches)

    def _tensor(self, port: PortSpec) -> Any:
        at, shape, kind = port
        return _tensor(self.arena, at, port_bytes(port), kind).view(shape)


def address(arena: Arena[OwnedHandle], offset: int) -> int:
    part, begin = arena.find(offset)
    return part.handle + begin


def load_on_device(
    image: Image, code: bytes, known_bytes: np.ndarray, number: int | None = None
) -> DeviceProgram:
    """Load an image on a GPU. code: machine code of functions; known_bytes: the arena's first
    bytes; number: of the GPU, by default the current one. Raises RuntimeError if the driver fails,
    for instance for lack of memory."""
    cuda = Cuda(load_driver(), find_gpu(number))
    with cuda.activate():
        memory = cuda.allocate(image.size)
        cuda.upload(memory.handle, known_bytes)
        cuda.fill_zero(memory.handle + image.known, image.size - image.known)
        arena = Arena((0,), (memory,))
        made, modules = load_functions(image, code, cuda, arena)
        beside = [cuda.create_stream() for _ in range(image.stream_count - 1)]
        out = list_launches(image, made, arena, beside)
        on = DeviceProgram(image, cuda, arena, out, LastRun(cuda.Event()), modules)
        on.launch()  # so that the driver loads everything
        cuda.synchronize()
        with _keep_vendor_memory(made) as pool:
            on.graph = cuda.capture_graph(on.launch)
        on.owners += [pool]
    return on


def load_functions(
    image: Image | SizedImage, code: bytes, cuda: Cuda, arena: Arena[OwnedHandle]
) -> tuple[list[Any], list[OwnedHandle]]:
    """Return the functions of an image, and their modules. code: of all. arena: of vendor calls."""
    modules: dict[tuple[int, int], OwnedHandle] = {}
    made: list[Any] = []
    for f in image.functions:
        if f.begin == f.end:
            made.append(VendorLaunch(cuda, arena, f.name, image.dots))
            continue
        where = f.begin, f.end
        if where not in modules:
            modules[where] = load_module(cuda, code[f.begin : f.end])
        made.append(load_function(cuda, modules[where], f.name, f.threads, f.shared))
        if f.alike:
            made[-1].prefer_shared_memory()
    return made, [*modules.values()]


def list_launches(
    image: Image, functions: Sequence[Any], arena: Arena[OwnedHandle], side_streams: Sequence[Any]
) -> LaunchList:
    """Return the launches of an image in this memory."""
    out = LaunchList(image.calls, [], [s.call for s in image.steps], side_streams)
    for s in image.steps:
        out.launches.append(_launch_record(image, s, functions[s.function], arena))
    return out


@contextmanager
def _keep_vendor_memory(functions: Sequence[Any]) -> Iterator[Any]:
    """Yield a torch memory pool that owns what vendor calls allocate during the capture: each
    launch of the graph uses it again. torch does not know of captures that are not its own."""
    if not any(isinstance(f, VendorLaunch) for f in functions):
        yield None
        return
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        yield pool


def _launch_record(image: Image, s: Step, function: Any, arena: Arena[OwnedHandle]) -> LaunchRecord:
    f = image.functions[s.function]
    if isinstance(function, VendorLaunch):
        return f.name, function, s.programs, [*s.given], {}
    return (
        f.name,
        function,
        s.programs,
        [*(address(arena, at) for at, _, _ in s.given), *s.sizes],
        {"dependent_launch": s.early},
    )


@dataclass(frozen=True, slots=True, eq=False)
class VendorLaunch:
    """A vendor call through torch, which is imported for it, with arena slices as arguments.
    operation, dot_precision: see module.VendorFunction."""

    cuda: Cuda
    arena: Arena[OwnedHandle]
    operation: str
    dot_precision: str

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.run

    def run(self, *slices: SliceSpec) -> None:
        import torch

        some = [_tensor(self.arena, at, size * _itemsize(kind), kind) for at, size, kind in slices]
        cuda: Any = torch.cuda  # whose classes have no types
        with cuda.stream(cuda.ExternalStream(self.cuda.current.handle)):
            VendorFunction(self.operation, self.dot_precision).run(*some)


@dataclass(frozen=True, slots=True)
class _ArenaBytes:
    """Part of an allocation, as an object from which torch reads foreign memory."""

    memory: OwnedHandle
    offset: int
    size: int

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        place = self.memory.handle + self.offset
        about = {"shape": (self.size,), "typestr": "|u1", "data": (place, False)}
        return {**about, "strides": None, "version": 3}


def _tensor(arena: Arena[OwnedHandle], offset: int, size: int, kind: str) -> Any:
    """Return a torch tensor over bytes of the arena, without a copy."""
    import torch

    part, begin = arena.find(offset)
    held = torch.as_tensor(_ArenaBytes(part, begin, size), device="cuda")
    return held.view(getattr(torch, kind))


def _itemsize(kind: str) -> int:
    return np.dtype(kind).itemsize


def port_bytes(port: PortSpec) -> int:
    """Return the bytes of a port."""
    _, shape, kind = port
    return prod(shape) * _itemsize(kind)
