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

from superopt.kernels.gpu_driver import (
    Cuda,
    Event,
    Owned,
    driver,
    function,
    gpu,
    loaded,
    torchs_stream,
)
from superopt.kernels.gpu_image import Image, Lane, Place, Port, Step
from superopt.kernels.gpu_inputs import Places
from superopt.kernels.gpu_launch import Launch, forked, in_order
from superopt.kernels.gpu_module import Library, functions


@dataclass(slots=True)
class Launches:
    """The launches of a program, as gpu_launch takes them."""

    calls: Sequence[Lane]
    launches: list[Launch]
    numbers: list[int]
    beside: Sequence[Any] = ()


@dataclass(slots=True, eq=False)
class Interpreted:
    """A program in Triton's interpreter. arena: its memory, shared with torch's tensors."""

    image: Image
    arena: np.ndarray
    launches: Launches
    number: int | None = None  # of a GPU

    def run(self, given: Sequence[np.ndarray], there: bool) -> list[np.ndarray]:
        """Return the outputs for inputs in order: arrays of the image's dtypes."""
        into = [self._array(port) for port in self.image.inputs]
        own = [x.__array_interface__["data"][0] for x in into]
        places = Places.of((at, x.nbytes) for at, x in zip(own, into, strict=True))
        for to, x in zip(into, places.apart(given, own), strict=True):
            np.copyto(to, x)
        with np.errstate(all="ignore"):  # it also computes masked-off elements
            in_order(self.launches)
        return [self._array(port).copy() for port in self.image.outputs]

    def buffers(self) -> list[Any]:
        """Return torch tensors of the input buffers."""
        import torch

        return [torch.from_numpy(self._array(port)) for port in self.image.inputs]

    def _array(self, port: Port) -> np.ndarray:
        at, shape, kind = port
        held = self.arena[at : at + bytes_of(port)]
        return held.view(np.dtype(kind)).reshape(shape)


def interpreted(image: Image, texts: bytes, known: np.ndarray) -> Interpreted:
    """Load an image into the interpreter. code: of functions; known_bytes: the arena's first
    bytes."""
    import torch

    arena = np.zeros(image.size, np.uint8)
    arena[: image.known] = known
    memory = torch.from_numpy(arena)
    made: list[Any] = []
    for f in image.functions:
        if f.begin == f.end:
            made.append(Library(f.name, image.dots))
        else:
            made.append(functions(texts[f.begin : f.end].decode(), [f.name])[f.name])

    def view(place: Place) -> Any:
        at, size, kind = place
        kind_ = getattr(torch, kind)
        return memory[at : at + size * kind_.itemsize].view(kind_)

    out = Launches(image.calls, [], [])
    for s in image.steps:
        f = image.functions[s.function]
        out.launches.append((f.name, made[s.function], s.programs, [*map(view, s.given)], {}))
        out.numbers.append(s.call)
    return Interpreted(image, arena, out)


@dataclass(slots=True, eq=False)
class OnDevice:
    """A program on a GPU. arena: its memory; graph: all launches; owners: objects these need;
    end_event: the end of the last call, on `last_stream`, for which calls on other streams wait;
    input_ranges: of the inputs, from the first call on; outputs: torch tensors of these, once
    requested."""

    image: Image
    cuda: Cuda
    arena: Owned
    launches: Launches
    held: list[Any] = field(default_factory=list)
    graph: Owned | None = None
    over: Event | None = None
    last: int = 0
    places: Places | None = None
    outputs: list[Any] = field(default_factory=list)

    def __del__(self) -> None:
        """Wait for the last call, which uses the kernels' machine code."""
        if self.over is not None:
            with suppress(Exception), self.cuda.entered():  # the process may be about to end
                self.over.synchronize()

    @property
    def number(self) -> int | None:
        """The GPU's number."""
        return self.cuda.gpu.number

    def run(self, given: Sequence[Any], there: bool) -> list[Any]:
        """Return the outputs for inputs in order: arrays, or tensors on the device, of the image's
        dtypes. as_tensors: return tensors, which the program owns."""
        d, base = self.cuda.driver, self.arena.handle
        held: list[Any] = []  # alive until they are copied
        assert self.graph is not None
        assert self.over is not None
        with self.cuda.entered():
            stream = torchs_stream(self.cuda.gpu.number)
            if stream != self.last:
                self.over.holds(stream)
                self.last = stream
            own = [base + at for at, _, _ in self.image.inputs]
            if self.places is None:
                sizes = map(bytes_of, self.image.inputs)
                self.places = Places.of(zip(own, sizes, strict=True))
            for at, x in zip(own, self.places.apart(given, own), strict=True):
                if isinstance(x, np.ndarray):
                    held.append(np.ascontiguousarray(x))
                    self.cuda.put(at, held[-1], stream)
                else:
                    held.append(x.resolve_neg().contiguous())
                    size, place = x.numel() * x.element_size(), held[-1].data_ptr()
                    if place != at:  # else it was written in place
                        d("cuMemcpyDtoDAsync_v2", at, place, size, stream)
            d("cuGraphLaunch", self.graph.handle, stream)
            self.over.ends(stream)
            if there:
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
        with self.cuda.entered():
            return [self._tensor(port) for port in self.image.inputs]

    def launch(self) -> None:
        if self.launches.beside:
            forked(self.launches, self.cuda)
        else:
            in_order(self.launches)

    def _tensor(self, port: Port) -> Any:
        at, shape, kind = port
        return _tensor(self.arena, at, bytes_of(port), kind).view(shape)


def on_device(image: Image, texts: bytes, known: np.ndarray, number: int | None = None) -> OnDevice:
    """Load an image on a GPU. code: machine code of functions; known_bytes: the arena's first
    bytes; number: of the GPU, by default the current one. Raises RuntimeError if the driver fails,
    for instance for lack of memory."""
    cuda = Cuda(driver(), gpu(number))
    with cuda.entered():
        arena = cuda.memory(image.size)
        cuda.put(arena.handle, known)
        cuda.clear(arena.handle + image.known, image.size - image.known)
        modules: dict[tuple[int, int], Owned] = {}
        made: list[Any] = []
        for f in image.functions:
            if f.begin == f.end:
                made.append(Vendors(cuda, arena, f.name, image.dots))
                continue
            where = f.begin, f.end
            if where not in modules:
                modules[where] = loaded(cuda, texts[f.begin : f.end])
            made.append(function(cuda, modules[where], f.name, f.threads, f.shared))
            if f.alike:
                made[-1].share_first()
        beside = [cuda.beside() for _ in range(image.lanes - 1)]
        out = Launches(image.calls, [], [s.call for s in image.steps], beside)
        for s in image.steps:
            out.launches.append(_launch(image, s, made[s.function], arena.handle))
        on = OnDevice(image, cuda, arena, out, [*modules.values()])
        on.launch()  # so that the driver loads everything
        cuda.wait()
        with _kept(made) as pool:
            on.graph = cuda.recorded(on.launch)
        on.over = cuda.Event()
        on.held += [pool]
    return on


@contextmanager
def _kept(made: Sequence[Any]) -> Iterator[Any]:
    """Yield a torch memory pool that owns what vendor calls allocate during the capture: each
    launch of the graph uses it again. torch does not know of captures that are not its own."""
    if not any(isinstance(f, Vendors) for f in made):
        yield None
        return
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        yield pool


def _launch(image: Image, s: Step, made: Any, base: int) -> Launch:
    f = image.functions[s.function]
    if isinstance(made, Vendors):
        return f.name, made, s.programs, [*s.given], {}
    return f.name, made, s.programs, [base + at for at, _, _ in s.given], {"early": s.early}


@dataclass(frozen=True, slots=True, eq=False)
class Vendors:
    """A vendor call through torch, which is imported for it, with arena slices as arguments.
    operation, dot_precision: see module.VendorFunction."""

    cuda: Cuda
    arena: Owned
    what: str
    dots: str

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.run

    def run(self, *given: Place) -> None:
        import torch

        some = [_tensor(self.arena, at, size * _itemsize(kind), kind) for at, size, kind in given]
        cuda: Any = torch.cuda  # whose classes have no types
        with cuda.stream(cuda.ExternalStream(self.cuda.current.handle)):
            Library(self.what, self.dots).run(*some)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Part of the arena, as an object from which torch reads foreign memory."""

    arena: Owned
    at: int
    size: int

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        place = self.arena.handle + self.at
        about = {"shape": (self.size,), "typestr": "|u1", "data": (place, False)}
        return {**about, "strides": None, "version": 3}


def _tensor(arena: Owned, at: int, size: int, kind: str) -> Any:
    """Return a torch tensor over bytes of the arena, without a copy."""
    import torch

    held = torch.as_tensor(_Bytes(arena, at, size), device="cuda")
    return held.view(getattr(torch, kind))


def _itemsize(kind: str) -> int:
    return np.dtype(kind).itemsize


def bytes_of(port: Port) -> int:
    """Return the bytes of a port."""
    _, shape, kind = port
    return prod(shape) * _itemsize(kind)
