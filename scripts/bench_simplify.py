#!/usr/bin/env python3
"""`superopt simplify` beside onnxsim and onnxslim: the tables of docs/benchmarks/simplify.md.

    scripts/bench_simplify.py MODEL ... --peers FOLDER [--note TEXT] [-o FILE]

FOLDER has the programs `onnxsim` and `onnxslim` (a virtual environment's bin). Each tool runs as a
command, one after the other. Results are compared with the original's in onnxruntime, without its
graph optimizations, on random inputs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from superopt.cost.machine import this_machine
from tests.support.preservation import POINTS, removes_identity

TOOLS = ("superopt", "onnxsim", "onnxslim")
TIMEOUT_S = 300
SIZES = (64, 224, 320, 32, 16, 1)  # that symbolic dimensions are tried with, in this order
DTYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float16)": np.float16,
    "tensor(int8)": np.int8, "tensor(uint8)": np.uint8,
}  # fmt: skip
HEAD = """# Simplified models

By `scripts/bench_simplify.py`, on {machine}, {day}; onnxruntime {version}. {note}

*nodes*: of the file, before and after each tool. *s*: seconds of the whole command. *error*: the
largest difference of an output from the original's, by the output's root mean square, in
onnxruntime without graph optimizations; *-*: the original did not run on random inputs.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool made of a model: nodes (-1: it failed), seconds, and error (None: unknown)."""

    nodes: int
    seconds: float
    error: float | None


def command(tool: str, peers: Path, source: Path, target: Path) -> list[str]:
    """Return the command of a tool."""
    if tool == "superopt":
        return [sys.executable, "-m", "superopt", "simplify", str(source), str(target), "--quiet"]
    return [str(peers / tool), str(source), str(target)]


def run_tool(tool: str, peers: Path, source: Path, target: Path) -> float:
    """Run a tool; return its seconds. There is no target if it failed."""
    begin = time.monotonic()
    try:
        subprocess.run(
            command(tool, peers, source, target), capture_output=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        target.unlink(missing_ok=True)
    return time.monotonic() - begin


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Return a session without graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_for(session: onnxruntime.InferenceSession) -> Iterator[dict[str, np.ndarray]]:
    """Yield random inputs, with other sizes of symbolic dimensions each time."""
    rng = np.random.default_rng(0)
    for size in SIZES:
        feed = {}
        for port in session.get_inputs():
            shape = [d if isinstance(d, int) and d > 0 else size for d in port.shape]
            if port.shape and not isinstance(port.shape[0], int):
                shape[0] = 1  # a batch
            dtype = DTYPES.get(port.type)
            if dtype is None:
                return
            kind = np.dtype(dtype).kind
            drawn = rng.standard_normal(shape) if kind == "f" else rng.integers(0, 2, shape)
            feed[port.name] = np.asarray(drawn).astype(dtype)
        yield feed


def original_results(path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]] | None:
    """Return inputs on which the original runs, and its results."""
    session = open_session(path)
    for feed in feeds_for(session):
        try:
            return feed, session.run(None, feed)
        except Exception:
            continue
    return None


def output_error(
    path: Path, expected: tuple[dict[str, np.ndarray], list[np.ndarray]] | None
) -> float | None:
    """Return the largest error of a model's outputs; infinite if they cannot be compared."""
    if expected is None:
        return None
    feed, wanted = expected
    try:
        found = open_session(path).run(None, feed)
    except Exception:
        return float("inf")
    if len(found) != len(wanted):
        return float("inf")
    worst = 0.0
    for a, b in zip(wanted, found, strict=True):
        if np.shape(a) != np.shape(b):
            return float("inf")
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        rms = float(np.sqrt(np.mean(np.square(x)))) if x.size else 1.0
        both = np.isfinite(x)
        if (both != np.isfinite(y)).any():
            return float("inf")
        gap = float(np.abs(x - y)[both].max()) if both.any() else 0.0
        worst = max(worst, gap / (rms or 1.0))
    return worst


def count_nodes(path: Path) -> int:
    """Return the nodes of a model file; -1 if there is none."""
    if not path.exists():
        return -1
    return len(onnx.load_model(path, load_external_data=False).graph.node)


def measure(model: Path, peers: Path, folder: Path) -> list[Result]:
    """Return the results of all tools for one model."""
    expected = original_results(model)
    out = []
    for tool in TOOLS:
        target = folder / f"{tool}-{model.name}"
        seconds = run_tool(tool, peers, model, target)
        nodes = count_nodes(target)
        out.append(Result(nodes, seconds, None if nodes < 0 else output_error(target, expected)))
    return out


def preserved(tool: str, peers: Path, folder: Path) -> list[bool]:
    """Return whether a tool keeps each point, in a model from which it removes a node."""
    kept = []
    for number, point in enumerate(POINTS):
        place = folder / f"{tool}-point{number}"
        place.mkdir()
        before = point.write(place / "m.onnx")
        run_tool(tool, peers, place / "m.onnx", place / "s.onnx")
        if not (place / "s.onnx").exists():
            kept.append(False)
            continue
        after = onnx.load_model(place / "s.onnx", load_external_data=False)
        kept.append(removes_identity(after) and point.keeps(before, after))
    return kept


def cell(result: Result, best: int) -> str:
    """Return the three cells of a result."""
    if result.nodes < 0:
        return f"fails | {result.seconds:.1f} | -"
    nodes = f"**{result.nodes}**" if result.nodes == best else str(result.nodes)
    error = "-" if result.error is None else "wrong" if result.error > 1 else f"{result.error:.0e}"
    return f"{nodes} | {result.seconds:.1f} | {error}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--note", default="")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args(arguments)
    lines = [
        HEAD.format(
            machine=this_machine().text, day=date.today().isoformat(),
            version=onnxruntime.__version__, note=given.note,
        ),
        "| model | before | " + " | ".join(f"{t} | s | error" for t in TOOLS) + " |",
        "|---|" + "--:|" * (1 + 3 * len(TOOLS)),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="superopt-") as name:
        folder = Path(name)
        for model in given.models:
            rows = measure(model, given.peers, folder)
            best = min(r.nodes for r in rows if r.nodes >= 0)
            cells = " | ".join(cell(r, best) for r in rows)
            lines.append(f"| {model.stem} | {count_nodes(model)} | {cells} |")
            print(lines[-1], file=sys.stderr, flush=True)
        kept = [preserved(tool, given.peers, folder) for tool in TOOLS]
    lines += ["", "## What survives", "", "| | " + " | ".join(TOOLS) + " |", "|---|:-:|:-:|:-:|"]
    for n, point in enumerate(POINTS):
        lines.append(
            f"| {point.name} | " + " | ".join("yes" if k[n] else "no" for k in kept) + " |"
        )
    totals = " | ".join(f"{sum(k)} of {len(POINTS)}" for k in kept)
    lines += [f"| together | {totals} |", ""]
    text = "\n".join(lines)
    if given.output is None:
        print(text)
    else:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
