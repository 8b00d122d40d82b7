"""Costs measured on one-node models, cached in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from superopt.cost.graph_cost import stable_seed
from superopt.cost.roofline import VIEW_OPS, count_operations, nbytes, roofline_us
from superopt.cost.signature import Signature
from superopt.cost.store import Key, Measurement, Store, Target
from superopt.onnx_io.export.exporter import ExportError
from superopt.onnx_io.export.one_node_model import one_node_model
from superopt.ort import Failure, Timing, time_single
from superopt.te.expr.dtype import STRING
from superopt.te.expr.tensor import TensorType

STORE_KIND = "onnx-node-v3"  # changes when the timed models change
COLD_WEIGHT_BYTES = 24 << 20  # of weights in one timed model: more than a second-level cache holds
MAX_COPIES = 32
MAX_STREAMED_OPS_PER_BYTE = (
    50.0  # operations per weight byte below which reading the weights dominates
)
MIN_NODE_US = 0.4  # the least time of a node in a graph (measured on Gathers)
CHUNK_BYTES = 192 << 20  # of models built before they are timed


def copy_count(s: Signature) -> int:
    """Return how many nodes to time together so that their weights come from memory, as in a real
    model.

    A product with few rows reads each weight once; timed alone, its weights would stay in the
    cache, and merging such products would appear to gain nothing.
    """
    weights = sum(nbytes(o.type) for o in s.operands if o is not None and o.constant)
    contracted, _ = count_operations(s)
    if weights < 1 << 17 or not contracted or contracted > MAX_STREAMED_OPS_PER_BYTE * weights:
        return 1
    return max(1, min(MAX_COPIES, int(COLD_WEIGHT_BYTES // weights)))


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
    ) -> Sequence[Timing | Failure]: ...


@dataclass(slots=True)
class MeasuredCostModel:
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
    kind: str = STORE_KIND
    timer: Timer = time_single
    measured_count: int = 0
    store_hits: int = 0
    estimated_count: int = 0

    def __call__(self, signatures: Sequence[Signature]) -> list[float]:
        keys = [self.key(s) for s in signatures]
        known = self.store.get([k for k in keys if k is not None])
        out: list[float | None] = []
        missing: list[int] = []
        for i, (s, k) in enumerate(zip(signatures, keys, strict=True)):
            if k is None:
                out.append(roofline_us(s, self.threads))
                self.estimated_count += 1
            elif k in known:
                out.append(max(known[k].us_low, MIN_NODE_US))
                self.store_hits += 1
            else:
                out.append(None)
                missing.append(i)
        if missing:
            self._measure(signatures, keys, missing, out)
        return [
            roofline_us(s, self.threads) if t is None else t
            for s, t in zip(signatures, out, strict=True)
        ]

    def key(self, s: Signature) -> Key | None:
        """Return the store key of `s`; None if it cannot be measured."""
        types = [o.type for o in s.operands if o is not None]
        if s.op.name in VIEW_OPS or any(t.dtype is None or t.dtype == STRING for t in types):
            return None
        if any(_is_empty(t) for t in (*types, *s.outputs)):
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
            self.estimated_count += len(missing)
            return
        pending: list[tuple[int, int, bytes]] = []
        done = 0
        for position, i in enumerate(missing):
            s = signatures[i]
            copies = copy_count(s)
            try:
                pending.append((i, copies, self._model(s, copies)))
            except (ExportError, MemoryError):
                self.estimated_count += 1
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
        rows: dict[Key, Measurement] = {}
        for (i, copies, _), t in zip(pending, timings, strict=True):
            if isinstance(t, Failure):
                self.estimated_count += 1
                continue
            key = keys[i]
            assert key is not None
            out[i] = max(t.us_low / copies, MIN_NODE_US)
            low, high = t.us_low / copies, t.us_high / copies
            rows[key] = Measurement(t.us_median / copies, low, high, t.runs, time.time())
            self.measured_count += 1
        self.store.put(rows)


def _is_empty(t: TensorType) -> bool:
    return any(d == 0 for d in t.shape or ())
