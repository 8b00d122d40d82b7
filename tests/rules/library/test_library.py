"""Every rule of the library: instances are found, both sides agree, and the matcher finds them."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

from superopt.ir.graph import Graph
from superopt.rules.lang.rule import FLOAT_CLASSES, Rule, has_one_shape
from superopt.rules.library.load import load_library
from superopt.rules.library.records import tier
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.matcher import matches
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.rules.trial.instances import instances
from superopt.rules.trial.try_rule import Passed, try_rule

LIBRARY = load_library()
HAND = [r for r in LIBRARY if r.origin == "hand"]
GENERATED = [r for r in LIBRARY if r.origin == "generated"]
EVERY = 8  # generated rule is tried here: each passed such a trial when it was made
COUNT = 12  # instances of each rule, all different
# Rules that cut an axis to one size and pad another by what is cut: few sizes fit, and one seed
# does not find as many.
FEW = {
    "matmul-slice-reducesum--matmul-reducesum-pad-2",
    "matmul-transpose-slice--matmul-transpose-pad-2",
}
# Laws that the prime field cannot see, because it takes their functions for unknown ones, or for
# an order that knows no addition: tested over floats alone. All other rules must hold in both.
FLOATS_ONLY: dict[str, str] = {
    "functions that grow": """
        exp-max exp-min sigmoid-max tanh-max exp-reduce-max sigmoid-reduce-max tanh-reduce-max
        sigmoid-max-pool tanh-max-pool
    """,
    "functions by exp, powers by roots": """
        sigmoid-reciprocal sigmoid-div sigmoid-exp tanh-sigmoid tanh-parts tanh-exp silu-div
        gelu-tanh-fast log-sigmoid pow-minus-half sqrt-sqrt exp-log log-sum-exp
        pow-neg pow-exp mul-pow mul-pow-base mul-pow-root mul-log log-sqrt log-sum-exp-shift
    """,
    "a number and its sign": """
        prelu-relu abs-relu relu-difference leaky-relus relu-relu-clip sign-abs abs-square
        less-neg less-or-equal-neg
    """,
    "+ or * with max, min or abs": """
        relu-scale max-scale max-shift max-shift-along max-neg max-neg-min relu-abs abs-mul
        min-neg min-neg-max max-less-min max-by-abs min-by-abs leaky-max max-pool-shift
        reduce-max-scale reduce-min-scale
        max-pool-shift-channels norm-one-scale
    """,
    "symmetry or range of a function": """
        sigmoid-neg tanh-neg erf-neg relu-sigmoid relu-softmax relu-exp abs-exp sin-neg tan-neg
        asin-neg atan-neg sinh-neg asinh-neg atanh-neg cos-neg cosh-neg softplus-difference
        softplus-less sign-neg
    """,
    "roots and logarithms (the default scale of attention is a root)": """
        sqrt-square sqrt-reciprocal log-exp log-softmax exp-log-softmax softplus
        attention-scale attention-mask-scale root-product
        root-quotient log-reciprocal log-sum-exp-twice norm-two-scale
        norm-two-twice log-softmax-twice softmax-log softmax-of-two exp-log-sum-exp
        exp-half log-mul-exp log-softmax-shift-along
    """,
    "places of the greatest": """
        argmax-softmax argmax-log-softmax argmax-exp argmax-sigmoid argmax-tanh argmax-shift
        argmax-scale argmax-neg argmax-shift-along
    """,
    "what is whole": """
        floor-floor ceil-floor round-floor floor-ceil ceil-ceil round-ceil floor-round ceil-round
        round-round floor-neg ceil-neg round-neg
    """,
    "rounded constants: 1 / 6, the root of 2, of 2 / pi": """
        hard-swish hard-swish-clip hard-sigmoid-clip gelu-tanh gelu-tanh-cube gelu-tanh-square
        gelu gelu-half-first gelu-mul gelu-mul-half-first winograd-four
    """,
}
UNSEEN = {name for names in FLOATS_ONLY.values() for name in names.split()}


def test_the_library_is_large() -> None:
    assert len({r.name.removesuffix("~") for r in LIBRARY}) >= 300
    assert {r.float_class for r in LIBRARY} == set(FLOAT_CLASSES)


def test_every_rule_is_of_hand_or_generated() -> None:
    assert len(HAND) + len(GENERATED) == len(LIBRARY)
    assert len(GENERATED) > 300


def some(rules: Sequence[Rule], now: Callable[[int, Rule], bool] = lambda n, r: True) -> list[Any]:
    """As parameters; slow are the others, and those that take half a minute."""
    often = [now(n, r) and r.name != "winograd-four" for n, r in enumerate(rules)]
    marks = [[] if o else [pytest.mark.slow] for o in often]
    return [pytest.param(r, id=r.name, marks=m) for r, m in zip(rules, marks, strict=True)]


@pytest.mark.one_in(23)
@pytest.mark.parametrize("rule", some(GENERATED[::EVERY], lambda n, r: n % 2 == 0))
def test_a_generated_rule_passes_a_trial_on_other_shapes(rule: Rule) -> None:
    seeds = range(77, 80 if rule.name.removesuffix("~") in FEW else 78)
    found = 0
    for seed in seeds:
        verdict = try_rule(rule, seed=seed, count=COUNT // len(seeds))
        assert isinstance(verdict, Passed), verdict
        found += verdict.instances
    assert found == COUNT


def _asked(n: int, rule: Rule) -> bool:
    """Of rules that ship as proved for all sizes some are tried each time."""
    return n % (2 * EVERY) == 0 or tier(rule) != "A"


@pytest.mark.one_in(25)
@pytest.mark.parametrize("rule", some(HAND, _asked))
def test_a_rule_passes_its_trial(rule: Rule) -> None:
    verdict = try_rule(rule, count=COUNT)
    assert isinstance(verdict, Passed), verdict
    assert verdict.instances == (COUNT if not has_one_shape(rule) else 2)  # two types
    assert verdict.over_field == (rule.name.removesuffix("~") not in UNSEEN)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("rule", some([*HAND, *GENERATED[::EVERY]], lambda n, r: n % 2 == 0))
def test_the_matcher_finds_a_rule_s_instances_and_builds_the_same(rule: Rule) -> None:
    cases = list(islice(instances(rule, seed=1, constants=True), 3))
    assert len(cases) == (3 if not has_one_shape(rule) else 2)
    for case in cases:
        graph = Graph(case.inputs, case.lhs)
        ctx = graph_context(graph)
        changes = [rewrite(m, ctx) for m in matches(rule, ctx)]
        found = [c for c in changes if not isinstance(c, Refusal)]
        wanted = list(zip(case.lhs, case.rhs, strict=True))
        assert wanted in [list(c.items()) for c in found], (str(case), changes)
