"""The ranks at which a rule is proved."""

import pytest

from superopt.rules.lang.rule import Rule, parse_rules
from superopt.verifier import prove as module
from superopt.verifier.instances.choices import Ranks
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Unknown, Verdict


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Ranks, int]]:
    """The ranks and known ranks that proofs are tried at, of which none succeeds."""
    tried: list[tuple[Ranks, int]] = []

    def fail(context: object, rule: Rule, scope: Ranks, *rest: object) -> Verdict:
        _, _, known_rank, _ = rest
        tried.append((scope, known_rank))  # type: ignore[arg-type]
        return Unknown("no instance of ranks 0 to 0" if len(tried) > 1 else "not now", 0.0)

    monkeypatch.setattr(module, "_prove_at_ranks", fail)
    return tried


def test_axes_without_a_name_are_none_or_one_more_than_those_with(
    ranks: list[tuple[Ranks, int]],
) -> None:
    (rule,) = parse_rules("r(x: f, y: f): Add(x, y) => Add(y, x)")
    prove(rule, Limits(seconds=5))
    assert ranks[0] == (Ranks(0, 1), -1)
    assert all(r.min_rank == 0 for r, _ in ranks)
    assert ranks[-1][0].max_rank >= 4  # as nothing fits below


def test_wanted_ranks_are_the_only_ones(ranks: list[tuple[Ranks, int]]) -> None:
    (rule,) = parse_rules("r(x: f, y: f): Add(x, y) => Add(y, x)")
    prove(rule, Limits(seconds=5), Ranks(2, 3))
    assert [r for r, _ in ranks] == [Ranks(2, 3)]
