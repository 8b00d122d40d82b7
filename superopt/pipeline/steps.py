"""The steps of a compiled model: parts as machine code, and parts in onnxruntime."""

from collections.abc import Iterable, Iterator

from superopt.pipeline.branch import Branch as Branch
from superopt.pipeline.fallback import Fallback as Fallback
from superopt.pipeline.foreign import Arrays as Arrays
from superopt.pipeline.foreign import Foreign as Foreign
from superopt.pipeline.foreign import foreign as foreign
from superopt.pipeline.foreign import whole as whole
from superopt.pipeline.native import Native as Native

Step = Native | Foreign | Fallback | Branch


def natives(steps: Iterable[Step]) -> Iterator[Native]:
    """The steps that are machine code, those of branches that were compiled included."""
    for s in steps:
        if isinstance(s, Native):
            yield s
        elif isinstance(s, Branch):
            for part in s.parts:
                for inner in part.variants.values():
                    yield from natives(inner)
