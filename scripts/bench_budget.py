"""Measure whether budgets are kept: time taken over the budget, and peak memory over the model.

    python scripts/bench_budget.py MODEL... [--budgets 5,10,60] [--command optimize]
        [--output FOLDER] [--markdown FILE]

Each run is a command of its own. Time is of the clock, from the start of the process to its end;
processor time is of the process and its children. Memory is sampled: the proportional set sizes
(pages of mapped files included) of the process and all of its descendants together. Models with
large random weights are written by scripts/large_model.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt.cli.supervise import descendants

SAMPLE_SECONDS = 0.2
HEADINGS = (
    "model", "GB", "budget s", "taken s", "over budget", "processor s", "peak GB", "over model",
    "anonymous GB", "graphs", "result", "written",
)  # fmt: skip


@dataclass(slots=True)
class Peak:
    """The largest sums over a process and its descendants, in bytes."""

    proportional: int = 0
    anonymous: int = 0

    def sample(self, process: int) -> None:
        """Read the memory of all processes of the family once."""
        family = [process, *descendants(process)]
        for name, field in (("proportional", "Pss:"), ("anonymous", "Pss_Anon:")):
            found = sum(next(_fields(p, field), 0) for p in family)
            setattr(self, name, max(getattr(self, name), found))


def _fields(process: int, name: str) -> Iterator[int]:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return
    yield from (1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def model_bytes(path: Path) -> int:
    """Return the bytes of a model with its external data."""
    from superopt.onnx_io.read.source import read_model

    return read_model(path).size_bytes


def run_command(command: str, model: Path, output: Path, budget: float) -> tuple[str, ...]:
    """Run a command once; return its row."""
    size = model_bytes(model)
    words = [
        sys.executable, "-m", "superopt", command, str(model), "-o", str(output),
        "--budget", f"{budget:g}s", "--quiet", "--json",
    ]  # fmt: skip
    before, begin = os.times(), time.monotonic()
    peak, is_over = Peak(), threading.Event()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:

        def watch() -> None:
            while not is_over.wait(SAMPLE_SECONDS):
                peak.sample(child.pid)

        watcher = threading.Thread(target=watch)
        watcher.start()
        out, err = child.communicate()
        taken = time.monotonic() - begin
        is_over.set()
        watcher.join()
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    graphs, result = "", f"exit code {child.returncode}: {err.decode(errors='replace')[:60]}"
    if child.returncode == 0:
        report = json.loads(out)
        graphs = str(report["search"]["graphs_seen"])
        result = "changed" if report["changed"] else "unchanged"
    return (
        model.name, f"{size / 1e9:.2f}", f"{budget:g}", f"{taken:.1f}", f"{taken / budget:.2f}",
        f"{cpu:.1f}", f"{peak.proportional / 1e9:.2f}", f"{peak.proportional / size:.2f}",
        f"{peak.anonymous / 1e9:.2f}", graphs, result, _written_text(output),
    )  # fmt: skip


def _written_text(output: Path) -> str:
    own = [p for p in output.parent.glob(f"{output.name}*") if p.suffix != ".json"]
    return f"{sum(p.stat().st_size for p in own) / 1e9:.3f} GB"


def print_rows(rows: Sequence[Sequence[str]], markdown: Path | None) -> None:
    text = "\n".join(f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *rows))
    print(text)
    if markdown is not None:
        markdown.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--budgets", default="60")
    parser.add_argument("--command", choices=("optimize", "simplify"), default="optimize")
    parser.add_argument("--output", type=Path, help="default: beside the model")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows = []
    for model in given.models:
        for budget in map(float, given.budgets.split(",")):
            with tempfile.TemporaryDirectory(prefix="bench-") as cache:
                os.environ["SUPEROPT_CACHE"] = cache
                output = (given.output or model.parent) / f"{model.stem}.bench.onnx"
                rows.append(run_command(given.command, model, output, budget))
                print(" ".join(rows[-1]), file=sys.stderr, flush=True)
                for path in output.parent.glob(f"{model.stem}.bench.*"):
                    path.unlink()
    print_rows(rows, given.markdown)


if __name__ == "__main__":
    main()
