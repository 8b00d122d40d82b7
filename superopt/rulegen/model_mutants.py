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
from superopt.compilation.cache import entries
from superopt.compilation.cache.entries import package_content_digest
from superopt.cost import tuning_records
from superopt.cost.cache_folders import store_path
from superopt.cost.fusion import is_fused_in_onnxruntime, is_fused_when_compiled
from superopt.cost.graph_cost import GraphCosts, NodeCostModel, roofline_cost_model
from superopt.cost.machine import Machine
from superopt.cost.measured_cost import MeasuredCostModel
from superopt.cost.store import Store
from superopt.generate.engine.journal import Journal
from superopt.ir import graph as ir_graph
from superopt.kernels.runtime import file_cache as files
from superopt.loading.cost_clock import node_clock
from superopt.loading.model import load_model
from superopt.loading.representative_sizes import representative_sizes
from superopt.loading.request import CompiledTimers, Deadline, Request
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.partial.correct.sized_pairs import sides_at
from superopt.partial.enumerate.program import Program, free_channels
from superopt.report.data.mutation import MutantCount, Mutation
from superopt.report.data.report import Event
from superopt.report.formatting.phrases import count_text, distrusted_rules_text
from superopt.rulegen.model_journal import drop_unreadable_entries, open_journal, parse_single_rule
from superopt.rulegen.subprogram_mutants import (
    MAX_OPERATORS,
    enumerate_mutants,
    graph_with_constant_weights,
)
from superopt.rulegen.subprograms import find_subprograms
from superopt.rulegen.window_mutants import Line, Window, find_windows, mutate_window
from superopt.rules.lang.rule import Rule
from superopt.rules.library.records import record_proof
from superopt.rules.trial.float_class import with_computed_class
from superopt.rules.trial.try_rule import try_rule
from superopt.verification.rule_verdict import is_fully_proved
from superopt.verifier.prove import Limits
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.verdict import Proved

MAX_KEPT_MUTANTS = 3  # mutants kept for a program
JOURNAL_FILE = "windows.jsonl"
UNKNOWN_WINDOW_REASON = "windows of dynamic sizes, or not of float32"
PROOF_LIMITS = Limits(
    seconds=60, work=3_000
)  # limited by work: the result does not depend on a clock
MAX_BUDGET_PART = 0.5  # of the budget of `optimize`, at most; the rest is for the search


def generate_model_mutants(
    source: Source,
    out: Path,
    store: Path | None,
    progress: Callable[[Event], None],
    timers: CompiledTimers,
    max_operators: int = MAX_OPERATORS,
) -> Mutation:
    """Write NAME.pairs, NAME.corrected.rules and NAME.regions.json for a model of this name.

    timers: price mutants; max_operators: of an enumerated mutant, if more than the default.

    Raises ModelError for an invalid model, UsageError if the folder belongs to another run.
    """
    begin = time.monotonic()
    assert timers.time_nodes is not None
    model = load_model(source).model
    journal = drop_unreadable_entries(Journal.open(out / JOURNAL_FILE, _run_description()))
    try:
        with Store.open(store) as held:
            opset, version = model.opset, source.model.ir_version
            clock = MeasuredCostModel(
                held, tuning_records.cpu_target(1), opset, version, 1, kind=timers.kind,
                timer=timers.time_nodes,
                progress=lambda done, of: progress(Event("measure", f"{done} of {of} operators")),
            )  # fmt: skip
            costs = GraphCosts(representative_sizes(model, {}), clock, is_fused_when_compiled)
            found = _find_mutants(
                model.graph, costs, journal, progress, max_operators=max_operators
            )
    finally:
        journal.close()
    name = Path(source.label).stem
    _write_files(out, name, found.faster_rules)
    counted = MutantCount(
        name, found.partly_equal_count, len(found.faster_rules), found.corrected_count,
        {k: v for k, v in found.rejection_counts.most_common() if v}, time.monotonic() - begin,
        false=found.false_entry_count,
    )  # fmt: skip
    return Mutation((counted,), str(out), True, str(out / JOURNAL_FILE), len(journal.lost))


def add_mutant_rules(
    model: Model, request: Request, deadline: Deadline, store: Store, machine: Machine
) -> tuple[Request, Deadline, tuple[str, ...]]:
    """Add to the request proved rules that turn the model's own windows into mutants of lower
    estimated cost. Return the request, the remaining deadline, and notes.

    A folder beside the store keeps the results for the next call, unless another process holds it.
    """
    clock: NodeCostModel = roofline_cost_model(request.threads)
    times_nodes = request.timers is None or request.timers.time_nodes is not None
    if ort.installed_version() is not None and not request.is_untimed and times_nodes:
        clock = node_clock(model, request, deadline, store, machine, MAX_BUDGET_PART)
    sizes = representative_sizes(model, request.shapes)
    costs = GraphCosts(
        sizes,
        clock,
        is_fused_in_onnxruntime if request.target == "onnxruntime" else is_fused_when_compiled,
    )
    folder = (store.path or store_path(None)).parent / "mutants" / package_content_digest()[:16]
    journal, notes = open_journal(folder / JOURNAL_FILE, _run_description())
    try:
        found = _find_mutants(
            model.graph, costs, journal, request.progress,
            lambda: request.stop() or deadline.elapsed() > MAX_BUDGET_PART * request.budget,
        )  # fmt: skip
    finally:
        journal.close()
    rules, pairs = (
        tuple(_rename_rule(x[k], f"own-{n}") for n, x in enumerate(found.faster_rules))
        for k in ("corrected", "pair")
    )
    told = (
        f"{count_text(len(rules), 'rule')} of the model's own mutants, of"
        f" {found.searched_count} of {count_text(found.program_count, 'subprogram')}"
    )
    if found.unproved_count:
        told += f"; {found.unproved_count:,} more may be faster, but are not proved yet"
    if found.searched_count < found.program_count or found.unproved_count:
        told += ": out of time, the next call continues"
    if found.false_entry_count:
        told += f"; {distrusted_rules_text(found.false_entry_count, journal.path or JOURNAL_FILE)}"
    if found.unknown_window_count:
        told += (
            f"; not of {count_text(found.unknown_window_count, 'window')} with dynamic spatial"
            " sizes or channels (--shape only sets the sizes for timing), or not of float32"
        )
    left = round(max(request.budget - deadline.elapsed(), 0.0), 1)
    begin = deadline.start + request.budget - left
    untried = request.untried_rules | {r.name for r in rules}
    return (
        replace(
            request,
            budget=left,
            rules=(*request.rules, *rules),
            untried_rules=untried,
            partial_pairs={**request.partial_pairs, **{p.name: p for p in pairs}},
        ),
        replace(deadline, start=begin, seconds=left),
        (*notes, told),
    )


@dataclass(frozen=True, slots=True)
class _ModelMutants:
    """partly_equal_count: mutants that are equal somewhere; corrected_count: those with a
    correction; faster_rules: proved ones, priced below their programs; searched_count: of
    program_count distinct programs; unproved_count: cheaper ones that there was no time to prove;
    unknown_window_count: windows of unsupported sizes; false_entry_count: rules about which the
    journal was wrong."""

    partly_equal_count: int
    corrected_count: int
    faster_rules: list[Line]
    rejection_counts: Counter[str]
    searched_count: int
    program_count: int
    unproved_count: int
    unknown_window_count: int
    false_entry_count: int


def _find_mutants(
    graph: ir_graph.Graph,
    costs: GraphCosts,
    journal: Journal,
    progress: Callable[[Event], None],
    stop: Callable[[], bool] = lambda: False,
    max_operators: int = MAX_OPERATORS,
) -> _ModelMutants:
    """Return the mutants of a graph's windows and subprograms, as far as time allows."""
    every = list(find_windows(graph, costs.sizes))
    programs: list[Window | Program] = [*dict.fromkeys(w for w in every if w is not None)]
    programs += find_subprograms(graph)
    for n, p in enumerate(programs):
        if stop():
            break
        key = _journal_key(p, max_operators)
        if key not in journal.known:
            progress(Event("mutants", f"{n + 1} of {len(programs)} programs", n / len(programs)))
            made = (
                mutate_window(p, journal, stop)
                if isinstance(p, Window)
                else enumerate_mutants(p, journal, stop, max_operators)
            )
            if made is not None:
                journal.add(key, json.dumps(made))
    keys = {p: _journal_key(p, max_operators) for p in programs}
    looked_at = {p: json.loads(journal.known[k]) for p, k in keys.items() if k in journal.known}
    lines = [line for found in looked_at.values() for line in found]
    some = [(p, [x for x in found if "dropped" not in x]) for p, found in looked_at.items()]
    cheap = list(_faster_mutants(some, costs))
    proved = []
    false = 0
    for n, line in enumerate(cheap):
        rule = line["corrected"]
        said = json.loads(journal.known.get(rule, "{}"))
        if "dropped" not in said:  # a file is not trusted to say that a rule is proved
            if stop():
                break
            progress(Event("mutants", f"proof {n + 1} of {len(cheap)}", n / len(cheap)))
            found = _cached_proof(rule)
            if not said or said["corrected"] != found.get("corrected"):
                false += bool(said)
                journal.add(rule, json.dumps(found))
            said = found
        proved.append(line | said)
    dropped = Counter(x["dropped"] for x in (*lines, *proved) if "dropped" in x)
    kept = sum(len(found) for _, found in some)
    dropped[UNKNOWN_WINDOW_REASON] = every.count(None)
    dropped["unreadable lines of the journal"] = len(journal.lost)
    dropped["more expensive than the program or better mutants"] = kept - len(cheap)
    fast = [line for line in proved if "dropped" not in line]
    return _ModelMutants(
        len(lines), kept, fast, dropped, len(looked_at), len(programs),
        len(cheap) - len(proved), every.count(None), false,
    )  # fmt: skip


def _run_description() -> str:
    """Return what results depend on."""
    return f"mutants of programs, superopt {__version__}, files {package_content_digest()}"


def _journal_key(p: Window | Program, max_operators: int) -> str:
    """Return the journal key of a program's mutants."""
    usual = isinstance(p, Window) or max_operators == MAX_OPERATORS
    return p.key if usual else f"{p.key}, of {max_operators} operators"


def _cached_proof(rule_text: str) -> Line:
    """Return what these files of superopt proved of a rule: cached in the user's own folder, which
    is trusted with machine code, too; a journal may come from anywhere."""
    key = entries.digest_json((package_content_digest(), rule_text))

    def parse_entry(held: bytes) -> Line | None:
        found: Line = json.loads(held)
        return found

    found = entries.read_entry(key, "proof", parse_entry)
    if found is None:
        found = _prove_rule(rule_text)
        files.write(entries.cache_folder(), key, json.dumps(found).encode(), "proof")
    return found


def _prove_rule(rule_text: str) -> Line:
    """Return the rule as it may be applied, with its computed float class, and its proof. A rule
    that cannot be tried is rejected: otherwise the graph that uses it would be, later."""
    rule = parse_single_rule(rule_text)
    if not try_rule(rule):
        return {"dropped": "it does not hold, or cannot be tried"}
    verdict = best_proof(rule, PROOF_LIMITS)
    if not isinstance(verdict, Proved):
        return {"dropped": "not proved"}
    if is_fully_proved(replace(verdict, bound=None)):
        record_proof(rule, verdict.proof)  # so that it is not proved again before use
    return {"corrected": str(with_computed_class(rule)), "proof": str(verdict)}


def _faster_mutants(
    program_lines: Sequence[tuple[Window | Program, list[Line]]], costs: GraphCosts
) -> Iterator[Line]:
    """Yield the cheapest mutants of each program that cost less than it, without repeats that
    differ only in channels."""
    seen: set[str] = set()
    for w, lines in program_lines:
        for line in _best_mutants(lines, _model_sizes(w), costs):
            if line["corrected"] not in seen:
                seen.add(line["corrected"])
                yield line


def _best_mutants(
    lines: Sequence[Line], model_sizes: dict[str, int], costs: GraphCosts
) -> list[Line]:
    """Return the best mutants of a program at these sizes. Measuring takes most of the time, so
    mutants are priced in the order of their estimates, and only until they exceed the best."""
    rough = GraphCosts(costs.sizes, roofline_cost_model(1), costs.is_fused)
    told: list[tuple[float, int, ir_graph.Graph, ir_graph.Graph]] = []
    for n, line in enumerate(lines):
        both = sides_at(parse_single_rule(line["corrected"]), model_sizes)
        if both is not None:
            before, after = map(graph_with_constant_weights, both)
            told.append((rough.graph_cost(after), n, before, after))
    kept: list[tuple[float, int, float]] = []
    for _, n, before, after in sorted(told, key=lambda x: x[:2]):
        limit = costs.graph_cost(before)
        price = costs.graph_cost_within(
            after, kept[MAX_KEPT_MUTANTS - 1][0] if len(kept) >= MAX_KEPT_MUTANTS else limit
        )
        if price is not None and price < limit:
            kept = sorted([*kept, (price, n, limit)])
    return [{**lines[n], "us": [limit, price]} for price, n, limit in kept[:MAX_KEPT_MUTANTS]]


def _model_sizes(p: Window | Program) -> dict[str, int]:
    """Return the values of its size names in the model."""
    if isinstance(p, Program):
        return {name: n for n, name in free_channels(p).items()}
    return p.model_sizes()


def _write_files(out: Path, name: str, lines: Sequence[Line]) -> None:
    named: list[Line] = []
    for n, line in enumerate(lines):
        pair, fixed = (_rename_rule(line[k], f"{name}-{n}") for k in ("pair", "corrected"))
        named.append({**line, "pair": str(pair), "corrected": str(fixed)})
    with atomic_files() as create:
        for suffix, content in (
            ("pairs", "".join(f"{x['pair']}\n" for x in named)),
            ("corrected.rules", "".join(f"{x['corrected']}\n" for x in named)),
            ("regions.json", json.dumps(named, indent=1) + "\n"),
        ):
            create(out / f"{name}.{suffix}").file.write(content.encode())


def _rename_rule(text: str, prefix: str) -> Rule:
    """Return the rule with a prefix before its name: rules of several programs may have one name.
    prefix: of any characters."""
    rule = parse_single_rule(text)
    prefix = re.sub(r"[^A-Za-z0-9_.-]+", "_", prefix).lstrip("-.")
    return replace(rule, name=f"{prefix}-{rule.name}", text="")
