"""Tables of plain text."""

from collections.abc import Collection, Iterable, Iterator, Sequence

MAX_ROWS = 12  # rows of a list before "and n more"


def table(
    rows: Iterable[Sequence[str]], max_rows: int = MAX_ROWS, numeric_columns: Collection[int] = ()
) -> Iterator[str]:
    """Yield the rows in columns, two spaces apart and indented by two; `numeric_columns` are
    right-aligned."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells[:max_rows], strict=True)]
    for row in cells[:max_rows]:
        padded = (
            cell.rjust(width) if n in numeric_columns else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(padded)}".rstrip()
    if len(cells) > max_rows:
        yield f"  and {len(cells) - max_rows} more"


def join_lines(lines: Iterable[str]) -> str:
    """Join the lines to a text that ends in a newline."""
    return "\n".join(lines) + "\n"
