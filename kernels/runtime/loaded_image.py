"""Run a module image (cuda/image.py): on the device through the CUDA driver, as one CUDA graph; or
in Triton's interpreter. torch is imported only if needed: for vendor calls, in the interpreter, and
for torch tensors as inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  # registers numpy's bfloat16
import numpy as np

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
from superopt.kernels.triton.module import VendorFunction, define_functions


@dataclass(slots=True)
class LaunchList:
    """The launches of a program, as gpu_launch takes them."""

    calls: Sequence[Lane]
    launches: list[LaunchRecord]
    call_numbers: list[int]
    side_streams: Sequence[Any] = ()


@dataclass(slots=True, eq=False)
class InterpretedProgram:
    """A program in Triton's interpreter. arena: its memory, shared with torch's tensors."""

    image: Image
    arena: np.ndarray
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
        held = self.arena[at : at + port_bytes(port)]
        return held.view(np.dtype(kind)).reshape(shape)


def load_interpreted(image: Image, code: bytes, known_bytes: np.ndarray) -> InterpretedProgram:
    """Load an image into the interpreter. code: of functions; known_bytes: the arena's first
    bytes."""
    import torch

    arena = np.zeros(image.size, np.uint8)
    arena[: image.known] = known_bytes
    memory = torch.from_numpy(arena)
    made: list[Any] = []
    for f in image.functions:
        if f.begin == f.end:
            made.append(VendorFunction(f.name, image.dots))
        else:
            made.append(define_functions(code[f.begin : f.end].decode(), [f.name])[f.name])

    def view(place: SliceSpec) -> Any:
        at, size, kind = place
        kind_ = getattr(torch, kind)
        return memory[at : at + size * kind_.itemsize].view(kind_)

    out = LaunchList(image.calls, [], [])
    for s in image.steps:
        f = image.functions[s.function]
        out.launches.append((f.name, made[s.function], s.programs, [*map(view, s.given)], {}))
        out.call_numbers.append(s.call)
    return InterpretedProgram(image, arena, out)


@dataclass(slots=True, eq=False)
class DeviceProgram:
    """A program on a GPU. arena: its memory; graph: all launches; owners: objects these need;
    end_event: the end of the last call, on `last_stream`, for which calls on other streams wait;
    input_ranges: of the inputs, from the first call on; outputs: torch tensors of these, once
    requested."""

    image: Image
    cuda: Cuda
    arena: OwnedHandle
    launches: LaunchList
    owners: list[Any] = field(default_factory=list)
    graph: OwnedHandle | None = None
    end_event: Event | None = None
    last_stream: int = 0
    input_ranges: WrittenRanges | None = None
    outputs: list[Any] = field(default_factory=list)

    def __del__(self) -> None:
        """Wait for the last call, which uses the kernels' machine code."""
        if self.end_event is not None:
            with suppress(Exception), self.cuda.activate():  # the process may be about to end
                self.end_event.synchronize()

    @property
    def number(self) -> int | None:
        """The GPU's number."""
        return self.cuda.gpu.number

    def run(self, arrays: Sequence[Any], as_tensors: bool) -> list[Any]:
        """Return the outputs for inputs in order: arrays, or tensors on the device, of the image's
        dtypes. as_tensors: return tensors, which the program owns."""
        d, base = self.cuda.driver, self.arena.handle
        held: list[Any] = []  # alive until they are copied
        assert self.graph is not None
        assert self.end_event is not None
        with self.cuda.activate():
            stream = torch_stream(self.cuda.gpu.number)
            if stream != self.last_stream:
                self.end_event.block_stream(stream)
                self.last_stream = stream
            own = [base + at for at, _, _ in self.image.inputs]
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
            d("cuGraphLaunch", self.graph.handle, stream)
            self.end_event.record_on(stream)
            if as_tensors:
                self.outputs = self.outputs or [self._tensor(p) for p in self.image.outputs]
                return list(self.outputs)
            out = []
            for port in self.image.outputs:
                at, shape, kind = port
                out.append(np.empty(shape, np.dtype(kind)))
                d("cuMemcpyDtoHAsync_v2", out[-1].ctypes.data, base + at, out[-1].nbytes, stream)
            d("cuStreamSynchronize", stream)
        return out

    def buffers(self) -> list[Any]:
        """Return torch tensors of the input buffers."""
        with self.cuda.activate():
            return [self._tensor(port) for port in self.image.inputs]

    def launch(self) -> None:
        if self.launches.side_streams:
            launch_on_streams(self.launches, self.cuda)
        else:
            launch_in_order(self.launches)

    def _tensor(self, port: PortSpec) -> Any:
        at, shape, kind = port
        return _tensor(self.arena, at, port_bytes(port), kind).view(shape)


def load_on_device(
    image: Image, code: bytes, known_bytes: np.ndarray, number: int | None = None
) -> DeviceProgram:
    """Load an image on a GPU. code: machine code of functions; known_bytes: the arena's first
    bytes; number: of the GPU, by default the current one. Raises RuntimeError if the driver fails,
    for instance for lack of memory."""
    cuda = Cuda(load_driver(), find_gpu(number))
    with cuda.activate():
        arena = cuda.allocate(image.size)
        cuda.upload(arena.handle, known_bytes)
        cuda.fill_zero(arena.handle + image.known, image.size - image.known)
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
        beside = [cuda.create_stream() for _ in range(image.stream_count - 1)]
        out = LaunchList(image.calls, [], [s.call for s in image.steps], beside)
        for s in image.steps:
            out.launches.append(_launch_record(image, s, made[s.function], arena.handle))
        on = DeviceProgram(image, cuda, arena, out, [*modules.values()])
        on.launch()  # so that the driver loads everything
        cuda.synchronize()
        with _keep_vendor_memory(made) as pool:
            on.graph = cuda.capture_graph(on.launch)
        on.end_event = cuda.Event()
        on.owners += [pool]
    return on


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


def _launch_record(image: Image, s: Step, function: Any, base: int) -> LaunchRecord:
    f = image.functions[s.function]
    if isinstance(function, VendorLaunch):
        return f.name, function, s.programs, [*s.given], {}
    return (
        f.name,
        function,
        s.programs,
        [base + at for at, _, _ in s.given],
        {"dependent_launch": s.early},
    )


@dataclass(frozen=True, slots=True, eq=False)
class VendorLaunch:
    """A vendor call through torch, which is imported for it, with arena slices as arguments.
    operation, dot_precision: see module.VendorFunction."""

    cuda: Cuda
    arena: OwnedHandle
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
    """Part of the arena, as an object from which torch reads foreign memory."""

    arena: OwnedHandle
    offset: int
    size: int

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        place = self.arena.handle + self.offset
        about = {"shape": (self.size,), "typestr": "|u1", "data": (place, False)}
        return {**about, "strides": None, "version": 3}


def _tensor(arena: OwnedHandle, offset: int, size: int, kind: str) -> Any:
    """Return a torch tensor over bytes of the arena, without a copy."""
    import torch

    held = torch.as_tensor(_ArenaBytes(arena, offset, size), device="cuda")
    return held.view(getattr(torch, kind))


def _itemsize(kind: str) -> int:
    return np.dtype(kind).itemsize


def port_bytes(port: PortSpec) -> int:
    """Return the bytes of a port."""
    _, shape, kind = port
    return prod(shape) * _itemsize(kind)
