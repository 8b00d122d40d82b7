"""What operators gave is used again wherever the state gives the same answers."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.verifier.instances.operator_results import OperatorResults
from superopt.verifier.prove import prove
from superopt.verifier.verdict import Proved, Refuted

SLICES = (
    "r(x: any): Slice(Slice(x, axes=n, starts=start, ends=end, steps=step), axes=m, starts=start,"
    " ends=end, steps=step) => Slice(Slice(x, axes=m, starts=start, ends=end, steps=step), axes=n,"
    " starts=start, ends=end, steps=step) where all(l not in n for l in m), rank(x) <= 3"
)


@pytest.fixture
def call_counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often operators are asked for and computed."""
    counts = {"asked": 0, "computed": 0}
    ask, compute = OperatorResults.cached_result, OperatorResults.compute_result

    def count_asked(*args: object) -> object:
        counts["asked"] += 1
        return ask(*args)  # type: ignore[arg-type]

    def count_computed(*args: object) -> object:
        counts["computed"] += 1
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(OperatorResults, "cached_result", count_asked)
    monkeypatch.setattr(OperatorResults, "compute_result", count_computed)
    return counts


def test_an_operator_that_asks_is_computed_once_for_the_same_answers(
    call_counts: dict[str, int],
) -> None:
    """Slices ask whether bounds are in order."""
    (rule,) = parse_rules(SLICES)
    assert isinstance(prove(rule), Proved)
    assert call_counts["computed"] < 0.5 * call_counts["asked"]


def test_results_of_another_proof_change_no_verdict(call_counts: dict[str, int]) -> None:
    (rule,) = parse_rules(SLICES)
    results: dict[object, object] = {}
    first = prove(rule, results=results)
    needed = call_counts["computed"]
    again = prove(rule, results=results)
    assert isinstance(first, Proved)
    assert isinstance(again, Proved)
    assert (first.scope, first.derived, first.max_rank) == (
        again.scope, again.derived, again.max_rank,
    )  # fmt: skip
    assert call_counts["computed"] - needed < 0.1 * needed
    (wrong,) = parse_rules("r(x: f, y: f): Concat(x, y, axis=0) => Concat(y, x, axis=0)")
    for _ in range(2):
        assert isinstance(prove(wrong, results=results), Refuted)


def test_refusals_depend_on_the_answers_of_each_state(call_counts: dict[str, int]) -> None:
    """The operands fit in some states and not in others: as many ways as without earlier
    results."""
    (rule,) = parse_rules(
        "r(x: f, y: f): Concat(Neg(x), Neg(y), axis=0) => Neg(Concat(x, y, axis=0))"
    )
    results: dict[object, object] = {}
    scopes = {str(prove(rule, results=results)) for _ in range(2)} | {str(prove(rule))}
    assert len({scope.split("; sizes")[0] for scope in scopes}) == 1
