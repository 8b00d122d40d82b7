"""A rule drawn in text: each side as a tree of operands; shared nodes are drawn once."""

from collections.abc import Iterator, Sequence

from superopt.report.data.diagram import Box, Diagram, Link, RuleDiagram
from superopt.report.formatting import phrases
from superopt.report.formatting.rule_facts import rule_facts
from superopt.report.formatting.wrap import display_width, wrap_text

ARROW_TEXT = "  =>  "
INDENT = "  "
HEADING_LETTERS = 8  # letters for the headings of facts
MIN_WIDTH = 40
ASCII_TRANSLATION = str.maketrans("├└─│", "|`-|")


def rule_tree_page(rule: RuleDiagram, width: int, ascii_only: bool = False) -> str:
    """Return the parameters, both sides next to each other where `width` allows it, and the facts.

    Lines are wider than `width` only for a single long word. With `ascii_only` the tree is drawn in
    ASCII; names stay as they are.
    """
    lines = [phrases.printable(line) for line in _page(rule, max(width, MIN_WIDTH))]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(ASCII_TRANSLATION) if ascii_only else text


def _page(rule: RuleDiagram, width: int) -> Iterator[str]:
    yield rule.name
    yield ""
    names = max((display_width(p.name) for p in rule.parameters), default=0)
    kinds = max((display_width(p.kind) for p in rule.parameters), default=0)
    for p in rule.parameters:
        yield (
            f"{INDENT}{_pad_right(p.name, names)}  {_pad_right(p.kind, kinds)}"
            f"{'  constant' * p.constant}"
        )
    yield ""
    yield from _side_lines(rule, width)
    yield ""
    for heading, line in rule_facts(rule, width - len(INDENT) - HEADING_LETTERS):
        yield f"{INDENT}{heading:{HEADING_LETTERS}}{line}"


def _pad_right(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _side_lines(rule: RuleDiagram, width: int) -> Iterator[str]:
    """Yield both sides in two columns, the wider one wrapped if needed; else one above the
    other."""
    room = width - len(INDENT)
    sides = (rule.left, rule.right)
    trees = [_tree_lines(side, room) for side in sides]
    widths = [max(map(display_width, tree)) for tree in trees]
    wider = widths.index(max(widths))
    rest = room - len(ARROW_TEXT) - min(widths)
    if MIN_WIDTH <= rest < widths[wider]:
        trees[wider] = _tree_lines(sides[wider], rest)
        widths[wider] = max(map(display_width, trees[wider]))
    if widths[wider] > rest:
        left, right = (_tree_lines(side, room) for side in sides)
        yield from (INDENT + line for line in (*left, ARROW_TEXT.strip(), *right))
        return
    left, right = trees
    for n in range(max(len(left), len(right))):
        a, b = (side[n] if n < len(side) else "" for side in (left, right))
        yield (
            INDENT
            + _pad_right(a, widths[0])
            + (ARROW_TEXT if n == 0 else " " * len(ARROW_TEXT))
            + b
        )


def _tree_lines(side: Diagram, width: int) -> list[str]:
    uses = [link.source for box in side.boxes for link in box.inputs]
    shared = [n for n, b in enumerate(side.boxes) if b.inputs and uses.count(n) > 1]
    writer = _TreeWriter(side.boxes, shared, width)
    for box in side.boxes:
        if box.kind == "result":
            writer.write_result(box)
    return writer.lines


class _TreeWriter:
    """Writes trees line by line. drawn: the numbers of the shared boxes drawn so far."""

    def __init__(self, boxes: Sequence[Box], shared: Sequence[int], width: int) -> None:
        self.boxes = boxes
        self.shared = shared
        self.width = width
        self.drawn: dict[int, int] = {}
        self.lines: list[str] = []

    def write_result(self, box: Box) -> None:
        """Write a result: under its name, if there are several."""
        (link,) = box.inputs
        if box.label == "result" and sum(b.kind == "result" for b in self.boxes) == 1:
            self.write_operand(link, "", "")
        else:
            self.lines.append(box.label)
            self.write_operand(link, "└─ ", "   ")

    def write_operand(self, link: Link, first: str, rest: str) -> None:
        """Write the tree of an operand; `first` and `rest` precede its first and other lines."""
        box, again = self.boxes[link.source], link.source in self.drawn
        said = self.box_text(link, box)
        inputs = () if again else box.inputs
        indent = rest + ("│    " if inputs else "     ")
        wrapped = wrap_text(said, self.width - len(first), self.width - len(indent))
        self.lines += [first + wrapped[0], *(indent + line for line in wrapped[1:])]
        for number, operand in enumerate(inputs, 1):
            last = number == len(inputs)
            self.write_operand(
                operand, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
            )

    def box_text(self, link: Link, box: Box) -> str:
        which = f"{link.which} of " if link.which else ""
        if box.kind in ("parameter", "constant"):
            return which + box.label
        details = f"  {', '.join(box.details)}" if box.details else ""
        if link.source not in self.shared:
            return f"{which}{box.label}{details}"
        if link.source in self.drawn:
            return f"{which}{box.label} #{self.drawn[link.source]} (see above)"
        self.drawn[link.source] = len(self.drawn) + 1
        return f"{which}{box.label} #{self.drawn[link.source]}{details}"
