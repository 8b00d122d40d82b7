"""Kernels compiled by Triton and launched by the driver (cuda/driver.py). Triton's own launcher is
a C module, built for each signature, which needs a C compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from superopt.kernels.cuda.driver import (
    Cuda,
    Function,
    capture_exclusively,
    find_gpu,
    load_driver,
    load_function,
    load_module,
    torch_stream,
)

WARP_THREADS = 32  # threads
CAPTURE_MODE = "thread_local"  # other threads may use the device during a capture
POINTER_ALIGNMENT = 16  # bytes; Triton assumes that addresses are multiples of it
# Triton's names of types that are not prefix and bits
_TYPE_NAMES = {
    "bool": "i1",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
# attributes of kernels that take more than addresses
_EXTRA_PARAMETERS = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")


class TritonCompileError(NotImplementedError):
    """Triton cannot compile the kernel for this GPU, or not correctly. function: of Triton's
    text."""

    def __init__(self, why: str, function: str = "") -> None:
        super().__init__(why)
        self.function = function


@dataclass(slots=True, eq=False)
class TorchStreamCuda(Cuda):
    """A device; functions are launched on torch's current stream."""

    def launch_stream(self) -> int:
        return torch_stream(self.gpu.number)


@cache
def _device(number: int) -> TorchStreamCuda:
    return TorchStreamCuda(load_driver(), find_gpu(number))


def current_gpu() -> TorchStreamCuda:
    """Return torch's current device."""
    import torch

    return _device(torch.cuda.current_device())


def capture_graph(launch: Callable[[], None]) -> Any:
    """Capture launches as a torch graph on the current GPU.

    The capture uses a stream that is not torch's: torch's streams are shared, and the end of a
    graph frees what is cached for its stream. torch leaves that stream also if the capture fails.
    """
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    graph, own = cuda.CUDAGraph(), cuda.ExternalStream(current_gpu().current.handle)
    recording = cuda.graph(graph, stream=own, capture_error_mode=CAPTURE_MODE)
    with capture_exclusively(), cuda.stream(own), recording:
        launch()
    return graph


@dataclass(slots=True, eq=False)
class CompiledKernel:
    """A kernel compiled by Triton. metadata, asm: see triton.compile; loaded: its functions on
    devices, by device number."""

    metadata: Any
    asm: Mapping[str, Any]
    loaded: dict[int, Function] = field(default_factory=dict)

    @property
    def takes_only_addresses(self) -> bool:
        """True if the kernel takes addresses only."""
        told = self.metadata
        return told.num_ctas == 1 and not any(getattr(told, x, 0) for x in _EXTRA_PARAMETERS)

    def fits_device(self) -> bool:
        """True if the device can run the kernel: it has enough shared memory and registers."""
        shared, threads = int(self.metadata.shared), WARP_THREADS * int(self.metadata.num_warps)
        return shared <= current_gpu().max_shared_bytes() and threads <= self.load().max_threads()

    def load(self) -> Function:
        """Return the function on the current device, loading it once."""
        cuda = current_gpu()
        if cuda.gpu.number not in self.loaded:
            if not self.takes_only_addresses:
                name = str(self.metadata.name)
                raise TritonCompileError(f"{name} takes parameters besides addresses", name)
            told = self.metadata
            with cuda.activate():
                module = load_module(cuda, self.asm["cubin"])
                made = load_function(
                    cuda, module, told.name, WARP_THREADS * told.num_warps, told.shared
                )
            self.loaded[cuda.gpu.number] = made
        return self.loaded[cuda.gpu.number]

    def prefer_shared_memory(self) -> None:
        """Prefer as much shared memory as possible."""
        self.load().prefer_shared_memory()


@dataclass(slots=True, eq=False)
class CompiledFunction:
    """A function of Triton's text, called like Triton's own: `f[(programs,)](*given, **how)`, with
    tensors and integers of 32 bits. how: options of Triton's compiler; launch_pdl: allow the launch
    to begin before the previous one has ended. compiled: kernels by argument types and options."""

    function: Any
    compiled: dict[Any, CompiledKernel] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return str(self.function.src)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self.launch, grid[0])

    def warmup(self, *given: Any, grid: object = None, **options: Any) -> CompiledKernel:
        """Compile without launching; for any values of integers. Raises TritonCompileError if
        Triton rejects it."""
        from triton import compile
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        options.pop("launch_pdl", None)
        kinds = tuple(map(_argument_type, given))
        known = tuple(n for n, x in enumerate(given) if _is_aligned(x))
        major, minor = current_gpu().gpu.capability
        key = kinds, known, (major, minor), tuple(sorted(options.items()))
        if key not in self.compiled:
            names = self.function.arg_names
            attrs = {(n,): [["tt.divisibility", POINTER_ALIGNMENT]] for n in known}
            source = ASTSource(self.function, dict(zip(names, kinds, strict=True)), {}, attrs)
            target = GPUTarget("cuda", 10 * major + minor, WARP_THREADS)
            try:
                out = compile(source, target=target, options=options)
            except Exception as e:  # a dozen types: of the text, the assembler, the machine
                name, why = self.function.__name__, str(e).strip() or type(e).__name__
                raise TritonCompileError(f"{name}: Triton does not compile it: {why}", name) from e
            self.compiled[key] = CompiledKernel(out.metadata, out.asm)
        return self.compiled[key]

    def launch(self, programs: int, *given: Any, **options: Any) -> None:
        made = self.warmup(*given, **options).load()
        with made.cuda.activate():
            made.launch(
                programs,
                *(x if isinstance(x, int) else x.data_ptr() for x in given),
                dependent_launch=bool(options.get("launch_pdl")),
            )


def _is_aligned(x: Any) -> bool:
    return not isinstance(x, int) and x.data_ptr() % POINTER_ALIGNMENT == 0


def _argument_type(x: Any) -> str:
    """Return Triton's name of a pointer to a tensor's elements, or of an integer."""
    if isinstance(x, int):
        return "i32"
    name = str(x.dtype).removeprefix("torch.")
    short = name.replace("uint", "u").replace("int", "i")
    return f"*{_TYPE_NAMES.get(name, short)}"
