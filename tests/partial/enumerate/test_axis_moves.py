"""Mutants of windows by moves between axes; and those of a model's own windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from superopt.api.functions import generate_mutants
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.partial.correct.corrections import NoCorrection, recompute, widen
from superopt.partial.correct.generalize import graph_inputs
from superopt.partial.enumerate.axis_moves import AxisMove, apply_move, window_mutants
from superopt.partial.regions.boxes import format_box
from superopt.partial.regions.find import find_regions
from superopt.rules.lang.rule import parse_rules
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model
from tests.support.partial.regions import given_
from tests.support.partial.windows import net


@pytest.mark.parametrize("phases", [True, False])
@pytest.mark.parametrize(("axis", "to"), [(0, 2), (0, 3), (2, 0), (2, 3), (3, 0), (3, 2)])
def test_a_move_and_back_is_nothing(axis: int, to: int, phases: bool) -> None:
    x = given_("x", 2, 3, 4, 6)
    made = apply_move(x, AxisMove(axis, to, 2, phases))
    made = apply_move(made, AxisMove(to, axis, 2, phases), back=phases)
    a = np.arange(144, dtype=np.float32).reshape(2, 3, 4, 6)
    (got,) = evaluate(graph.Graph((x,), (made,)), {"x": a}, Reals(F64))
    np.testing.assert_array_equal(got, a)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((1, 2, 8, 8), (3, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
    "a batch": ((2, 2, 4, 4), (3, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
    "dilated": ((1, 2, 8, 8), (3, 2, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    "strided": ((1, 2, 8, 8), (3, 2, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "1x1": ((1, 2, 4, 6), (3, 2, 1, 1), {}),
    "of groups": ((1, 4, 8, 8), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    "odd sides": ((1, 2, 9, 11), (3, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
    "odd sides, strided": ((3, 2, 9, 13), (3, 2, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "a signal": ((1, 2, 12), (3, 2, 3), {"pads": (1, 1)}),
    "larger than its picture": ((2, 1, 2, 2), (1, 1, 5, 5), {"pads": (2, 2, 2, 2)}),
}


POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "ceil": (
        (4, 1, 8, 12),
        {"kernel_shape": (3, 5), "strides": (3, 3), "pads": (1, 4, 1, 2), "ceil_mode": 1,
         "count_include_pad": 1},
    ),
    "ceil of a batch": (
        (4, 2, 8, 8),
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 0, 1, 0), "ceil_mode": 1,
         "count_include_pad": 1},
    ),
    "pads that do not count": (
        (4, 2, 6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 0},
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_corrected_mutants_are_the_program(case: str) -> None:
    x, k, attrs = CASES[case]
    program = graph.node(OPS["Conv"], [given_("x", *x), given_("k", *k)], **attrs)
    rng = np.random.default_rng(0)
    arrays = {i.name: rng.standard_normal(i.type.shape) for i in graph_inputs(program)}
    (wanted,) = evaluate(graph.Graph(tuple(graph_inputs(program)), (program,)), arrays, Reals(F64))
    count = corrected = 0
    for name, mutant in window_mutants(program):
        r = find_regions(program, mutant)
        (plain,) = evaluate(
            graph.Graph(tuple(graph_inputs(program)), (mutant,)), arrays, Reals(F64)
        )
        right = np.isclose(plain, wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(right, r.mask(), name)
        count += 1
        try:
            fixed = recompute(program, mutant, r)
        except NoCorrection:
            continue
        (got,) = evaluate(graph.Graph(tuple(graph_inputs(program)), (fixed,)), arrays, Reals(F64))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
        corrected += 1
    assert count
    assert corrected or case == "larger than its picture"


@pytest.mark.parametrize("case", POOLS)
def test_corrected_means_are_the_program(case: str) -> None:
    shape, attrs = POOLS[case]
    program = graph.node(OPS["AveragePool"], [given_("x", *shape)], **attrs)
    a = {"x": np.random.default_rng(0).standard_normal(shape)}
    (wanted,) = evaluate(graph.Graph(tuple(graph_inputs(program)), (program,)), a, Reals(F64))
    corrected = 0
    for _, mutant in window_mutants(program):
        try:
            fixed = recompute(program, mutant, find_regions(program, mutant))
        except NoCorrection:
            continue
        (got,) = evaluate(graph.Graph(tuple(graph_inputs(program)), (fixed,)), a, Reals(F64))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
        corrected += 1
    assert corrected


@pytest.mark.parametrize("attrs", [{"ceil_mode": 1}, {"count_include_pad": 0}])
def test_means_of_fewer_places_are_not_widened(attrs: dict[str, Any]) -> None:
    x, y = given_("x", 1, 1, 4, 8), given_("y", 1, 1, 4, 8)
    how: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    how |= {"count_include_pad": 1} | attrs
    mutant = graph.node(OPS["AveragePool"], [graph.node(OPS["Concat"], [x, y], axis=3)], **how)
    each = [graph.node(OPS["AveragePool"], [v], **how) for v in (x, y)]
    with pytest.raises(NoCorrection, match="fewer places"):
        widen(graph.node(OPS["Concat"], each, axis=3), mutant)


def test_of_what_cannot_be_divided_a_part_is_moved() -> None:
    x, k, attrs = CASES["odd sides"]
    program = graph.node(OPS["Conv"], [given_("x", *x), given_("k", *k)], **attrs)
    some = dict(window_mutants(program))
    assert "2-blocks-of-h-to-n-split" in some
    assert "3-blocks-of-h-to-n" in some  # which has these
    assert not any(n.startswith("2-blocks-of-h-to-n-2") for n in some if "split" not in n)
    r = find_regions(program, some["2-blocks-of-h-to-n-split"])
    assert [format_box(b) for b in r.different] == ["[0, 0:3, 3:5, 0:11]", "[0, 0:3, 7:9, 0:11]"]
    assert not any("of-n" in name for name, _ in window_mutants(program, fixed_axes=(0,)))


def test_a_dilated_one_becomes_a_dense_one() -> None:
    x, k, attrs = CASES["dilated"]
    program = graph.node(OPS["Conv"], [given_("x", *x), given_("k", *k)], **attrs)
    dense = [
        m for name, m in window_mutants(program)
        if find_regions(program, m).equal_share == 1
        and all(n.attr("dilations") == (1, 1) for n in graph.nodes([m]) if n.op.name == "Conv")
    ]  # fmt: skip
    assert dense


@pytest.mark.one_in(0)
def test_a_model_s_own(tmp_path: Path) -> None:
    path, store = tmp_path / "net.onnx", tmp_path / "costs.db"
    onnx.save(net(), path)
    made = generate_mutants(tmp_path / "out", model=path, store=store)
    (count,) = made.families
    assert made.model
    assert count.family == "net"
    assert count.corrected >= 4
    text = (tmp_path / "out" / "net.corrected.rules").read_text()
    rules = parse_rules(text)
    assert len(rules) == count.proved
    again = generate_mutants(tmp_path / "out", model=path, store=store)
    assert (tmp_path / "out" / "net.corrected.rules").read_text() == text
    assert again.families[0].corrected == count.corrected
    assert again.families[0].seconds < max(0.5 * count.seconds, 1.0)


@pytest.mark.slow
def test_means_and_sizes_that_are_not_known(tmp_path: Path) -> None:
    pool = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
    nodes = [
        onnx.helper.make_node("AveragePool", ["x"], ["a"], count_include_pad=1, **pool),
        onnx.helper.make_node("Conv", ["a", "w"], ["b"], group=4, pads=[1] * 4),
        onnx.helper.make_node("Conv", ["u", "w"], ["c"], group=4),
    ]
    shapes = {"x": (F, [2, 4, 4, 4]), "u": (F, [2, 4, "n", 4])}
    made = generate_mutants(
        tmp_path, model=model(nodes, shapes, ["b", "c"], weights(w=(4, 1, 3, 3))),
        store=tmp_path / "costs.db",
    )  # fmt: skip
    (count,) = made.families
    assert count.corrected >= 4
    assert count.dropped["windows of dynamic sizes, or not of float32"] == 1


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    with pytest.raises(UsageError, match="model and families exclude each other"):
        generate_mutants(tmp_path, model=path, families=["borders"])
