"""Blocks of products on a GPU that are no powers of two, and programs that take blocks in turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import onnx
import pytest

from superopt.compilation.cuda import load_compiler
from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.gpu import gemm
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
from superopt.kernels.loops.option import Option
from superopt.kernels.triton.codegen import triton_text
from superopt.onnx_io.read.source import read_model
from tests.support.compilation.models import F, model, reference
from tests.support.gpu.blocks import product, so
from tests.support.gpu.compilation import feeds, near
from tests.support.gpu.device import choose
from tests.support.gpu.models import (
    conv,
    drawn,
    node,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("interpreted")]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch)


def matrices() -> onnx.ModelProto:
    nodes = [node("MatMul", "x", "z", "y")]
    return model(nodes, {"x": (F, [3, 70, 40]), "z": (F, [3, 40, 52])}, ["y"])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "a product": partial(product, 100, 96, 64),
    "of sizes that nothing divides": partial(product, 61, 53, 37),
    "and its tanh": partial(product, 50, 64, 32, "Tanh"),
    "of several matrices": matrices,
    "of pictures": partial(conv, 16, 50, 7, 3, pads=[1] * 4),
    "of few channels": partial(conv, 3, 48, 13, 5, strides=[2, 2], pads=[2] * 4),
    "of dilated windows": partial(conv, 16, 48, 7, 3, dilations=[2, 2], pads=[2] * 4),
}
FORMS = {"rows": (48, 16), "columns": (16, 48), "wide": (16, 96), "a power of two": (16, 32)}
TURNS = {"rows": 0, "columns": 2, "wide": 3, "a power of two": 5}  # programs, of each form


def by(monkeypatch: pytest.MonkeyPatch, option: Option) -> None:
    monkeypatch.setattr(space, "choose", so(option))


@pytest.mark.round_robin(3)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_three(
    name: str, form: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, (high, wide), programs = MODELS[name](), FORMS[form], TURNS[form]
    knobs = {"rows": high, "columns": wide, "k_block": 16, "warps": 4, "stages": 3}
    knobs |= {"programs": programs} if programs else {}
    by(monkeypatch, Option.make("gemm", **knobs))
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    (key,) = (k for k, o in program.options.items() if o.algorithm == "gemm")
    (call,) = (c for c, k in zip(program.calls, program.call_problems, strict=True) if k == key)
    text = triton_text(program.kernels[call.function], exe.device.dot_precision)
    matrix = match_matrix_product(program.problems[key])
    assert matrix is not None
    rows, columns, _ = matrix.sizes
    thirds = high % 3 == 0 or (wide % 3 == 0 and wide <= columns)
    assert text.source.count("tl.dot(") == (3 if thirds else 1)
    blocks = prod(a.size for a in matrix.batch) * -(-rows // high) * -(-columns // wide)
    assert [x.programs for x in text.launches] == [min(programs or blocks, blocks)]


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
@pytest.mark.parametrize("rows", [64, 192])
def test_rows_that_begin_within_a_line(
    rows: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 112 columns: where in a line a row is is the rest of what is not below zero. Of others
    Triton's compiler takes neighbours' signs for one, and results are stored elsewhere."""
    nodes = [node("Conv", "x", "w", "y", strides=[2, 2], pads=[3] * 4)]
    m = model(nodes, {"x": (F, [1, 3, 8, 224])}, ["y"], {"w": drawn(64, 3, 7, 7, scale=0.1)})
    by(monkeypatch, Option.make("gemm", rows=rows, columns=64, k_block=32, warps=4, stages=3))
    exe = load_compiler.compile_model(read_model(m), precision)
    near(exe.run(feeds(m)), reference(m, feeds(m)), precision)
    program = exe.variant({}).program
    (text,) = (x for k in program.kernels.values() if "tl.dot(" in (x := triton_text(k).source))
    assert "% 112" in text
    assert "_floored" not in text


def test_what_all_three_read_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    by(monkeypatch, Option.make("gemm", rows=48, columns=16, k_block=16, warps=4, stages=3))
    exe = load_compiler.compile_model(read_model(product(96, 32, 64)), "fp16")
    (kernel,) = (k for k in exe.variant({}).program.kernels.values() if "k0" in str(k))
    loop = triton_text(kernel).source.split("for k0")[1]
    assert loop.split("tl.store")[0].count("tl.load(") == 4  # each's rows, and what all multiply


@pytest.mark.parametrize("programs", [1, 2, 41, 42, 43])
def test_turns_go_on_until_the_last_block(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many programs there are, each of 42 blocks is some program's."""
    m = product(100, 96, 64)
    how = Option.make("gemm", rows=16, columns=16, k_block=16, warps=1, stages=3, programs=programs)
    by(monkeypatch, how)
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    program = exe.variant({}).program
    (kernel,) = (k for k in program.kernels.values() if k.programs)
    (launch,) = triton_text(kernel).launches
    assert (kernel.programs, launch.programs) == (programs, min(programs, 42))


@pytest.mark.parametrize("programs", [0, 3])
@pytest.mark.parametrize(("rows", "lines"), [(96, 3), (100, 7), (61, 4)])
def test_blocks_of_some_rows_go_before_the_next_columns(
    rows: int, lines: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of matrices that the second cache does not hold: of 6, 7 and 4 blocks of rows as many as
    divide them, near to a square of what runs at once."""
    monkeypatch.setattr(gemm, "L2_BYTES", 0)
    monkeypatch.setattr(gemm, "MULTIPROCESSORS", 12)
    turns = f" programs={programs}" if programs else ""
    by(monkeypatch, Option.parse(f"gemm rows=16 columns=16 k_block=16 warps=1 stages=3{turns}"))
    m = product(rows, 112, 64)
    exe = load_compiler.compile_model(read_model(m), "fp32")
    near(exe.run(feeds(m)), reference(m, feeds(m)), "fp32")
    (kernel,) = (k for k in exe.variant({}).program.kernels.values() if "k0" in str(k))
    text = triton_text(kernel).source
    count = -(-rows // 16)
    assert f"i1_o = pid // {lines} % 7" in text if lines < count else f"pid % {count}" in text


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_both_are_ways_of_large_products(precision: str) -> None:
    """Blocks of three, and programs with a second block for some of them; of small ones neither."""

    def ways(*sizes: int) -> list[Option]:
        program = (
            load_compiler.compile_model(read_model(product(*sizes)), precision).variant({}).program
        )
        (m,) = (x for p in program.problems.values() if (x := match_matrix_product(p)) is not None)
        return list(rank_options(m))

    few, many = ways(64, 96, 64), ways(2048, 2304, 1024)
    assert not any(o["rows"] % 3 == 0 or "programs" in dict(o.knobs) for o in few)
    assert {(192, 64), (192, 128)} <= {(o["rows"], o["columns"]) for o in many}
    assert any("programs" in dict(o.knobs) for o in many[:48])
    for some in (few, many):
        assert len(set(some)) == len(some)
        assert len({(o["rows"], o["columns"]) for o in some[:4]}) > 1


def test_parts_that_do_not_divide_a_sum_are_no_way() -> None:
    exe = load_compiler.compile_model(read_model(product(64, 32, 64)), "fp32")
    program = exe.variant({}).program
    (p,) = (p for p in program.problems.values() if match_matrix_product(p) is not None)
    with pytest.raises(ValueError, match="64 terms do not split into 3"):
        space.build_choice(
            p, Option.parse("split_k_gemm rows=16 columns=16 k_block=16 warps=1 parts=3"), "cuda"
        )
