"""Formulas of sizes in C have the values that Python gives them."""

from __future__ import annotations

import ctypes
import random
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from superopt.plan.program.size_formulas import compile_formulas
from superopt.report.compilation.c_formula import c_condition, c_formula
from tests.support.compilation.exporting import CC, HERE

pytestmark = pytest.mark.skipif(CC is None or not HERE, reason="needs Linux and a C compiler")
COUNT = 300


def drawn_formula(rng: random.Random, depth: int) -> str:
    """Return a formula over s0, s1, s2; divisors may be 0, operands below 0."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(["s0", "s1", "s2", str(rng.randint(-9, 70))])
    a, b, c = (drawn_formula(rng, depth - 1) for _ in range(3))
    return rng.choice([
        f"({a} + {b})", f"({a} + {b} + {c})", f"({a} * {b})", f"({a} // {b})", f"({a} % {b})",
        f"({a} // {rng.choice([-7, -1, 1, 2, 16])})", f"({a} % {rng.choice([-7, -1, 1, 2, 16])})",
        f"max({a}, {b})", f"min({a}, {b}, {c})", f"({a} < {b})", f"({a} <= {b})", f"({a} == {b})",
        f"({a} - {b})", f"({a} if {b} >= {c} else {b})",
    ])  # fmt: skip


def compile_c(folder: Path, bodies: list[str]) -> list[ctypes._NamedFuncPointer]:
    """Return functions of an array of sizes and a pointer to their result, which return whether it
    is right."""
    text = "#include <stdint.h>\n"
    text += files("superopt.report").joinpath("export/formulas.c").read_text("utf-8")
    for n, body in enumerate(bodies):
        text += f"int f{n}(const int64_t s[], int64_t *out)\n"
        text += f"{{ int bad[1] = {{0}}; (void)s; *out = {body}; return !*bad; }}\n"
    (folder / "f.c").write_text(text)
    options = ["-O1", "-shared", "-fPIC", "f.c", "-o", "f.so"]
    assert CC is not None
    subprocess.run([CC, *options], cwd=folder, check=True)
    lib = ctypes.CDLL(str(folder / "f.so"))
    return [getattr(lib, f"f{n}") for n in range(len(bodies))]


def value(f: ctypes._NamedFuncPointer, *sizes: int) -> int | None:
    """Return a function's value; None where it says that it has none."""
    out = ctypes.c_int64()
    return out.value if f((ctypes.c_int64 * 3)(*sizes), ctypes.byref(out)) else None


def python_value(text: str, *sizes: int) -> int | None:
    try:
        return int(compile_formulas([text], 3)(*sizes)[0])
    except ZeroDivisionError:
        return None


def test_formulas_have_the_values_of_python(tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = [drawn_formula(rng, 3) for _ in range(COUNT)]
    sizes = [[rng.randint(-40, 90) for _ in range(3)] for _ in range(40)] + [[0, 0, 0], [1, 1, 1]]
    none = 0
    for text, f in zip(texts, compile_c(tmp_path, [*map(c_formula, texts)]), strict=True):
        for given in sizes:
            wanted = python_value(text, *given)
            assert value(f, *given) == wanted, (text, given)
            none += wanted is None
    assert none > COUNT  # divisors of 0 are among them


EXTREMES = {
    "s0 * s1": (2**32, 2**31, None),
    "(s0 * s1)": (2**31, 2**31, 2**62),
    "(s0 + s1)": (2**62, 2**62, None),
    "(s0 // s1)": (-(2**63), -1, None),
    "(s0 % s1)": (-(2**63), -1, 0),
    "((s0 * s1) * 0)": (2**40, 2**40, None),  # an intermediate value counts
    f"(s0 + {2**63 - 1})": (-1, 0, 2**63 - 2),
    f"(s0 + {-(2**63)})": (1, 0, 1 - 2**63),
    "(s0 - s1)": (-(2**63), 1, None),
}


def test_a_value_that_is_no_int64_is_no_value(tmp_path: Path) -> None:
    found = compile_c(tmp_path, [*map(c_formula, EXTREMES)])
    for f, (text, (a, b, wanted)) in zip(found, EXTREMES.items(), strict=True):
        assert value(f, a, b, 0) == wanted, text


def test_a_guard_protects_those_after_it(tmp_path: Path) -> None:
    guards = ("1 <= s0", "not (s1 == 0)", "((s0 // s1) < 4)")
    (f,) = compile_c(tmp_path, [c_condition(guards)])
    for sizes, wanted in {(8, 4): 1, (8, 0): 0, (8, 2): 0, (0, 4): 0, (8, -1): 1}.items():
        assert value(f, *sizes, 0) == wanted, sizes


@pytest.mark.parametrize("text", ["s0 / s1", "a0", "s0 ** 2", "s0 < s1 < s2", "max(s0)[0]", "1.5"])
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(NotImplementedError, match="in C"):
        c_formula(text)


def test_a_constant_that_is_no_int64_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="in C"):
        c_formula(str(2**63))
