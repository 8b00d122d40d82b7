"""Damaged models: structured mutants of small valid ones, the same for the same seed.

Not all are invalid: two equal operands swapped is a model still.  Whoever reads one must accept
it or say what is wrong with it, and nothing else.
"""

import random
from collections.abc import Callable, Iterator
from inspect import isfunction, signature

import onnx

from tests.support.onnx_io import mutations
from tests.support.onnx_io.models import MODELS

# Every function of the module that takes a model and a source of random numbers.
MUTATIONS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = tuple(
    item
    for item in vars(mutations).values()
    if isfunction(item) and list(signature(item).parameters) == ["model", "rng"]
)


def mutants(seed: int) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every mutant; a mutation that changes nothing gives none."""
    seen: set[bytes] = set()
    for kind, build in MODELS.items():
        original = build().SerializeToString()
        seen.add(original)
        for mutation in MUTATIONS:
            rng = random.Random(f"{seed} {kind} {mutation.__name__}")
            model = onnx.ModelProto.FromString(original)
            try:
                mutation(model, rng)
            except mutations.Unfit:
                continue
            data = model.SerializeToString()
            if data not in seen:
                seen.add(data)
                yield f"{kind}-{mutation.__name__}", data
        for name, data in _damaged(original, random.Random(f"{seed} {kind}")):
            if data not in seen:
                seen.add(data)
                yield f"{kind}-{name}", data


def _damaged(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Truncations, flipped bits, bytes lost and inserted; protobuf may or may not notice."""
    for part in (0, 1, 2, len(data) // 3, len(data) // 2, len(data) - 3, len(data) - 1):
        yield f"first_{part}_bytes", data[:part]
    for flip in range(6):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        yield f"flip_{flip}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    at = rng.randrange(len(data))
    yield "bytes_lost", data[:at] + data[at + 5 :]
    yield "bytes_inserted", data[:at] + rng.randbytes(9) + data[at:]
    yield "twice", data + data
