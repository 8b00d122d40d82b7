"""Kernels as Triton's compiler makes them, launched by the driver (gpu_driver.py). Triton's own way
to launch one is a module in C, which it builds where there is a C compiler, for each signature."""

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
OTHERS_MAY = "thread_local"  # use the device while a graph is recorded
ALIGNED = 16  # bytes, of which Triton is told that an address is a multiple
# Types by Triton's names, where it does not say bits alone.
_NAMES = {"bool": "i1", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
# What Triton says of a kernel that takes more than addresses.
_MORE = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")


class Uncompiled(NotImplementedError):
    """What Triton does not make code of that runs on this GPU. function: of Triton's text."""

    def __init__(self, why: str, function: str = "") -> None:
        super().__init__(why)
        self.function = function


@dataclass(slots=True, eq=False)
class OnTorchs(Cuda):
    """A device, where functions are launched on the stream that is current for torch."""

    def now(self) -> int:
        return torchs_stream(self.gpu.number)


@cache
def _device(number: int) -> OnTorchs:
    return OnTorchs(driver(), gpu(number))


def current_gpu() -> OnTorchs:
    """The device that is current for torch."""
    import torch

    return _device(torch.cuda.current_device())


def recorded(launch: Callable[[], None]) -> Any:
    """What is launched, as a graph of torch's for the current GPU. It is recorded on a stream that
    is none of torch's: those are others' too, and of what is kept for one, the graph's end ends
    all. Torch leaves it also where the recording fails."""
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    graph, own = cuda.CUDAGraph(), cuda.ExternalStream(current_gpu().current.handle)
    recording = cuda.graph(graph, stream=own, capture_error_mode=OTHERS_MAY)
    with alone(), cuda.stream(own), recording:
        launch()
    return graph


@dataclass(slots=True, eq=False)
class Built:
    """A kernel that Triton has compiled. metadata, asm: see triton.compile; on: as it was loaded on
    devices, by their numbers."""

    metadata: Any
    asm: Mapping[str, Any]
    on: dict[int, Function] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Does it take addresses alone?"""
        told = self.metadata
        return told.num_ctas == 1 and not any(getattr(told, x, 0) for x in _MORE)

    def fits(self) -> bool:
        """Can the device run it? It cannot where it needs more shared memory, or registers, than
        there are."""
        shared, threads = int(self.metadata.shared), WARP * int(self.metadata.num_warps)
        return shared <= current_gpu().most_shared() and threads <= self.here().most()

    def here(self) -> Function:
        """On the device, loaded."""
        cuda = current_gpu()
        if cuda.gpu.number not in self.on:
            if not self.plain:
                name = str(self.metadata.name)
                raise Uncompiled(f"{name} takes more than addresses", name)
            told = self.metadata
            with cuda.entered():
                module = loaded(cuda, self.asm["cubin"])
                made = function(cuda, module, told.name, WARP * told.num_warps, told.shared)
            self.on[cuda.gpu.number] = made
        return self.on[cuda.gpu.number]

    def share_first(self) -> None:
        """Have it prefer as much shared memory as there is."""
        self.here().share_first()


@dataclass(slots=True, eq=False)
class Compiled:
    """A function of Triton's text, called as Triton's own are: `f[(programs,)](*tensors, **how)`.
    how: options of Triton's compiler; launch_pdl: it may begin before what was launched before it
    has ended. made: by types of tensors, and these options."""

    function: Any
    made: dict[Any, Built] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return str(self.function.src)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self.launch, grid[0])

    def warmup(self, *given: Any, grid: object = None, **how: Any) -> Built:
        """Compiled, and not launched. Raises Uncompiled where Triton does not take it."""
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
            except Exception as e:  # of a dozen types: the text's, the assembler's, the machine's
                name, why = self.function.__name__, str(e).strip() or type(e).__name__
                raise Uncompiled(f"{name}: Triton does not compile it: {why}", name) from e
            self.made[key] = Built(out.metadata, out.asm)
        return self.made[key]

    def launch(self, programs: int, *given: Any, **how: Any) -> None:
        made = self.warmup(*given, **how).here()
        with made.cuda.entered():
            made.launch(programs, *(x.data_ptr() for x in given), early=bool(how.get("launch_pdl")))


def _kind(x: Any) -> str:
    """A tensor's elements, by Triton's name of an address of such."""
    name = str(x.dtype).removeprefix("torch.")
    short = name.replace("uint", "u").replace("int", "i")
    return f"*{_NAMES.get(name, short)}"
