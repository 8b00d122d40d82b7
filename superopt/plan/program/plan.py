"""The state that passes rewrite: tensor definitions first, kernels and buffers at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from superopt.ir import graph as ir_graph
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.calls import Ref
from superopt.kernels.loops.layout import Layout, row_major
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.tile import Kernel
from superopt.kernels.processor import ZEN5, Processor
from superopt.plan.lowering.graph_tensors import GraphTensors
from superopt.plan.lowering.state_memories import State
from superopt.plan.program.program import Program
from superopt.plan.program.storage_types import StorageTypes
from superopt.plan.program.streams import StreamOrder
from superopt.plan.program.target import CPU, Target
from superopt.plan.rewrites.reductions.strided_softmax import AxisOrder
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """What a plan is made for.

    vector_bytes: bytes of a vector register of the target. options: how to solve problems, by key;
    the default option is used for all others. allow_winograd: use Winograd and Strassen.
    allow_dilated_winograd: use Winograd for dilated convolutions, too, in tiles of every d-th
    element. processor: whose costs decide. states: outputs in the memory of inputs.
    threads: that share each kernel. fuses_operators: False: each operator's result is in memory, to
    measure what fusion gains. bf16_instructions: of products in bfloat16, and
    integer_instructions: of uint8 and int8; see Problem.
    """

    vector_bytes: int
    options: Mapping[str, Option] = field(default_factory=dict)
    allow_winograd: bool = True
    allow_dilated_winograd: bool = True
    processor: Processor = ZEN5
    target: Target = CPU
    states: tuple[State, ...] = ()
    threads: int = 1
    fuses_operators: bool = True
    bf16_instructions: str = ""
    integer_instructions: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call before its buffers have offsets. read_offsets: bytes into each buffer that is
    read."""

    kernel: Kernel
    reads: tuple[Tensor, ...]
    target: Tensor
    problem: str
    result: Tensor
    read_offsets: tuple[int, ...]


@dataclass(slots=True)
class Plan:
    """A graph on its way to a program.

    definitions: the definition of each tensor that a kernel computes, producers first; it loads
    keys of this table, inputs, constants, and tensors that its own kernel computes (stages).
    materialized: the tensors that must be in memory. image_copies: copies over which windows slide.
    tree_walk_steps: the steps of tree walks. layouts: those that are not row-major. batch_ranks:
    for kernels of rows, how many leading axes select a row. axis_orders: the order of the axes of
    kernels that compute a permuted result. partial_sums: the parts of split reductions.

    storage: element types in memory. direct: tensors computed without Winograd and Strassen.
    steps, problems, chosen, places: kernel calls, what they solve, how, and where arguments are.
    stream_order: the stream of each step. program: the result.
    """

    graph: ir_graph.Graph
    sizes: Mapping[str, int]
    settings: Settings
    tensors: GraphTensors
    outputs: Sequence[Tensor] = ()
    definitions: Mapping[Tensor, Tensor] = field(default_factory=dict)
    materialized: set[Tensor] = field(default_factory=set)
    image_copies: set[Tensor] = field(default_factory=set)
    tree_walk_steps: set[Tensor] = field(default_factory=set)
    layouts: dict[Tensor, Layout] = field(default_factory=dict)
    batch_ranks: dict[Tensor, int] = field(default_factory=dict)
    axis_orders: Mapping[Tensor, AxisOrder] = field(default_factory=dict)
    partial_sums: set[Tensor] = field(default_factory=set)
    storage: StorageTypes | None = None
    direct: set[Tensor] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    problems: dict[str, Problem] = field(default_factory=dict)
    chosen: dict[str, Option] = field(default_factory=dict)
    places: dict[Tensor, Ref] = field(default_factory=dict)
    stream_order: StreamOrder | None = None
    program: Program | None = None

    @property
    def target(self) -> Target:
        return self.settings.target

    @property
    def is_fp16(self) -> bool:
        """True if float32 values are stored in 16 bits."""
        return self.target.storage_dtype is not None

    def buffer_bytes(self, t: Tensor) -> int:
        """Return the bytes of a tensor in its layout and storage type."""
        assert self.storage is not None
        layout = self.layouts.get(t) or row_major(t.rank)
        return prod(layout.shape(t.sizes)) * max(self.storage.dtype_of(t).bits // 8, 1)

    def operator_results(self) -> set[Tensor]:
        """Return the tensors of operators that have an expression."""
        some = self.tensors.by_value.values()
        return {t for t in some if isinstance(t, Tensor) and t.body is not None}

    def written_parts(self) -> dict[Tensor, list[Tensor]]:
        """Return, for each tensor that is written in parts, the tensors of its parts, each after
        its positions in memory."""
        placements = self.tensors.placements
        return {
            t: [
                y
                for x in some
                for y in ([placements[x.tensor].positions] if x.tensor in placements else [])
                + [x.tensor]
            ]
            for t, some in self.tensors.parts.items()
        }
