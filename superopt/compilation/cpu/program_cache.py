"""The cache of compiled CPU programs (entries.py): another process loads them instead of compiling.
A model's key is the digest of its files (SHA-256), options, the processor, superopt's own files and
the store of measurements. Its entries are programs for fixed sizes (stored_program.py), and classes
of sizes with their steps (stored_steps.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cache import entries
from superopt.compilation.cache.class_entries import (
    class_key,
    read_class_formulas,
    write_class_formulas,
)
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.cpu.stored_program import Description, describe_program, load_program
from superopt.compilation.cpu.stored_steps import (
    StoredSteps,
    describe_fallback,
    describe_steps,
    describe_whole,
    fixed_steps,
    load_steps,
    parse_whole,
)
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.control_flow.cached_parts import use_cache
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.control_flow.dynamic_loop import DynamicLoop
from superopt.compilation.model.control_flow.stored_flow import describe_flow, load_flow
from superopt.compilation.model.executable import Executable
from superopt.compilation.model.shape_policy import ShapePolicy, Specialize
from superopt.compilation.model.size_classes import SizeClass
from superopt.compilation.model.steps import ModelBinding, Variant
from superopt.cost.cache_folders import store_path
from superopt.cost.disk_cache import record_written
from superopt.kernels.llvm.numpy_entry import object_offsets
from superopt.kernels.runtime import file_cache as files
from superopt.kernels.runtime.amx import bf16_instructions, integer_instructions
from superopt.kernels.runtime.engine import LLVMLITE_VERSION, Machine, host
from superopt.plan.program.image import ProgramImage
from superopt.plan.program.size_formulas import SizeFormulas

if TYPE_CHECKING:
    from superopt.compilation.cpu.device import CpuDevice
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.states.state_programs import StateNames
    from superopt.onnx_io.import_.model import Model
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.program import Program

COMPILE_SECONDS_KIND = "seconds"  # kind of the entry with the compile time
Replan = Callable[[dict[str, str]], "tuple[Segment, Program]"]


def open_program_cache(
    options: CompileOptions, device: CpuDevice, digest: str, load_compiler: Callable[[], Compiler]
) -> CpuProgramCache:
    """Return the cached programs of a model whose files have this digest. Raises UsageError if the
    processor lacks the precision."""
    machine = host()
    about = (
        entries.FORMAT_VERSION,
        digest,
        options.threads,
        options.allowed.float_class,
        options.allowed.partial_rules,
        options.precision,
        bf16_instructions(machine) if options.precision == "bf16" else "",
        integer_instructions(machine),  # asks for the permission to use AMX, too
        machine.cpu,
        machine.features,
        machine.width,
        LLVMLITE_VERSION,
        np.__version__,
        sys.version,
        object_offsets(),
        entries.package_state("onnxruntime"),
        entries.package_state_digest(),
        entries.file_state(store_path(options.store)),
    )
    return CpuProgramCache(entries.digest_json(about), machine, device, load_compiler)


@dataclass(frozen=True, slots=True)
class CpuProgramCache:
    """The cached programs of a model. load_compiler: returns its compiler, for their plans.
    is_part: the model is a part of one, at an If or Loop."""

    key: str
    machine: Machine
    device: CpuDevice
    load_compiler: Callable[[], Compiler]
    is_part: bool = False

    def find(self, sizes: Sizes) -> Variant | None:
        """Return the program for these sizes; None if there is no intact one."""

        def replan(options: dict[str, str]) -> tuple[Segment, Program]:
            return self.load_compiler().replan(dict(sizes), options)

        def load_model() -> Model:
            return self.load_compiler().compiler_for(dict(sizes)).model

        if (found := self.find_program(sizes, replan)) is not None:
            return Variant((found,), load_model)
        if (steps := self._find_steps(self._steps_key(sizes))) is not None:
            at = tuple(s.at_sizes(dict(sizes)) for s in steps.steps)
            return Variant(at, load_model, {}, given_values=steps.values)
        flow = self._find_flow(
            self._flow_key(sizes),
            "eager",
            lambda: self.load_compiler().compiler_for(dict(sizes)).control_flow(),
        )
        return None if flow is None else Variant((flow,), load_model, {})

    def store(self, sizes: Sizes, variant: Variant, expected_seconds: float) -> None:
        """Store a program that is a whole model. expected_seconds: of compiling for further
        sizes."""
        step = variant.bound_step
        generator: Any = self.load_compiler().generator
        if isinstance(step, NativeSegment):
            self.store_program(sizes, step, generator.program_image(step))
        elif len(variant) == 1 and isinstance(variant[0], ControlFlow):
            self._store_flow(self._flow_key(sizes), variant[0])
        else:
            self._store_steps(sizes, variant, generator)
        self.store_compile_seconds(expected_seconds)

    def find_program(self, sizes: Sizes, replan: Replan) -> NativeSegment | None:
        """Return the program for these sizes; None if there is no intact one. replan: returns its
        segment and its plan with these options; called on demand."""

        def parse_program(about: dict[str, Any], texts: bytes) -> NativeSegment | None:
            both = cache(lambda: replan(about["options"]))
            code = load_program(about, texts, self.machine, lambda: both()[1])
            if code is None:
                return None
            specs = tuple(
                (tuple(shape), entries.parse_dtype(name)) for shape, name in about["specs"]
            )
            takes, gives, states = (about[key] for key in ("takes", "gives", "states"))
            binding = ModelBinding(tuple(takes), dict(gives), dict(states))
            return NativeSegment(code, specs, lambda: both()[0], binding)

        key = entries.digest_json((self.key, sizes))
        return entries.read_program(key, parse_program)

    def find_classes(self) -> Sequence[SizeClass] | None:
        """Return the programs for classes of sizes; None if the model is known to have none."""
        found = read_class_formulas(self.key)
        if found is None:
            return None
        return [self._stored_class(each) for each in found]

    def _stored_class(self, formulas: SizeFormulas) -> SizeClass:
        @cache
        def found() -> StoredSteps | None:
            return self._find_steps(class_key(self.key, formulas))

        return SizeClass(
            formulas,
            lambda: None if (held := found()) is None else held.steps,
            lambda: self.load_compiler().model,
            load_values=lambda: None if (held := found()) is None else held.values,
        )

    def store_class(self, made: SizeClass | None) -> None:
        """Store a program for a class of sizes; None: the model has none."""
        if made is None:
            write_class_formulas(self.key, [])
            return
        g = made.load_model().graph
        described = describe_steps(made.load_steps() or (), g.inputs, g.outputs)
        if described is not None:
            self._add_class(made.formulas, described)

    def _add_class(
        self, formulas: SizeFormulas, described: tuple[Description, list[bytes]]
    ) -> None:
        _write_program(class_key(self.key, formulas), *described)
        known = (c.formulas for c in self.find_classes() or ())
        write_class_formulas(self.key, [*dict.fromkeys((*known, formulas))])

    def with_states(self, names: StateNames) -> CpuProgramCache:
        """Return the cache of the programs that keep these states in place."""
        key = entries.digest_json((self.key, names))
        return replace(self, key=key, load_compiler=lambda: self.load_compiler().with_states(names))

    def _store_steps(self, sizes: Sizes, variant: Variant, generator: Any) -> None:
        """Store a program of several steps, or a part of a model that runs in ONNX Runtime: also at
        smaller sizes, where kernels would have even less work."""
        whole = variant[0] if len(variant) == 1 else None
        if not isinstance(whole, Fallback):
            steps = fixed_steps(variant, generator.program_image)
            described = describe_steps(steps, variant.values.inputs, variant.values.outputs)
            if described is not None:
                _write_program(self._steps_key(sizes), *described)
            return
        model = self.load_compiler().given_model.stored_model() if self.is_part else None
        described = None if model is None else describe_fallback(whole, model)
        if described is None:
            return
        if not sizes:
            _write_program(self._steps_key(sizes), *described)
        elif all(n > 0 for _, n in sizes):
            guards = (f"1 <= s{k} <= {n}" for k, (_, n) in enumerate(sizes))
            names = tuple(name for name, _ in sizes)
            self._add_class(SizeFormulas(names, tuple(guards), (), "0", "0", ()), described)

    def find_control_flow(self, specialize: Specialize) -> ControlFlow | None:
        """Return the programs at the model's If or Loop for all sizes; None if there are no intact
        ones. specialize: of the parts."""
        return self._find_flow(
            self._flow_key(None), specialize,
            lambda: self.load_compiler().compile_any_sizes(specialize),
        )  # fmt: skip

    def store_control_flow(self, flow: ControlFlow) -> None:
        """Store which programs a model has at its If or Loop for all sizes, and let these find and
        store their code."""
        self._store_flow(self._flow_key(None), flow)

    def _store_flow(self, key: str, flow: ControlFlow) -> None:
        model = None
        if isinstance(flow, DynamicLoop):
            model = self.load_compiler().given_model.stored_model()
            if model is None:
                return
        if (about := describe_flow(flow)) is None:
            return
        _write_program(key, *describe_whole(about, model))
        for name, part in flow.parts.items():
            use_cache(part, self._part(key, name, partial(_compiler_of, part)))

    def _find_flow(
        self, key: str, specialize: Specialize, compile_flow: Callable[[], ControlFlow | None]
    ) -> ControlFlow | None:
        compiled = cache(compile_flow)

        def load_part(name: str, interface: entries.ModelInterface) -> Executable:
            def load_compiler() -> Compiler:
                flow = compiled()
                assert flow is not None
                return flow.parts[name].compiler

            device = self.device
            policy = ShapePolicy(specialize, device.eager_sizes, device.compiles_in_background)
            part = Executable(
                interface.input_ports, interface.output_names, device, load_compiler,
                shape_policy=policy,
            )  # fmt: skip
            use_cache(part, self._part(key, name, load_compiler))
            return part

        def parse_flow(about: Description, texts: bytes) -> ControlFlow | None:
            return load_flow(about, load_part, parse_whole(about, texts), self.load_compiler)

        return entries.read_program(key, parse_flow)

    def _part(self, key: str, name: str, load_compiler: Callable[[], Compiler]) -> CpuProgramCache:
        own = entries.digest_json((key, name))
        return CpuProgramCache(own, self.machine, self.device, load_compiler, is_part=True)

    def _flow_key(self, sizes: Sizes | None) -> str:
        return entries.digest_json((self.key, "control flow", sizes))

    def _steps_key(self, sizes: Sizes) -> str:
        return entries.digest_json((self.key, "steps", sizes))

    def _find_steps(self, key: str) -> StoredSteps | None:
        """Return steps; None if they are not intact."""
        return entries.read_program(key, partial(load_steps, machine=self.machine))

    def compile_seconds(self) -> float | None:
        """Return the time that compiling the model for further sizes took; None if unknown."""
        return entries.read_entry(
            entries.digest_json((self.key, COMPILE_SECONDS_KIND)), COMPILE_SECONDS_KIND, float
        )

    def store_compile_seconds(self, seconds: float) -> None:
        """Store the expected time of compiling for further sizes."""
        key = entries.digest_json((self.key, COMPILE_SECONDS_KIND))
        files.write(entries.cache_folder(), key, repr(seconds).encode(), COMPILE_SECONDS_KIND)

    def store_program(self, sizes: Sizes, segment: NativeSegment, image: ProgramImage) -> None:
        """Store a program that is a whole model."""
        if segment.binding is None:
            return
        if (made := describe_program(image, segment.code.constants)) is None:
            return
        about, texts = made
        own = {
            "options": {key: str(o) for key, o in segment.code.program.options.items()},
            "specs": [(shape, dtype.name) for shape, dtype in segment.output_specs],
            "takes": segment.binding.input_numbers,
            "gives": [*segment.binding.output_numbers.items()],
            "states": [*segment.binding.state_axes.items()],
        }
        _write_program(entries.digest_json((self.key, sizes)), {**about, **own}, texts)


def _compiler_of(exe: Executable) -> Compiler:
    return exe.compiler


def _write_program(key: str, about: Mapping[str, object], texts: Sequence[bytes]) -> None:
    entries.write_program(key, about, texts)
    record_written(sum(map(len, texts)))
