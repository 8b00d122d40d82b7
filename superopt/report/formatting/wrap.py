"""Line wrapping by the display width in a fixed-width font."""

import unicodedata
from collections.abc import Sequence


def display_width(text: str) -> int:
    """Return the display width of `text`: East Asian wide letters count two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "FW") for c in text)


def cut_text(text: str, width: int) -> str:
    """Return at most `width` letters of `text`, cut after a word, with an ellipsis."""
    if len(text) <= width:
        return text
    head, _, _ = text[: width - len("...")].rpartition(" ")
    if 2 * len(head) < width:  # one long word
        return f"{text[: width - len('...')]}..."
    return f"{head.rstrip(' ,;:')} ..."


def wrap_text(text: str, width: int, later_width: int | None = None) -> list[str]:
    """Wrap `text` at spaces into lines of at most `width` letters.

    later_width: the width of lines after the first, if given.
    """
    return _fill_lines(text.split(" "), " ", width, width if later_width is None else later_width)


def wrap_items(items: Sequence[str], width: int) -> list[str]:
    """Join `items` by commas and wrap, between items first and inside a long one."""
    words = [f"{item}," for item in items[:-1]] + list(items[-1:])
    return [
        line for whole in _fill_lines(words, " ", width, width) for line in wrap_text(whole, width)
    ]


def _fill_lines(words: Sequence[str], between: str, width: int, rest: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        room = width if len(lines) <= 1 else rest
        if lines and display_width(lines[-1]) + len(between) + display_width(word) <= room:
            lines[-1] += between + word
        else:
            lines.append(word)
    return lines or [""]
