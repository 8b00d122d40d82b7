"""A rule drawn in text: each side as a tree of operands; shared nodes are drawn once."""

from collections.abc import Iterator, Sequence

from superopt.report import words
from superopt.report.diagram import Box, Diagram, Link, RuleDiagram
from superopt.report.facts import facts
from superopt.report.wrap import broken, columns

ARROW = "  =>  "
INDENT = "  "
HEADING = 8  # letters for the headings of facts
NARROWEST = 40
IN_ASCII = str.maketrans("├└─│", "|`-|")


def page(rule: RuleDiagram, width: int, ascii_only: bool = False) -> str:
    """Return the parameters, both sides next to each other where `width` allows it, and the facts.

    Lines are wider than `width` only for a single long word. With `ascii_only` the tree is drawn in
    ASCII; names stay as they are.
    """
    lines = [words.plain(line) for line in _page(rule, max(width, NARROWEST))]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(IN_ASCII) if ascii_only else text


def _page(rule: RuleDiagram, width: int) -> Iterator[str]:
    yield rule.name
    yield ""
    names = max((columns(p.name) for p in rule.parameters), default=0)
    kinds = max((columns(p.kind) for p in rule.parameters), default=0)
    for p in rule.parameters:
        yield f"{INDENT}{_left(p.name, names)}  {_left(p.kind, kinds)}{'  constant' * p.constant}"
    yield ""
    yield from _sides(rule, width)
    yield ""
    for heading, line in facts(rule, width - len(INDENT) - HEADING):
        yield f"{INDENT}{heading:{HEADING}}{line}"


def _left(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def _sides(rule: RuleDiagram, width: int) -> Iterator[str]:
    """Yield both sides in two columns, the wider one wrapped if needed; else one above the
    other."""
    room = width - len(INDENT)
    sides = (rule.left, rule.right)
    trees = [_tree(side, room) for side in sides]
    widths = [max(map(columns, tree)) for tree in trees]
    wider = widths.index(max(widths))
    rest = room - len(ARROW) - min(widths)
    if NARROWEST <= rest < widths[wider]:
        trees[wider] = _tree(sides[wider], rest)
        widths[wider] = max(map(columns, trees[wider]))
    if widths[wider] > rest:
        left, right = (_tree(side, room) for side in sides)
        yield from (INDENT + line for line in (*left, ARROW.strip(), *right))
        return
    left, right = trees
    for n in range(max(len(left), len(right))):
        a, b = (side[n] if n < len(side) else "" for side in (left, right))
        yield INDENT + _left(a, widths[0]) + (ARROW if n == 0 else " " * len(ARROW)) + b


def _tree(side: Diagram, width: int) -> list[str]:
    uses = [link.source for box in side.boxes for link in box.inputs]
    shared = [n for n, b in enumerate(side.boxes) if b.inputs and uses.count(n) > 1]
    writer = _Writer(side.boxes, shared, width)
    for box in side.boxes:
        if box.kind == "result":
            writer.result(box)
    return writer.lines


class _Writer:
    """Writes trees line by line. drawn: the numbers of the shared boxes drawn so far."""

    def __init__(self, boxes: Sequence[Box], shared: Sequence[int], width: int) -> None:
        self.boxes = boxes
        self.shared = shared
        self.width = width
        self.told: dict[int, int] = {}
        self.lines: list[str] = []

    def result(self, box: Box) -> None:
        """Write a result: under its name, if there are several."""
        (link,) = box.inputs
        if box.label == "result" and sum(b.kind == "result" for b in self.boxes) == 1:
            self.operand(link, "", "")
        else:
            self.lines.append(box.label)
            self.operand(link, "└─ ", "   ")

    def operand(self, link: Link, first: str, rest: str) -> None:
        """Write the tree of an operand; `first` and `rest` precede its first and other lines."""
        box, again = self.boxes[link.source], link.source in self.told
        said = self.said(link, box)
        inputs = () if again else box.inputs
        indent = rest + ("│    " if inputs else "     ")
        wrapped = broken(said, self.width - len(first), self.width - len(indent))
        self.lines += [first + wrapped[0], *(indent + line for line in wrapped[1:])]
        for number, operand in enumerate(inputs, 1):
            last = number == len(inputs)
            self.operand(
                operand, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
            )

    def said(self, link: Link, box: Box) -> str:
        which = f"{link.which} of " if link.which else ""
        if box.kind in ("parameter", "constant"):
            return which + box.label
        details = f"  {', '.join(box.details)}" if box.details else ""
        if link.source not in self.shared:
            return f"{which}{box.label}{details}"
        if link.source in self.told:
            return f"{which}{box.label} #{self.told[link.source]} (see above)"
        self.told[link.source] = len(self.told) + 1
        return f"{which}{box.label} #{self.told[link.source]}{details}"
