"""Ifs that only a call decides: their branches are programs, and a call chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import superopt
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.control_flow import compile_if, dynamic_if
from superopt.compilation.model.control_flow.dynamic_if import DynamicIf
from superopt.compilation.model.executable import Executable
from superopt.errors import ModelError, UsageError
from superopt.jobs import compile_report
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.transform.split_if import first_dynamic_if, split_at_if
from tests.support.onnx_io.rounds import session, text

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
# Of a scalar input; the branches' second output has another shape in each, and one holds an If.
NESTED = f"""{HEAD} g (float[8,16] x, int64 k) => (float[8,16] y, float[?] z)
    <int64 one = {{1}}, int64 two = {{2}}> {{
        first = Equal (k, one)
        h = Exp (x)
        y, z = If (first) <
            then_branch = t () => (float[8,16] a, float[?] b) <int64[1] flat = {{-1}}> {{
                a = Mul (h, x)
                b = Reshape (a, flat)
            }},
            else_branch = e () => (float[8,16] a, float[?] b) <float[3] q = {{1, 2, 3}}> {{
                second = Equal (k, two)
                a, b = If (second) <
                    then_branch = tt () => (float[8,16] r, float[3] s) {{
                        r = Tanh (h)
                        s = Exp (q)
                    }},
                    else_branch = ee () => (float[8,16] r, float[3] s) {{
                        r = Neg (h)
                        s = Neg (q)
                    }}>
            }}>
    }}"""
# Inside a model with a symbolic size, of a value that is computed; it is an output, too.
INSIDE = f"""{HEAD} g (float[n,16] x) => (float[n,16] y, float s)
    <float zero = {{0.0}}, int64[1] last = {{1}}> {{
        h = Tanh (x)
        s = ReduceMean <keepdims = 0> (h)
        positive = Greater (s, zero)
        d = If (positive) <
            then_branch = t () => (float[?,?] a) {{ a = Mul (h, h) }},
            else_branch = e () => (float[?,?] a) <float[1] w = {{3}}> {{
                u = Add (h, w)
                a = Exp (u)
            }}>
        v = ReduceSum (d, last)
        y = Div (d, v)
    }}"""
# Of a size and of an input; a second If has the opposite condition; shapes come from sizes.
SIZES = f"""{HEAD} g (float[n,16] x, bool flag) => (float[?,?] y)
    <int64 four = {{4}}, int64 zero = {{0}}> {{
        sizes = Shape (x)
        rows = Gather (sizes, zero)
        many = Greater (rows, four)
        both = And (many, flag)
        h = Exp (x)
        wanted = Shape (h)
        d = If (both) <
            then_branch = t () => (float[?,?] a) <int64[2] two = {{-1, 2}}> {{
                a = Reshape (h, two)
            }},
            else_branch = e () => (float[?,?] a) {{ a = Reshape (h, wanted) }}>
        other = Not (both)
        y = If (other) <
            then_branch = tt () => (float[?,?] o) {{ o = Neg (d) }},
            else_branch = ee () => (float[?,?] o) {{ o = Abs (d) }}>
    }}"""
# One branch has running sums, which onnxruntime has; the other, what has no kernel.
PARTLY = f"""{HEAD} g (float[512,64] x, bool[1] flag) => (float[?,?] y) <int64 axis = {{0}}> {{
        d = If (flag) <
            then_branch = t () => (float[512,64] a) {{
                b = Exp (x)
                sums = CumSum (b, axis)
                a = Tanh (sums)
            }},
            else_branch = e () => (float[?,?] a) {{
                places = NonZero (x)
                f = Cast <to = 1> (places)
                a = Sqrt (f)
            }}>
        y = Neg (d)
    }}"""
# A branch that makes no sense at the sizes at which it is not taken.
SQUEEZED = f"""{HEAD} g (float[n,16] x, bool flag) => (float[?,?] y) <int64[1] zero = {{0}}> {{
        h = Exp (x)
        d = If (flag) <
            then_branch = t () => (float[?] a) {{ a = Squeeze (h, zero) }},
            else_branch = e () => (float[?,?] a) {{ a = Neg (h) }}>
        y = Add (d, h)
    }}"""


def numbers(rows: int, columns: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


CASES = {
    "nested": (NESTED, [{"x": numbers(8), "k": np.array(k)} for k in (1, 2, 3, 1)]),
    "inside": (INSIDE, [{"x": numbers(n, seed=s)} for n in (3, 5, 3) for s in range(4)]),
    "sizes": (
        SIZES,
        [{"x": numbers(n), "flag": np.array(f)} for n in (2, 6) for f in (1 > 0, 1 < 0)],
    ),
    "partly": (PARTLY, [{"x": numbers(512, 64), "flag": np.array([f])} for f in (1 > 0, 1 < 0)]),
    "squeezed": (SQUEEZED, [{"x": numbers(3), "flag": np.array(1 < 0)},
                            {"x": numbers(1), "flag": np.array(1 > 0)}]),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_the_branch_that_is_taken(name: str, threads: int) -> None:
    graph, calls = CASES[name]
    m = text(graph)
    exe, original = superopt.compile(m, threads=threads), session(m)
    for feeds in calls * 2:
        wanted = original.run(None, feeds)
        got = exe.run(feeds)
        for w, x in zip(wanted, got.values(), strict=True):
            assert w.shape == x.shape
            np.testing.assert_allclose(x, w, rtol=1e-5, atol=1e-6)
        (step,) = exe.variant(exe.infer_sizes(exe.input_arrays(feeds)))
        assert isinstance(step, DynamicIf)


# The branches read what the part before the If computes from a scalar.
SCALAR = f"""{HEAD} g (float[n,16] x, float k) => (float[n,16] y) <float one = {{1.0}}> {{
        positive = Greater (k, one)
        factor = Exp (k)
        y = If (positive) <
            then_branch = t () => (float[?,?] a) {{ a = Mul (x, factor) }},
            else_branch = e () => (float[?,?] a) {{ a = Sub (x, factor) }}>
    }}"""


def test_results_of_a_scalar_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = superopt.compile(text(SCALAR), threads=1)
    computed: list[float] = []
    original = Executable.run

    def count_run(self: Executable, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        computed.extend(float(feeds["k"]) for _ in range(feeds.keys() == {"k"}))
        return original(self, feeds)

    monkeypatch.setattr(Executable, "run", count_run)
    k = np.array(0.0, np.float32)
    for n, value in enumerate((2, 0.5, 2, 0.5, 1, np.nextafter(np.float32(1), np.float32(2)), 2)):
        k[()] = value  # the same array
        x = numbers(n + 1)
        y = exe.run({"x": x, "k": k})["y"]
        wanted = x * np.exp(k) if k > 1 else x - np.exp(k)
        np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)
    assert computed == [2, 0.5, 1, np.nextafter(np.float32(1), np.float32(2))]
    monkeypatch.setattr(dynamic_if, "MAX_KNOWN_PREFIXES", 2)
    for value in range(6):
        k[()] = value
        exe.run({"x": x, "k": k})
    assert len(computed) == 4 + 6  # what was remembered is dropped


def test_results_that_callers_may_change_are_computed_again() -> None:
    m = text(SCALAR.replace("(float[n,16] y)", "(float[n,16] y, bool positive)"))
    exe, original = superopt.compile(m, threads=1), session(m)
    feeds = {"x": numbers(3), "k": np.array(2, np.float32)}
    for _ in range(3):
        for w, a in zip(original.run(None, feeds), exe.run(feeds).values(), strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-6)
            a[...] = False  # the caller's own array


@pytest.mark.parametrize("name", ["nested", "inside"])
def test_nothing_runs_in_onnxruntime(name: str) -> None:
    graph, calls = CASES[name]
    exe = superopt.compile(text(graph))
    exe.run(calls[0])
    sizes = exe.infer_sizes(exe.input_arrays(calls[0]))
    assert exe.fallback_nodes(sizes) == []


def test_branch_segments_in_onnxruntime_are_reported() -> None:
    exe = superopt.compile(text(PARTLY))
    fallen = {n.op.name for n, _ in exe.fallback_nodes({})}
    assert {"CumSum", "NonZero"} <= fallen
    assert not {"If", "Exp", "Tanh"} & fallen


def test_a_condition_from_the_sizes_is_decided_when_they_are_known() -> None:
    exe = superopt.compile(text(SIZES.replace("And (many, flag)", "Identity (many)")))
    exe.run({"x": numbers(2), "flag": np.array(True)})
    (step,) = exe.variant({"n": 2})
    assert not isinstance(step, DynamicIf)


def test_what_the_condition_needs_is_computed_once() -> None:
    """The branches take the tensor from which the mean is, and know the condition."""
    model = import_model(read_model(text(INSIDE)))
    assert first_dynamic_if(model) is not None
    found = split_at_if(model)
    assert found is not None
    assert (found.condition, found.forwarded) == ("positive", ("s", "h"))
    for taken, arm in found.branches.items():
        inner = import_model(arm)
        assert [i.name for i in inner.graph.inputs] == ["h"], taken
        assert first_dynamic_if(inner) is None


def test_a_second_if_with_the_same_condition_is_decided_by_the_first() -> None:
    model = import_model(read_model(text(SIZES)))
    found = split_at_if(model)
    assert found is not None
    assert all(first_dynamic_if(import_model(arm)) is None for arm in found.branches.values())


def test_a_branch_that_makes_no_sense_is_an_error_when_it_is_taken() -> None:
    exe = superopt.compile(text(SQUEEZED))
    x = numbers(3)
    np.testing.assert_allclose(exe.run({"x": x, "flag": np.array(False)})["y"], 0 * x, atol=1e-6)
    with pytest.raises(ModelError, match="Squeeze"):
        exe.run({"x": x, "flag": np.array(True)})


def test_a_condition_of_several_elements_is_an_error() -> None:
    m = text(PARTLY.replace("bool[1] flag", "bool[m] flag"))
    exe = superopt.compile(m)
    with pytest.raises(ModelError, match=r"shape \[2\]"):
        exe.run({"x": numbers(512, 64), "flag": np.array([True, False])})


def test_saved_and_loaded(tmp_path: Path) -> None:
    exe = superopt.compile(text(NESTED))
    exe.save(tmp_path / "m.superopt")
    loaded = superopt.load(tmp_path / "m.superopt")
    assert isinstance(loaded, Executable)
    assert [type(s) for s in loaded.variant({})] == [DynamicIf]
    for feeds in CASES["nested"][1]:
        for a, b in zip(exe.run(feeds).values(), loaded.run(feeds).values(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_profile_is_of_the_branch_that_is_taken() -> None:
    exe = superopt.compile(text(NESTED))
    found = [exe.profile({"x": numbers(8), "k": np.array(k)}, seconds=0.02) for k in (1, 2)]
    computed = [{op for p in f.parts for op in p.ops} for f in found]
    assert "Tanh" not in computed[0]
    assert "Tanh" in computed[1]
    assert all(f.seconds > 0 for f in found)


def test_it_cannot_be_exported(tmp_path: Path) -> None:
    exe = superopt.compile(text(NESTED))
    with pytest.raises(UsageError, match="a condition of an If is known only at run time"):
        exe.export(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_said_of_it() -> None:
    about = compile_report.report_compilation(read_model(text(NESTED)), CompileOptions(), {})
    assert not about.foreign
    assert about.kernels > 2
    assert any("'first'" in note for note in about.notes)


def test_an_if_without_kernels_stays_in_onnxruntime() -> None:
    m = text(f"""{HEAD} g (float[3] x, bool flag) => (int64[?,?] y) {{
        y = If (flag) <
            then_branch = t () => (int64[?,?] a) {{ a = NonZero (x) }},
            else_branch = e () => (int64[?,?] a) {{ b = NonZero (x)  a = Neg (b) }}>
    }}""")
    exe = superopt.compile(m)
    x = np.array([0, 1, 2], np.float32)
    assert exe.run({"x": x, "flag": np.array(True)})["y"].tolist() == [[1, 2]]
    assert {n.op.name for n, _ in exe.fallback_nodes({})} == {"If"}


def test_more_ifs_than_are_compiled_run_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_if, "MAX_IF_DEPTH", 1)
    exe = superopt.compile(text(NESTED))
    m = session(text(NESTED))
    for feeds in CASES["nested"][1]:
        for a, b in zip(exe.run(feeds).values(), m.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert [n.op.name for n, _ in exe.fallback_nodes({})].count("If") == 1


def test_deep_branches_are_compiled_when_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_if, "MAX_EAGER_IF_DEPTH", 0)
    exe = superopt.compile(text(NESTED))
    (step,) = exe.variant({})
    assert isinstance(step, DynamicIf)
    assert not any(arm.variants for arm in step.branches.values())
    exe.run({"x": numbers(8), "k": np.array(1)})
    assert [bool(arm.variants) for arm in step.branches.values()] == [True, False]
