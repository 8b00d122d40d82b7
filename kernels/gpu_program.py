"""Programs on a GPU: all kernel calls, with planned memory, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from superopt.kernels import gpu_cublas
from superopt.kernels.cpu_run import Ref
from superopt.kernels.gpu_compiled import Uncompiled, current_gpu, recorded
from superopt.kernels.gpu_device import drawn, on, overlaps, put
from superopt.kernels.gpu_driver import Event
from superopt.kernels.gpu_inputs import Places
from superopt.kernels.gpu_launch import LATE, Launch, forked, in_order, late, like_others
from superopt.kernels.gpu_machine_code import sound
from superopt.kernels.gpu_module import Library
from superopt.kernels.gpu_run import Loaded, compile_options, loaded, torch_type
from superopt.kernels.tile import Kernel
from superopt.te.dtype import DType
from superopt.te.expr import Tensor

COMPILERS = 8  # concurrently
WARMING = 2  # before the capture: Triton compiles in the first


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel, its buffers, and Triton's compile options; its stream, and the earlier calls on
    other streams that it waits for."""

    kernel: Kernel
    given: tuple[Ref, ...]
    warps: int = 4
    stages: int = 3
    lane: int = 0
    waits: tuple[int, ...] = ()


Spec = tuple[tuple[int, ...], DType]


@dataclass(slots=True)
class Running:
    """A program with its memory. inputs, outputs: torch tensors on the device that calls read and
    write; call_numbers: the call of each launch; memory, constants: of all calls; loaded: kernels
    by name; workspaces: of cuBLAS products; side_streams: beside the current one; graph: all calls,
    captured; end_event: the end of the last run, on `last_stream`; input_ranges: of the inputs,
    from the first run on. Not reentrant."""

    calls: tuple[Call, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    launches: list[Launch]
    numbers: tuple[int, ...] = ()
    memory: Any = None
    constants: Any = None
    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    workspaces: list[Any] = field(default_factory=list)
    beside: list[Any] = field(default_factory=list)
    graph: Any = None
    over: Event | None = None
    last: int = 0
    places: Places | None = None

    def __del__(self) -> None:
        """Wait for the last run: it uses the kernels' machine code and memory."""
        if self.over is not None:
            with suppress(Exception), self.over.cuda.entered():  # the process may be about to end
                self.over.synchronize()

    @property
    def number(self) -> int | None:
        """The GPU's number; negative in the interpreter."""
        return next((int(x.get_device()) for x in (*self.inputs, *self.outputs)), None)

    @property
    def bytes(self) -> int:
        some = (self.memory, self.constants, *self.workspaces, *self.inputs, *self.outputs)
        return sum(x.numel() * x.element_size() for x in some if x is not None)

    def launch(self) -> None:
        """Launch all kernels, in order on each stream."""
        with np.errstate(all="ignore"):  # the interpreter also computes masked-off elements
            if self.beside:
                import torch

                forked(self, torch.cuda)
                return
            in_order(self)

    def only(self, *launches: Launch) -> Running:
        """Return a program of some of the launches, with the same memory."""
        own = self.memory, self.constants, self.loaded
        return Running(self.calls, self.inputs, self.outputs, [*launches], (), *own)

    def compile(self, compilers: int = COMPILERS) -> None:
        """Compile all kernels with Triton, several at a time, without running them.

        Raises TritonCompileError if one's machine code is wrong.
        """
        if not all(right for _, right in _compiled(self.launches, compilers)):
            raise Uncompiled("Triton's compiler generates wrong code for a kernel")

    def run(self, given: Sequence[Any]) -> None:
        """Compute the outputs of these inputs in the current stream, after the last run, whichever
        stream that was on."""
        stream = self.behind()
        if self.places is None:
            self.places = Places.of_tensors(self.inputs)
        own = [x.data_ptr() for x in self.inputs]
        for x, value in zip(self.inputs, self.places.apart(given, own), strict=True):
            if value is not x:  # else it was written in place
                put(x, value)
        self()
        if self.over is not None:  # the launch has made the GPU's context current
            self.over.ends(stream)
            self.last = stream

    def behind(self) -> int:
        """Return the current stream, after making it wait for the last run; 0 in the
        interpreter."""
        if self.over is None:
            return 0
        if (stream := self.over.cuda.now()) != self.last:
            with self.over.cuda.entered():
                self.over.holds(stream)
        return stream

    def __call__(self) -> None:
        """Compute the outputs from the inputs, in the current stream."""
        if self.graph is None:
            self.launch()
        else:
            self.graph.replay()


def running(
    calls: Sequence[Call],
    constants: np.ndarray,
    memory: int,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    device: str,
    dots: str = "ieee",
    record: bool = True,
    kept: int = 0,
) -> Running:
    """Build a program. constants: the bytes of all constants; memory_bytes: of which the first
    `zeroed_bytes` are zeros wherever no kernel writes. dot_precision: of fp32 products: ieee or
    tf32. capture: record the calls as a graph on "cuda".

    Raises NotImplementedError if Triton text cannot express a kernel, TritonCompileError if
    Triton's code does not run here, ImportError without the extra.
    """
    import torch

    with torch.inference_mode(False):  # else calls outside of that mode could not write inputs
        pool = torch.empty(max(memory, 1), dtype=torch.uint8, device=device)
        pool[:kept].zero_()
        fixed = torch.empty(max(len(constants), 1), dtype=torch.uint8, device=device)
        fixed[: len(constants)] = torch.from_numpy(constants)
        given = [
            torch.zeros(shape, dtype=torch_type(kind), device=device)
            for shape, kind in (*inputs, *outputs)
        ]

    def view(ref: Ref, shape: Sequence[int], kind: DType) -> Any:
        if ref.place == "argument":
            return given[ref.at]
        held = pool if ref.place == "memory" else fixed
        size = prod(shape) * max(kind.bits // 8, 1)
        return held[ref.at : ref.at + size].view(torch_type(kind))

    early = overlaps(device)
    made = {c.kernel.name: loaded(c.kernel, device, dots, early) for c in calls}
    # a kernel's scratch serves one call at a time: each stream has its own
    scratch: dict[str, dict[int, Mapping[Tensor, Any]]] = {}
    workspaces: dict[int, Any] = {}  # likewise for cuBLAS
    # no empty launches, which a driver refuses
    some = [[x for x in made[c.kernel.name].text.launches if x.programs] for c in calls]
    launches: list[Launch] = []
    numbers: list[int] = []
    for n, (c, waits) in enumerate(zip(calls, late(calls, [*map(len, some)]), strict=True)):
        own = made[c.kernel.name]
        used = scratch.setdefault(c.kernel.name, {})
        if c.lane not in used:
            tables = {t for t, _ in c.kernel.tables}
            copies = {t: x if t in tables else x.clone() for t, x in own.own.items()}
            used[c.lane] = copies if used else own.own
        tensors = dict(used[c.lane])
        for p, ref in zip(c.kernel.params, c.given, strict=True):
            shape = [n for n in p.shape if isinstance(n, int)]
            tensors[p] = view(ref, shape, p.dtype)
        how = {"num_warps": c.warps, "num_stages": c.stages, **compile_options(c.kernel)}
        for x, wait in zip(some[n], waits, strict=True):
            arguments = [tensors[t] for t in x.buffers]
            f = own.functions[x.name]
            if device == "cuda" and isinstance(f, Library) and f.multiplies:
                if c.lane not in workspaces:
                    workspaces[c.lane] = gpu_cublas.workspace(device)
                arguments.append(workspaces[c.lane])
            name = f"{x.name} {LATE}" if early and wait else x.name
            early_too = {"launch_pdl": True} if early and not wait else {}
            launches.append((name, f, x.programs, arguments, how | early_too))
            numbers.append(n)
    inputs_, outputs_ = tuple(given[: len(inputs)]), tuple(given[len(inputs) :])
    out = Running(tuple(calls), inputs_, outputs_, launches, tuple(numbers), pool, fixed, made)
    out.workspaces = [*workspaces.values()]
    if device == "cuda":
        cuda: Any = torch.cuda  # whose classes have no types
        out.beside = [cuda.Stream() for _ in range(max((c.lane for c in calls), default=0))]
    if device != "cpu" and record:
        out.launches, kernels = fitting(launches)
        if dots == "tf32":
            out.launches, kernels = fitting(_checked(out.launches))
        for name, _, _, arguments, _ in out.launches if early else ():
            kernel = kernels[name]
            if kernel is not None and like_others(arguments, kernel.metadata.shared):
                kernel.share_first()
        _record(out)
    return out


def _compiled(launches: Sequence[Launch], compilers: int) -> list[tuple[Any, bool]]:
    """Compile each function once; return it with whether its machine code is sound."""
    once = {name: (function, programs, given, how)
            for name, function, programs, given, how in launches}  # fmt: skip

    def made(x: tuple[Any, int, list[Any], dict[str, int]]) -> tuple[Any, bool]:
        function, programs, given, how = x
        with on(where):  # each thread has its own current GPU
            out = function.warmup(*given, grid=(programs,), **how)
        return out, sound(out)

    where = next((x.get_device() for _, _, _, given, _ in launches for x in given), None)

    with ThreadPoolExecutor(compilers) as pool:
        return list(pool.map(made, once.values()))


def fitting(launches: Sequence[Launch]) -> tuple[list[Launch], dict[str, Any]]:
    """Return launches with fewer pipeline stages where the device lacks resources (block sizes are
    tuned for one GPU), with other warps where machine code is not sound
    (triton/machine_code_check.py); and the compiled functions, by name.

    Raises TritonCompileError if a kernel does not fit at one stage, or is not sound with either.
    """
    out: list[Launch] = list(launches)
    ready: dict[str, Any] = {}
    wrong: set[str] = set()  # names whose code was not sound
    while True:
        tried = {x[0]: x[-1] for x in out if x[0] not in ready}
        kernels = _compiled([x for x in out if x[0] in tried], COMPILERS)
        other: dict[str, dict[str, Any]] = {}
        for (name, how), (kernel, right) in zip(tried.items(), kernels, strict=True):
            if not right:
                if name in wrong:
                    why = f"{name}: Triton's compiler generates wrong code for it"
                    raise Uncompiled(why, name.removesuffix(f" {LATE}"))
                wrong.add(name)
                other[name] = {**how, "num_warps": 4 if how["num_warps"] == 8 else 8}
            elif kernel is None or kernel.fits():  # None: of a vendor
                ready[name] = kernel
            elif how["num_stages"] == 1:
                why = f"{name} needs more memory than a multiprocessor has"
                raise Uncompiled(why, name.removesuffix(f" {LATE}"))
            else:
                other[name] = {**how, "num_stages": how["num_stages"] - 1}
        if not other:
            return out, ready
        out = [(n, f, k, x, other.get(n, how)) for n, f, k, x, how in out]


def _checked(launches: Sequence[Launch]) -> list[Launch]:
    """Return launches with unpipelined loops where pipelining changes results: Triton 3.6
    miscompiles some pipelined loops of tf32 products. Each such kernel is run both ways on random
    inputs."""
    plain = [(f"{n} waits", f, k, x, {**how, "num_stages": 1}) for n, f, k, x, how in launches]
    some = [n for n, (_, f, _, _, how) in enumerate(launches) if _multiplies(f, how)]
    _compiled([x[n] for x in (launches, plain) for n in some], COMPILERS)
    wrong: dict[str, bool] = {}
    for n in some:
        name, function, programs, given, how = launches[n]
        if name not in wrong:
            one = [_drawn(x) for x in given]
            two = [x.clone() for x in one]
            function[(programs,)](*one, **how)
            function[(programs,)](*two, **plain[n][4])
            wrong[name] = not all(map(_same, one, two))
    out = []
    for launch, other in zip(launches, plain, strict=True):
        out.append((launch[0], *other[1:]) if wrong.get(launch[0]) else launch)
    return out


def _multiplies(function: Any, how: Mapping[str, Any]) -> bool:
    """True if the function has a product in a pipelined loop."""
    return how["num_stages"] > 1 and "tl.dot" in getattr(function, "text", "")


def _drawn(x: Any) -> Any:
    """Return a random float buffer; integers are 0, which is a valid index everywhere."""
    import torch

    return drawn(torch.empty_like(x)) if x.is_floating_point() else torch.zeros_like(x)


def _same(x: Any, y: Any) -> bool:
    """True if both are bitwise equal, or NaN."""
    return bool(((x == y) | ((x != x) & (y != y))).all())


def _record(r: Running) -> None:
    for _ in range(WARMING):
        r.launch()
    r.graph, cuda = recorded(r.launch), current_gpu()
    r.last = cuda.now()
    with cuda.entered():
        r.over = cuda.Event()
        r.over.ends(r.last)
