"""What bench_gpu.py found, as a table: our times beside the better of torch's modes, how far each
is from what the GPU can do at most, and why.

The limit is the GPU's (`gpu_checks.most`; an H100's: 800 TFLOP/s of halves, half of it of tf32, and
3 TB/s). A model must take at least what its kernels must, each the longer of its operations and of
the bytes that it reads and writes once. What a kernel takes beyond that is its launch, as long as
an empty one takes, and the rest: blocks that do not fill the multiprocessors, steps that wait for
memory, what is read twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

LAUNCH = 1.5e-6  # s
GOALS = {1: 1.15, 16: 1.05}  # geometric means that are wanted, by batch
LEAST = 0.9  # of each
HIGHER = {"nasrnn": 3.0}


def least(part: Any, most: Any) -> float:
    """Seconds that a kernel must take. most: what the GPU can do (`gpu_checks.most`)."""
    return float(max(part.operations / most.flops, part.bytes / most.bandwidth))


def limit(parts: Sequence[Any], most: Any) -> float:
    """Of all kernels, in ms."""
    return 1e3 * sum(least(p, most) for p in parts)


def why(parts: Sequence[Any], most: Any) -> str:
    """Shares of the kernels' times, each alone: of the limit, of launches, of the rest by kind of
    kernel, or by the vendor's library that computes it, the largest first."""
    total = sum(p.seconds for p in parts)
    if not total:
        return ""
    rest: dict[str, float] = defaultdict(float)
    launches = limit_ = 0.0
    for p in parts:
        must = min(least(p, most), p.seconds)
        begin = min(LAUNCH, p.seconds - must)
        limit_ += must
        launches += begin
        vendor = re.search(r": (cu\w+|torch's attention)", p.how)
        rest[vendor[1] if vendor else p.how.split()[0]] += p.seconds - must - begin
    kinds = sorted(rest.items(), key=lambda x: -x[1])
    shown = [("limit", limit_), (f"{len(parts)} launches", launches), *kinds[:2]]
    return ", ".join(f"{name} {t / total:.0%}" for name, t in shown)


def ratio(case: Mapping[str, Any]) -> tuple[str, float] | None:
    """The better one of torch's modes, and its time by ours, in turns where they were taken so."""
    peers = case.get("peers", {})
    if not peers or "ms" not in case:
        return None
    mode = min(peers, key=lambda m: peers[m])
    return mode, peers[mode] / case.get("beside", {}).get(mode, case["ms"])


def as_called(case: Mapping[str, Any]) -> float | None:
    """The same, each of torch's modes beside ours as it is called: of eager mode the graph alone is
    replayed, as ours is; compiled functions are called with tensors, as `exe.run` is."""
    peers = case.get("peers", {})
    if not peers or "calls" not in case:
        return None
    return float(min(t / case["ms" if mode == "graph" else "calls"] for mode, t in peers.items()))


def table(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """By precision and batch. cases: by "name precision batch"."""
    groups: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for key, case in cases.items():
        name, precision, batch = key.split()
        if "ms" in case or case.get("failed"):
            groups[precision, int(batch)][name] = case
    some = sorted(groups.items(), key=lambda x: (x[0][1], x[0][0]))
    return "\n".join(line for (p, n), own in some for line in _group(p, n, own))


def _group(precision: str, batch: int, own: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"## Batch {batch}, {precision}"
    yield ""
    yield (
        "| model | superopt ms | torch ms | by | in turns | ratio | as called | limit ms "
        "| that is x | calls ms | kernels | error / rms | compile s "
        "| why (shares of kernels' times alone) |"
    )
    yield "|---" * 14 + "|"
    found: dict[str, float] = {}
    called: dict[str, float] = {}
    for name, case in own.items():
        best = ratio(case)
        if best is not None:
            found[name] = best[1]
        if (both := as_called(case)) is not None:
            called[name] = both
        yield _row(name, case, best)
    yield ""
    yield from _sum(batch, found, "As graphs: ")
    yield from _sum(batch, called, "As called: ")
    yield from _accurate({name: x["accuracy"] for name, x in own.items() if "accuracy" in x})
    for name, case in own.items():
        yield from (
            f"{name}, {step} failed: {text}" for step, text in case.get("failed", {}).items()
        )
    yield ""


def _row(name: str, case: Mapping[str, Any], best: tuple[str, float] | None) -> str:
    if "ms" not in case:
        return f"| {name} | failed |" + " |" * 12
    ms, bound = case["ms"], case.get("limit", 0.0)
    mode, how = best or ("", 0.0)
    turns = mode in case.get("beside", {})
    cells = [
        name, f"{ms:.3f}", f"{case['peers'][mode]:.3f}" if mode else "", mode,
        "yes" if turns else "", f"{how:.2f}" if mode else "",
        "" if (called := as_called(case)) is None else f"{called:.2f}", f"{bound:.4f}",
        f"{ms / bound:.1f}" if bound else "", f"{case['calls']:.3f}" if "calls" in case else "",
        f"{case['kernels']}", f"{case['error']:.1e}",
        f"{case.get('seconds', case['compile s']):.1f}", case.get("why", ""),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _accurate(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Of DESIGN section 14: by model, what gpu_checks.accuracy said."""
    if not found:
        return
    right = [name for name, x in found.items() if x["ok"]]
    yield (
        f"Within the tolerance of DESIGN section 14: {len(right)} of {len(found)}. The largest"
        " error by the output's rms, and that of the original, all of it in this precision: "
        + ", ".join(f"{n} {x['errors'][0]:.1e} ({x['errors'][1]:.1e})" for n, x in found.items())
        + "."
    )
    yield from (f"{n}: {x['why']}" for n, x in found.items() if not x["ok"])


def _sum(batch: int, found: Mapping[str, float], what: str) -> Iterator[str]:
    if not found:
        return
    mean = float(np.exp(np.mean(np.log([*found.values()]))))
    goal = f" ({GOALS[batch]} wanted)" if batch in GOALS else ""
    low = min(found, key=lambda n: found[n])
    yield (
        f"{what}geometric mean of {len(found)} ratios: {mean:.2f}{goal}; the lowest is {low}'s, "
        f"{found[low]:.2f} ({LEAST} wanted)."
    )
    for name, wanted in HIGHER.items():
        if name in found:
            yield f"{what}{name}: {found[name]:.2f} ({wanted:.0f} wanted)."
    yield ""
