"""Programs on a GPU: all kernel calls, with planned memory, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from superopt.kernels.cuda.driver import Event
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.cuda.launch import (
    FULL_WAIT_LABEL,
    LaunchRecord,
    launch_in_order,
    launch_on_streams,
    must_wait,
    prefers_shared_memory,
)
from superopt.kernels.llvm.program import Ref
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.gpu_device import (
    copy_to_device,
    fill_random,
    supports_dependent_launch,
    use_gpu,
)
from superopt.kernels.triton.compiler import TritonCompileError, capture_graph, current_gpu
from superopt.kernels.triton.loader import (
    NO_SIZES,
    LoadedTritonKernel,
    compile_options,
    load_triton_kernel,
    torch_dtype,
)
from superopt.kernels.triton.machine_code_check import is_sound
from superopt.kernels.triton.module import VendorFunction
from superopt.kernels.vendor import cublas
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.index import evaluate
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

COMPILER_THREADS = 8  # concurrently
WARMUP_RUNS = 2  # before the capture: Triton compiles in the first


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel, its buffers, and Triton's compile options; its stream, and the earlier calls on
    other streams that it waits for. A buffer in the region "word" is in the memory, where the word
    says."""

    kernel: Kernel
    arguments: tuple[Ref, ...]
    warps: int = 4
    stages: int = 3
    lane: int = 0
    waits: tuple[int, ...] = ()


TensorSpec = tuple[tuple[int, ...], DType]


@dataclass(slots=True)
class GpuProgram:
    """A program with its memory. inputs, outputs: torch tensors on the device that calls read and
    write; call_numbers: the call of each launch; memory, constants: of all calls; loaded: kernels
    by name; workspaces: of cuBLAS products; side_streams: beside the current one; graph: all calls,
    captured; end_event: the end of the last run, on `last_stream`; input_ranges: of the inputs,
    from the first run on. Not reentrant."""

    calls: tuple[KernelCall, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    launches: list[LaunchRecord]
    call_numbers: tuple[int, ...] = ()
    memory: Any = None
    constants: Any = None
    loaded: Mapping[str, LoadedTritonKernel] = field(default_factory=dict)
    workspaces: list[Any] = field(default_factory=list)
    side_streams: list[Any] = field(default_factory=list)
    graph: Any = None
    end_event: Event | None = None
    last_stream: int = 0
    input_ranges: WrittenRanges | None = None

    def __del__(self) -> None:
        """Wait for the last run: it uses the kernels' machine code and memory."""
        if self.end_event is not None:
            with (
                suppress(Exception),
                self.end_event.cuda.activate(),
            ):  # the process may be about to end
                self.end_event.synchronize()

    @property
    def number(self) -> int | None:
        """The GPU's number; negative in the interpreter."""
        return next((int(x.get_device()) for x in (*self.inputs, *self.outputs)), None)

    @property
    def memory_bytes(self) -> int:
        some = (self.memory, self.constants, *self.workspaces, *self.inputs, *self.outputs)
        return sum(x.numel() * x.element_size() for x in some if x is not None)

    def launch(self) -> None:
        """Launch all kernels, in order on each stream."""
        with np.errstate(all="ignore"):  # the interpreter also computes masked-off elements
            if self.side_streams:
                import torch

                launch_on_streams(self, torch.cuda)
                return
            launch_in_order(self)

    def with_launches(self, *launches: LaunchRecord) -> GpuProgram:
        """Return a program of some of the launches, with the same memory."""
        own = self.memory, self.constants, self.loaded
        return GpuProgram(self.calls, self.inputs, self.outputs, [*launches], (), *own)

    def compile(self, compilers: int = COMPILER_THREADS) -> None:
        """Compile all kernels with Triton, several at a time, without running them.

        Raises TritonCompileError if one's machine code is wrong.
        """
        if not all(right for _, right in _compile_all(self.launches, compilers)):
            raise TritonCompileError("Triton's compiler generates wrong code for a kernel")

    def run(self, arrays: Sequence[Any]) -> None:
        """Compute the outputs of these inputs in the current stream, after the last run, whichever
        stream that was on."""
        stream = self.wait_for_last_run()
        if self.input_ranges is None:
            self.input_ranges = WrittenRanges.from_tensors(self.inputs)
        own = [x.data_ptr() for x in self.inputs]
        for x, value in zip(self.inputs, self.input_ranges.copy_aliased(arrays, own), strict=True):
            if value is not x:  # else it was written in place
                copy_to_device(x, value)
        self()
        if self.end_event is not None:  # the launch has made the GPU's context current
            self.end_event.record_on(stream)
            self.last_stream = stream

    def wait_for_last_run(self) -> int:
        """Return the current stream, after making it wait for the last run; 0 in the
        interpreter."""
        if self.end_event is None:
            return 0
        if (stream := self.end_event.cuda.launch_stream()) != self.last_stream:
            with self.end_event.cuda.activate():
                self.end_event.block_stream(stream)
        return stream

    def __call__(self) -> None:
        """Compute the outputs from the inputs, in the current stream."""
        if self.graph is None:
            self.launch()
        else:
            self.graph.replay()


def build_program(
    calls: Sequence[KernelCall],
    constants: np.ndarray,
    memory_bytes: int,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    device: str,
    dot_precision: str = "ieee",
    capture: bool = True,
    zeroed_bytes: int = 0,
    sizes: Mapping[str, int] = NO_SIZES,
    words: Sequence[int] = (),
) -> GpuProgram:
    """Build a program. constants: the bytes of all constants; memory_bytes: of which the first
    `zeroed_bytes` are zeros wherever no kernel writes. dot_precision: of fp32 products: ieee or
    tf32. capture: record the calls as a graph on "cuda". sizes, words: values of the symbolic sizes
    of kernels, and of words.

    Raises NotImplementedError if Triton text cannot express a kernel, TritonCompileError if
    Triton's code does not run here, ImportError without the extra.
    """
    import torch

    with torch.inference_mode(False):  # else calls outside of that mode could not write inputs
        pool = torch.empty(max(memory_bytes, 1), dtype=torch.uint8, device=device)
        pool[:zeroed_bytes].zero_()
        fixed = torch.empty(max(len(constants), 1), dtype=torch.uint8, device=device)
        fixed[: len(constants)] = torch.from_numpy(constants)
        given = [
            torch.zeros(shape, dtype=torch_dtype(kind), device=device)
            for shape, kind in (*inputs, *outputs)
        ]

    def view(ref: Ref, shape: Sequence[int], kind: DType) -> Any:
        if ref.region == "argument":
            return given[ref.position]
        held = fixed if ref.region == "constant" else pool
        at = (words[ref.position] if ref.region == "word" else ref.position) + ref.offset
        return held[at : at + prod(shape) * max(kind.bits // 8, 1)].view(torch_dtype(kind))

    early = supports_dependent_launch(device)
    made = {
        c.kernel.name: load_triton_kernel(c.kernel, device, dot_precision, early, sizes)
        for c in calls
    }
    # a kernel's scratch serves one call at a time: each stream has its own
    scratch: dict[str, dict[int, Mapping[Tensor, Any]]] = {}
    workspaces: dict[int, Any] = {}  # likewise for cuBLAS
    # no empty launches, which a driver refuses
    some = [[x for x in made[c.kernel.name].text.launches if hint(x.programs)] for c in calls]
    launches: list[LaunchRecord] = []
    numbers: list[int] = []
    for n, (c, waits) in enumerate(zip(calls, must_wait(calls, [*map(len, some)]), strict=True)):
        own = made[c.kernel.name]
        used = scratch.setdefault(c.kernel.name, {})
        if c.lane not in used:
            tables = {t for t, _ in c.kernel.tables}
            copies = {t: x if t in tables else x.clone() for t, x in own.own_tensors.items()}
            used[c.lane] = copies if used else own.own_tensors
        tensors = dict(used[c.lane])
        for p, ref in zip(c.kernel.params, c.arguments, strict=True):
            tensors[p] = view(ref, [evaluate(n, {**sizes}) for n in p.shape], p.dtype)
        how = {"num_warps": c.warps, "num_stages": c.stages, **compile_options(c.kernel)}
        for x, wait in zip(some[n], waits, strict=True):
            arguments = [*(tensors[t] for t in x.buffers), *(sizes[name] for name in x.sizes)]
            f = own.functions[x.name]
            if device == "cuda" and isinstance(f, VendorFunction) and f.is_gemm:
                if c.lane not in workspaces:
                    workspaces[c.lane] = cublas.allocate_workspace(device)
                arguments.append(workspaces[c.lane])
            name = f"{x.name} {FULL_WAIT_LABEL}" if early and wait else x.name
            early_too = {"launch_pdl": True} if early and not wait else {}
            programs = evaluate(index.as_index(x.programs), {**sizes})
            launches.append((name, f, programs, arguments, how | early_too))
            numbers.append(n)
    inputs_, outputs_ = tuple(given[: len(inputs)]), tuple(given[len(inputs) :])
    out = GpuProgram(tuple(calls), inputs_, outputs_, launches, tuple(numbers), pool, fixed, made)
    out.workspaces = [*workspaces.values()]
    if device == "cuda":
        cuda: Any = torch.cuda  # whose classes have no types
        out.side_streams = [cuda.Stream() for _ in range(max((c.lane for c in calls), default=0))]
    if device != "cpu" and (capture or sizes):
        out.launches, kernels = fit_to_device(launches)
        if dot_precision == "tf32":
            out.launches, kernels = fit_to_device(_verify_tf32_pipelines(out.launches))
        for name, _, _, arguments, _ in out.launches if early else ():
            kernel = kernels[name]
            if kernel is not None and prefers_shared_memory(arguments, kernel.metadata.shared):
                kernel.prefer_shared_memory()
        if launches and capture:  # an empty graph is an error in some versions of torch
            _capture(out)
    return out


def _compile_all(launches: Sequence[LaunchRecord], compilers: int) -> list[tuple[Any, bool]]:
    """Compile each function once; return it with whether its machine code is sound."""
    once = {name: (function, programs, given, how)
            for name, function, programs, given, how in launches}  # fmt: skip

    def made(x: tuple[Any, int, list[Any], dict[str, int]]) -> tuple[Any, bool]:
        function, programs, given, how = x
        with use_gpu(where):  # each thread has its own current GPU
            out = function.warmup(*given, grid=(programs,), **how)
        return out, is_sound(out)

    tensors = (x for _, _, _, given, _ in launches for x in given if not isinstance(x, int))
    where = next((x.get_device() for x in tensors), None)

    with ThreadPoolExecutor(compilers) as pool:
        return list(pool.map(made, once.values()))


def fit_to_device(launches: Sequence[LaunchRecord]) -> tuple[list[LaunchRecord], dict[str, Any]]:
    """Return launches with fewer pipeline stages where the device lacks resources (block sizes are
    tuned for one GPU), with other warps where machine code is not sound
    (triton/machine_code_check.py); and the compiled functions, by name.

    Raises TritonCompileError if a kernel does not fit at one stage, or is not sound with either.
    """
    out: list[LaunchRecord] = list(launches)
    ready: dict[str, Any] = {}
    wrong: set[str] = set()  # names whose code was not sound
    while True:
        tried = {x[0]: x[-1] for x in out if x[0] not in ready}
        kernels = _compile_all([x for x in out if x[0] in tried], COMPILER_THREADS)
        other: dict[str, dict[str, Any]] = {}
        for (name, how), (kernel, right) in zip(tried.items(), kernels, strict=True):
            if not right:
                if name in wrong:
                    why = f"{name}: Triton's compiler generates wrong code for it"
                    raise TritonCompileError(why, name.removesuffix(f" {FULL_WAIT_LABEL}"))
                wrong.add(name)
                other[name] = {**how, "num_warps": 4 if how["num_warps"] == 8 else 8}
            elif kernel is None or kernel.fits_device():  # None: of a vendor
                ready[name] = kernel
            elif how["num_stages"] == 1:
                why = f"{name} needs more memory than a multiprocessor has"
                raise TritonCompileError(why, name.removesuffix(f" {FULL_WAIT_LABEL}"))
            else:
                other[name] = {**how, "num_stages": how["num_stages"] - 1}
        if not other:
            return out, ready
        out = [(n, f, k, x, other.get(n, how)) for n, f, k, x, how in out]


def _verify_tf32_pipelines(launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
    """Return launches with unpipelined loops where pipelining changes results: Triton 3.6
    miscompiles some pipelined loops of tf32 products. Each such kernel is run both ways on random
    inputs."""
    plain = [(f"{n} waits", f, k, x, {**how, "num_stages": 1}) for n, f, k, x, how in launches]
    some = [n for n, (_, f, _, _, how) in enumerate(launches) if _has_pipelined_dot(f, how)]
    _compile_all([x[n] for x in (launches, plain) for n in some], COMPILER_THREADS)
    wrong: dict[str, bool] = {}
    for n in some:
        name, function, programs, given, how = launches[n]
        if name not in wrong:
            one = [x if isinstance(x, int) else _random_buffer(x) for x in given]
            two = [x if isinstance(x, int) else x.clone() for x in one]
            function[(programs,)](*one, **how)
            function[(programs,)](*two, **plain[n][4])
            both = zip(one, two, strict=True)
            wrong[name] = not all(isinstance(x, int) or _is_bitwise_equal(x, y) for x, y in both)
    out = []
    for launch, other in zip(launches, plain, strict=True):
        out.append((launch[0], *other[1:]) if wrong.get(launch[0]) else launch)
    return out


def _has_pipelined_dot(function: Any, options: Mapping[str, Any]) -> bool:
    """True if the function has a product in a pipelined loop."""
    return options["num_stages"] > 1 and "tl.dot" in getattr(function, "text", "")


def _random_buffer(x: Any) -> Any:
    """Return a random float buffer; integers are 0, which is a valid index everywhere."""
    import torch

    return fill_random(torch.empty_like(x)) if x.is_floating_point() else torch.zeros_like(x)


def _is_bitwise_equal(x: Any, y: Any) -> bool:
    """True if both are bitwise equal, or NaN."""
    return bool(((x == y) | ((x != x) & (y != y))).all())


def _capture(r: GpuProgram) -> None:
    for _ in range(WARMUP_RUNS):
        r.launch()
    r.graph, cuda = capture_graph(r.launch), current_gpu()
    r.last_stream = cuda.launch_stream()
    with cuda.activate():
        r.end_event = cuda.Event()
        r.end_event.record_on(r.last_stream)
