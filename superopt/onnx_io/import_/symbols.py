"""Names of symbolic sizes: the file's names, and ours, which our syntax can print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.syntax import is_plain_name
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Dim

FileDim = int | str | None  # None: the file does not say, and gives it no name


@dataclass(slots=True)
class Symbols:
    """The symbolic sizes of one model; `names` maps the file's names to ours. replaced: what stands
    for some of ours: other sizes, or expressions of these."""

    declared_names: frozenset[
        str
    ]  # names in the file, none of which may be given to a nameless size
    replaced: Mapping[str, Dim] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def named_size(self, text: str) -> Dim:
        """Return the size that the file calls `text`."""
        if text not in self.names:
            base = re.sub(r"\W", "_", text, flags=re.ASCII)
            base = base if is_plain_name(base) else f"d_{base}"
            name, n = base, 1
            while name in self._taken:
                n += 1
                name = f"{base}_{n}"
            self._taken.add(name)
            self.names[text] = name
        name = self.names[text]
        return self.replaced.get(name, Size(name))

    def unnamed_size(self, value: str, axis: int) -> Dim:
        """Return a size for an axis without a name: a new one for each axis."""
        text = f"{value}_d{axis}"
        while text in self.declared_names:
            text += "_"
        return self.named_size(text)

    def shape(self, dims: Sequence[FileDim] | None, value: str) -> tuple[Dim, ...] | None:
        """Return the shape that the file declares for `value`."""
        if dims is None:
            return None
        return tuple(
            d
            if isinstance(d, int)
            else (self.named_size(d) if d else self.unnamed_size(value, axis))
            for axis, d in enumerate(dims)
        )


def dim_names(shapes: Iterable[Sequence[FileDim] | None]) -> frozenset[str]:
    """Return the names of sizes in shapes of the file."""
    return frozenset(d for dims in shapes for d in dims or () if isinstance(d, str))
