"""A model's graph before and after an optimization: plain data for drawings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a model's file. inputs, outputs: names of values; "" for one that is left out.
    attributes: as text."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str


@dataclass(frozen=True, slots=True)
class StepNodes:
    """Indices of the nodes that a step replaced, and of those in the result that come from it.

    after: where the step's result is, if it made no node that is still there.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphChange:
    """Both graphs without Constant nodes and weights.

    inputs, outputs: names of both graphs' inputs and outputs. kept: pairs of indices of nodes that
    are in both. steps: the nodes of each step, in the order of the report's steps.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    before: tuple[GraphNode, ...]
    after: tuple[GraphNode, ...]
    kept: tuple[tuple[int, int], ...]
    steps: tuple[StepNodes, ...]
