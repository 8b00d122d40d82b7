"""Tables of plain text."""

from collections.abc import Collection, Iterable, Iterator, Sequence

SHOWN = 12  # rows of a list before "and n more"


def table(
    rows: Iterable[Sequence[str]], shown: int = SHOWN, numbers: Collection[int] = ()
) -> Iterator[str]:
    """Yield the rows in columns, two spaces apart and indented by two; `numeric_columns` are
    right-aligned."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells[:shown], strict=True)]
    for row in cells[:shown]:
        padded = (
            cell.rjust(width) if n in numbers else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(padded)}".rstrip()
    if len(cells) > shown:
        yield f"  and {len(cells) - shown} more"


def joined(lines: Iterable[str]) -> str:
    """Join the lines to a text that ends in a newline."""
    return "\n".join(lines) + "\n"
