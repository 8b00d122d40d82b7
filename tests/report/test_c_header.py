"""The C header of an exported model, and the source's tables."""

from __future__ import annotations

from collections.abc import Callable

from superopt.report.compilation.c_header import header_text
from superopt.report.compilation.c_source import source_text
from superopt.report.compilation.compile_report import ExportReport, Port, export_text
from superopt.report.compilation.exported_library import (
    BufferRef,
    ExportedLibrary,
    ExportedLimit,
    ExportedProgram,
)

SHAPES = ("2", "10"), ("0", "4")
PLACES = (0, 0), (0, 1)
SYSTEM = "libsmall.so", "Linux on x86-64", "linux"
ARGUMENTS = BufferRef("INPUT", 0), BufferRef("OUTPUT", 0)


def test_a_library_for_fixed_sizes(golden: Callable[[str, str], None]) -> None:
    ports = Port("image", "float32", (2, 3, 8, 8), 1536), Port("scale", "float16", (), 2)
    program = ExportedProgram((), "4096", "0", (), SHAPES, ARGUMENTS, (0,), True, 64)
    x = ExportedLibrary(
        *("0.1", "small.onnx", "small", "small", *SYSTEM, {"batch": 2}, (), ()),
        *(("avx2", "fma"), ("has_bit(7, 0, 1, 5)", "has_bit(1, 0, 2, 12)"), 2, ports),
        (Port("logits */", "float32", (2, 10), 80), Port("n", "int64", (0, 4), 0)),
        *((("2", "3", "8", "8"), ()), SHAPES, (ExportedLimit(0, "-8", "7", "within 8"),)),
        *({1: 128}, (program,), ((1, BufferRef("HELD", 64)),)),
        *(192, "0f" * 16, (1, 2), {"WAKE": 0}),
    )
    golden("header.txt", header_text(x))
    text = source_text(x)
    assert "defaults[] = {NONE, 128, NONE};" in text
    assert 'limits[] = {{0, -1, "within 8"}, {0}};' in text
    assert "out[0] = mul(INT64_C(8), -1, bad);" in text


def test_a_library_for_symbolic_sizes(golden: Callable[[str, str], None]) -> None:
    guards = (("1 <= s0", "1 <= s1", "(s0 < 16)"), ("1 <= s0", "1 <= s1", "not (s0 < 16)"))
    programs = tuple(
        ExportedProgram(
            g, "(s0 * 64)", "0", ("s0", "s1"), (("(s1 * 2)",),), ARGUMENTS, (0, 64), n == 0, 64
        )
        for n, g in enumerate(guards)
    )
    ports = (Port("x", "float32", ("seq len", 8), 0),), (Port("y", "float32", ("2 * n",), 0),)
    x = ExportedLibrary(
        *(
            "0.1",
            "small.onnx",
            "small",
            "small",
            *SYSTEM,
            {"batch": 2},
            ("seq len", "n"),
            PLACES,
            (),
            (),
            2,
            *ports,
        ),
        *(
            (("s0", "8"),),
            (("(s1 * 2)",),),
            (),
            {},
            programs,
            (),
            128,
            "0f" * 16,
            (1, 2),
            {"WAKE": 0},
        ),
    )
    golden("header-sizes.txt", header_text(x))
    text = source_text(x)
    assert (
        "{admits0, values0, dimensions0, sides0, guards0, 3, run0, work0, arguments0, 2, 0}, "
        "{admits1, values1, dimensions1, sides1, guards1, 3, run1, NULL," in text
    )
    assert "out[2] = mul(s[1], INT64_C(2), bad);" in text
    assert (
        '{CODE(SIZE_RANGE), 0, 1, "seq len", "less than", "16", 0, 1, '
        '"seq len: axis 0 of input x"}' in text
    )
    assert '"n", "at least", "1", 1, 1, "n: axis 1 of input x"' in text


def test_the_report_names_symbolic_sizes() -> None:
    x, y = Port("x", "float32", ("n", 8), 0), Port("y", "float32", (8,), 32)
    e = ExportReport("m.onnx", "m", 1, (), (x,), (y,), (("libm.so", 64),), ("n",), 3)
    text = export_text(e)
    assert "calls pass n: programs for 3 classes of sizes" in text
    assert "float32[n, 8]" in text
