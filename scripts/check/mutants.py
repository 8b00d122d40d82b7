"""Mutants of Python code: each changes one comparison, operator, constant, result or guard.

A mutant is one replacement in the text of a file. Text that no test can see is left alone:
docstrings, messages, annotations, decorators, assertions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Pow: "*", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True)
class Mutant:
    """The characters from `start` to `end` of a file replaced by `text`.

    function: the innermost function, as code objects name it; "" outside of functions."""

    file: str
    start: int
    end: int
    text: str
    kind: str
    line: int
    function: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    source = (root / file).read_text("utf-8")
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda m: (m.start, m.end, m.text))


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.found: list[Mutant] = []
        self.scope: list[str] = []  # of the names of classes and functions
        self.functions: list[str] = []
        lines = source.encode().splitlines(keepends=True)
        self.offsets = [0]
        for line in lines:
            self.offsets.append(self.offsets[-1] + len(line))
        self.bytes = source.encode()

    def place(self, line: int, column: int) -> int:
        return len(self.bytes[: self.offsets[line - 1] + column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.place(node.lineno, node.col_offset),
            self.place(node.end_lineno, node.end_col_offset),
        )

    def add(self, node: ast.expr | ast.stmt, start: int, end: int, text: str, kind: str) -> None:
        function = self.functions[-1] if self.functions else ""
        self.found.append(Mutant(self.file, start, end, text, kind, node.lineno, function))

    def replace(self, node: ast.expr, text: str, kind: str) -> None:
        self.add(node, *self.span(node), text, kind)

    def between(self, node: ast.expr, left: ast.expr, right: ast.expr, to: str, kind: str) -> None:
        """Replace the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end]
        before = len(gap) - len(gap.lstrip(") \n"))
        after = len(gap.rstrip("( \n"))
        self.add(node, start + before, start + after, to, kind)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.scope.append(node.name)
        self.functions.append(".".join(self.scope))
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self.visit_body(node.body)
        self.functions.pop()
        self.scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        self.visit_body(node.body)
        self.scope.pop()

    def visit_Module(self, node: ast.Module) -> None:
        self.visit_body(node.body)

    def visit_body(self, body: list[ast.stmt]) -> None:
        for child in body:
            self.visit(child)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """What never fails changes nothing."""

    def visit_keyword(self, node: ast.keyword) -> None:
        """All but `strict=True` of zip, which is an assertion."""
        is_assertion = node.arg == "strict" and ast.unparse(node.value) == "True"
        if not is_assertion:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """A message."""

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for op, (left, right) in zip(node.ops, pairwise(operands), strict=True):
            self.between(node, left, right, COMPARISONS[type(op)], "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        to = ARITHMETIC.get(type(node.op))
        parts = (node.left, node.right)
        if to is not None and not any(
            isinstance(x, ast.Constant) and isinstance(x.value, str | None) for x in parts
        ):
            self.between(node, node.left, node.right, to, "arithmetic")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        to = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in pairwise(node.values):
            self.between(node, left, right, to, "boolean")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace(node, f"bool({self.text(node.operand)})", "boolean")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace(node, str(not value), "constant")
        elif isinstance(value, int):
            self.replace(node, str(value + 1), "constant")
        elif isinstance(value, float):
            self.replace(node, repr(value * 100 if value else 1.0), "constant")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            # None is as false as False, whose constant is replaced by True.
            found = node.value.value if isinstance(node.value, ast.Constant) else self
            if found is not None and found is not False:
                self.replace(node.value, "None", "return")
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not node.orelse and isinstance(node.body[-1], LEAVES):
            self.replace(node.test, "False", "removed guard")
        self.generic_visit(node)

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end]


def files_of(root: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """The files of these folders of superopt, by their paths below `root`."""
    for package in packages:
        folder = root / "superopt" / package
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(root))
