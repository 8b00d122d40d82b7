"""Costs measured on one-node models, cached in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from superopt.cost.model import stable_seed
from superopt.cost.roofline import VIEWS, nbytes, operations, roofline
from superopt.cost.signature import Signature
from superopt.cost.store import Key, Measured, Store, Target
from superopt.onnx_io.export.exporter import ExportError
from superopt.onnx_io.export.one_node_model import one_node_model
from superopt.ort import Failed, Timing, time_single
from superopt.te.expr.dtype import STRING
from superopt.te.expr.tensor import TensorType

KIND = "onnx-node-v3"  # changes when the timed models change
COLD_BYTES = 24 << 20  # of weights in one timed model: more than a second-level cache holds
MOST_COPIES = 32
STREAMED = 50.0  # operations per weight byte below which reading the weights dominates
LEAST_US = 0.4  # the least time of a node in a graph (measured on Gathers)
CHUNK_BYTES = 192 << 20  # of models built before they are timed


def copies_of(s: Signature) -> int:
    """Return how many nodes to time together so that their weights come from memory, as in a real
    model.

    A product with few rows reads each weight once; timed alone, its weights would stay in the
    cache, and merging such products would appear to gain nothing.
    """
    weights = sum(nbytes(o.type) for o in s.operands if o is not None and o.constant)
    contracted, _ = operations(s)
    if weights < 1 << 17 or not contracted or contracted > STREAMED * weights:
        return 1
    return max(1, min(MOST_COPIES, int(COLD_BYTES // weights)))


class Timer(Protocol):
    """Times one-node models, in the given order; see `superopt.ort.time_single`."""

    def __call__(
        self,
        models: Sequence[bytes],
        /,
        *,
        threads: int,
        seconds: float | None,
        stop: Callable[[], bool],
    ) -> Sequence[Timing | Failed]: ...


@dataclass(slots=True)
class MeasuredClock:
    """A cost model that times one-node models and caches the times in `store`.

    kind: of the store's entries; timer: runs the models, in onnxruntime by default. The cost is the
    10th percentile: disturbances only add to a measurement. Counts measurements and store hits.
    After `deadline` (time.monotonic) or once `stop()` is true it falls back to the roofline and
    stores nothing.
    """

    store: Store
    target: Target
    opset: int
    ir_version: int
    threads: int
    deadline: float = float("inf")
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], None] = lambda done, all: None
    kind: str = KIND
    timer: Timer = time_single
    measured: int = 0
    hits: int = 0
    estimated: int = 0

    def __call__(self, signatures: Sequence[Signature]) -> list[float]:
        keys = [self.key(s) for s in signatures]
        known = self.store.get([k for k in keys if k is not None])
        out: list[float | None] = []
        missing: list[int] = []
        for i, (s, k) in enumerate(zip(signatures, keys, strict=True)):
            if k is None:
                out.append(roofline(s, self.threads))
                self.estimated += 1
            elif k in known:
                out.append(max(known[k].us_low, LEAST_US))
                self.hits += 1
            else:
                out.append(None)
                missing.append(i)
        if missing:
            self._measure(signatures, keys, missing, out)
        return [
            roofline(s, self.threads) if t is None else t
            for s, t in zip(signatures, out, strict=True)
        ]

    def key(self, s: Signature) -> Key | None:
        """Return the store key of `s`; None if it cannot be measured."""
        types = [o.type for o in s.operands if o is not None]
        if s.op.name in VIEWS or any(t.dtype is None or t.dtype == STRING for t in types):
            return None
        if any(_empty(t) for t in (*types, *s.outputs)):
            return None
        shapes = tuple(tuple(int(d) for d in t.shape or ()) for t in types)  # type: ignore[arg-type]
        flags = "".join("-" if o is None else "c" if o.constant else "v" for o in s.operands)
        attrs = ", ".join(f"{k}={v}" for k, v in s.attrs)
        text = f"{s.op.name}[{flags}]({attrs}) opset {self.opset}"
        return Key(self.kind, text, shapes, tuple(str(t.dtype) for t in types), self.target)

    def _measure(
        self,
        signatures: Sequence[Signature],
        keys: Sequence[Key | None],
        missing: list[int],
        out: list[float | None],
    ) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0 or self.stop():
            self.estimated += len(missing)
            return
        pending: list[tuple[int, int, bytes]] = []
        done = 0
        for position, i in enumerate(missing):
            s = signatures[i]
            copies = copies_of(s)
            try:
                pending.append((i, copies, self._model(s, copies)))
            except (ExportError, MemoryError):
                self.estimated += 1
            full = sum(len(m) for _, _, m in pending) > CHUNK_BYTES
            if pending and (full or position == len(missing) - 1):
                self._time(pending, keys, out)
                done += len(pending)
                pending = []
                self.progress(done, len(missing))

    def _model(self, s: Signature, copies: int) -> bytes:
        return one_node_model(
            s.op,
            [None if o is None else (o.type, o.constant) for o in s.operands],
            s.attrs,
            s.outputs,
            opset=self.opset,
            ir_version=self.ir_version,
            seed=stable_seed(s),
            copies=copies,
        )

    def _time(
        self,
        pending: Sequence[tuple[int, int, bytes]],
        keys: Sequence[Key | None],
        out: list[float | None],
    ) -> None:
        left = self.deadline - time.monotonic()
        timings = self.timer(
            [m for _, _, m in pending],
            threads=self.threads,
            seconds=None if left == float("inf") else max(left, 0.0),
            stop=self.stop,
        )
        rows: dict[Key, Measured] = {}
        for (i, copies, _), t in zip(pending, timings, strict=True):
            if isinstance(t, Failed):
                self.estimated += 1
                continue
            key = keys[i]
            assert key is not None
            out[i] = max(t.us_low / copies, LEAST_US)
            low, high = t.us_low / copies, t.us_high / copies
            rows[key] = Measured(t.us_median / copies, low, high, t.runs, time.time())
            self.measured += 1
        self.store.put(rows)


def _empty(t: TensorType) -> bool:
    return any(d == 0 for d in t.shape or ())
