"""The folders of each part: small, described, and without import cycles at any level; the verifier
without state of modules."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.module_state import module_state
from tests.support.paths import ROOT

MAX_FILES = 22  # of a folder, __init__.py included


def _folders() -> dict[str, list[str]]:
    return {
        str(Path(folder).relative_to(ROOT)): [name for name in names if name.endswith(".py")]
        for folder, _, names in os.walk(ROOT / "superopt", followlinks=True)
        if any(name.endswith(".py") for name in names)
    }


def _modules() -> dict[str, Path]:
    found = {}
    for folder, names in _folders().items():
        for name in names:
            dotted = ".".join(Path(folder, name).with_suffix("").parts)
            found[dotted.removesuffix(".__init__")] = ROOT / folder / name
    return found


MODULES = _modules()


@cache
def _imports(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules of superopt that a source imports, and those that it imports at run
    time; only type checkers import the others."""
    every: set[str] = set()
    run_time: set[str] = set()

    def visit(node: ast.AST, *, typing: bool) -> None:
        names = []
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                for child in node.body:
                    visit(child, typing=True)
                for child in node.orelse:
                    visit(child, typing=typing)
            case ast.Import(aliases):
                names = [a.name for a in aliases]
            case ast.ImportFrom(str() as module, aliases, 0):
                names = [f"{module}.{a.name}" for a in aliases]
            case ast.expr():
                pass  # most of the tree, and without imports
            case _:
                for child in ast.iter_child_nodes(node):
                    visit(child, typing=typing)
        every.update(names)
        if not typing:
            run_time.update(names)

    visit(ast.parse(text), typing=False)
    return _known(every), _known(run_time)


def _known(names: set[str]) -> frozenset[str]:
    """Return the modules of superopt that have these names, or what is in them."""
    known = set()
    for name in names:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        known.add(name)
    return frozenset(known - {""})


def _cycle(package: str, imports: Mapping[str, Set[str]]) -> list[str] | None:
    """Return a cycle among the direct members (modules and folders) of a package, if any."""
    prefix = package + "."
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, imported in imports.items():
        if importer.startswith(prefix):
            member = importer.removeprefix(prefix).partition(".")[0]
            others = {
                m.removeprefix(prefix).partition(".")[0] for m in imported if m.startswith(prefix)
            }
            graph[member] |= others - {member}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return None


PACKAGES = sorted({m.rpartition(".")[0] for m in MODULES if "." in m})


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycles(package: str) -> None:
    """Folders do not import each other in a cycle, nor do modules of a folder at run time."""
    sources = {m: p.read_text() for m, p in MODULES.items() if m.startswith(package + ".")}
    folders = {m for m in PACKAGES if m.rpartition(".")[0] == package}
    everything = {m: _imports(text)[0] for m, text in sources.items()}
    between = {
        m: {n for n in found if any(n == f or n.startswith(f + ".") for f in folders)}
        for m, found in everything.items()
        if any(m == f or m.startswith(f + ".") for f in folders)
    }
    assert _cycle(package, between) is None
    run_time = {m: _imports(text)[1] for m, text in sources.items()}
    assert _cycle(package, run_time) is None


@pytest.mark.parametrize("folder", sorted(_folders()))
def test_folders_are_small_and_described(folder: str) -> None:
    names = _folders()[folder]
    assert len(names) <= MAX_FILES
    if folder not in {"superopt/kernels", "superopt/rules", "superopt/verifier"}:  # no package here
        assert ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))


def test_the_layout_page_names_what_there_is() -> None:
    page = (ROOT / "docs" / "explanation" / "layout.md").read_text()
    parts, _, questions = page.partition("## Where is it?")
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    paths = re.findall(r"`((?:superopt|kernels|rules|verifier)[/a-z_0-9.]*)`", page + glossary)
    assert len(paths) > 40
    assert [p for p in paths if not (ROOT / p).exists() and not p.startswith("superopt.")] == []
    for path, name in re.findall(r"`([a-z_/]+\.py)`, `(\w+)`", questions):
        assert re.search(rf"^ *(def |class )?{name}\b", (ROOT / path).read_text(), re.M), (
            path,
            name,
        )
    folders = {p.name for p in (ROOT / "superopt").iterdir() if (p / "__init__.py").exists()}
    assert {f for f in folders if f"`superopt/{f}`" not in parts} == set()


def test_pages_and_comments_name_files_that_exist() -> None:
    texts = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *MODULES.values()]
    missing = set()
    for text in texts:
        for found in re.findall(
            r"(?<![\w/.-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)\b", text.read_text()
        ):
            near = [text.parent, *text.parents][:4]
            places = [ROOT, ROOT / "superopt", ROOT / "superopt" / "plan", *near]
            if not any((place / found).exists() for place in places):
                missing.add(f"{text.relative_to(ROOT)}: {found}")
    assert missing == set()


def test_a_cycle_would_be_seen() -> None:
    imports = {"p.a.x": {"p.b"}, "p.b": {"p.c.y"}, "p.c.y": {"p.a.z"}}
    assert _cycle("p", imports) is not None
    assert _cycle("p", imports | {"p.b": {"q.c"}}) is None
    both = ("from superopt.te.expr import node", "    from superopt.te.expr import tensor")
    text = "\nif TYPE_CHECKING:\n".join(both)
    every, run_time = _imports(text)
    assert run_time == {"superopt.te.expr.node"}
    assert every == {"superopt.te.expr.node", "superopt.te.expr.tensor"}


def test_the_verifier_has_no_module_state() -> None:
    """What a proof creates belongs to its context: no proof depends on another."""
    sources = {m: p.read_text() for m, p in MODULES.items() if m.startswith("superopt.verifier.")}
    assert len(sources) > 60
    assert module_state(sources) == []


@pytest.mark.parametrize(
    "text",
    [
        "COUNT = [0]\ndef f():\n    COUNT[0] += 1",
        "CACHE: dict[int, int] = {}",
        "TABLES = {'a': {}, 'b': {}}",
        "SEEN = set()",
        "LIMITS = Limits()\ndef f():\n    LIMITS.ticks += 1",
        "STEPS = Steps()\ndef f():\n    STEPS.names.add('order')",
        "BUDGET = 1\ndef f():\n    global BUDGET\n    BUDGET = 2",
        "DEPTH = ContextVar('depth')",
        "class C:\n    known = None\n\ndef f():\n    C.known = 1",
        "from superopt.verifier import hooks\nhooks.QUOTIENT[0] = print",
        "from superopt.verifier.hooks import QUOTIENT\nQUOTIENT[0] = print",
    ],
)
def test_module_state_would_be_seen(text: str) -> None:
    hooks = {"superopt.verifier.hooks": "QUOTIENT = [None]"}
    assert module_state(hooks) == []
    assert len(module_state({**hooks, "superopt.verifier.x": text})) >= 1


def test_tables_and_locals_are_no_module_state() -> None:
    text = "TABLE = {'a': 1}\nTABLE['b'] = 2\ndef f(x):\n    out = {}\n    out[x] = TABLE[x]"
    assert module_state({"superopt.verifier.x": text}) == []
