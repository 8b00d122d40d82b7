"""Sizes at which the programs of a library are compiled, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import TYPE_CHECKING

from superopt.compilation.model.compile_class import level_examples
from superopt.onnx_io.import_.size_relation import SizeRelation
from superopt.te.expr.symbolic_int import SIZE_LEVELS

if TYPE_CHECKING:
    from superopt.compilation.cpu.library.library_code import LibraryProgram

LARGE_SIZES = tuple(1 << n for n in range(8, 21))


def more_examples(
    bases: Sequence[Mapping[str, int]], made: Sequence[LibraryProgram]
) -> Iterator[Mapping[str, int]]:
    """Yield bases, and examples around each in turn, in which sizes are related as there. made: the
    programs before; it grows."""
    yield from bases
    around = [_related_examples(base, p.relation) for base in bases for p in made
              if p.formulas.admits(base)]  # fmt: skip
    for examples in zip_longest(*around):
        yield from (each for each in examples if each is not None)


def _related_examples(
    base: Mapping[str, int], relation: SizeRelation
) -> Iterator[Mapping[str, int]]:
    for new in class_examples(relation.example(base)):
        sizes = relation.model_sizes(new)
        yield {name: sizes[name] for name in base}  # formulas number sizes in this order


def class_examples(base: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yield these sizes, those with one of another level, with some of other levels, and with a
    large one: kernels may differ where buffers exceed a cache.

    Of those with some, the ones come first in which few sizes differ from these, and which are
    alike: a batch of one image whose height and width are of one level.
    """
    yield base
    yield from level_examples(base)
    examples = [
        dict(zip(base, values, strict=True)) for values in product(*[SIZE_LEVELS[::-1]] * len(base))
    ]

    def distance(example: Mapping[str, int]) -> tuple[int, int]:
        changed = [n for name, n in example.items() if n != base[name]]
        return len(changed), len({*changed})

    yield from sorted(examples, key=distance)
    for value in LARGE_SIZES:
        yield from ({**base, name: value} for name in base)
