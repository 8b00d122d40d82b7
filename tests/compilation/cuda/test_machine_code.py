"""Kernels for a GPU become machine code, where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.support.gpu.device import choose

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import sys, triton
from superopt.kernels.algorithms import space
from superopt.kernels.triton.machine_code_check import is_sound
from superopt.kernels.triton.module import define_functions
from superopt.kernels.triton.loader import compile_options
from superopt.kernels.loops.option import Option
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from superopt.compilation.cuda import load_compiler, load_program, code_generator
from superopt.compilation.cuda import device as cuda_device
from tests.support.gpu.models import MODELS
from tests.support.gpu.models import values_of_heads
from tests.support.gpu.strided_softmax import LARGE
from tests.support.gpu.blocks import COMPILED as BLOCKS, so
from tests.support.gpu.attention import LONG
from tests.support.gpu.uneven_blocks import DOTS, OTHERS
from tests.support.gpu.group_norm import LARGE as GROUPS
from tests.support.gpu.cells import MODELS as FEW, PAIRS
from tests.support.gpu.small_m_gemm import CASES, product
from tests.support.gpu.gates import CELLS, MODELS as GATES
from tests.support.gpu.models import resized

MODELS = {**MODELS, **GATES, **LONG, **{n: made for n, (made, *_) in CELLS.items()}}
MODELS |= {n: made for n, (made, *_) in {**FEW, **PAIRS}.items()}
MODELS |= {n: lambda n=n: product(n) for n in CASES}
MODELS |= {"values of heads": values_of_heads}
MODELS |= {**DOTS, **OTHERS, **LARGE, **GROUPS, "a scale": lambda: resized(0.7, 11, mode="linear")}
# more models
names = {"f16": "fp16", "f32": "fp32"}
cuda_device.execution_device = lambda: "cpu"
load_program.build_program = lambda calls, *rest, **more: calls
code_generator.GpuSegment = lambda s, made, calls, binding: calls
choose = space.choose
for model_name in sys.argv[2:]:
    space.choose = choose
    if model_name in BLOCKS:
        MODELS[model_name], option = BLOCKS[model_name]
        space.choose = so(Option.parse(option))
    for precision in sys.argv[1].split(","):
        exe = load_compiler.compile_model(read_model(MODELS[model_name]()), precision)
        (calls,) = exe.compiler.compile_variant({})
        for c in calls:
            if c.kernel.library:
                continue
            text = triton_text(c.kernel, exe.device.dot_precision, dependent_launch=True)
            for x in text.launches:
                f = define_functions(text.source, [x.name])[x.name]
                kinds = [f"*{names.get(t.dtype.name, t.dtype.name)}" for t in x.buffers]
                known = {(n,): [["tt.divisibility", 16]] for n in range(len(kinds))}
                source = ASTSource(f, dict(zip(f.arg_names, kinds, strict=True)), {}, known)
                how = {"num_warps": c.warps, "num_stages": c.stages, **compile_options(c.kernel)}
                made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how)
                assert len(made.asm["cubin"]) > 0
                assert is_sound(made)
        print(precision, len(calls))
"""


ALL = ["fp16", "tf32", "fp32"]
SHORT_FLOATS = ("float16", "bfloat16")
QUICK = ["powers", "layer norm", "values of heads"]
OTHERS = [
    "a block", "ragged heads", "depthwise", "turned", "columns", "rotary", "gated",
    "of three dimensions, and one behind", "angles", "a step of decoding", "a causal text",
    "eight gates", "three gates of sizes that blocks do not divide", "steps", "a long matrix",
    "channels", "classes of pixels", "norms of many channels", "of two", "a group norm",
    "the largest", "a norm", "a scale", "remainders", "an LSTM of one row", "an LSTM", "a GRU",
    "a gated product of one row",
    "three, of terms that nothing divides", "eight", "blocks of three", "in turns",
]  # fmt: skip


@pytest.mark.parametrize(
    "models", [QUICK, *(pytest.param([name], marks=pytest.mark.slow) for name in OTHERS)], ids=str
)
def test_kernels_compile_for_sm_90(models: list[str]) -> None:
    """To machine code, without a GPU; in a process without the interpreter."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", COMPILED, ",".join(ALL), *models],
        env=plain, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ALL * len(models)


def test_values_that_decide_are_rounded_between_operations() -> None:
    """LLVM computes such operations in 16 bits, and would contract a product and a sum of these."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    cases = [(case, kind) for case in ("sign", "mod", "swallowed") for kind in SHORT_FLOATS]
    own = (
        "from tests.support.ops.rounding_decisions import CASES as DECIDED, model as deciding\n"
        f"for case, kind in {cases!r}:\n"
        "    MODELS[case + kind] = lambda case=case, kind=kind: deciding(DECIDED[case], kind)\n"
    )
    code = COMPILED.replace("# more models", own)
    unfused = 'assert not re.search(r"fma.rn.b?f16", made.asm["ptx"]), model_name'
    code = "import re\n" + code.replace("assert is_sound(made)", unfused)
    code = code.replace('names = {"f16": "fp16",', 'names = {"bf16": "bf16", "f16": "fp16",')
    done = subprocess.run(
        [sys.executable, "-c", code, "fp32", *map("".join, cases)],
        env=plain, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(cases)


def test_a_rounded_product_is_computed() -> None:
    """ptxas drops products whose sums are first read by the bitwise rounding to tf32."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    code = COMPILED.replace(
        "define_functions(text.source", 'define_functions(text.source.replace(" + 0.0)", ")")'
    )
    counted = "assert is_sound(made), made.asm['ptx'].count('tf32.tf32')"
    code = code.replace("assert is_sound(made)", counted)
    done = subprocess.run(
        [sys.executable, "-c", code, "tf32", "values of heads"],
        env=plain, capture_output=True, text=True,
    )  # fmt: skip
    dropped = re.search(r"AssertionError: (\d+)", done.stderr)
    if done.returncode == 0:
        pytest.skip("this assembler keeps such products")
    assert dropped is not None, done.stderr
    assert int(dropped[1]) > 0


LOADS = """
import sys
from tests.support.gpu.models import drawn, node
from tests.support.compilation.models import F, model

known = {"w": drawn(64, 64, 3, 3), "u": drawn(64, 64, 1, 1), "b": drawn(64), "s": drawn(64, 1, 1)}
for fn in ("Relu", "LeakyRelu", "Elu", "PRelu"):
    act = node(fn, *(("e", "s") if fn == "PRelu" else ("e",)), "f")
    nodes = [node("Conv", "x", "u", "c"), node("Relu", "c", "r"),
             node("Conv", "r", "w", "b", "d", pads=[1] * 4), node("Add", "d", "r", "e"), act,
             node("Conv", "f", "u", "y")]
    some = {n: x for n, x in known.items() if n != "s" or fn == "PRelu"}
    MODELS[fn] = lambda nodes=nodes, some=some: model(
        nodes, {"x": (F, [16, 64, 28, 28])}, ["y"], some
    )
"""


def test_a_choice_behind_a_product_reads_no_more() -> None:
    """Than what has no choice: the bias and the residual once, with the slopes where there are
    some; in tf32, too, to which all of it is rounded."""
    plain = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    told = "print(model_name, sum(found))"
    code = COMPILED.replace("# more models", LOADS)
    code = code.replace("for c in calls:", "found = []\n        for c in calls:")
    code = code.replace("assert is_sound(made)", 'found.append(made.asm["ptx"].count("ld.global"))')
    code = code.replace("print(precision, len(calls))", told)
    done = subprocess.run(
        [sys.executable, "-c", code, "fp16,tf32", "Relu", "LeakyRelu", "Elu", "PRelu"],
        env=plain, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = defaultdict(list)
    for line in done.stdout.splitlines():
        fn, count = line.split()
        found[fn].append(int(count))
    assert len(found["Relu"]) == 2
    assert found["LeakyRelu"] == found["Elu"] == found["Relu"]
    assert all(x <= 2 * y for x, y in zip(found["PRelu"], found["Relu"], strict=True))
