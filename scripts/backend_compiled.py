#!/usr/bin/env python3
"""ONNX's node tests on compiled code: how many pass, and how many run wholly as kernels.

    scripts/backend_compiled.py [--out docs/benchmarks/backend_compiled.md]

Each case goes through `superopt.backend`, as tests/test_backend.py does, whose comparison and whose
list of cases that are no test of an operator are taken.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx

from superopt.backend import prepare
from superopt.compilation.frontend.input_arrays import has_symbolic_sizes
from superopt.errors import ModelError
from tests.support.onnx_io.node_tests import EXCEPT, arrays, same
from tests.support.ops import suite

HEAD = """# ONNX's node tests on compiled code

By `scripts/backend_compiled.py`, onnx {onnx}, {cases} cases; tested by `tests/test_backend.py`.

| cases | |
|---|---:|
"""


def outcome(name: str) -> tuple[str, str]:
    """What became of a case, and why."""
    if name in EXCEPT:
        return "left out", EXCEPT[name]
    case = suite.cases()[name]
    try:
        made = prepare(case.model)
        found = [(made.run(arrays(given)), arrays(out)) for given, out in case.data_sets]
    except ModelError as e:
        return "not run", e.what.split(":")[-1].strip() if "onnxruntime" not in e.what else e.what
    try:
        for got, wanted in found:
            for a, b in zip(got, wanted, strict=True):
                same(a, b)
    except AssertionError as e:
        return "wrong", str(e).strip().splitlines()[0]
    exe = made.executable
    some = exe.variants if has_symbolic_sizes(exe.input_ports) else {(): None}
    fallen = [n for sizes in some for n, _ in exe.fallback_nodes(dict(sizes))]
    if not fallen:
        return "wholly compiled", ""
    return "with nodes in onnxruntime", ", ".join(sorted({n.op.name for n in fallen}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/backend_compiled.md"))
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: outcome(name) for name in sorted(suite.cases())}
    count = Counter(kind for kind, _ in found.values())
    passed = count["wholly compiled"] + count["with nodes in onnxruntime"]
    rows = [
        ("passed", passed), ("of these, wholly compiled", count["wholly compiled"]),
        ("of these, with nodes in onnxruntime", count["with nodes in onnxruntime"]),
        ("wrong", count["wrong"]), ("not run by onnxruntime either", count["not run"]),
        ("left out", count["left out"]),
    ]  # fmt: skip
    text = HEAD.format(onnx=onnx.__version__, cases=len(found))
    text += "".join(f"| {what} | {n} |\n" for what, n in rows)
    for kind in ("wrong", "left out", "with nodes in onnxruntime", "not run"):
        some = Counter(why for k, why in found.values() if k == kind)
        text += f"\n## {kind.capitalize()}\n\n" + ("" if some else "None.\n")
        text += "| | cases |\n|---|---:|\n" if some else ""
        text += "".join(f"| {why} | {n} |\n" for why, n in some.most_common())
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
