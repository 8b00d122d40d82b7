#!/usr/bin/env python3
"""What the rule generator takes and finds: the tables of docs/benchmarks/bench_rules.md.

    scripts/bench_rules.py [--part classical,default,growth,complete,...] [--jobs 2] [--out DIR]

classical   TASO's operators and their constants (sums, order, matrices, images, means) up to 4
            operators: a whole run
default     all families: a whole run, and what became of each family's candidates
growth      candidates, seconds and memory of the enumeration alone, for 3, 4 and 5 operators
complete    how many of all equal pairs of up to 3 operators follow from the default run's rules:
            every application from its class's smallest term
every       the same for every term of up to 3 operators, whatever its operands: brute force
sound       every rule of the default run on shapes that it was not made by: how many are false
minimal     how many of its rules follow from the others
hand        the hand-written rules that follow from the generated ones
models      `optimize` on models with the generated rules only, and with all

The parts after `default` use its rules; --out keeps them, and a second run takes them from there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

from superopt.api.functions import generate_rules, optimize
from superopt.cost.machine import this_machine
from superopt.generate.engine.workers import TaskMap, worker_pool
from superopt.generate.enumeration.equal_pairs import MAX_PAIR_OPS, all_term_pairs, equal_pairs
from superopt.generate.enumeration.find_equations import find_equations
from superopt.generate.enumeration.pattern import Equation, term_text
from superopt.generate.families.family import Family
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.candidates import as_candidate
from superopt.generate.generalize.closure import MAX_TASK_LAWS, derive_laws
from superopt.generate.generalize.completeness import DERIVE_LIMITS
from superopt.generate.generalize.prune import derive_from_others, derive_rule
from superopt.generate.generalize.soundness import RETRIAL_INSTANCES, retrial_failure
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import load_library
from superopt.rules.match.derive import DeriveLimits
from superopt.rules.match.rule_index import RuleIndex

CLASSICAL = ("sums", "order", "matrices", "images", "means")
# Without a limit of time; the command takes chains of 16.
WIDER = replace(DeriveLimits(), max_steps=12, max_seconds=float("inf"))
GROWTH = ("matrices", "images", "reductions", "slices")
GROWN = 5  # operators at most


def whole_run(folder: Path, families: tuple[str, ...], jobs: int) -> list[str]:
    """A run with its account; taken from the folder where it is complete."""
    if not (folder / "account.json").exists():
        begin = time.monotonic()
        made = generate_rules(folder, families=families, max_ops=4, jobs=jobs)
        seconds = time.monotonic() - begin
        (folder / "run.json").write_text(json.dumps([seconds, made.peak_mb]))
    seconds, peak = json.loads((folder / "run.json").read_text())
    account = json.loads((folder / "account.json").read_text())
    lines = [
        f"{seconds:.0f} s, {jobs} processes, peak {peak:,.0f} MB for one of them\n",
        "| family | operators | candidates | tensors | equal pairs | candidates a second |"
        " laws | follow | claims | covered | without a rule | idle | superfluous | rules |"
        " not proved | with several outputs | partly equal | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for a in account:
        top = a["levels"][-1]
        candidates = sum(v["candidates"] for v in a["levels"])
        rate = candidates / max(sum(v["enumerating"] for v in a["levels"]), 1e-9)
        rules = read(folder, a["family"])
        several = sum(len(r.lhs) > 1 for r in rules)
        took = a["enumerating"] + a["closing"]
        lines.append(
            f"| {a['family']} | {len(a['levels'])} | {candidates:,} | {top['classes']:,} |"
            f" {top['pairs']:,} | {rate:,.0f} | {a['laws']:,} | {a['followed']:,} | {a['claims']} |"
            f" {a['covered']} | {len(a['refuted'])} | {len(a['idle'])} | {len(a['derivable'])} |"
            f" {a['rules']} | {len(a['unproved'])} | {several} | {a['partial']} | {took:.1f} |"
        )
    total = sum(a["rules"] for a in account)
    tried = [text for a in account for text in a["unproved"]]
    lines.append(
        f"\n{total} rules (directions), {total - len(tried)} of them proved for all sizes;"
        f" {sum(a['partial'] for a in account)} pairs in part\n"
    )
    return [*lines, *(f"- not proved: {text}" for text in tried)]


def read(folder: Path, family: str) -> list[Rule]:
    paths = (folder / f"{family}.rules", folder / f"{family}.unproved.rules")
    return [r for p in paths if p.exists() for r in parse_rules(p.read_text(), p.name)]


def every_rule(folder: Path) -> list[Rule]:
    return [r for name in FAMILIES for r in read(folder, name)]


ENUMERATE = """
import resource, sys, time
from superopt.generate.families import FAMILIES
from superopt.generate.find import find
family, top = FAMILIES[sys.argv[1]](), int(sys.argv[2])
begin = time.monotonic()
found = find(family, top, 0)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
v = found.levels[-1]
print(v.candidates, v.cut, v.classes, len(found.equations), round(v.enumerating, 1),
      round(time.monotonic() - begin, 1), peak)
"""


def growth() -> list[str]:
    """Each in a process of its own, so that its memory is its own."""
    lines = [
        "| family | operators | candidates of the last level | one in | tensors | equations |"
        " enumerating it, s | in all, s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in GROWTH:
        for operators in range(3, GROWN + 1):
            command = [sys.executable, "-c", ENUMERATE, name, str(operators)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["killed"])[-1]
                lines.append(f"| {name} | {operators} | {said} | | | | | | |")
                continue
            candidates, cut, tensors, equations, last, seconds, peak = done.stdout.split()
            lines.append(
                f"| {name} | {operators} | {int(candidates):,} | {cut} | {int(tensors):,} |"
                f" {equations} | {last} | {seconds} | {int(peak):,} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def complete(folder: Path, every: bool, jobs: int) -> list[str]:
    """What does not follow is no law if it is one of those that hold at the family's own sizes
    only. By brute force it may be made of several of them: then it must follow with their help."""
    rules = tuple(str(r) for r in every_rule(folder))
    account = json.loads((folder / "account.json").read_text())
    only = {a["family"]: tuple(a["refuted"]) for a in account}
    lines = [
        f"{len(rules)} rules, {DERIVE_LIMITS}\n",
        f"By more: {WIDER}\n",
        "| family | pairs | derived | by more | without a rule | missed | share | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    said: list[str] = []
    with worker_pool(jobs) as each:
        for name, make in FAMILIES.items():
            begin = time.monotonic()
            family = make()
            if not family.makes_rules:
                continue
            found = find_equations(family, MAX_PAIR_OPS, 0)
            pairs = all_term_pairs(found) if every else equal_pairs(found)
            first = _missed(family, pairs, rules, (), each)
            lawful = _missed(family, first, (), only[name], each)
            if every:
                lawful = _missed(family, lawful, (*rules, *only[name]), (), each)
            left = _missed(family, lawful, rules, (), each, WIDER)
            odd, more = len(first) - len(lawful), len(lawful) - len(left)
            derived = len(pairs) - len(first) + more
            share = derived / max(derived + len(left), 1)
            seconds = time.monotonic() - begin
            lines.append(
                f"| {name} | {len(pairs):,} | {derived:,} | {more} | {odd} | {len(left)} |"
                f" {share:.2%} | {seconds:.1f} |"
            )
            for e in left:
                said.append(
                    f"missed in {name}: {term_text(e.left, family)} = {term_text(e.right, family)}"
                )
            print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, "", *said]


def _missed(
    family: Family,
    pairs: list[Equation],
    rules: tuple[str, ...],
    odd: tuple[str, ...],
    each: TaskMap,
    bounds: DeriveLimits = DERIVE_LIMITS,
) -> list[Equation]:
    """The pairs that no chain of rules relates, nor one of the odd ones."""
    size = MAX_TASK_LAWS if bounds is DERIVE_LIMITS else 1
    some = [pairs[n : n + size] for n in range(0, len(pairs), size)]
    tasks = [
        (family, [[as_candidate(e, family)] for e in chunk], rules, odd, bounds) for chunk in some
    ]
    chains = chain.from_iterable(map(json.loads, each(derive_laws, tasks)))
    return [e for e, (used,) in zip(pairs, chains, strict=True) if used is None]


def sound(folder: Path, jobs: int) -> list[str]:
    """Trials of another seed, with more neighbours than rules are chosen by; of more seeds where
    one finds too few instances."""
    rules = every_rule(folder)
    found = dict.fromkeys(range(len(rules)), 0)
    wrong: list[str] = []
    with worker_pool(jobs) as each:
        for seed in SEEDS:
            asked = [n for n, some in found.items() if some < RETRIAL_INSTANCES]
            said = list(each(retrial_failure, [(str(rules[n]), seed) for n in asked]))
            for n, text in zip(asked, said, strict=True):
                some = FEW.match(text)
                if text and not some:
                    wrong.append(f"- {rules[n].name}: {text}")
                found[n] += int(some[1]) if some else RETRIAL_INSTANCES
    few = [f"- {rules[n].name}: {some}" for n, some in found.items() if some < RETRIAL_INSTANCES]
    lines = [
        f"{len(rules)} rules, {RETRIAL_INSTANCES} assignments each: {len(wrong)} false",
        "",
        *wrong,
    ]
    return [*lines, f"\n{len(few)} that held have not so many different ones:\n", *few]


SEEDS = range(977, 997)  # of no run
FEW = re.compile(r"only (\d+) of")


def redundant(folder: Path, jobs: int) -> list[str]:
    """By the same limits as the run's own pruning."""
    rules = every_rule(folder)
    texts = tuple(map(str, rules))
    with worker_pool(jobs) as each:
        found = [
            json.loads(text)[0] for text in each(derive_from_others, [(t, texts, 0) for t in texts])
        ]
    left = [f"- {r.name}: {', '.join(c)}" for r, c in zip(rules, found, strict=True) if c]
    return [f"{len(left)} of {len(rules)} follow from the others", "", *left]


def hand(folder: Path) -> list[str]:
    """Hand-written rules with the chains of generated rules that do the same."""
    rules = every_rule(folder)
    index = RuleIndex(rules)
    written = [r for r in load_library() if r.origin == "hand"]
    lines = []
    for rule in written:
        found = derive_rule(rule, index, 0)
        if found is not None:
            lines.append(f"- {rule.source.split(':')[0]} {rule.name}: {', '.join(found.chain)}")
    return [f"{len(lines)} of {len(written)}:", "", *lines]


def models(folder: Path, files: list[Path], seconds: float) -> list[str]:
    """Roofline costs, which are the same every time."""
    paths = [str(folder / f"{name}.rules") for name in FAMILIES if read(folder, name)]
    lines = [
        "| model | before | generated only | all rules | ratio | generated rules that fired |",
        "|---|---|---|---|---|---|",
    ]
    for file in files:
        costs: list[float] = []
        fired: Counter[str] = Counter()
        for library in (False, True):
            made = optimize(file, rules=paths, library=library, cost="roofline", budget=seconds)
            costs.append(made.cost_after)
            if not library:
                fired = Counter(s.rule for s in made.report.steps)
        said = ", ".join(f"{n} ({k})" for n, k in fired.most_common())
        lines.append(
            f"| {file.stem} | {made.cost_before:,.0f} | {costs[0]:,.0f} | {costs[1]:,.0f} |"
            f" {costs[0] / costs[1]:.3f} | {said} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="classical,default,growth,complete")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="budget of optimize in seconds (mode: models)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        print(f"{this_machine().text}\n")
        for part in args.part.split(","):
            print(f"## {part}\n")
            match part:
                case "classical":
                    lines = whole_run(folder / "classical", CLASSICAL, args.jobs)
                case "default":
                    lines = whole_run(folder / "default", tuple(FAMILIES), args.jobs)
                case "growth":
                    lines = growth()
                case "complete" | "every":
                    lines = complete(folder / "default", part == "every", args.jobs)
                case "sound":
                    lines = sound(folder / "default", args.jobs)
                case "minimal":
                    lines = redundant(folder / "default", args.jobs)
                case "hand":
                    lines = hand(folder / "default")
                case "models":
                    lines = models(folder / "default", args.models, args.seconds)
                case other:
                    parser.error(f"there is no part {other!r}")
            print("\n".join(lines), "\n", flush=True)


if __name__ == "__main__":
    main()
