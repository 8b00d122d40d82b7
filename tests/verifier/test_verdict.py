"""What verdicts say by default."""

from superopt.rules.library.records import Scope
from superopt.verifier.verdict import Proved, Refuted, Unknown


def test_only_a_proof_is_true() -> None:
    assert Proved(Scope("any rank", 1, ()), (), (), 1, 0, 0.5, 4)
    assert not Refuted("x: f32[2]", 0, (1,), "1", "2", {}, 0.5)
    assert not Unknown("no instance", 0.5)


def test_a_proof_is_of_all_sizes_and_ranks_unless_it_says_less() -> None:
    proved = Proved(Scope("any rank", 1, ()), (), (), 7, 0, 0.25, 4)
    assert proved.is_complete
    assert proved.bound is None
    assert proved.method == "index"
    assert (proved.proof.obligations, proved.proof.ms) == (7, 250.0)


def test_more_time_would_not_help_unless_it_says_so() -> None:
    assert Unknown("no instance", 0.5).is_out_of_budget is False
