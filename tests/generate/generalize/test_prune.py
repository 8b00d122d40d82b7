"""Rules that follow from others go, and can still be had from what is left."""

from collections.abc import Callable, Iterator, Mapping

from superopt.generate.generalize.prune import FORWARD_LIMITS, Task, derive_rule, prune_rules
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.rule_index import RuleIndex


def one_by_one(do: Callable[[Task], str], tasks: Mapping[str, Task]) -> Iterator[tuple[str, str]]:
    return ((key, do(task)) for key, task in tasks.items())


def ways(*chains: str) -> list[Rule]:
    """Rules from one function to the next, whatever that means, and those from end to end."""
    lines = [
        f"{a}-{b}(x: f): {a}(x) => {b}(x) ; float=E0"
        for chain in chains
        for a, b in zip(chain.split(), chain.split()[1:], strict=False)
    ]
    return parse_rules("\n".join(dict.fromkeys(lines)))


def test_what_follows_goes() -> None:
    rules = [*ways("Relu Tanh Exp"), *ways("Relu Exp")]
    left, gone = prune_rules(rules, one_by_one, 0)
    assert [r.name for r in left] == ["Relu-Tanh", "Tanh-Exp"]
    assert [(f.rule.name, f.chain) for f in gone] == [("Relu-Exp", ("Relu-Tanh", "Tanh-Exp"))]


def test_what_would_be_too_far_away_comes_back() -> None:
    """Relu to Sqrt is 5 steps by Relu to Tanh, which is 4 steps by others: 8 are too many."""
    assert FORWARD_LIMITS.max_steps == 6
    rules = [
        *ways("Relu Erf Abs Neg Tanh"),
        *ways("Tanh Sigmoid Log Floor Sqrt"),
        *ways("Relu Tanh"),
        *ways("Relu Sqrt"),
    ]
    left, gone = prune_rules(rules, one_by_one, 0)
    assert [f.rule.name for f in gone] == ["Relu-Tanh"]
    assert "Relu-Sqrt" in {r.name for r in left}
    for f in gone:
        assert derive_rule(f.rule, RuleIndex(left), 0) is not None
    for rule in left:
        assert derive_rule(rule, RuleIndex(left), 0) is None


def test_underivable_rules_are_not_derived_from_fewer_rules() -> None:
    asked: list[str] = []

    def noted(do: Callable[[Task], str], tasks: Mapping[str, Task]) -> Iterator[tuple[str, str]]:
        asked.extend(text.partition("(")[0] for text, *_ in tasks.values())
        return one_by_one(do, tasks)

    apart: dict[int, frozenset[int]] = {}
    rules = [*ways("Relu Tanh Exp"), *ways("Relu Exp")]
    left, _ = prune_rules(rules, noted, 0, (), apart)
    assert set(asked) == {r.name for r in rules}
    asked.clear()
    assert prune_rules(left, noted, 0, (), apart) == (left, [])
    assert asked == []
    more = [*left, *ways("Relu Erf Tanh")]  # by which one of them follows now
    assert [f.rule.name for f in prune_rules(more, noted, 0, (), apart)[1]] == ["Relu-Tanh"]


def test_of_two_that_are_needed_and_say_the_same_one_stays() -> None:
    (again,) = parse_rules("again(x: f): Relu(x) => Exp(x) ; float=E0")
    rules = [*ways("Relu Tanh Exp"), *ways("Relu Exp"), again]
    left, gone = prune_rules(rules, one_by_one, 0, ("Relu-Exp", "again"))
    assert [r.name for r in left] == ["Relu-Tanh", "Tanh-Exp", "Relu-Exp"]
    assert [(f.rule.name, f.chain) for f in gone] == [("again", ("Relu-Exp",))]
