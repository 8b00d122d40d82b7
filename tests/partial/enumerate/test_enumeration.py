"""Mutants of subprograms by enumeration: what is found, and that it is what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from superopt.generate.engine.journal import Journal
from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.partial.enumerate.enumeration import Candidate, Hit, find_hits, instantiate
from superopt.partial.enumerate.operators import OPERATORS, is_activation_name
from superopt.partial.enumerate.program import (
    Program,
    at_channel_choices,
    free_channels,
    small_program,
)
from superopt.rulegen.model_journal import drop_unreadable_entries
from superopt.rulegen.model_mutants import _prove_rule
from superopt.rulegen.subprogram_mutants import enumerate_mutants, is_term_json
from superopt.rules.lang.rule import parse_rules
from superopt.rules.trial.try_rule import try_rule
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from tests.support.partial.regions import apply
from tests.support.partial.regions import given_ as given

Shape = tuple[int, ...]
SAME = (1, 1, 1, 1)


def conv(x: graph.Value, *k: graph.Value, **attrs: object) -> graph.Value:
    return apply("Conv", x, *k, **attrs)


def program(*outs: graph.Value, axis: int = 0, bias: bool = False) -> Program:
    read = [v for n in graph.nodes(outs) for v in n.inputs if isinstance(v, graph.Input)]
    known = frozenset(i.name for i in read if not is_activation_name(i.name))
    return Program(outs, known, axis, bias)


def heads(x: graph.Value, k: str) -> graph.Value:
    made = apply("Reshape", apply("MatMul", x, given(k, 24, 24)), shape=(1, 20, 4, 6))
    return apply("Transpose", made, perm=(0, 2, 1, 3))


def halves() -> Program:
    cut = apply("Split", given("x", 1, 12, 12, 12), axis=1, split=(6, 6))
    assert isinstance(cut, graph.Node)
    parts = zip(graph.results(cut), "kl", strict=True)
    each = [conv(v, given(name, 6, 6, 3, 3), pads=SAME) for v, name in parts]
    return program(apply("Concat", *each, axis=1))


def gemm(x: graph.Value, k: graph.Value) -> graph.Value:
    return apply("Gemm", x, k, transB=1)


X, Y = given("x", 1, 8, 12, 12), given("y", 1, 8, 12, 12)
A, B = given("x", 20, 8), given("y", 12, 8)
K, M = given("k", 4, 8, 3, 3), given("k", 8, 7)
ROWS = given("x", 1, 20, 24)


@dataclass(frozen=True)
class Case:
    """A program; the operators of a mutant that is equal everywhere, or of one that is equal in
    parts; and how many operators that takes."""

    program: Program
    names: Sequence[str]
    most: int
    whole: bool = True
    slow: bool = field(default=False)


CASES = {
    "parallel, 1x1 and 3x3": Case(
        program(
            conv(X, given("k", 4, 8, 1, 1)), conv(X, given("l", 6, 8, 3, 3), pads=SAME), axis=1
        ),
        ["join", "convolve"], 2,
    ),
    "parallel, 3x3 and 5x5": Case(
        program(
            conv(X, given("k", 4, 8, 3, 3), pads=SAME),
            conv(X, given("l", 6, 8, 5, 5), pads=(2, 2, 2, 2)), axis=1,
        ),
        ["join", "convolve"], 2,
    ),
    "three parallel ones": Case(
        program(
            conv(X, given("k", 4, 8, 1, 1)), conv(X, given("l", 6, 8, 3, 3), pads=SAME),
            conv(X, given("m", 5, 8, 3, 3), pads=SAME), axis=1,
        ),
        ["join", "convolve"], 2,
    ),
    "of two pictures, as groups": Case(
        program(
            conv(X, given("k", 4, 8, 1, 1)), conv(Y, given("l", 4, 8, 3, 3), pads=SAME), axis=1
        ),
        ["join", "join", "convolve"], 3,
    ),
    "of two pictures, as one kernel": Case(
        program(
            conv(X, given("k", 4, 8, 3, 3), pads=SAME),
            conv(Y, given("l", 6, 8, 3, 3), pads=SAME), axis=1,
        ),
        ["join", "diagonal", "convolve"], 3,
    ),
    "two images of one kernel, side by side": Case(
        program(*(conv(v, K, pads=SAME) for v in (X, Y))),
        ["join", "convolve", "move"], 3, whole=False,
    ),
    "a sum": Case(
        program(
            apply(
                "Add", conv(X, given("k", 4, 8, 3, 3), pads=SAME),
                conv(Y, given("l", 4, 8, 3, 3), pads=SAME),
            )
        ),
        ["join", "join", "convolve"], 3,
    ),
    "halves": Case(halves(), ["join", "convolve"], 2),
    "halves, dense": Case(halves(), ["diagonal", "convolve"], 2),
    "groups as one": Case(
        program(conv(given("x", 1, 8, 12, 12), given("k", 8, 4, 3, 3), pads=SAME, group=2)),
        ["dense", "convolve"], 2,
    ),
    "dilated": Case(
        program(conv(X, given("k", 4, 8, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))),
        ["move-both-sides", "convolve", "move-both-sides"], 3,
    ),
    "dilated, of an odd picture": Case(
        program(
            conv(
                given("x", 1, 8, 13, 12), given("k", 4, 8, 3, 1), pads=(2, 0, 2, 0),
                dilations=(2, 2),
            )
        ),
        ["move", "convolve", "move"], 3,
    ),
    "a stride as phases": Case(
        program(conv(given("x", 1, 3, 12, 12), given("k", 8, 3, 3, 3), pads=SAME, strides=(2, 2))),
        ["move-both-sides", "enlarge", "fold", "convolve"], 4, slow=True,
    ),
    "1x1 as a product": Case(
        program(conv(X, given("k", 4, 8, 1, 1))),
        ["shape", "shape", "multiply", "shape"], 4, slow=True,
    ),
    "two in a row": Case(
        program(conv(conv(X, given("k", 16, 8, 1, 1)), given("l", 4, 16, 3, 3), pads=SAME)),
        ["compose", "convolve"], 2,
    ),
    "two in a row, with borders": Case(
        program(
            conv(conv(X, given("k", 16, 8, 3, 3), pads=SAME), given("l", 4, 16, 3, 3), pads=SAME)
        ),
        ["compose", "convolve"], 2, whole=False,
    ),
    "two in a row with a scale": Case(
        program(
            conv(
                apply("Mul", conv(X, given("k", 16, 8, 1, 1)), given("l", 16, 1, 1)),
                given("m", 4, 16, 3, 3), pads=SAME,
            )
        ),
        ["scale", "compose", "convolve"], 3,
    ),
    "products of unequal parts": Case(
        program(*(apply("MatMul", v, given(k, 8, 7)) for v, k in ((A, "k"), (B, "l")))),
        ["stack", "stack", "multiply", "unstack"], 4,
    ),
    "products by one matrix": Case(
        program(*(apply("MatMul", v, M) for v in (A, B))), ["join", "multiply"], 2
    ),
    "queries, keys and values": Case(
        program(*(heads(ROWS, k) for k in "klm"), axis=1), ["join", "multiply", "shape", "turn"], 4
    ),
    "two products in a row": Case(
        program(apply("MatMul", apply("MatMul", A, given("k", 8, 30)), given("l", 30, 7))),
        ["compose", "multiply"], 2,
    ),
    "a bias between": Case(
        program(
            conv(
                conv(X, given("k", 16, 8, 1, 1), given("l", 16)), given("m", 4, 16, 3, 3),
            )
        ),
        ["compose", "convolve", "carry", "shift"], 4, slow=True,
    ),
    "a bias between, with borders": Case(
        program(
            conv(
                apply("Add", conv(X, given("k", 16, 8, 1, 1)), given("l", 16, 1, 1)),
                given("m", 4, 16, 3, 3), pads=SAME,
            )
        ),
        ["compose", "convolve", "carry", "shift"], 4, whole=False, slow=True,
    ),
    "a bias between products": Case(
        program(
            gemm(apply("Gemm", A, given("k", 30, 8), given("l", 30), transB=1), given("m", 7, 30))
        ),
        ["compose", "multiply", "carry", "shift"], 4,
    ),
    "Gemms of one tensor": Case(
        program(gemm(A, given("k", 7, 8)), gemm(A, given("l", 9, 8)), axis=1),
        ["join", "multiply"], 2,
    ),
    "Gemms of two tensors": Case(
        program(gemm(A, given("k", 7, 8)), gemm(B, given("l", 7, 8))),
        ["stack", "stack", "multiply", "unstack"], 4,
    ),
    "scores of linear attention": Case(
        program(apply("MatMul", apply("MatMul", A, given("y", 8, 20)), given("z", 20, 7))),
        ["multiply", "multiply"], 2,
    ),
    "two computed products": Case(
        program(*(apply("MatMul", A, given(name, 8, 7)) for name in "yz"), axis=1),
        ["join", "multiply"], 2,
    ),
    "two images of one kernel, with a gap": Case(
        program(*(conv(v, K, pads=SAME) for v in (X, Y))), ["space", "convolve", "unspace"], 3
    ),
    "rows of a batch": Case(
        program(apply("MatMul", given("x", 5, 6, 8), given("k", 8, 7))),
        ["shape", "multiply", "shape"], 3,
    ),
}  # fmt: skip


def names(t: Candidate) -> list[str]:
    if t.operator < 0:
        return []
    own = OPERATORS[t.operator].name.replace(" ", "-")
    return [*(n for o in t.operands for n in names(o)), own]


def found(case: Case) -> list[Hit]:
    """The mutants of these operators."""
    some = find_hits(small_program(case.program), case.most)
    return [h for h in some if sorted(names(h.term)) == sorted(case.names)]


def computed(v: graph.Value, arrays: dict[str, np.ndarray]) -> np.ndarray:
    read = {i for n in graph.nodes([v]) for i in n.inputs if isinstance(i, graph.Input)}
    (out,) = evaluate(graph.Graph(tuple(read), (v,)), arrays, Reals(F64))
    return np.asarray(out)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if c.slow else n for n, c in CASES.items()]
)
def test_it_is_found_and_is_right(name: str) -> None:
    """At the program's own sizes, which are not those of the enumeration."""
    case = CASES[name]
    p = case.program
    some = found(case)
    assert some
    rng = np.random.default_rng(0)
    arrays = {i.name: rng.standard_normal(i.type.shape) for i in p.inputs}
    wanted = computed(p.joined_output, arrays)
    shares = []
    for h in some:
        made = instantiate(h.term, p)
        if made is not None and made.type == p.joined_output.type:
            shares.append(float(np.isclose(computed(made, arrays), wanted).mean()))
    assert (max(shares) == 1) if case.whole else (0.5 < max(shares) < 1)


def test_products_are_taken_in_another_order() -> None:
    """What is found of (x y) z is not only that itself."""
    p = CASES["scores of linear attention"].program
    orders = {str(h.term) for h in find_hits(small_program(p), 2) if h.share == 1}
    assert orders == {"(multiply: (multiply: x, y), z)", "(multiply: x, (multiply: y, z))"}


def test_nothing_is_found_that_leaves_an_input_out() -> None:
    p = CASES["of two pictures, as one kernel"].program
    some = find_hits(small_program(p), 3)
    assert some
    assert all(all(f"{i.name}" in str(h.term) for i in p.inputs) for h in some)


def test_kernels_that_change_places_are_not_equal() -> None:
    """Of the same shapes and operators, and another order."""
    other = given("l", 4, 8, 3, 3)
    p = program(conv(X, K, pads=SAME), conv(X, other, pads=SAME), axis=1)
    (whole,) = [h for h in find_hits(small_program(p), 2) if h.share == 1]
    made = instantiate(whole.term, p)
    assert made is not None
    joined = graph.producer(graph.producer(made).inputs[1])  # type: ignore[union-attr, arg-type]
    assert joined is not None
    assert [v.name for v in joined.inputs if isinstance(v, graph.Input)] == ["k", "l"]


def test_what_is_joined_may_have_no_shape() -> None:
    with pytest.raises(ValueError, match="Concat"):
        _ = program(
            conv(X, given("k", 4, 8, 3, 3)), conv(X, given("l", 4, 8, 1, 1)), axis=1
        ).joined_output


@pytest.mark.parametrize(
    ("shape", "named"),
    [((4, 8, 3, 3), {4: "c0", 8: "c1"}), ((8, 8, 3, 3), {8: "c0"}), ((1, 8, 1, 1), {8: "c0"})],
)
def test_channels_have_names(shape: Shape, named: dict[int, str]) -> None:
    assert free_channels(program(conv(X, given("k", *shape), pads=SAME))) == named


def test_sizes_that_attributes_name_have_none() -> None:
    p = CASES["queries, keys and values"].program
    assert free_channels(p) == {}
    assert [q.joined_output.type for _, q in at_channel_choices(p)] == [p.joined_output.type]


@pytest.mark.parametrize("name", CASES)
def test_small_programs_are_of_the_same_operators(name: str) -> None:
    p = CASES[name].program
    q = small_program(p)
    assert [n.op for n in graph.nodes(q.outputs)] == [n.op for n in graph.nodes(p.outputs)]
    for i, j in zip(p.inputs, q.inputs, strict=True):
        assert np.prod(j.type.shape) <= np.prod(i.type.shape)  # type: ignore[arg-type]
    for sizes, r in at_channel_choices(p):
        assert set(sizes) == set(free_channels(p).values())
        assert [n.op for n in graph.nodes(r.outputs)] == [n.op for n in graph.nodes(p.outputs)]


def test_what_is_found_is_kept_for_other_models() -> None:
    p = CASES["products by one matrix"].program
    journal = Journal()
    lines = enumerate_mutants(p, journal, lambda: False, 2)
    assert lines
    (key,) = journal.known
    assert enumerate_mutants(p, drop_unreadable_entries(journal), lambda: False, 2) == lines
    assert list(journal.known) == [key]
    assert enumerate_mutants(p, Journal(), lambda: True, 2) is None


@pytest.mark.parametrize(
    "plain",
    [["k"], ["k", -1], ["k", -2, []], ["", 10_000, []], ["", 0, []], ["", 0, [["k", -1, [1]]]], 3],
)
def test_what_is_no_term_is_lost(plain: object) -> None:
    assert not is_term_json(plain)
    journal = Journal(known={"hits of 2 (k(1,)) ": json.dumps([[plain, 1.0]])})
    assert not drop_unreadable_entries(journal).known


PROVED = (
    "products by one matrix", "a sum", "groups as one", "a bias between products",
    "Gemms of two tensors",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n == PROVED[0] else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_rules_of_it_are_true(name: str) -> None:
    """What becomes a rule holds where it is tried, and is proved or is left out."""
    case = CASES[name]
    lines = enumerate_mutants(case.program, Journal(), lambda: False, case.most) or []
    made = [line for line in lines if "corrected" in line]
    proved = 0
    for line in made[:3]:
        (rule,) = parse_rules(line["corrected"])
        assert len(rule.lhs) == len(case.program.outputs)
        assert try_rule(rule)
        proved += "proof" in _prove_rule(line["corrected"])
    assert proved or name not in PROVED


def test_two_images_side_by_side_are_corrected_in_both_ways() -> None:
    """What copies an image, and computes half of the program, takes no place of theirs."""
    p = program(apply("Concat", *(conv(v, K, pads=SAME) for v in (X, Y)), axis=3))
    assert not any(str(h.term).startswith("(join") for h in find_hits(small_program(p), 2))
    lines = enumerate_mutants(p, Journal(), lambda: False, 2) or []
    rules = {r.name: r for x in lines for r in parse_rules(x["corrected"])}
    assert rules.keys() == {"join-convolve", "join-convolve-widened"}
    assert all(map(try_rule, rules.values()))
