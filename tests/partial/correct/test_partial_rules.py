"""Partial rules: every family, what is proved of it, and what must not be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scripts.correct_pairs import price
from superopt.optimization.report.partial_rule_page import (
    describe_partial_equality,
    partial_rule_page,
)
from superopt.partial.correct import claims
from superopt.partial.correct.corrections import NoCorrection
from superopt.partial.correct.partial_rules import (
    CORRECTION_KINDS,
    corrected_value,
    load_pairs,
    partial_rule,
)
from superopt.partial.correct.sized_pairs import pair_at, sample_sizes, size_names
from superopt.partial.correct.split import SPLIT, split_pairs
from superopt.partial.correct.symbolic_boxes import (
    NoFormula,
    SymbolicBox,
    SymbolicRange,
    SymbolicRegions,
    fit_formula,
    format_symbolic_box,
    symbolic_regions,
)
from superopt.partial.regions.find import find_regions
from superopt.report.text.partial_rule import partial_page_text
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved
from tests.support.partial.regions import truth

QUICK = Limits(seconds=15)
PAIRS = {p.name: p for p in load_pairs()}
SPLIT_PAIRS = {s.name: s for p in load_pairs() for s in split_pairs(p)}
ODD = {"rows-as-a-batch", "columns-as-a-batch", "dilated-by-three-as-a-batch", "strided-as-phases"}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_families(name: str) -> None:
    made = partial_rule(PAIRS[name], QUICK)
    assert made.is_proved
    assert made.corrections[0].is_proved
    rest = [c for c in made.corrections if c.kind == SPLIT]
    assert all(isinstance(c.verdict, Proved) for c in rest)
    assert rest or name not in ODD
    assert all(c.rule.name in SPLIT_PAIRS for c in rest)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name", ["side-by-side", "stacked", "any-batch-in-a-row", "parallel-dilated"]
)
def test_no_larger_box_is_proved(name: str) -> None:
    """A box that takes in one more row or column is refuted."""
    pair = PAIRS[name]
    found = symbolic_regions(sample_sizes(pair))
    for part in found.equal:
        for wider in _wider(part, found):
            claim = claims.equality_claims(pair, replace(found, equal=(wider,)))[0]
            claim = replace(claim, where=pair.where)
            assert not isinstance(prove(claim, QUICK), Proved), format_symbolic_box(wider)


def _wider(part: SymbolicBox, found: SymbolicRegions) -> list[SymbolicBox]:
    out = []
    for d, r in enumerate(part):
        if r.is_full:
            continue
        if r.begin != "0":
            out.append((*part[:d], replace(r, begin=f"{r.begin}-1"), *part[d + 1 :]))
        if r.end != found.shape[d]:
            out.append((*part[:d], replace(r, end=f"{r.end}+1"), *part[d + 1 :]))
    return out


@pytest.mark.one_in(25)
@pytest.mark.parametrize("name", sorted(PAIRS | SPLIT_PAIRS))
def test_corrections_at_random_sizes(name: str) -> None:
    """Small ones, too, at which a box is empty, or an image smaller than the kernel."""
    rng, tried = Random(name), 0
    own = (PAIRS | SPLIT_PAIRS)[name]
    for _ in range(200):
        pair = pair_at(own, {n: rng.randint(1, 7) for n in size_names(own)})
        if pair is None:
            continue
        found = find_regions(pair.program, pair.mutant)
        for how in CORRECTION_KINDS:
            try:
                fixed = corrected_value(how, pair, found)
            except NoCorrection:
                continue
            assert truth(pair.program, fixed).all(), (how, pair.sizes)
        tried += 1
        if tried == 4:
            break
    assert tried


def test_what_is_split() -> None:
    """One pair for each rest, of each size that has to be divisible."""
    pair = PAIRS["dilated-as-a-batch"]
    assert [s.name.rpartition("split-")[2] for s in split_pairs(pair)] == ["w1", "h1", "h1-w1"]
    assert [s.where[0].rest[0][1].value for s in split_pairs(PAIRS["rows-as-a-batch"])] == [1]  # type: ignore[union-attr]
    three = split_pairs(PAIRS["dilated-by-three-as-a-batch"])
    assert [s.name[-2:] for s in three] == ["w1", "w2"]
    assert split_pairs(PAIRS["side-by-side"]) == split_pairs(PAIRS["dilated-ragged-columns"]) == []


@pytest.mark.parametrize(
    "name", ["rows-as-a-batch-split-h1", "dilated-columns-as-a-batch-split-w1"]
)
def test_where_a_split_one_is_right(name: str) -> None:
    rule = replace(SPLIT_PAIRS[name], source="partial/corrected.rules")
    found = describe_partial_equality(rule, PAIRS)
    assert found is not None
    assert found.how == "split"
    assert 0 < found.share < 1
    assert all(s % 2 for n, s in found.sizes if n in name[-2:])


WRONG = """
gap-too-small(x: f[1,c,h,w], y: f[1,c,h,w], k: f[o,c,5,5]):
    Concat(Conv(x, k, pads=(2,2,2,2)), Conv(y, k, pads=(2,2,2,2)), axis=3)
    => Concat(
        Slice(Conv(Concat(Pad(x, pads=(0,0,0,0,0,0,0,1)), y, axis=3), k, pads=(2,2,2,2)),
              starts=(0,), ends=(w,), axes=(3,)),
        Slice(Conv(Concat(Pad(x, pads=(0,0,0,0,0,0,0,1)), y, axis=3), k, pads=(2,2,2,2)),
              starts=(w+1,), ends=(2*w+1,), axes=(3,)), axis=3) ; float=E2
wrong-phase(x: f[n,c,h,w], k: f[o,c,1,2]): Conv(x, k, strides=(1,2))
    => Conv(Slice(x, starts=(0,), ends=(w,), axes=(3,), steps=(2,)),
            Slice(k, starts=(0,), ends=(1,), axes=(3,))) where w % 2 == 0 ; float=E2
"""


@pytest.mark.parametrize("pair", parse_rules(WRONG), ids=lambda r: r.name)
def test_wrong_mutants_are_not_called_right(pair: Rule) -> None:
    made = partial_rule(pair, QUICK)
    assert made.parts.different
    assert not isinstance(prove(pair, QUICK), Proved)


def test_formulas() -> None:
    sizes = [{"h": 6, "w": 8}, {"h": 9, "w": 7}, {"h": 11, "w": 13}]
    assert fit_formula(sizes, [4, 4, 4]) == "4"
    assert fit_formula(sizes, [7, 6, 12]) == "w-1"
    assert fit_formula(sizes, [13, 19, 23]) == "2*h+1"
    assert fit_formula(sizes, [3, 4, 5]) == "(h//2)"
    assert fit_formula(sizes, [48, 63, 143]) == "(h*w)"
    with pytest.raises(NoFormula, match="no formula of h, w"):
        fit_formula(sizes, [1, 5, 2])


def test_shown() -> None:
    assert format_symbolic_box(
        (SymbolicRange("0", "n", 1, True), SymbolicRange("w-1", "w+1"), SymbolicRange("0", "h", 2))
    ) == ("[:, w-1:w+1, 0:h:2]")


@pytest.mark.parametrize("name", ["side-by-side-5x5", "side-by-side-signals"])
def test_the_library_has_the_cheaper_correction(name: str) -> None:
    """Zeros in between need no second convolution."""
    pair = PAIRS[name]
    made = partial_rule(pair, QUICK)
    costs = {c.kind: price(c.rule, [s.sizes for s in sample_sizes(pair)]) for c in made.corrections}
    assert costs["widened"] < costs["recomputed"]
    assert f"{name}-widened" in {r.name for r in load_library()}


def made_of(line: str) -> str:
    """What is said of a pair of one's own."""
    (pair,) = parse_rules(line, "own")
    found = partial_rule_page(pair.name, [pair])
    assert found is not None
    return partial_page_text(found)


def test_a_number_of_the_program_is_no_hindrance() -> None:
    """It was read as a matrix of such numbers, and no correction was found."""
    said = made_of(
        "twice(x: f[n, h]): Relu(Mul(x, 2)) => Concat(Mul(Relu(Slice(x, axes=(1,), starts=(0,), "
        "ends=(h - 1,))), 2), Slice(x, axes=(1,), starts=(h - 1,), ends=(h,)), axis=1)"
    )
    assert "different on [:, h-1:h]" in said
    assert "recomputed: proved" in said


def test_operands_that_are_no_floats() -> None:
    """The sizes of such fitted nowhere."""
    said = made_of("chosen(c: bool[n, h], x: f[n, h], y: f[n, h]): Where(c, x, y) => x")
    assert "different on [:, :]\n" in said
    said = made_of(
        "read(x: f[n, h], i: i64[m]): Gather(Neg(x), i, axis=0) => Neg(Gather(x, i, axis=0))"
    )
    assert "equal on    [:, :]" in said


def test_what_is_not_known_to_be_wrong_is_not_said_to_be() -> None:
    said = made_of("odd(x: f[n, h]): Tanh(x) => Neg(Tanh(Neg(x)))")
    assert "different on [:, :]  or equal by an unknown law" in said


def test_of_no_elements() -> None:
    said = made_of(
        "none(x: f[n, h]): Slice(x, axes=(1,), starts=(0,), ends=(0,)) "
        "=> Slice(Neg(x), axes=(1,), starts=(0,), ends=(0,))"
    )
    assert "  empty" in said


def test_formulas_of_thirds_and_fourths() -> None:
    """Sides of what is strided by three or four."""
    sizes = [{"h": n} for n in (8, 21, 10, 23)]
    for more, by in ((2, 3), (1, 3), (0, 4), (3, 4)):
        values = [(s["h"] + more) // by for s in sizes]
        assert fit_formula(sizes, values) == (f"((h+{more})//{by})" if more else f"(h//{by})")
    assert fit_formula(sizes, [3 * ((s["h"] + 2) // 3) - 1 for s in sizes]) == "3*((h+2)//3)-1"


def test_a_correction_follows_from_its_parts_where_no_axis_is_a_size_alone() -> None:
    """Of 2 w columns: the other way round the prover does not prove the whole."""
    pair = PAIRS["side-by-side"]
    made = partial_rule(replace(pair, lhs=pair.rhs, rhs=pair.lhs, text=""), QUICK)
    (recomputed,) = made.corrections
    assert not isinstance(recomputed.verdict, Proved)
    assert recomputed.lemmas
    assert recomputed.is_proved
