"""Run ONNX's node tests on the operators' tensor expressions and write what came of it.

    python scripts/backend_suite.py

writes docs/benchmarks/backend_suite.md (the numbers) and tests/ops/backend_suite.txt (the cases
that must run, which tests/ops/test_backend_suite.py reads). Exits 1 when a case that can run fails.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402

from superopt.ops import OPS  # noqa: E402
from tests.support.ops import suite  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "backend_suite.md"


def main() -> int:
    start = time.perf_counter()
    cases = suite.cases()
    loaded = time.perf_counter()
    listed: list[tuple[str, bool]] = []
    failed: list[str] = []
    left: dict[str, list[str]] = defaultdict(list)
    for name, case in cases.items():
        prepared = suite.prepare(case)
        if isinstance(prepared, suite.LeftOut):
            left[prepared.reason].append(name)
            continue
        listed.append((name, bool(prepared.bound)))
        try:
            suite.run(prepared)
        except Exception as error:  # every failure is one line here; the test shows it in full
            failed.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    seconds = time.perf_counter() - loaded
    suite.write_list(listed, (name for names in left.values() for name in names))
    PAGE.write_text(page(len(cases), listed, failed, left), encoding="utf-8")
    print("\n".join(failed))
    print(f"{len(listed) - len(failed)} of {len(listed)} passed; {PAGE}")
    print(f"loading {loaded - start:.1f} s, running {seconds:.1f} s")
    if left.get(""):
        print(f"no reason in the tables for: {', '.join(left[''])}")
    return 1 if failed or left.get("") else 0


def page(
    total: int,
    listed: list[tuple[str, bool]],
    failed: list[str],
    left: dict[str, list[str]],
) -> str:
    """docs/benchmarks/backend_suite.md."""
    bound = sum(b for _, b in listed)
    standard = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    count = Counter({why or "no reason given": len(names) for why, names in left.items()})
    rows = "\n".join(f"| {why} | {n} |" for why, n in count.most_common())
    defined = len(standard & set(OPS))
    bad = "\n".join(f"- {line}" for line in failed) or "None."
    return f"""# ONNX's node tests on the tensor expressions

Written by `python scripts/backend_suite.py`, tested by `tests/ops/test_backend_suite.py`.
onnx {onnx.__version__} has {len(standard)} standard operators; {defined} have a tensor expression.

| cases | |
|---|---:|
| of the suite | {total} |
| run | {len(listed)} |
| of these, run as they are | {len(listed) - bound} |
| of these, run with shape-like operands bound as constants | {bound} |
| passed | {len(listed) - len(failed)} |
| left out | {total - len(listed)} |

A case is run when every node of its model has a tensor expression. Element types, shapes, integers,
bools and strings must be equal, floats within the case's own tolerances (bfloat16 within two of its
steps, as onnx's own runner compares it, because those tolerances are finer than one). Where an
operand that only says a shape or an axis is an input of the case's model, it is bound to the
case's value.

## Left out

| why | cases |
|---|---:|
{rows}

## Failed

{bad}
"""


if __name__ == "__main__":
    sys.exit(main())
