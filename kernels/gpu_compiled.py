"""Kernels compiled by Triton and launched by the driver (cuda/driver.py). Triton's own launcher is
a C module, built for each signature, which needs a C compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from superopt.kernels.gpu_driver import (
    Cuda,
    Function,
    alone,
    driver,
    function,
    gpu,
    loaded,
    torchs_stream,
)

WARP = 32  # threads
OTHERS_MAY = "thread_local"  # other threads may use the device during a capture
ALIGNED = 16  # bytes; Triton is told that addresses are multiples of it
# Triton's names of types that are not prefix and bits
_NAMES = {"bool": "i1", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
# attributes of kernels that take more than addresses
_MORE = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")


class Uncompiled(NotImplementedError):
    """Triton cannot compile the kernel for this GPU, or not correctly. function: of Triton's
    text."""

    def __init__(self, why: str, function: str = "") -> None:
        super().__init__(why)
        self.function = function


@dataclass(slots=True, eq=False)
class OnTorchs(Cuda):
    """A device; functions are launched on torch's current stream."""

    def now(self) -> int:
        return torchs_stream(self.gpu.number)


@cache
def _device(number: int) -> OnTorchs:
    return OnTorchs(driver(), gpu(number))


def current_gpu() -> OnTorchs:
    """Return torch's current device."""
    import torch

    return _device(torch.cuda.current_device())


def recorded(launch: Callable[[], None]) -> Any:
    """Capture launches as a torch graph on the current GPU.

    The capture uses a stream that is not torch's: torch's streams are shared, and the end of a
    graph frees what is cached for its stream. torch leaves that stream also if the capture fails.
    """
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    graph, own = cuda.CUDAGraph(), cuda.ExternalStream(current_gpu().current.handle)
    recording = cuda.graph(graph, stream=own, capture_error_mode=OTHERS_MAY)
    with alone(), cuda.stream(own), recording:
        launch()
    return graph


@dataclass(slots=True, eq=False)
class Built:
    """A kernel compiled by Triton. metadata, asm: see triton.compile; loaded: its functions on
    devices, by device number."""

    metadata: Any
    asm: Mapping[str, Any]
    on: dict[int, Function] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """True if the kernel takes addresses only."""
        told = self.metadata
        return told.num_ctas == 1 and not any(getattr(told, x, 0) for x in _MORE)

    def fits(self) -> bool:
        """True if the device can run the kernel: it has enough shared memory and registers."""
        shared, threads = int(self.metadata.shared), WARP * int(self.metadata.num_warps)
        return shared <= current_gpu().most_shared() and threads <= self.here().most()

    def here(self) -> Function:
        """Return the function on the current device, loading it once."""
        cuda = current_gpu()
        if cuda.gpu.number not in self.on:
            if not self.plain:
                name = str(self.metadata.name)
                raise Uncompiled(f"{name} takes parameters besides addresses", name)
            told = self.metadata
            with cuda.entered():
                module = loaded(cuda, self.asm["cubin"])
                made = function(cuda, module, told.name, WARP * told.num_warps, told.shared)
            self.on[cuda.gpu.number] = made
        return self.on[cuda.gpu.number]

    def share_first(self) -> None:
        """Prefer as much shared memory as possible."""
        self.here().share_first()


@dataclass(slots=True, eq=False)
class Compiled:
    """A function of Triton's text, called like Triton's own: `f[(programs,)](*tensors, **how)`.
    how: options of Triton's compiler; launch_pdl: allow the launch to begin before the previous one
    has ended. compiled: kernels by tensor types and options."""

    function: Any
    made: dict[Any, Built] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return str(self.function.src)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self.launch, grid[0])

    def warmup(self, *given: Any, grid: object = None, **how: Any) -> Built:
        """Compile without launching. Raises TritonCompileError if Triton rejects it."""
        from triton import compile
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        how.pop("launch_pdl", None)
        kinds = tuple(_kind(x) for x in given)
        known = tuple(n for n, x in enumerate(given) if x.data_ptr() % ALIGNED == 0)
        major, minor = current_gpu().gpu.capability
        key = kinds, known, (major, minor), tuple(sorted(how.items()))
        if key not in self.made:
            names = self.function.arg_names
            attrs = {(n,): [["tt.divisibility", ALIGNED]] for n in known}
            source = ASTSource(self.function, dict(zip(names, kinds, strict=True)), {}, attrs)
            target = GPUTarget("cuda", 10 * major + minor, WARP)
            try:
                out = compile(source, target=target, options=how)
            except Exception as e:  # a dozen types: of the text, the assembler, the machine
                name, why = self.function.__name__, str(e).strip() or type(e).__name__
                raise Uncompiled(f"{name}: Triton does not compile it: {why}", name) from e
            self.made[key] = Built(out.metadata, out.asm)
        return self.made[key]

    def launch(self, programs: int, *given: Any, **how: Any) -> None:
        made = self.warmup(*given, **how).here()
        with made.cuda.entered():
            made.launch(programs, *(x.data_ptr() for x in given), early=bool(how.get("launch_pdl")))


def _kind(x: Any) -> str:
    """Return Triton's name of a pointer to a tensor's elements."""
    name = str(x.dtype).removeprefix("torch.")
    short = name.replace("uint", "u").replace("int", "i")
    return f"*{_NAMES.get(name, short)}"
