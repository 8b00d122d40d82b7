"""A segment of a model as machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cpu.class_function import ClassFunction, build_class_function
from superopt.compilation.model.steps import KernelStep, MemoryHolder, ModelBinding, ValueArrays
from superopt.compilation.runtime.output_buffers import (
    ArraySpec,
    KeptArrays,
    no_kept_arrays,
    output_allocator,
)
from superopt.errors import UsageError

if TYPE_CHECKING:
    from superopt.compilation.model.repeated_call import ModelCall
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.image import CountCall, LoadedProgram, ProgramImage, SizedCode
    from superopt.plan.program.program import Program
    from superopt.plan.program.size_formulas import SizedProgram, SizeFormulas

_WORD_TYPE = np.dtype(np.int64)
_from_buffer = np.frombuffer
RunProgram = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


@dataclass(frozen=True, slots=True)
class NativeSegment(KernelStep):
    """A segment as machine code. output_specs: shapes and element types of its outputs;
    load_segment: returns the segment; binding: if it is the only one; kept_outputs: large arrays
    that may be used again; allocate_outputs: returns arrays for the outputs."""

    code: LoadedProgram | SizedCode
    output_specs: tuple[ArraySpec, ...]
    load_segment: Callable[[], Segment]
    binding: ModelBinding | None = None
    kept_outputs: KeptArrays = ()
    allocate_outputs: Callable[[], list[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        kept = self.kept_outputs or no_kept_arrays(len(self.output_specs))
        object.__setattr__(self, "kept_outputs", kept)
        object.__setattr__(self, "allocate_outputs", output_allocator(self.output_specs, kept))

    @property
    def segment(self) -> Segment:
        return self.load_segment()

    @property
    def program(self) -> Program:
        return self.code.program

    @property
    def static_code(self) -> LoadedProgram:
        """The code of a program for fixed sizes."""
        assert self.code.loaded_program is self.code
        return self.code.loaded_program

    def run(self, env: ValueArrays, code: RunProgram | None = None) -> None:
        """Run the segment. code: run in place of its own."""
        segment = self.segment
        out = self.new_outputs()
        (code or self.code)([env[v] for v in segment.inputs], out)
        env.update(zip(segment.outputs, out, strict=True))

    def new_outputs(self) -> list[np.ndarray]:
        """Return new arrays for the outputs. Raises UsageError if there is no memory for them."""
        try:
            return self.allocate_outputs()
        except MemoryError as e:
            what = "no memory for the outputs"
            raise UsageError(what, str(e), "pass smaller inputs") from None

    def run_bound(self, arrays: Sequence[Any], *, on_device: bool = False) -> list[Any]:
        assert self.binding is not None
        out = self.new_outputs()
        self.code.call((*[arrays[n] for n in self.binding.input_numbers], *out))
        return [out[n] for n in self.binding.output_numbers.values()]

    def is_running(self) -> bool:
        return self.code.loaded_program.is_running()

    @property
    def program_identity(self) -> int:
        return id(self.code.loaded_program)

    def constant_arrays(self) -> Sequence[np.ndarray]:
        return self.code.constants.arrays

    def program_memory(self, _: Sequence[MemoryHolder]) -> tuple[int, int, int, int]:
        program = self.code.loaded_program
        contexts = program.live_contexts()
        memory = sum(c.memory.nbytes for c in contexts)
        return program.code_bytes, len(contexts), memory, program.own_bytes - memory

    def kept_output_arrays(self) -> Sequence[np.ndarray]:
        return [a for kept in self.kept_outputs for a in tuple(kept)]

    def named_output_specs(self) -> Mapping[str, ArraySpec]:
        assert self.binding is not None
        return {name: self.output_specs[n] for name, n in self.binding.output_numbers.items()}

    def bind(
        self, arrays: Sequence[Any], outputs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], object]]:
        assert self.binding is not None
        names = self.binding.output_numbers
        written = {names[name]: a for name, a in outputs.items()}
        if len(written) < len(self.output_specs):
            written = {**dict(enumerate(self.new_outputs())), **written}
        out = [written[n] for n in range(len(self.output_specs))]
        found = {name: outputs.get(name, out[n]) for name, n in names.items()}
        copies = [(a, out[names[name]]) for name, a in found.items() if a is not out[names[name]]]
        run = partial(self.code.call, (*[arrays[n] for n in self.binding.input_numbers], *out))
        if not copies:
            return found, run

        def run_and_copy() -> None:  # a value that is two outputs
            run()
            for to, source in copies:
                to[...] = source

        return found, run_and_copy

    def constant_blocks(self) -> Mapping[int, int]:
        return {id(a): a.nbytes for a in self.code.constants.arrays}

    def work_blocks(self) -> Mapping[int, int]:
        return {id(self.code.loaded_program): self.code.own_bytes}


def native_call(native: NativeSegment, input_count: int) -> ModelCall:
    """Return the call of a segment that is the whole model, of so many inputs."""
    assert native.binding is not None
    run, allocate, numbers = native.code.call, native.allocate_outputs, native.binding.input_numbers
    in_order, gives = (
        numbers == tuple(range(input_count)),
        (*native.binding.output_numbers.items(),),
    )

    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        out = allocate()
        run((*(arrays if in_order else [arrays[n] for n in numbers]), *out))
        return {name: out[n] for name, n in gives}

    return call


@dataclass(frozen=True, slots=True)
class SymbolicSegment:
    """A segment as machine code for all sizes that its formulas admit. example: the sizes for which
    it was compiled. image: what the disk cache keeps; None if it came from there. kept_outputs: of
    the segments at all sizes. whole_functions: that of `whole_function` once it was called."""

    code: LoadedProgram
    formulas: SizeFormulas
    output_dtypes: tuple[np.dtype, ...]
    load_segment: Callable[[], Segment]
    example: Mapping[str, int]
    binding: ModelBinding | None = None
    image: ProgramImage | None = None
    kept_outputs: KeptArrays = field(init=False)
    whole_functions: list[ClassFunction] = field(init=False, default_factory=list)
    pack_words: Callable[..., bytes] = field(init=False)  # the words that the code reads

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_outputs", no_kept_arrays(len(self.output_dtypes)))
        object.__setattr__(self, "pack_words", Struct(f"{len(self.formulas.words)}q").pack)

    def is_running(self) -> bool:
        return self.code.is_running()

    @property
    def programs(self) -> tuple[SymbolicSegment]:
        return (self,)

    @property
    def memory_holder(self) -> MemoryHolder:
        return self.at_sizes(self.example)

    def at_sizes(
        self, sizes: Mapping[str, int], count_call: CountCall | None = None
    ) -> NativeSegment:
        """Return the segment at given sizes, on the same memory."""
        known = self.formulas.at_sizes(sizes)
        needs = known.memory_bytes, known.workspace_bytes
        code = self.code.at_sizes(*needs, known.words, count_call)
        specs = tuple(zip(known.output_shapes, self.output_dtypes, strict=True))
        return NativeSegment(code, specs, self.load_segment, self.binding, self.kept_outputs)

    def call_kernels(self, arrays: Sequence[np.ndarray], known: SizedProgram) -> None:
        """Compute the outputs. arrays: the inputs, then the outputs; known: the values of the
        formulas."""
        memory, workspace, words, _ = known
        packed = _from_buffer(self.pack_words(*words), _WORD_TYPE)
        self.code.call((*arrays, packed), memory, workspace)

    def whole_function(self, formulas: SizeFormulas) -> ClassFunction:
        """Return the function of the model's inputs, if the segment is the whole model. formulas:
        its own, with the guards of its class."""
        if not self.whole_functions:
            assert self.binding is not None
            own = self.output_dtypes, self.binding, self.kept_outputs
            self.whole_functions.append(build_class_function(self.code, formulas, *own))
        return self.whole_functions[0]
