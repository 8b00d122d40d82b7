"""What the stages after a search take, predicted, so that a search leaves time for them.

They are proportional to a model's bytes and to its run time. The rates were measured on a model of
2.3 GB, on one core of a Xeon (family 6, model 167), in a virtual machine.
"""

from __future__ import annotations

from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import folded_bytes
from superopt.optimization.candidate import is_large, kept_values
from superopt.verification.original import Original

CHECK_RUN_RATIO = 22.0  # of a check on one set of inputs, in runs of the original in ONNX Runtime
FOLDED_BYTES_PER_SECOND = 0.2e9  # computed by numpy
WRITTEN_BYTES_PER_SECOND = 0.9e9  # copied by the system, and synced
CERTIFIED_BYTES_PER_SECOND = 0.4e9  # hashed, and compared with the original's
COMPILED_BYTES_PER_SECOND = 0.08e9  # read, packed and timed in another process
MIN_COMPARED_SECONDS = 6.0  # for compiling a small result and timing it
RACE_RUNS = 14  # of a race: five rounds of two models, and two runs of each before
LEVELS_TRIED = 4  # of ONNX Runtime's optimizations, beside the highest


def check_seconds(original: Original, graph: ir_graph.Graph) -> float:
    """Return the predicted seconds for folding, writing, loading and checking a graph."""
    source = original.model.source
    folded = folded_bytes(graph, kept_values(original.model)) / FOLDED_BYTES_PER_SECOND
    runs = CHECK_RUN_RATIO * original.run_us * 1e-6
    written = source.size_bytes / WRITTEN_BYTES_PER_SECOND
    return folded + written + original.session.load_seconds + runs


def race_seconds(original: Original) -> float:
    """Return the predicted seconds of the shortest race of one candidate."""
    loaded = original.session.load_seconds if is_large(original.model.source) else 0.0
    return loaded + RACE_RUNS * original.run_us * 1e-6


def finish_seconds(size_bytes: int) -> float:
    """Return the predicted seconds for the certificate of a model, and for writing it."""
    return size_bytes / CERTIFIED_BYTES_PER_SECOND + save_seconds(size_bytes)


def save_seconds(size_bytes: int) -> float:
    """Return the predicted seconds for writing a model to another folder."""
    return size_bytes / WRITTEN_BYTES_PER_SECOND


def compare_compiled_seconds(size_bytes: int) -> float:
    """Return the predicted seconds for compiling a model and timing it beside ONNX Runtime."""
    return MIN_COMPARED_SECONDS + size_bytes / COMPILED_BYTES_PER_SECOND


def levels_seconds(original: Original) -> float:
    """Return the predicted seconds for a run of a model at ONNX Runtime's other levels."""
    return LEVELS_TRIED * (original.session.load_seconds + 4e-6 * original.run_us)
