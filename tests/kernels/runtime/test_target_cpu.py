"""Code for a level of x86-64 that the user names: which one, and which processors run it."""

import re

import numpy as np
import pytest

from superopt.cost import tuning_records
from superopt.errors import UsageError
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime import engine
from superopt.kernels.runtime.cpu import (
    _optimized_module,
    converts_float16,
    load_kernel,
    object_code,
)
from superopt.kernels.runtime.engine import host, link_objects, native_machine, psabi_machine
from superopt.kernels.runtime.target_cpu import (
    LEVELS,
    VARIABLE,
    MissingInstructions,
    missing_features,
)
from superopt.te.expr.dtype import BF16, F16, F32, DType
from superopt.te.expr.tensor import Tensor, apply, compute, reduce_sum

REGISTERS = {16: "%xmm", 32: "%ymm", 64: "%zmm"}  # by a vector's bytes


def doubled() -> Kernel:
    a = Tensor("x", F32, (64,))
    return lower_kernel("k", [a], [compute((64,), lambda i: a[i] + a[i])])


@pytest.mark.parametrize("level", LEVELS)
def test_the_variable_names_what_code_is_for(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, level)
    machine = host()
    assert machine == psabi_machine(level)
    assert (machine.cpu, machine.width) == (level, LEVELS[level].width)
    made = engine.create_target_machine(machine).emit_assembly(
        engine.llvm.parse_assembly(kernel_text(doubled(), machine.width))
    )
    found = {width for width, name in REGISTERS.items() if name in made}
    assert found == {machine.width}


@pytest.mark.parametrize("level", LEVELS)
def test_products_call_no_function_for_each_element(level: str) -> None:
    """Without instructions that fuse them, LLVM calls C's fmaf for what must be rounded once."""
    a, b = Tensor("a", F32, (8, 16)), Tensor("b", F32, (16, 32))
    y = compute((8, 32), lambda i, j: reduce_sum(16, lambda k: a[i, k] * b[k, j]))
    machine = psabi_machine(level)
    text = kernel_text(lower_kernel("k", [a, b], [y]), machine.width)
    made = engine.create_target_machine(machine).emit_assembly(engine.llvm.parse_assembly(text))
    assert "fmaf" not in made
    assert ("vfmadd" in made) == ("fma" in LEVELS[level].features)


ELEMENT_FUNCTIONS = ("floor", "ceil", "round", "abs", "neg", "sqrt", "exp", "tanh", "sign")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [BF16, F16], ids=str)
@pytest.mark.parametrize("fn", ELEMENT_FUNCTIONS)
def test_short_floats_call_no_function_of_a_compiler_s_library(
    fn: str, kind: DType, level: str
) -> None:
    """This process need not have such functions (__truncsfbf2): a call of one ends it."""
    x, machine = Tensor("x", kind, (37,)), psabi_machine(level)
    if kind == F16 and not converts_float16(machine):
        pytest.skip("there are no kernels of float16")
    text = kernel_text(
        lower_kernel("k", [x], [compute((37,), lambda i: apply(fn, x[i]))]), machine.width
    )
    module, target = _optimized_module(text, machine)
    assert not re.findall(r"__\w+f2", target.emit_assembly(module))


@pytest.mark.parametrize("value", [None, "", "native"])
def test_without_it_code_is_for_this_processor(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, value)
    assert host() == native_machine()


@pytest.mark.parametrize("value", ["znver3", "x86-64-v5", "X86-64-V3", " x86-64-v3"])
def test_another_name_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UsageError) as e:
        host()
    assert e.value.what == f"SUPEROPT_TARGET_CPU is {value!r}"
    assert "x86-64-v3" in e.value.todo


@pytest.mark.parametrize(
    ("needed", "present", "missing"),
    [
        ("", "", []),
        ("", "+avx", []),
        ("+avx,+fma", "+sse2,+fma,+avx", []),
        ("+avx,+fma,+avx512f", "+fma,-avx512f", ["avx", "avx512f"]),
        ("-avx512f,+sse2", "+sse2", []),
    ],
)
def test_features_that_are_missing(needed: str, present: str, missing: list[str]) -> None:
    assert missing_features(needed, present) == missing


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("processor", LEVELS)
def test_code_is_made_for_any_processor_and_runs_where_it_can(
    level: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """processor: what this one is said to be, as far as it is as new as that."""
    here = native_machine()
    monkeypatch.setattr(engine, "native_machine", lambda: psabi_machine(processor))
    machine, k = psabi_machine(level), doubled()
    code = object_code(kernel_text(k, machine.width), machine)
    if list(LEVELS).index(level) > list(LEVELS).index(processor):
        with pytest.raises(MissingInstructions) as e:
            link_objects([code], machine)
        assert e.value.what == f"code for {level} does not run on this processor"
        needed = set(LEVELS[level].features) - set(LEVELS[processor].features)
        assert e.value.why == f"it lacks {', '.join(sorted(needed))}"
    elif not missing_features(machine.features, here.features):
        x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        load_kernel(k, machine)(x, out)
        np.testing.assert_array_equal(out, 2 * x)


def test_times_of_one_level_are_not_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = set()
    for value in ("native", *LEVELS):
        monkeypatch.setenv(VARIABLE, value)
        targets.add(tuning_records.cpu_target(1))
    assert len(targets) == 1 + len(LEVELS)
