"""Export a GPU program for many sizes, which was built at example sizes, as an image
(cuda/sized_image.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.kernels.cuda.image import Function, Lane
from superopt.kernels.cuda.launch import prefers_shared_memory
from superopt.kernels.cuda.sized_image import (
    ARENA_ALIGNMENT,
    ARGUMENT,
    CONSTANT,
    MEMORY,
    SizedImage,
    SizedPlace,
    SizedPort,
    SizedStep,
)
from superopt.kernels.llvm.program import Ref
from superopt.kernels.runtime.gpu_device import supports_dependent_launch
from superopt.kernels.runtime.gpu_program import GpuProgram, KernelCall
from superopt.kernels.runtime.module_image import CodeTable, add_compiled
from superopt.kernels.triton.codegen import Launch
from superopt.kernels.triton.functions import triton_type
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Dim, Expr, Size
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

Port = tuple[Sequence[Dim], DType]  # shape and element type


@dataclass(frozen=True, slots=True)
class SizedModuleImage:
    """code: that of all functions, concatenated. memory_bytes: with the scratch of kernels."""

    image: SizedImage
    code: bytes
    memory_bytes: Expr


def export_sized_image(
    r: GpuProgram,
    ports: Sequence[Port],
    memory_bytes: Expr,
    constant_bytes: int,
    word: Callable[[Dim], int],
    device: str,
    dot_precision: str,
) -> SizedModuleImage:
    """Export a program, in the context of its symbolic sizes. ports: the inputs, then the outputs.
    memory_bytes: without scratch. word: returns the number of a word.

    Raises NotImplementedError for parameters that are not kept, and for tables.
    """
    begin = index.as_index(-(-memory_bytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT)
    scratch, end = _scratch_offsets(r, begin)
    texts = CodeTable([])
    functions: dict[Function, int] = {}
    steps = []
    launches = zip(r.call_numbers, _launches(r), r.launches, strict=True)
    for n, launch, (_, function, _, given, how) in launches:
        call = r.calls[n]
        if device == "cpu":
            source = r.loaded[call.kernel.name].text.source
            made: Function | None = texts.add(launch.name, source.encode())
        else:
            kernel = function.warmup(*given, **how)
            alike = supports_dependent_launch(device) and prefers_shared_memory(
                given, kernel.metadata.shared
            )
            made = add_compiled(kernel, texts, alike)
        if made is None:
            raise NotImplementedError(f"{launch.name} takes parameters that are not kept")
        places = _buffer_places(call, scratch[call.kernel.name], word)
        sizes = tuple(word(Size(name)) for name in launch.sizes)
        buffers = tuple(places[t] for t in launch.buffers)
        steps.append(
            SizedStep(
                functions.setdefault(made, len(functions)), word(index.as_index(launch.programs)),
                buffers, sizes, bool(how.get("launch_pdl")), n,
            )
        )  # fmt: skip
    image = SizedImage(
        tuple(functions),
        tuple(steps),
        tuple(Lane(c.lane, tuple(c.waits)) for c in r.calls),
        tuple(SizedPort(tuple(map(word, shape)), _kind(dtype)) for shape, dtype in ports),
        len(r.inputs),
        constant_bytes,
        dot_precision,
    )
    return SizedModuleImage(image, b"".join(texts.entries), end)


def _launches(r: GpuProgram) -> Iterator[Launch]:
    for c in r.calls:
        yield from (x for x in r.loaded[c.kernel.name].text.launches if hint(x.programs))


def _scratch_offsets(r: GpuProgram, begin: Expr) -> tuple[dict[str, dict[Tensor, Expr]], Expr]:
    """Return the bytes at which the scratch tensors of each kernel begin in the memory, and the
    end of all. Kernels run one after the other, and use the same bytes."""
    found: dict[str, dict[Tensor, Expr]] = {}
    end = begin
    for name, loaded in r.loaded.items():
        if loaded.kernel.tables:
            raise NotImplementedError(f"{name} has tables")
        at = begin
        found[name] = {}
        for t, count in loaded.text.scratch:
            found[name][t] = at
            size = count * max(t.dtype.bits // 8, 1)
            at = index.as_index(at + -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT)
        end = index.apply("max", (end, at), end.dtype)
    return found, end


def _buffer_places(
    call: KernelCall, scratch: Mapping[Tensor, Expr], word: Callable[[Dim], int]
) -> dict[Tensor, SizedPlace]:
    def place(t: Tensor, region: str, number: int, offset: int = 0) -> SizedPlace:
        elements = word(index.as_index(prod(t.sizes)))
        return SizedPlace(region, number, offset, elements, _kind(t.dtype))

    def place_of_ref(t: Tensor, ref: Ref) -> SizedPlace:
        region = {"word": MEMORY, "constant": CONSTANT, "argument": ARGUMENT}[ref.region]
        return place(t, region, ref.position, ref.offset)

    out = {t: place_of_ref(t, r) for t, r in zip(call.kernel.params, call.arguments, strict=True)}
    for t, at in scratch.items():
        out[t] = place(t, MEMORY, word(at))
    return out


def _kind(dtype: DType) -> str:
    """Return torch's name of an element type."""
    name = triton_type(dtype).removeprefix("tl.")
    return "bool" if name == "int1" else name
