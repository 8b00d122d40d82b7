"""`rules generate --partial --model`, `optimize --mutants`: mutants of a model's own windows and
subprograms, at the model's shapes.

Between its non-linear operators a model computes windows over images. Each distinct one is a
program by itself (operands added or scaled beside it are left to the rules): its mutants move
elements between axes before it, and back after it (`superopt.partial.enumerate.axis_moves`).
Mutants of up to three windows or products, with linear operators between them, are enumerated
(`subprogram_mutants.py`). The elements where a mutant is equal are found, the others are corrected,
and the cost of the result is estimated as in the search. Mutants that may be faster are proved for
these spatial sizes and any number of channels (and any batch, if the model does not fix it); then
they are rules. The folder's journal keeps the results of a program for other models.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from superopt import __version__, ort
from superopt.cost import tuned
from superopt.cost.folder import store_file
from superopt.cost.fusion import compiled_away, fused_away
from superopt.cost.machine import Machine
from superopt.cost.measured import MeasuredClock
from superopt.cost.model import Clock, Costs, by_roofline
from superopt.cost.store import Store
from superopt.generate.journal import Journal
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime import file_cache as files
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.partial.correct.sized_pairs import sides_at
from superopt.partial.enumerate.program import Program, free_channels
from superopt.pipeline import entries
from superopt.pipeline.clocks import measured
from superopt.pipeline.entries import own_contents
from superopt.pipeline.judge import entirely
from superopt.pipeline.load import load_model
from superopt.pipeline.own_journal import opened, readable, rule_of
from superopt.pipeline.program_mutants import OPERATORS_OF, enumerated, with_weights
from superopt.pipeline.request import CompiledTimers, Deadline, Request
from superopt.pipeline.shapes import representative
from superopt.pipeline.subprograms import subprograms
from superopt.pipeline.windows import Line, Window, mutated, windows_of
from superopt.report.data import Event
from superopt.report.mutation import MutantCount, Mutation
from superopt.report.words import count, otherwise
from superopt.rules.lang.rule import Rule
from superopt.rules.library.records import record_proof
from superopt.rules.trial.float_class import with_computed_class
from superopt.rules.trial.try_rule import try_rule
from superopt.verifier.prove import Limits
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.verdict import Proved

BEST = 3  # mutants kept for a program
JOURNAL = "windows.jsonl"
UNKNOWN = "windows of dynamic sizes, or not of float32"
LIMITS = Limits(seconds=60, work=3_000)  # limited by work: the result does not depend on a clock
PART = 0.5  # of the budget of `optimize`, at most; the rest is for the search


def own_mutants(
    source: Source,
    out: Path,
    store: Path | None,
    progress: Callable[[Event], None],
    timers: CompiledTimers,
    most: int = OPERATORS_OF,
) -> Mutation:
    """Write NAME.pairs, NAME.corrected.rules and NAME.regions.json for a model of this name.

    timers: price mutants; max_operators: of an enumerated mutant, if more than the default.

    Raises ModelError for an invalid model, UsageError if the folder belongs to another run.
    """
    begin = time.monotonic()
    model = load_model(source).model
    journal = readable(Journal.open(out / JOURNAL, _run()))
    try:
        with Store.open(store) as held:
            opset, version = model.opset, source.model.ir_version
            clock = MeasuredClock(
                held, tuned.target(1), opset, version, 1, kind=timers.kind, timer=timers.nodes,
                progress=lambda done, of: progress(Event("measure", f"{done} of {of} operators")),
            )  # fmt: skip
            costs = Costs(representative(model, {}), clock, compiled_away)
            found = _found(model.graph, costs, journal, progress, most=most)
    finally:
        journal.close()
    name = Path(source.label).stem
    _written(out, name, found.fast)
    counted = MutantCount(
        name, found.right, len(found.fast), found.kept,
        {k: v for k, v in found.dropped.most_common() if v}, time.monotonic() - begin,
        false=found.false,
    )  # fmt: skip
    return Mutation((counted,), str(out), True, str(out / JOURNAL), len(journal.lost))


def with_mutants(
    model: Model, request: Request, deadline: Deadline, store: Store, machine: Machine
) -> tuple[Request, Deadline, tuple[str, ...]]:
    """Add to the request proved rules that turn the model's own windows into mutants of lower
    estimated cost. Return the request, the remaining deadline, and notes.

    A folder beside the store keeps the results for the next call, unless another process holds it.
    """
    clock: Clock = by_roofline(request.threads)
    if ort.available() is not None and not request.untimed:
        clock = measured(model, request, deadline, store, machine, PART)
    sizes = representative(model, request.shapes)
    costs = Costs(sizes, clock, compiled_away if request.target == "cpu" else fused_away)
    folder = (store.path or store_file(None)).parent / "mutants" / own_contents()[:16]
    journal, notes = opened(folder / JOURNAL, _run())
    try:
        found = _found(
            model.graph, costs, journal, request.progress,
            lambda: request.stop() or deadline.spent() > PART * request.budget,
        )  # fmt: skip
    finally:
        journal.close()
    rules, pairs = (
        tuple(_renamed(x[k], f"own-{n}") for n, x in enumerate(found.fast))
        for k in ("corrected", "pair")
    )
    told = (
        f"{count(len(rules), 'rule')} of the model's own mutants, of"
        f" {found.looked_at} of {count(found.programs, 'subprogram')}"
    )
    if found.untried:
        told += f"; {found.untried:,} more may be faster, but are not proved yet"
    if found.looked_at < found.programs or found.untried:
        told += ": out of time, the next call continues"
    if found.false:
        told += f"; {otherwise(found.false, journal.path or JOURNAL)}"
    if found.unknown:
        told += (
            f"; not of {count(found.unknown, 'window')} with dynamic spatial sizes or channels"
            " (--shape only sets the sizes for timing), or not of float32"
        )
    left = round(max(request.budget - deadline.spent(), 0.0), 1)
    begin = deadline.begin + request.budget - left
    untried = request.untried | {r.name for r in rules}
    return (
        replace(
            request,
            budget=left,
            rules=(*request.rules, *rules),
            untried=untried,
            pairs={**request.pairs, **{p.name: p for p in pairs}},
        ),
        replace(deadline, begin=begin, seconds=left),
        (*notes, told),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """partly_equal_count: mutants that are equal somewhere; corrected_count: those with a
    correction; faster_rules: proved ones, priced below their programs; searched_count: of
    program_count distinct programs; unproved_count: cheaper ones that there was no time to prove;
    unknown_window_count: windows of unsupported sizes; false_entry_count: rules about which the
    journal was wrong."""

    right: int
    kept: int
    fast: list[Line]
    dropped: Counter[str]
    looked_at: int
    programs: int
    untried: int
    unknown: int
    false: int


def _found(
    graph: ir_graph.Graph,
    costs: Costs,
    journal: Journal,
    progress: Callable[[Event], None],
    stop: Callable[[], bool] = lambda: False,
    most: int = OPERATORS_OF,
) -> _Found:
    """Return the mutants of a graph's windows and subprograms, as far as time allows."""
    every = list(windows_of(graph, costs.sizes))
    programs: list[Window | Program] = [*dict.fromkeys(w for w in every if w is not None)]
    programs += subprograms(graph)
    for n, p in enumerate(programs):
        if stop():
            break
        key = _key(p, most)
        if key not in journal.known:
            progress(Event("mutants", f"{n + 1} of {len(programs)} programs", n / len(programs)))
            made = (
                mutated(p, journal, stop)
                if isinstance(p, Window)
                else enumerated(p, journal, stop, most)
            )
            if made is not None:
                journal.add(key, json.dumps(made))
    keys = {p: _key(p, most) for p in programs}
    looked_at = {p: json.loads(journal.known[k]) for p, k in keys.items() if k in journal.known}
    lines = [line for found in looked_at.values() for line in found]
    some = [(p, [x for x in found if "dropped" not in x]) for p, found in looked_at.items()]
    cheap = list(_faster(some, costs))
    proved = []
    false = 0
    for n, line in enumerate(cheap):
        rule = line["corrected"]
        said = json.loads(journal.known.get(rule, "{}"))
        if "dropped" not in said:  # a file is not trusted to say that a rule is proved
            if stop():
                break
            progress(Event("mutants", f"proof {n + 1} of {len(cheap)}", n / len(cheap)))
            found = _known(rule)
            if not said or said["corrected"] != found.get("corrected"):
                false += bool(said)
                journal.add(rule, json.dumps(found))
            said = found
        proved.append(line | said)
    dropped = Counter(x["dropped"] for x in (*lines, *proved) if "dropped" in x)
    kept = sum(len(found) for _, found in some)
    dropped[UNKNOWN] = every.count(None)
    dropped["unreadable lines of the journal"] = len(journal.lost)
    dropped["more expensive than the program or better mutants"] = kept - len(cheap)
    fast = [line for line in proved if "dropped" not in line]
    return _Found(
        len(lines), kept, fast, dropped, len(looked_at), len(programs),
        len(cheap) - len(proved), every.count(None), false,
    )  # fmt: skip


def _run() -> str:
    """Return what results depend on."""
    return f"mutants of programs, superopt {__version__}, files {own_contents()}"


def _key(p: Window | Program, most: int) -> str:
    """Return the journal key of a program's mutants."""
    usual = isinstance(p, Window) or most == OPERATORS_OF
    return p.key if usual else f"{p.key}, of {most} operators"


def _known(text: str) -> Line:
    """Return what these files of superopt proved of a rule: cached in the user's own folder, which
    is trusted with machine code, too; a journal may come from anywhere."""
    key = entries.sum_of((own_contents(), text))

    def parsed(held: bytes) -> Line | None:
        found: Line = json.loads(held)
        return found

    found = entries.entry(key, "proof", parsed)
    if found is None:
        found = _proved(text)
        files.write(entries.folder(), key, json.dumps(found).encode(), "proof")
    return found


def _proved(text: str) -> Line:
    """Return the rule as it may be applied, with its computed float class, and its proof. A rule
    that cannot be tried is rejected: otherwise the graph that uses it would be, later."""
    rule = rule_of(text)
    if not try_rule(rule):
        return {"dropped": "it does not hold, or cannot be tried"}
    verdict = best_proof(rule, LIMITS)
    if not isinstance(verdict, Proved):
        return {"dropped": "not proved"}
    if entirely(replace(verdict, bound=None)):
        record_proof(rule, verdict.proof)  # so that it is not proved again before use
    return {"corrected": str(with_computed_class(rule)), "proof": str(verdict)}


def _faster(some: Sequence[tuple[Window | Program, list[Line]]], costs: Costs) -> Iterator[Line]:
    """Yield mutants priced below their programs, the best ones of each; one for several channels
    once."""
    seen: set[str] = set()
    for w, lines in some:
        for line in _best(lines, _sizes(w), costs):
            if line["corrected"] not in seen:
                seen.add(line["corrected"])
                yield line


def _best(lines: Sequence[Line], own: dict[str, int], costs: Costs) -> list[Line]:
    """Return the best mutants of a program at these sizes. Measuring takes most of the time, so
    mutants are priced in the order of their estimates, and only until they exceed the best."""
    rough = Costs(costs.sizes, by_roofline(1), costs.fused)
    told: list[tuple[float, int, ir_graph.Graph, ir_graph.Graph]] = []
    for n, line in enumerate(lines):
        both = sides_at(rule_of(line["corrected"]), own)
        if both is not None:
            before, after = map(with_weights, both)
            told.append((rough.of_graph(after), n, before, after))
    kept: list[tuple[float, int, float]] = []
    for _, n, before, after in sorted(told, key=lambda x: x[:2]):
        limit = costs.of_graph(before)
        price = costs.within(after, kept[BEST - 1][0] if len(kept) >= BEST else limit)
        if price is not None and price < limit:
            kept = sorted([*kept, (price, n, limit)])
    return [{**lines[n], "us": [limit, price]} for price, n, limit in kept[:BEST]]


def _sizes(p: Window | Program) -> dict[str, int]:
    """Return the values of its size names in the model."""
    if isinstance(p, Program):
        return {name: n for n, name in free_channels(p).items()}
    return p.own()


def _written(out: Path, name: str, lines: Sequence[Line]) -> None:
    named: list[Line] = []
    for n, line in enumerate(lines):
        pair, fixed = (_renamed(line[k], f"{name}-{n}") for k in ("pair", "corrected"))
        named.append({**line, "pair": str(pair), "corrected": str(fixed)})
    with atomic_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{x['pair']}\n" for x in named)),
            ("corrected.rules", "".join(f"{x['corrected']}\n" for x in named)),
            ("regions.json", json.dumps(named, indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())


def _renamed(text: str, before: str) -> Rule:
    """Return the rule with a prefix before its name: rules of several programs may have one name.
    prefix: of any characters."""
    rule = rule_of(text)
    before = re.sub(r"[^A-Za-z0-9_.-]+", "_", before).lstrip("-.")
    return replace(rule, name=f"{before}-{rule.name}", text="")
