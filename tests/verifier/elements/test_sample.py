"""The normal forms that a sample of rules is read as."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest

from superopt.rules.lang.functions import NotKnown
from superopt.rules.lang.rule import Rule
from superopt.verifier import prove as prove_module
from superopt.verifier.context import ProofContext
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader, Unreadable
from superopt.verifier.instances.choices import Ranks
from superopt.verifier.instances.instance import Instance, instances
from superopt.verifier.poly.facts import Facts
from tests.support.rules.sample import (
    GROUPS,
    check_golden,
    number_names,
    sample,
)

RANKS = Ranks(0, 2)
MAX_INSTANCES = 2


def normal_forms(context: ProofContext, one: Instance) -> Iterator[str]:
    """The normal form of each output of both sides, at any index."""
    reader = Reader(context, {}, size_roots=one.size_roots)
    known = Facts(context)
    for h in sorted(one.state.hypotheses, key=prove_module._is_equation):
        known = known.with_guards(prove_module._guard(reader, h, known))
    for t in (*one.inputs, *one.lhs_tensors):
        known = prove_module._with_min_extent(1, reader, t, known)
    reader.size_facts = known
    for a, b in zip(one.lhs, one.rhs, strict=True):
        place = tuple(prove_module._axis_index(reader.dim(d), known) for d in a.shape)
        for side in (a, b):
            yield str(reader.element(side, place, known))


def readings(rule: Rule) -> Iterator[str]:
    with closing(ProofContext()) as context:
        try:
            for one in islice(instances(context, rule, RANKS), MAX_INSTANCES):
                yield f"  {one}"
                for text in normal_forms(context, one):
                    yield f"    = {number_names(text)}"
        except (NotKnown, Unreadable, Undefined) as e:
            yield f"  {type(e).__name__}: {number_names(str(e))}"


@pytest.mark.parametrize("group", GROUPS)
def test_readings(group: str) -> None:
    check_golden("readings", group, (t for r in sample(group) for t in (r.name, *readings(r))))
