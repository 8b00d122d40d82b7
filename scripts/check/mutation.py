"""How many changes of the checking code the tests notice: a seeded sample of mutants.

    python scripts/check/mutation.py --jobs 16 --page

Mutants are of superopt/check, superopt/verifier and superopt/rules (scripts/check/mutants.py). Each
test file runs twice to record how long each test takes and which functions it calls. Each mutant
is then tested by the tests that call its function: those of its own folder first, then the others,
by their time, up to --seconds in all; up to the first failure. Mutants are never written to disk,
so that they run side by side in one checkout.

--page writes docs/benchmarks/mutation.md. Reasons why survivors are not mistakes of the tests are
in scripts/check/explained_mutants.txt, a line each: FILE | LINE | CHANGE | REASON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from mutants import Mutant, files_of, mutants_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "mutation.md"
EXPLAINED = Path(__file__).with_name("explained_mutants.txt")
PACKAGES = ("check", "verifier", "rules")
TESTS = (
    "check", "verifier", "rules", "verification", "optimization", "partial", "search", "generate",
    "plan",
)  # fmt: skip
OWN_FOLDER_LEVELS = 2  # tests/rules/match has the tests of superopt/rules/match
START_SECONDS = 30  # for a process to start and to collect its tests
CAUGHT = ("failed", "timed out", "not imported")


@dataclass(frozen=True, slots=True)
class Test:
    """A test, its time in seconds, and the functions that it calls, by file."""

    name: str
    seconds: float
    calls: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: of CAUGHT, `survived` or `not tested`; by: the test that failed."""

    mutant: Mutant
    what: str
    tests: int
    by: str = ""


def run_pytest(
    folder: Path, job: dict[str, Any], files: Sequence[str], seconds: float
) -> tuple[int | None, str]:
    """Run pytest on a job of the plugin in a process with a cache of its own. Returns the exit
    status, None where the time was over, and the output."""
    path = folder / "job.json"
    path.write_text(json.dumps(job), "utf-8")
    own = {
        "SUPEROPT_MUTATION": str(path),
        "SUPEROPT_CACHE": str(folder / "cache"),
        "XDG_CACHE_HOME": str(folder / "xdg-cache"),
        "XDG_DATA_HOME": str(folder / "xdg-data"),
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        ),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
    command = [
        sys.executable, "-m", "pytest", "-p", "mutation_plugin", "-p", "no:cacheprovider", "-x",
        "-q", "--no-header", "-o", "addopts=", "-m", "not slow and not breadth",
        f"--basetemp={folder / 'tmp'}", *files,
    ]  # fmt: skip
    if "calls" in job:
        command.remove("-x")
    with (folder / "output.txt").open("w+b") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **own}, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = None
        output.seek(0)
        return status, output.read().decode(errors="replace")


def record_calls(
    pool: ThreadPoolExecutor, files: Sequence[str], folders: Sequence[str], limit: float
) -> list[Test]:
    """Run every test twice: how long it takes, and what it calls of `files`. Tracing calls takes
    several times as long. Tests that fail are left out."""
    tests = [p for t in folders for p in sorted((ROOT / "tests" / t).rglob("test_*.py"))]
    tests.sort(key=lambda p: -p.stat().st_size)

    def one(path: Path) -> list[Test]:
        with TemporaryDirectory() as name:
            folder = Path(name)
            calls = folder / "calls.json"
            job = {"files": list(files), "calls": str(calls)}
            seconds: dict[str, float] = {}
            for is_traced in (False, True):
                calls.unlink(missing_ok=True)
                own = {**job, "is_traced": is_traced}
                run_pytest(folder, own, [str(path.relative_to(ROOT))], limit)
                if not calls.exists():
                    print(f"no calls of {path}", file=sys.stderr)
                    return []
                rows = json.loads(calls.read_text("utf-8"))
                seconds = seconds or {t["test"]: t["seconds"] for t in rows}
            return [
                Test(
                    t["test"], seconds[t["test"]], {f: frozenset(n) for f, n in t["calls"].items()}
                )
                for t in rows
                if t["passed"] and t["test"] in seconds
            ]

    return [t for found in pool.map(one, tests) for t in found]


def tests_of(mutant: Mutant, tests: Sequence[Test], seconds: float) -> list[Test]:
    """The tests that call a mutant's function; where it is outside of functions, any of its file,
    and those of the test file with its name. That file's tests come first, then those of its own
    folder, then the others, by time, as many as take so long."""
    path = Path(mutant.file)
    near = "/".join(("tests", *path.parent.parts[1 : 1 + OWN_FOLDER_LEVELS])) + "/"
    mirror = f"{near}test_{path.stem}.py::"

    def is_calling(t: Test) -> bool:
        names = t.calls.get(mutant.file, frozenset())
        if mutant.function:
            return mutant.function in names
        return bool(names) or t.name.startswith(mirror)

    calling = [t for t in tests if is_calling(t)]
    calling.sort(
        key=lambda t: (not t.name.startswith(mirror), not t.name.startswith(near), t.seconds)
    )
    chosen: list[Test] = []
    for t in calling:
        if seconds < t.seconds and chosen:
            break
        seconds -= t.seconds
        chosen.append(t)
    return chosen


def test_mutant(mutant: Mutant, tests: Sequence[Test], limit: float) -> Outcome:
    """Run the tests on a mutant, up to the first failure."""
    if not tests:
        return Outcome(mutant, "not tested", 0)
    files = list(dict.fromkeys(t.name.partition("::")[0] for t in tests))
    with TemporaryDirectory() as name:
        job = {"mutant": asdict(mutant), "tests": [t.name for t in tests]}
        status, output = run_pytest(Path(name), job, files, limit)
    if status == 0:
        return Outcome(mutant, "survived", len(tests))
    if status is None:
        return Outcome(mutant, "timed out", len(tests))
    failed = next((x for x in output.splitlines() if x.startswith(("FAILED ", "ERROR "))), "")
    what = "failed" if status == 1 else "not imported"
    return Outcome(mutant, what, len(tests), failed.split(" - ")[0])


def can_be_read(mutant: Mutant) -> bool:
    try:
        compile(mutant.apply((ROOT / mutant.file).read_text("utf-8")), mutant.file, "exec")
    except SyntaxError:
        return False
    return True


def change_of(mutant: Mutant) -> tuple[str, str]:
    """The line of a mutant, and its change as `before -> after`."""
    source = (ROOT / mutant.file).read_text("utf-8")
    line = source.splitlines()[mutant.line - 1].strip()
    before = " ".join(source[mutant.start : mutant.end].split())
    return line, f"{before} -> {mutant.text}"


def read_explanations() -> dict[tuple[str, str, str], str]:
    """The reasons of explained_mutants.txt by file, line and change."""
    rows = [line.split(" | ") for line in EXPLAINED.read_text("utf-8").splitlines() if line]
    return {(file, line, change): why for file, line, change, why in rows}


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def page(
    outcomes: Sequence[Outcome],
    total: int,
    seed: int,
    seconds: float,
    jobs: int,
    test_seconds: float,
) -> str:
    """docs/benchmarks/mutation.md."""
    reasons = read_explanations()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        package = "/".join(Path(o.mutant.file).parts[:2])
        key = (o.mutant.file, *change_of(o.mutant))
        what = "equal" if o.what not in CAUGHT and key in reasons else o.what
        rows[package][what] += 1
        kinds[o.mutant.kind][what] += 1
        rows["all"][what] += 1

    def table(counts: Mapping[str, Counter[str]]) -> str:
        lines = []
        for name, c in counts.items():
            caught = sum(c[w] for w in CAUGHT)
            whole = sum(c.values())
            lines.append(
                f"| {name} | {whole} | {caught} | {c['equal']} | {c['survived']} |"
                f" {c['not tested']} | {percent(caught, whole)} |"
                f" {percent(caught, whole - c['equal'])} |"
            )
        return "\n".join(lines)

    survivors = []
    for o in outcomes:
        if o.what in CAUGHT:
            continue
        line, change = change_of(o.mutant)
        why = reasons.get((o.mutant.file, line, change), o.what)
        survivors.append(
            f"- `{o.mutant.file}`, `{o.mutant.function or 'module'}`: `{line}`, `{change}`: {why}"
        )
    head = (
        "| mutants | caught | explained | survived | not tested | caught of all"
        " | caught of those unexplained |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    package = f"| package {head}\n{table(dict(sorted(rows.items())))}"
    kind = f"| change {head}\n{table(dict(sorted(kinds.items())))}"
    command = (
        f"--jobs {jobs} --mutants {len(outcomes)} --seconds {test_seconds:g} --seed {seed} --page"
    )
    machine = f"Python {platform.python_version()}, {os.cpu_count()} processors"
    return f"""# Mutants of the checking code

Written by `python scripts/check/mutation.py {command}`
on {time.strftime("%Y-%m-%d")}: {machine}, {seconds:.0f} s.

A mutant is one comparison, operator, constant, result or guard that is changed; the sample is drawn
from all {total} mutants of `superopt/check`, `superopt/verifier` and `superopt/rules`. Each runs
the tests that call its function. It is caught where a test fails, or does not end. An explained one
survived and changes no result that matters, for the reason below.

{package}

{kind}

## Survivors

{chr(10).join(survivors) or "None."}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for each mutant")
    parser.add_argument("--limit", type=float, default=120.0, help="wall seconds for each process")
    parser.add_argument("--only", default="", help="mutants of files whose path begins so")
    parser.add_argument("--tests", default=",".join(TESTS), help="folders of tests, by commas")
    parser.add_argument("--calls", type=Path, help="keep what tests call in this file")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    start = time.monotonic()
    files = list(files_of(ROOT, PACKAGES))
    everything = [m for f in files for m in mutants_of(ROOT, f) if f.startswith(args.only)]
    drawn = Random(args.seed).sample(everything, min(2 * args.mutants, len(everything)))
    sample = [m for m in drawn if can_be_read(m)][: args.mutants]
    with ThreadPoolExecutor(args.jobs) as pool:
        if args.calls and args.calls.exists():
            rows = json.loads(args.calls.read_text("utf-8"))
            tests = [Test(n, s, {f: frozenset(x) for f, x in c.items()}) for n, s, c in rows]
        else:
            tests = record_calls(pool, files, args.tests.split(","), 5 * args.limit)
            if args.calls:
                rows = [
                    (t.name, t.seconds, {f: sorted(x) for f, x in t.calls.items()}) for t in tests
                ]
                args.calls.write_text(json.dumps(rows), "utf-8")
        print(f"{len(tests)} tests recorded, {time.monotonic() - start:.0f} s", flush=True)
        outcomes: list[Outcome] = []

        def one(mutant: Mutant) -> Outcome:
            chosen = tests_of(mutant, tests, args.seconds)
            return test_mutant(mutant, chosen, args.limit + START_SECONDS)

        for o in pool.map(one, sample):
            outcomes.append(o)
            line, change = change_of(o.mutant)
            print(f"{o.what}: {o.mutant.file}:{o.mutant.line}: {line}: {change} {o.by}", flush=True)
    seconds = time.monotonic() - start
    caught = sum(o.what in CAUGHT for o in outcomes)
    print(f"{caught} of {len(outcomes)} caught, {seconds:.0f} s")
    if args.page:
        about = len(everything), args.seed, seconds, args.jobs, args.seconds
        PAGE.write_text(page(outcomes, *about), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
