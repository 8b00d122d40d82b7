"""A second solver on what the prover took for granted: cvc5 on Z3's `unsat` answers.

    python scripts/confirm_unsat.py [--count 500] [--dump FOLDER] [--out FILE]

Proves rules of the library one after the other, in an order of the seed, until there are enough
questions, and keeps some of each rule: those that Z3 answered with `unsat`, and those that the
prover's own arithmetic of polynomials said follow, without Z3. Of both as many as are wanted,
spread over rules, are written as SMT-LIB 2 and given to cvc5 (`pip install cvc5`), which shares no
code with either. What is confirmed is an answer, not how a proof came to ask it. Exit status 1
where cvc5 finds a model.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from random import Random

import cvc5

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.rules.lang.rule import Rule
from superopt.rules.library.load import load_library
from superopt.verifier.poly import facts, solver
from superopt.verifier.poly.facts import Facts, Guard
from superopt.verifier.prove import Limits, prove

LIMITS = Limits(seconds=60, work=60_000, work_beyond=100_000)
SOLVERS = ("Z3", "own arithmetic")
OWN = 2  # answers without Z3 that are kept of one rule: every rule has them


@dataclass(frozen=True, slots=True)
class Question:
    """An answer of one of SOLVERS in the proof of a rule, as SMT-LIB 2."""

    rule: str
    solver: str
    text: str


@dataclass(slots=True)
class Sample:
    """Some of those that come, each as likely as any other."""

    most: int
    rng: Random
    seen: int = 0
    kept: list[tuple[tuple[Guard, ...], Guard]] = field(default_factory=list)

    def add(self, hypotheses: Iterable[Guard], goal: Guard) -> None:
        self.seen += 1
        if len(self.kept) < self.most:
            self.kept.append((tuple(hypotheses), goal))
        elif (k := self.rng.randrange(self.seen)) < self.most:
            self.kept[k] = (tuple(hypotheses), goal)


def questions(rule: Rule, each: int, seed: int) -> tuple[list[Question], list[int]]:
    """Some of what followed in the proof of `rule`, at most `each` by Z3 and OWN without it; and of
    how many each."""
    rngs = (Random(f"{rule.name} {s} {seed}") for s in SOLVERS)
    by_z3, own = map(Sample, (each, OWN), rngs)
    ask, decide = solver.is_implied, Facts._holds

    def asked(hypotheses: Iterable[Guard], goal: Guard) -> bool:
        given = tuple(hypotheses)
        found = ask(given, goal)
        if found:
            by_z3.add(given, goal)
        return found

    def decided(self: Facts, g: Guard, strong: bool) -> bool:
        before = by_z3.seen
        found = decide(self, g, strong)
        if found and by_z3.seen == before and g.p.value is None and g not in self.hypotheses:
            own.add(self.hypotheses, g)
        return found

    vars(facts)["is_implied"], Facts._holds = asked, decided  # type: ignore[method-assign]
    try:
        prove(rule, LIMITS)
    finally:
        vars(facts)["is_implied"], Facts._holds = ask, decide  # type: ignore[method-assign]
    made = [
        Question(rule.name, name, solver.smt2(*one))
        for name, some in zip(SOLVERS, (by_z3, own), strict=True)
        for one in some.kept
    ]
    return made, [by_z3.seen, own.seen]


def spread(some: Sequence[Question], count: int) -> list[Question]:
    """As many of them, the first of each rule before the second of any."""
    rules: dict[str, list[Question]] = {}
    for q in some:
        rules.setdefault(q.rule, []).append(q)
    turns = chain.from_iterable(zip_longest(*rules.values()))
    return [q for q in turns if q is not None][:count]


def answer(text: str, seconds: float) -> str:
    """What cvc5 says: unsat, sat or unknown, the latter also where its time is over."""
    terms = cvc5.TermManager()
    second = cvc5.Solver(terms)
    second.setOption("tlimit-per", str(int(1000 * seconds)))
    parser = cvc5.InputParser(second)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "question")
    symbols = parser.getSymbolManager()
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(second, symbols)
    return said.strip()


def confirmed(some: Sequence[Question], seconds: float, dump: Path | None) -> Counter[str]:
    """How often cvc5 gives which answer; those that are not `unsat` are printed."""
    count: Counter[str] = Counter()
    for n, q in enumerate(some):
        if dump is not None:
            name = re.sub(r"[^\w-]", "_", q.rule)
            (dump / f"{q.solver.split()[0].lower()}-{n:04}-{name}.smt2").write_text(q.text)
        said = answer(q.text, seconds)
        count[said] += 1
        if said != "unsat":
            print(f"{said.upper()} of {q.rule}, answered by {q.solver}:\n{q.text}", flush=True)
    return count


def main() -> int:
    """Ask, and print the page; 1 where one answer is `sat`, or there are too few questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", nargs="?", default="", help="of a source of rules")
    parser.add_argument(
        "--count", type=int, default=500, help="maximum number of queries of each solver"
    )
    parser.add_argument(
        "--each", type=int, default=20, help="maximum number of Z3 queries kept for a rule"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time limit of cvc5 per query, in seconds"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dump", type=Path, help="write the questions into this folder")
    parser.add_argument("--out", type=Path, help="write the page there, too")
    asked = parser.parse_args()
    if asked.dump is not None:
        asked.dump.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    rules = [r for r in load_library() if asked.part in r.source]
    Random(asked.seed).shuffle(rules)
    found: list[Question] = []
    total, asking, n = [0, 0], [0, 0], 0
    for n, rule in enumerate(rules, 1):
        some, seen = questions(rule, asked.each, asked.seed)
        found += some
        total = [a + b for a, b in zip(total, seen, strict=True)]
        asking = [a + (b > 0) for a, b in zip(asking, seen, strict=True)]
        kept = Counter(q.solver for q in found)
        if all(kept[name] >= asked.count for name in SOLVERS):
            break
        if not n % 100:
            print(f"{n} of {len(rules)} rules, {total} answers", file=sys.stderr, flush=True)
    rows = []
    wrong = few = 0
    for k, name in enumerate(SOLVERS):
        sample = spread([q for q in found if q.solver == name], asked.count)
        count = confirmed(sample, asked.seconds, asked.dump)
        wrong += count["sat"]
        few += not sample
        others = len(sample) - count["unsat"] - count["sat"]
        cells = (name, total[k], asking[k], len(sample), len({q.rule for q in sample}))
        rows.append((*cells, count["unsat"], count["sat"], others))
    page = table(rows, n, len(rules), asked.seconds)
    print(page, end="")
    if asked.out is not None:
        asked.out.write_text(page, encoding="utf-8")
    print(f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return int(wrong > 0 or few > 0)


def table(rows: Sequence[Sequence[object]], rules: int, every: int, seconds: float) -> str:
    """The page."""
    lines = [
        "# A second solver",
        "",
        f"Command: `scripts/confirm_unsat.py`; cvc5 {cvc5.__version__}, {seconds:g} s for each"
        f" question; proofs of {rules:,} rules, drawn from {every:,}.",
        "",
        "| answered by | answers that it follows | rules | sample | of rules | cvc5: unsat | sat |"
        " unknown |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(f'{c:,}' if isinstance(c, int) else str(c) for c in r)} |" for r in rows),
        "",
        "`sat` would be a fact that was taken for granted and is false. Most facts are decided by"
        " the prover's own arithmetic of polynomials and never come to Z3; so these are asked, too."
        " cvc5 gets the question as Z3 would: that a proof asks the right one is not its matter.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
