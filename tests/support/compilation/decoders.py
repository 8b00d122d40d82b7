"""A small decoder whose past grows, its inputs, and what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from scripts.decoder_models import Size, growing_decoder

SIZE = Size(layers=2, width=32, heads=4, vocabulary=50, positions=96)
DECODER = growing_decoder(SIZE)
MASK_SIZE = "past_sequence_length___sequence_length"
STATE = {f"present.{n}.{k}": f"past_key_values.{n}.{k}" for n in range(2) for k in ("key", "value")}
RELATIVE_TOLERANCE = 2e-5  # of the largest element
Feeds = dict[str, np.ndarray]


def session(m: onnx.ModelProto) -> Callable[[Feeds], Feeds]:
    """Return a function that runs a model in onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    made = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in made.get_outputs()]
    return lambda feeds: dict(zip(names, made.run(None, feeds), strict=True))


def tokens(batch: int, past: int, sequence: int) -> Feeds:
    """The inputs except the past; the mask hides some tokens."""
    rng = np.random.default_rng((batch, past, sequence))
    mask = np.ones((batch, past + sequence), np.int64)
    for row in mask:
        row[: rng.integers(0, past + sequence)] = 0
    at = np.broadcast_to(np.arange(past, past + sequence), (batch, sequence))
    ids = rng.integers(0, SIZE.vocabulary, (batch, sequence))
    return {"input_ids": ids, "position_ids": at.copy(), "attention_mask": mask}


def feeds_at(batch: int, past: int, sequence: int) -> Feeds:
    rng = np.random.default_rng((past, batch))
    shape = (batch, SIZE.heads, past, SIZE.head)
    caches = {name: rng.standard_normal(shape).astype(np.float32) for name in STATE.values()}
    return {**tokens(batch, past, sequence), **caches}


def sizes_at(batch: int, past: int, sequence: int, mask_size: str = MASK_SIZE) -> dict[str, int]:
    return {
        "batch_size": batch, "past_sequence_length": past, "sequence_length": sequence,
        mask_size: past + sequence,
    }  # fmt: skip


def check_outputs(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, x in wanted.items():
        assert got[name].shape == x.shape
        limit = RELATIVE_TOLERANCE * np.abs(x).max(initial=1e-6)
        assert np.abs(got[name] - x).max(initial=0) <= limit, name
