"""How many published rules follow from the library: lists in the texts of TASO or of Tensat.

    python scripts/bench_published.py [FILE ...] [--pairs FILE] [--limit 5] [--generated]

The lists are not in this repository; `scripts/taso.py` says what their texts mean. A rule gets
shapes of unequal sizes, and both sides are evaluated on random inputs in float64: one that is not
true is tried with sizes that are alike; one that is not true of these, too, is counted, and not
asked. Then `derive` has so many seconds for it. --pairs is for lists of rules with two results:
each two rules belong together, as a graph of two outputs. Prints what is not built, not true or
missed, and a table. Rules that differ in names alone are asked once; "same" are those whose sides
are one graph as they are built, where there is nothing to derive.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench_equations import Equation, holds, library
from scripts.taso import IllFormed, Published, Term, read_rules
from scripts.taso_graphs import Built, build
from superopt.errors import UsageError
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.verification.derivation import MAX_GRAPHS, MAX_STEPS

KINDS = ("rules", "built", "true", "same", "derived")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a rule: the kinds that it counts as, and why it is no better."""

    kinds: tuple[str, ...]
    why: str


def listed(path: Path, pairs: bool) -> list[tuple[Published, ...]]:
    """The rules of a file, alone or in twos."""
    rules = read_rules(path)
    if not pairs:
        return [(r,) for r in rules]
    if len(rules) % 2:
        raise UsageError(
            f"{path}:{rules[-1].line}: a rule without its second",
            f"there are {len(rules)} rules, and each two belong together",
            "leave out --pairs for rules of one result",
        )
    return list(zip(rules[::2], rules[1::2], strict=True))


def renamed(rules: tuple[Published, ...]) -> tuple[Published, ...]:
    """The rules with names in the order in which they come, and without their lines."""
    names: dict[str, str] = {}

    def term(t: Term) -> Term:
        is_name = not t.args and t.op.startswith("input")
        op = names.setdefault(t.op, f"x{len(names)}") if is_name else t.op
        return Term(op, tuple(term(a) for a in t.args))

    return tuple(Published(0, term(r.left), term(r.right)) for r in rules)


def answer(rules: tuple[Published, ...], index: RuleIndex, bounds: DeriveLimits) -> Answer:
    """Is a rule true, and does it follow?"""
    note = ""
    try:
        built = build(rules)
    except IllFormed as e:
        return Answer(("rules",), f"not built: {e}")
    if not holds(_equation(built)):
        shapes = ", ".join(f"{i.name}: {i.type}" for i in built.left.inputs)
        built = build(rules, alike=True)
        if not holds(_equation(built)):
            return Answer(("rules", "built"), f"not true: {shapes}")
        note = f"not true of {shapes}, but of sizes that are alike"
    if built.left == built.right:
        return Answer(KINDS, note)
    found = derive(built.left, built.right, index, bounds)
    if isinstance(found, Derived):
        return Answer(("rules", "built", "true", "derived"), note)
    missed = f"missed: {found.reason}, {found.visited:,} graphs"
    return Answer(("rules", "built", "true"), f"{missed}; {note}" if note else missed)


def _equation(built: Built) -> Equation:
    return Equation("", "", built.left, built.right, true=True, positive=False)


def counted(
    path: Path, pairs: bool, index: RuleIndex, bounds: DeriveLimits
) -> Iterator[tuple[str, Counter[str]]]:
    """The rows of a list: all its rules, and those that differ in more than names."""
    known: dict[tuple[Published, ...], Answer] = {}
    all_rules: Counter[str] = Counter()
    distinct: Counter[str] = Counter()
    for rules in listed(path, pairs):
        key = renamed(rules)
        if key not in known:
            known[key] = answer(key, index, bounds)
            distinct.update(known[key].kinds)
            if known[key].why:
                both = "; ".join(map(str, rules))
                print(f"{path.name}:{rules[0].line}: {both}: {known[key].why}", flush=True)
        all_rules.update(known[key].kinds)
    yield path.name, all_rules
    yield f"{path.name}, distinct", distinct


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument(
        "--pairs",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a list of rules with two results",
    )
    parser.add_argument("--limit", type=float, default=5.0, help="seconds of `derive` for a rule")
    parser.add_argument("--generated", action="store_true", help="generated rules only")
    args = parser.parse_args(arguments)
    if not args.files + args.pairs:
        parser.error("give a list of rules")
    bounds = DeriveLimits(MAX_STEPS, max_graphs=MAX_GRAPHS, max_seconds=args.limit)
    begin = time.perf_counter()
    try:
        lists = [
            (path, pairs)
            for paths, pairs in ((args.files, False), (args.pairs, True))
            for path in paths
        ]
        for path, pairs in lists:
            listed(path, pairs)
        index = library(args.generated)
        rows = [row for path, pairs in lists for row in counted(path, pairs, index, bounds)]
    except UsageError as e:
        print(e, file=sys.stderr)
        return int(e.code)
    print("\n| list | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
    for name, row in rows:
        print(f"| {name} | " + " | ".join(str(row[k]) for k in KINDS) + " |")
    derived, true = (sum(row[k] for _, row in rows[::2]) for k in ("derived", "true"))
    if true:
        print(f"\n{derived} of {true} true rules derived: {derived / true:.1%},", end=" ")
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
