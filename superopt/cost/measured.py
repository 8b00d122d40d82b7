"""Costs measured in onnxruntime on one-node models, through the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.cost.model import stable_seed
from superopt.cost.roofline import VIEWS, roofline
from superopt.cost.signature import Signature
from superopt.cost.store import Key, Measured, Store, Target
from superopt.onnx_io.exporter import ExportError
from superopt.onnx_io.single import one_node_model
from superopt.ort import Failed, time_single
from superopt.te.dtype import STRING
from superopt.te.expr import TensorType

KIND = "onnx-node-v1"  # changes when what is timed changes


@dataclass(slots=True)
class MeasuredClock:
    """A clock that times one-node models in onnxruntime and remembers them in `store`.

    Counts what it measured and what the store knew. After `deadline` (time.monotonic) or once
    `stop()` is true it falls back to the roofline and stores nothing.
    """

    store: Store
    target: Target
    opset: int
    ir_version: int
    threads: int
    deadline: float = float("inf")
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], None] = lambda done, all: None
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
                out.append(known[k].us_median)
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
        """Where the store keeps `s`; None where it cannot be measured."""
        types = [o.type for o in s.operands if o is not None]
        if s.op.name in VIEWS or any(t.dtype is None or t.dtype == STRING for t in types):
            return None
        if any(_empty(t) for t in (*types, *s.outputs)):
            return None
        shapes = tuple(tuple(int(d) for d in t.shape or ()) for t in types)  # type: ignore[arg-type]
        flags = "".join("-" if o is None else "c" if o.constant else "v" for o in s.operands)
        attrs = ", ".join(f"{k}={v}" for k, v in s.attrs)
        text = f"{s.op.name}[{flags}]({attrs}) opset {self.opset}"
        return Key(KIND, text, shapes, tuple(str(t.dtype) for t in types), self.target)

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
        models: list[bytes] = []
        which: list[int] = []
        for i in missing:
            s = signatures[i]
            try:
                models.append(
                    one_node_model(
                        s.op,
                        [None if o is None else (o.type, o.constant) for o in s.operands],
                        s.attrs,
                        s.outputs,
                        opset=self.opset,
                        ir_version=self.ir_version,
                        seed=stable_seed(s),
                    )
                )
                which.append(i)
            except (ExportError, MemoryError):
                self.estimated += 1
        timings = time_single(
            models,
            threads=self.threads,
            seconds=None if left == float("inf") else left,
            stop=self.stop,
            done=lambda n: self.progress(n, len(models)),
        )
        rows: dict[Key, Measured] = {}
        for i, t in zip(which, timings, strict=True):
            if isinstance(t, Failed):
                self.estimated += 1
                continue
            key = keys[i]
            assert key is not None
            out[i] = t.us_median
            rows[key] = Measured(t.us_median, t.us_low, t.us_high, t.runs, time.time())
            self.measured += 1
        self.store.put(rows)


def _empty(t: TensorType) -> bool:
    return any(d == 0 for d in t.shape or ())
