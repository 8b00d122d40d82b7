#!/usr/bin/env python3
"""ONNX's node tests through `superopt.optimize`: does onnxruntime give the same before and after?

    scripts/suite_optimize.py [--seconds 600]

Costs are estimates (roofline), so nothing is timed; every graph that changed is run in onnxruntime
wherever that runs the original. Exits 1 when a result differs or a changed model does not run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from superopt import ort  # noqa: E402
from superopt.api.functions import optimize  # noqa: E402
from superopt.errors import SuperoptError  # noqa: E402
from tests.support.ops.suite import cases  # noqa: E402

RTOL, ATOL = 1e-3, 1e-5


def same(a: object, b: object) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True  # no tensor: not compared
    if a.dtype.kind in "fc":
        return bool(np.allclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True))
    return bool(np.array_equal(a, b))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    end = time.monotonic() + parser.parse_args().seconds
    tried = changed = unrun = 0
    bad: list[str] = []
    refused: list[str] = []
    for name, case in sorted(cases().items()):
        if time.monotonic() > end:
            break
        tried += 1
        try:
            done = optimize(case.model, cost="roofline", budget=3)
        except SuperoptError as e:
            refused.append(f"{name}: {e.what}")
            continue
        if not done.changed:
            continue
        changed += 1
        inputs, _ = case.data_sets[0]
        names = (i.name for i in case.model.graph.input)
        feeds = {n: np.asarray(v) for n, v in zip(names, inputs, strict=False)}
        try:
            before = ort.run(ort.load_session(case.model.SerializeToString()), feeds)
        except Exception:
            unrun += 1  # its own element types or operators
            continue
        try:
            after = ort.run(ort.load_session(done.model.SerializeToString()), feeds)
        except Exception as e:
            bad.append(f"{name}: {e}")
            continue
        if not all(same(before[n], after[n]) for n in before):
            bad.append(f"{name}: results differ")
    print(f"{tried} cases, {changed} changed, {unrun} of them not run by onnxruntime before")
    print(f"{len(refused)} refused: {'; '.join(refused)}")
    print(f"{len(bad)} regressions: {'; '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
