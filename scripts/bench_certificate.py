"""Certificates of real models: how long they are, and how long their replay takes.

    scripts/bench_certificate.py models/*.onnx --out docs/benchmarks/bench_certificate.md

Each model is optimized with estimated costs (nothing is timed, so that the cheapest graph by
estimate is the result, faster or not), which gives most models steps to certify; where it does not,
with measured ones. Then its certificate is checked as `superopt verify --certificate` does, five
times, both models imported anew. Import is reading, validating and importing both models and their
digests; replay is all that the checker does after that. The whole command is timed once, too.
With --forge SECONDS, certificates with one random change each are checked for so long: a text by a
character, an item of a list that is dropped, doubled or exchanged. All have to be refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.api import functions
from superopt.check.certificate.replay import apply_round, check_certificate
from superopt.check.graph_identity import CertificateRefused
from superopt.cost.machine import this_machine
from superopt.errors import UsageError
from superopt.ir.value_numbers import number_values
from superopt.loading.garbage_collection import raise_gc_thresholds
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.report.data.certificate import read_certificate
from superopt.report.formatting.phrases import count_text
from superopt.rules.library.load import load_library
from superopt.rules.library.records import rules_digest
from tests.support.check.forging import forgery


@dataclass(frozen=True)
class Row:
    """size: bytes of the certificate; seconds of importing both models, of the whole check, for the
    first time and the slowest time, of its rewrites alone, and of the command, Python's start and
    the rule library with it; forged, accepted: certificates that were changed; verdict: `certified`
    or what is wrong."""

    name: str
    costs: str
    nodes: int
    steps: int
    rounds: int
    rules: int
    folded: int
    size: int
    imported: float
    checked: float
    slowest: float
    rewritten: float
    command: float
    forged: int
    accepted: int
    verdict: str


TIMES = 5


def imported(path: Path) -> Model:
    """A model as the checker takes it, its digest known."""
    source = read_model(path)
    validate(source)
    made = import_model(source)
    assert source.sha256
    return made


def forged(text: str, refused: Callable[[str], bool], seconds: float) -> tuple[int, int]:
    """How many changed certificates were tried in that time, and how many were accepted."""
    document, rng = json.loads(text), Random(0)
    tried = accepted = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        other = forgery(document, rng)
        tried += 1
        if not refused(other):
            accepted += 1
            print(f"ACCEPTED {other}", file=sys.stderr)
    return tried, accepted


def measured(path: Path, budget: float, seconds: float, folder: Path) -> Row:
    """Optimize one model and check its certificate."""
    for cost in ("roofline", "measured"):
        done = functions.optimize(path, cost=cost, budget=budget, store=folder / "store.db")
        if done.changed:
            break
    optimized = folder / "fast.onnx"
    beside = done.save(optimized)
    nodes = done.report.nodes_before
    if beside is None:
        why = [n for n in done.report.notes if "not used" in n]
        said = why[0] if why else "unchanged"
        return Row(path.stem, cost, nodes, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, said)
    text = beside.read_text(encoding="utf-8")
    c = read_certificate(text)
    library = load_library()
    rules, known = {r.name: r for r in library}, rules_digest(library)
    imports, checks, rewrites = [], [], []
    for _ in range(TIMES):
        begin = time.perf_counter()
        a, b = imported(path), imported(optimized)
        ready = time.perf_counter()
        with raise_gc_thresholds():
            check_certificate(c, a, b, rules, known)  # raises Refused
        end = time.perf_counter()
        state = number_values(a.graph)
        for some in c.rounds:
            apply_round(state, some, rules)
        rewrites.append(time.perf_counter() - end)
        imports.append(ready - begin)
        checks.append(end - ready)
    begin = time.perf_counter()
    ask = ["verify", str(path), str(optimized), "--certificate", str(beside), "--quiet"]
    subprocess.run([sys.executable, "-m", "superopt", *ask], check=True, capture_output=True)
    command = time.perf_counter() - begin

    def refused(other: str) -> bool:
        try:
            check_certificate(read_certificate(other), a, b, rules, known)
        except (CertificateRefused, UsageError):
            return True
        return False

    tried, accepted = forged(text, refused, seconds)
    steps = sum(map(len, c.rounds))
    return Row(
        path.stem, cost, nodes, steps, len(c.rounds), len(c.rules), len(c.folded),
        len(text.encode()), imports[0], checks[0], max(checks), rewrites[0], command,
        tried, accepted, "certified",
    )  # fmt: skip


def table(rows: Sequence[Row], budget: float) -> str:
    """The rows as a page."""
    lines = [
        "# Certificates",
        "",
        f"Machine: {this_machine().text}. Command: `scripts/bench_certificate.py"
        f" --budget {budget:g} --forge 10`."
        " With estimated (roofline) costs nothing is timed: no model is claimed to be faster.",
        "",
        "| model | costs | nodes | steps (rounds) | rules | folded tensors | certificate, bytes |"
        " import, s | replay, s | slowest of 5 | of it rewrites, s | whole command, s |"
        " forged, accepted | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.name} | {r.costs} | {r.nodes} | {r.steps} ({r.rounds}) | {r.rules} | {r.folded} |"
        f" {r.size} | {r.imported:.3f} | {r.checked:.3f} | {r.slowest:.3f} | {r.rewritten:.3f} |"
        f" {r.command:.2f} | {r.forged}, {r.accepted} | {r.verdict} |"
        for r in rows
    ]
    lines += [
        "",
        "Import is reading, validating and importing both models, and the SHA-256 of both files."
        " Replay is everything after that: the rewrites, the comparison with the optimized file,"
        " every weight bit by bit, and the folded tensors computed again. The whole command is"
        " `superopt verify --certificate`: Python, the rule library, both imports and the replay."
        " Forged are certificates with one random change each.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure the models and write the page; 1 where a forged certificate is accepted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each model")
    parser.add_argument("--forge", type=float, default=0.0, help="seconds for each model")
    parser.add_argument("--out", type=Path, help="write the page there too")
    asked = parser.parse_args()
    rows: list[Row] = []
    for path in asked.models:
        with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
            rows.append(measured(path, asked.budget, asked.forge, Path(folder)))
        print(rows[-1], file=sys.stderr, flush=True)
    page = table(rows, asked.budget)
    print(page, end="")
    if asked.out is not None:
        asked.out.write_text(page, encoding="utf-8")
    print(count_text(len(rows), "model"), file=sys.stderr)
    return int(any(r.accepted for r in rows))


if __name__ == "__main__":
    sys.exit(main())
