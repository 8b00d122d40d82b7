#!/usr/bin/env python3
"""Errors of compiled models against the originals in float64: docs/benchmarks/accuracy.md.

    scripts/accuracy.py --models ../shared/models [--only resnet18,...] [--sets 2] [--out FILE]

Weights and inputs are drawn. Each model is compiled by the default call (convolutions in Winograd's
tiles, products by Strassen's parts), and again with float_class="E1" (neither), and its outputs are
compared with the original graph's in float64 (DESIGN section 14). Exits with 1 where one is not
within the tolerance. Large convolutions in float64 take minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import superopt
from superopt.cost.machine import this_machine
from superopt.onnx_io.read.weightless import draw_weights

HEAD = """# Accuracy of compiled models

By `scripts/accuracy.py`, on {machine}. Weights and {sets} set(s) of
inputs are drawn; the largest and the mean error of each output against the original graph in
float64 on the worst set, and what the graph in float32, evaluated operator by operator with numpy,
errs itself. An output passes where each element is within 1e-4 of itself and 1e-5 of the output's
rms, or where none errs more than 4 times as much as the original does. E2 is
the default, with Winograd's tiles and Strassen's parts; E1 is without.

| model | float class | output | largest error | mean | the original's largest | |
|---|---|---|---|---|---|---|
"""
SHAPES = {"batch": 1, "sequence": 128}


def rows(path: Path, sets: int) -> list[str]:
    out = []
    for float_class in ("E2", "E1"):
        exe = superopt.compile(path, threads=1, float_class=float_class)
        known = {name: n for name, n in SHAPES.items() if name in exe.model.size_bindings}
        for x in exe.accuracy(known, sets=sets).outputs:
            errors = " | ".join(
                f"{e:.1e}" for e in (x.max_error, x.mean_error, x.original_max_error)
            )
            said = x.failure or "passes"
            out.append(f"| {path.stem} | {float_class} | {x.name} | {errors} | {said} |")
            print(out[-1], flush=True)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="a folder of graphs")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the table, in Markdown")
    given = parser.parse_args()
    wanted = [x for x in given.only.split(",") if x]
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(given.models.glob("*.onnx")):
            if not wanted or path.stem in wanted:
                filled = Path(folder) / path.name
                filled.write_bytes(draw_weights(path).SerializeToString())
                found += rows(filled, given.sets)
                filled.unlink()
    if given.out is not None:
        head = HEAD.format(machine=this_machine().text, sets=given.sets)
        given.out.write_text(head + "\n".join(found) + "\n")
    return int(not all(row.endswith("| passes |") for row in found))


if __name__ == "__main__":
    sys.exit(main())
