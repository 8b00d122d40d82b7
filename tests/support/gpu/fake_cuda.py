"""CUDA's driver as far as it is used (kernels/cuda/driver.py), on the processor: memory is the
process' own, and kernels run in Triton's interpreter, whose text stands for machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.kernels.cuda.driver import Driver
from superopt.kernels.cuda.image import Image
from superopt.kernels.triton.module import define_functions

NAME, CAPABILITY, MEMORY = b"a GPU", (9, 0), 80 << 30
ATTRIBUTES = {75: CAPABILITY[0], 76: CAPABILITY[1], 97: 232448}


@dataclass
class Function:
    """`argtypes` are set, and say nothing here."""

    call: Callable[..., int]
    argtypes: Any = None

    def __call__(self, *given: Any) -> int:
        return self.call(*given)


@dataclass
class Device:
    """What there is, and how it is asked. fails: a function that gives an error; calls: how often
    each was called; live: what was made and not ended, by handle; functions: of modules, by theirs;
    image: of the program that runs, None: kernels do nothing; launched: which launch is the next
    one of it; log: of launches, how many programs, whether they begin early, and the stream."""

    fails: str = ""
    image: Image | None = None
    calls: dict[str, int] = field(default_factory=dict)
    live: dict[int, Any] = field(default_factory=dict)
    functions: list[Any] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)
    recording: list[Any] | None = None
    launched: int = 0
    log: list[tuple[int, bool, int]] = field(default_factory=list)

    def done(self, *given: Any) -> None:
        assert self.stack or len(given) < 2  # all else wants a context

    def _made(self, out: Any, what: Any = None) -> None:
        assert self.stack
        handle = 1 + max(self.live, default=100)
        self.live[handle] = what
        out._obj.value = handle

    def _ended(self, handle: int) -> None:
        assert self.stack
        del self.live[handle]

    cuModuleUnload = cuEventDestroy = cuStreamDestroy = _ended
    cuGraphDestroy = cuGraphExecDestroy = _ended

    def cuInit(self, flags: int) -> None:
        pass

    def cuGetErrorString(self, code: int, out: Any) -> None:
        out._obj.value = b"out of memory"

    def cuDeviceGet(self, out: Any, n: int) -> None:
        out._obj.value = n

    def cuDeviceGetName(self, out: Any, size: int, n: int) -> None:
        out.value = NAME

    def cuDeviceGetAttribute(self, out: Any, which: int, n: int) -> None:
        out._obj.value = ATTRIBUTES[which]

    def cuDeviceTotalMem(self, out: Any, n: int) -> None:
        out._obj.value = MEMORY

    def cuDevicePrimaryCtxRetain(self, out: Any, n: int) -> None:
        out._obj.value = 7

    def cuCtxGetCurrent(self, out: Any) -> None:
        out._obj.value = self.stack[-1] if self.stack else 0

    def cuCtxPushCurrent(self, context: int) -> None:
        self.stack.append(context)

    def cuCtxPopCurrent(self, out: Any) -> None:
        out.contents.value = self.stack.pop()

    def cuStreamCreate(self, out: Any, flags: int) -> None:
        self._made(out)

    def cuEventCreate(self, out: Any, flags: int) -> None:
        self._made(out)

    def cuMemAlloc(self, out: Any, size: int) -> None:
        held = np.full(size + 256, 255, np.uint8)
        at = held.ctypes.data + -held.ctypes.data % 256
        self.live[at] = held
        out._obj.value = at

    def cuMemFree(self, at: int) -> None:
        self._ended(at)

    def cuMemcpyHtoDAsync(self, to: int, at: int, size: int, stream: int) -> None:
        ctypes.memmove(to, at, size)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuMemsetD8Async(self, at: int, byte: int, size: int, stream: int) -> None:
        ctypes.memset(at, byte, size)

    def cuModuleLoadData(self, out: Any, code: bytes) -> None:
        self._made(out, code)

    def cuModuleGetFunction(self, out: Any, module: int, name: bytes) -> None:
        wanted = name.decode()
        out._obj.value = len(self.functions) + 1
        made = self.image and define_functions(self.live[module].decode(), [wanted])[wanted]
        self.functions.append(made)

    def cuFuncGetAttribute(self, out: Any, which: int, function: int) -> None:
        out._obj.value = 1024

    def cuLaunchKernelEx(self, config: Any, function: int, each: Any, more: None) -> None:
        c = config._obj
        assert tuple(c.block)[1:] == tuple(c.grid)[1:] == (1, 1)
        places = [ctypes.c_uint64.from_address(x).value for x in each]
        assert places[-2:] == [0, 0]
        what = (self.functions[function - 1], c.grid[0], places[:-2], bool(c.count), c.stream)
        if self.recording is None:
            self._run(*what)
        else:
            self.recording.append(what)

    def _run(
        self, function: Any, programs: int, places: list[int], early: bool, stream: int
    ) -> None:
        self.log.append((programs, early, stream))
        if self.image is None:
            return
        import torch

        of = self.image.functions
        own = [s for s in self.image.steps if of[s.function].begin < of[s.function].end]
        step = own[self.launched % len(own)]
        self.launched += 1
        given = []
        sizes = places[len(step.given) :]
        assert sizes == [*step.sizes]
        for at, (_, size, kind) in zip(places, step.given, strict=False):
            type_ = getattr(torch, kind)
            held = (ctypes.c_uint8 * (size * type_.itemsize)).from_address(at)
            given.append(torch.frombuffer(held, dtype=type_))
        with np.errstate(all="ignore"):
            function[(programs,)](*given, *sizes)

    def asked(self, call: Callable[[], None]) -> None:
        """What a library does on a stream: at once, or with each launch of a graph."""
        if self.recording is None:
            call()
        else:
            self.recording.append(call)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> None:
        assert self.recording is None
        self.recording = []

    def cuStreamEndCapture(self, stream: int, out: Any) -> None:
        self._made(out, self.recording)
        self.recording = None

    def cuGraphInstantiateWithFlags(self, out: Any, graph: int, flags: int) -> None:
        self._made(out, self.live[graph])

    def cuGraphLaunch(self, graph: int, stream: int) -> None:
        for what in self.live[graph]:
            what() if callable(what) else self._run(*what)


class Library:
    """libcuda.so of a device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Function:
        def call(*given: Any) -> int:
            d = self._device
            d.calls[name] = d.calls.get(name, 0) + 1
            if name == d.fails:
                if name == "cuStreamEndCapture":
                    d.recording = None  # it ends, too
                return 2
            (getattr(d, name.removesuffix("_v2"), None) or d.done)(*given)
            return 0

        out = Function(call)
        self.__dict__[name] = out
        return out


def driver(device: Device) -> Driver:
    return Driver(Library(device))
