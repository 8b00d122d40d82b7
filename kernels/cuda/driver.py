"""The CUDA driver API by ctypes: what running compiled machine code needs. torch and Triton, which
take seconds to import, are not needed. Contexts are the primary ones, as torch's are, so that both
share memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from functools import cache, partial
from threading import RLock
from typing import Any

import numpy as np

CAPTURE_LOCK = RLock()  # held while a thread captures a graph, or synchronizes a whole GPU
_ARGUMENT_TYPES: dict[str, Any] = {
    "i": c_int, "u": c_uint, "p": c_void_p, "n": c_size_t, "b": c_ubyte, "l": c_ulonglong,
}  # fmt: skip
# functions and their argument types
_SIGNATURES = {
    "cuInit": "u", "cuDeviceGet": "pi", "cuDeviceGetName": "pii", "cuDeviceGetAttribute": "pii",
    "cuDeviceTotalMem_v2": "pi", "cuDevicePrimaryCtxRetain": "pi", "cuCtxGetCurrent": "p",
    "cuCtxGetDevice": "p", "cuCtxPushCurrent_v2": "p", "cuCtxPopCurrent_v2": "p",
    "cuGetErrorString": "ip",
    "cuMemAlloc_v2": "pn", "cuMemFree_v2": "p", "cuMemcpyHtoDAsync_v2": "ppnp",
    "cuMemcpyDtoHAsync_v2": "ppnp", "cuMemcpyDtoDAsync_v2": "ppnp", "cuMemsetD8Async": "pbnp",
    "cuModuleLoadData": "pp", "cuModuleGetFunction": "ppp", "cuModuleUnload": "p",
    "cuFuncGetAttribute": "pip", "cuFuncSetAttribute": "pii", "cuFuncSetCacheConfig": "pi",
    "cuLaunchKernelEx": "pppp", "cuStreamCreate": "pu", "cuStreamDestroy_v2": "p",
    "cuStreamSynchronize": "p", "cuStreamWaitEvent": "ppu", "cuEventCreate": "pu",
    "cuEventRecord": "pp", "cuEventSynchronize": "p", "cuEventDestroy_v2": "p",
    "cuStreamBeginCapture_v2": "pi", "cuStreamEndCapture": "pp",
    "cuGraphInstantiateWithFlags": "ppl", "cuGraphLaunch": "pp",
    "cuGraphDestroy": "p", "cuGraphExecDestroy": "p",
}  # fmt: skip
# CUdevice_attribute, CUfunction_attribute, CUfunc_cache, CUlaunchAttributeID, and flags of streams,
# events and captures.
_MAJOR, _MINOR, _MAX_SHARED_OPTIN = 75, 76, 97
_MAX_THREADS, _STATIC, _DYNAMIC, _SHARED_CARVEOUT, _PREFER_SHARED = 0, 1, 8, 9, 1
_PROGRAMMATIC_SERIALIZATION = 6
_NON_BLOCKING, _DISABLE_TIMING, _THREAD_LOCAL_CAPTURE = 1, 2, 1
_DEFAULT_SHARED_BYTES = 48 << 10  # shared memory of a block without opt-in


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute with an integer value."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_int * 15))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
        ("attributes", c_void_p), ("count", c_uint),
    )  # fmt: skip


class Driver:
    """The driver's functions. Raises RuntimeError, with the function's name and its error text, if
    one fails; OSError if there is no driver."""

    def __init__(self, lib: Any = None) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1") if lib is None else lib
        for name, takes in _SIGNATURES.items():
            getattr(self.lib, name).argtypes = [_ARGUMENT_TYPES[k] for k in takes]
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(code, byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'error').decode()} ({code})")

    def create(self, name: str, *arguments: Any) -> int:
        """Call a function that creates a handle or address; return it."""
        out = c_void_p()
        self(name, byref(out), *arguments)
        return out.value or 0

    def query_int(self, name: str, *arguments: Any) -> int:
        """Call a function that queries an integer; return it."""
        out = c_int()
        self(name, byref(out), *arguments)
        return out.value


@cache
def load_driver() -> Driver:
    """Return the driver. Raises RuntimeError if there is none."""
    try:
        return Driver()
    except (OSError, AttributeError) as e:
        raise RuntimeError(f"no CUDA driver here: {e}") from None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device: its name, compute capability and the driver's number."""

    name: str
    capability: tuple[int, int]
    number: int


def find_gpu(number: int | None = None) -> Gpu:
    """Return a device. number: by default this thread's torch device, if torch has chosen one; else
    the driver's current or first. Raises RuntimeError if there is none."""
    d = load_driver()
    if number is None and (torch := _initialized_torch()) is not None:
        number = int(torch.cuda.current_device())  # which torch may not have told the driver yet
    if number is None:
        some = d.create("cuCtxGetCurrent")
        number = d.query_int("cuCtxGetDevice") if some else d.query_int("cuDeviceGet", 0)
    name = ctypes.create_string_buffer(256)
    d("cuDeviceGetName", name, len(name), number)
    major, minor = (d.query_int("cuDeviceGetAttribute", a, number) for a in (_MAJOR, _MINOR))
    return Gpu(name.value.decode(), (major, minor), number)


def device_memory_bytes(number: int) -> int:
    """Return the bytes of a device's memory."""
    return load_driver().create("cuDeviceTotalMem_v2", number)


@cache
def _primary_context(d: Driver, number: int) -> int:
    return d.create("cuDevicePrimaryCtxRetain", number)


@contextmanager
def capture_exclusively() -> Iterator[None]:
    """A context in which nothing of this process captures a graph or synchronizes a whole GPU,
    which would invalidate a capture; garbage collection, which may free driver objects, is off."""
    with CAPTURE_LOCK:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


@dataclass(slots=True, eq=False)
class OwnedHandle:
    """A handle or address, released when it is no longer referenced. release_function: the driver
    function that does so."""

    cuda: Cuda
    release_function: str
    handle: int

    def __del__(self) -> None:
        self.cuda.release(self.release_function, self.handle)


class Event(OwnedHandle):
    def record(self, s: Stream) -> None:
        self.record_on(s.handle)

    def record_on(self, stream: int) -> None:
        """Record the event as the end of a stream's work so far."""
        self.cuda.driver("cuEventRecord", self.handle, stream)

    def block_stream(self, stream: int) -> None:
        """Make a stream's further work wait for the event."""
        self.cuda.driver("cuStreamWaitEvent", stream, self.handle, 0)

    def synchronize(self) -> None:
        self.cuda.driver("cuEventSynchronize", self.handle)


class Stream(OwnedHandle):
    def wait_event(self, e: Event) -> None:
        e.block_stream(self.handle)


@dataclass(frozen=True, slots=True)
class BorrowedStream:
    """A stream that another library owns."""

    handle: int


def torch_stream(number: int) -> int:
    """Return torch's current stream on this GPU; without torch, the default stream, which is
    current for torch initially. `torch.cuda.current_stream` returns the same in up to 7 us."""
    torch = _initialized_torch()
    return 0 if torch is None else int(torch._C._cuda_getCurrentRawStream(number))


def _initialized_torch() -> Any:
    """Return torch if it uses GPUs already; another thread may be importing it."""
    torch = sys.modules.get("torch")
    asked = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if asked is not None and asked() else None


@dataclass(slots=True, eq=False)
class Cuda:
    """A device's context and launch stream, with the part of torch.cuda's interface that
    launch.launch_on_streams needs."""

    driver: Driver
    gpu: Gpu
    context: int = field(init=False)
    popped_context: Any = field(init=False)  # where the popped context is stored
    current: Stream | BorrowedStream = field(init=False)

    def __post_init__(self) -> None:
        self.context = _primary_context(self.driver, self.gpu.number)
        self.popped_context = ctypes.pointer(c_void_p())
        with self.activate():
            self.current = self.create_stream()

    @contextmanager
    def activate(self) -> Iterator[None]:
        """A context in which the device's CUDA context is current in this thread."""
        self.driver("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.driver("cuCtxPopCurrent_v2", self.popped_context)

    def release(self, release_function: str, handle: int) -> None:
        """Release a handle. Errors are ignored: the process may be ending."""
        lib = self.driver.lib
        if not lib.cuCtxPushCurrent_v2(self.context):
            getattr(lib, release_function)(handle)
            lib.cuCtxPopCurrent_v2(self.popped_context)

    def create_stream(self) -> Stream:
        """Create a non-blocking stream."""
        made = self.driver.create("cuStreamCreate", _NON_BLOCKING)
        return Stream(self, "cuStreamDestroy_v2", made)

    def current_stream(self) -> Stream | BorrowedStream:
        return self.current

    def launch_stream(self) -> int:
        """Return the stream on which functions are launched."""
        return self.current.handle

    def max_shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block can opt in to."""
        return self.driver.query_int("cuDeviceGetAttribute", _MAX_SHARED_OPTIN, self.gpu.number)

    @contextmanager
    def stream(self, s: Stream | BorrowedStream) -> Iterator[None]:
        before, self.current = self.current, s
        try:
            yield
        finally:
            self.current = before

    def Event(self) -> Event:
        return Event(
            self, "cuEventDestroy_v2", self.driver.create("cuEventCreate", _DISABLE_TIMING)
        )

    def synchronize(self) -> None:
        self.driver("cuStreamSynchronize", self.current.handle)

    def allocate(self, size: int) -> OwnedHandle:
        """Allocate bytes, aligned to 256."""
        made = self.driver.create("cuMemAlloc_v2", max(size, 1))
        return OwnedHandle(self, "cuMemFree_v2", made)

    def upload(self, address: int, x: np.ndarray, stream: int | None = None) -> None:
        """Copy a contiguous array to an address; it must live until the stream is done."""
        on = self.current.handle if stream is None else stream
        self.driver("cuMemcpyHtoDAsync_v2", address, x.ctypes.data, x.nbytes, on)

    def fill_zero(self, address: int, size: int) -> None:
        self.driver("cuMemsetD8Async", address, 0, size, self.current.handle)

    def capture_graph(self, launch: Callable[[], None]) -> OwnedHandle:
        """Capture launches as an executable graph for cuGraphLaunch."""
        d, stream = self.driver, self.current.handle
        out = c_void_p()
        with capture_exclusively():
            d("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL_CAPTURE)
            try:
                launch()
            except BaseException:
                if not d.lib.cuStreamEndCapture(stream, byref(out)) and out.value:
                    self.release("cuGraphDestroy", out.value)
                raise
            d("cuStreamEndCapture", stream, byref(out))
        graph = OwnedHandle(self, "cuGraphDestroy", out.value or 0)
        made = d.create("cuGraphInstantiateWithFlags", graph.handle, 0)
        return OwnedHandle(self, "cuGraphExecDestroy", made)


@dataclass(slots=True, eq=False)
class Function:
    """A kernel's machine code on the device, called with addresses like Triton's functions. module:
    its owner."""

    cuda: Cuda
    module: OwnedHandle
    handle: int
    threads: int
    shared: int

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self.launch, grid[0])

    def launch(self, programs: int, *addresses: int, dependent_launch: bool = False) -> None:
        """Launch the kernel. addresses: also its integers, of which it reads the lower 32 bits.
        dependent_launch: it may begin before the previous launch has ended."""
        # Triton's kernels take two more parameters, scratch addresses, which kept kernels do not
        # use
        held = (c_ulonglong * (len(addresses) + 2))(*addresses, 0, 0)
        begin = ctypes.addressof(held)
        each = (c_void_p * len(held))(*(begin + 8 * n for n in range(len(held))))
        overlaps = _Attribute(_PROGRAMMATIC_SERIALIZATION, 0, 1)
        block = (c_uint * 3)(self.threads, 1, 1)
        config = _Config(
            (c_uint * 3)(programs, 1, 1), block, self.shared, self.cuda.launch_stream(),
            ctypes.addressof(overlaps) if dependent_launch else None, int(dependent_launch),
        )  # fmt: skip
        self.cuda.driver("cuLaunchKernelEx", byref(config), self.handle, each, None)

    def max_threads(self) -> int:
        """Return the most threads of a block, as limited by registers."""
        with self.cuda.activate():
            return self.cuda.driver.query_int("cuFuncGetAttribute", _MAX_THREADS, self.handle)

    def prefer_shared_memory(self) -> None:
        """Prefer as much shared memory as possible; it is only a hint."""
        with self.cuda.activate():
            self.cuda.driver.lib.cuFuncSetAttribute(self.handle, _SHARED_CARVEOUT, 100)


def load_module(cuda: Cuda, code: bytes) -> OwnedHandle:
    """Load machine code (a cubin) on the device."""
    return OwnedHandle(cuda, "cuModuleUnload", cuda.driver.create("cuModuleLoadData", code))


def load_function(
    cuda: Cuda, module: OwnedHandle, name: str, threads: int, shared: int
) -> Function:
    """Return a function of a module. threads, shared: of a block, and bytes of shared memory."""
    d = cuda.driver
    handle = d.create("cuModuleGetFunction", module.handle, name.encode())
    if shared > _DEFAULT_SHARED_BYTES:
        d("cuFuncSetCacheConfig", handle, _PREFER_SHARED)
        most = cuda.max_shared_bytes() - d.query_int("cuFuncGetAttribute", _STATIC, handle)
        d("cuFuncSetAttribute", handle, _DYNAMIC, most)
    return Function(cuda, module, handle, threads, shared)
