"""Names and prose that the field does not use stay out: each failure says where, and what to write.

The first version of the project had a private vocabulary that nobody could search or guess.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# Functions and methods of one word that say neither what they do nor what they return.
VAGUE_NAMES = {
    "of", "at", "in", "on", "by", "to", "from", "with", "within", "without", "into", "over",
    "under", "before", "after", "above", "below", "beside", "between", "beyond", "there", "here",
    "again", "apart", "away", "put", "said", "told", "left", "made", "given", "held", "kept",
    "found", "whole", "some", "several", "both", "else", "more", "most", "least", "few",
}  # fmt: skip
# Words on -ed that are verbs or nouns, properties that are true or false, and inherited names.
ALLOWED_NAMES = {"embed", "need", "feed", "seed", "speed", "passed", "proved", "changed", "elapsed"}
ALLOWED_NAMES |= {"strided", "preformatted"}  # a family of rules; the HTML term
ALLOWED_PUTS = {"Store.put"}  # as in key-value stores
VAGUE_CONSTANTS = {
    "MOST", "LEAST", "FEW", "ROOM", "NEAR", "LARGE", "MANY", "LITTLE", "SHORT", "SMALL", "LONG",
    "MORE", "ALL", "SOME", "WIDE", "FIRST", "LAST", "OWN", "PARTS", "WIDTH",
}  # fmt: skip
SHORT_ALIASES = {"np", "ir", "ov", "ML", "Fn"}  # numpy; onnx_ir and openvino, as their documents do
PROSE = {
    r"\b(is|are|was|were) told\b": "gets, takes, is called with",
    r"\bwhat is no\b": "that is not a",
    r"\bis no number\b|\bare no numbers\b": "NaN",
    r"\bwhat stays\b": "live-out values",
    r"\bturned round\b": "transposed, reversed",
    r"\bheirs?\b": "provenance",
    r"\bknit\b": "fused",
    r"\bdearer\b": "more expensive",
    r"\bpictures?\b": "image, drawing",
    r"\bwhere there is none\b": "if there is none",
    r'^"""(Is|Are|Does|Can|Has|Have) ': "Return whether, True if",
}


def sources() -> Iterator[Path]:
    for folder, _, names in os.walk(ROOT / "superopt", followlinks=True):
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def bad_names(text: str) -> Iterator[str]:
    """Yield each name of a source that says too little, with its line."""
    tree = ast.parse(text)
    for node in tree.body:
        functions = [node] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.ClassDef):
            functions = [m for m in node.body if isinstance(m, ast.FunctionDef)]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for f in functions:
            name = f.name.strip("_")
            vague = name in VAGUE_NAMES or (name.endswith("ed") and "_" not in name)
            if vague and name not in ALLOWED_NAMES and owner + f.name not in ALLOWED_PUTS:
                yield f"line {f.lineno}: {owner}{f.name}: a verb, or what it returns"
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and part.id.strip("_") in VAGUE_CONSTANTS:
                    yield f"line {node.lineno}: {part.id}: a name with its meaning and unit"
    for found in ast.walk(tree):
        if isinstance(found, ast.Import | ast.ImportFrom):
            for alias in found.names:
                if alias.asname and len(alias.asname) <= 2 and alias.asname not in SHORT_ALIASES:
                    yield f"line {found.lineno}: {alias.name} as {alias.asname}: its whole name"


def bad_prose(text: str) -> Iterator[str]:
    """Yield each private expression in comments and docstrings, with its line."""
    if not any(re.search(pattern.removeprefix("^"), text) for pattern in PROSE):
        return  # tokens take 20 times as long
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith(('"""', 'f"""'))
        if token.type == tokenize.COMMENT or is_docstring:
            for pattern, better in PROSE.items():
                if found := re.search(pattern, token.string):
                    line = token.start[0] + token.string[: found.start()].count("\n")
                    yield f"line {line}: {found.group()!r}: write {better}"


@pytest.mark.parametrize("folder", sorted({str(p.parent.relative_to(ROOT)) for p in sources()}))
def test_names_and_prose_are_the_field_s(folder: str) -> None:
    texts = {path.name: path.read_text() for path in (ROOT / folder).glob("*.py")}
    bad = {name: [*bad_names(text), *bad_prose(text)] for name, text in texts.items()}
    assert {name: lines for name, lines in bad.items() if lines} == {}


def test_a_bad_name_is_found() -> None:
    text = (
        "import superopt.te as te\nMOST = 3\n"
        "def told(x):\n    pass\n"
        "class C:\n    def of(self):\n        pass\n    def fuse_concat(self):\n        pass\n"
    )
    assert [line.split(": ")[1] for line in bad_names(text)] == [
        "MOST", "told", "C.of", "superopt.te as te",
    ]  # fmt: skip
    assert list(bad_prose("x = 1  # this is told what is no number\n"))
    assert not list(bad_prose('x = "is told"\n'))
