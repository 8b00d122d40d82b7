"""The tests' folders: those of the package, small, and without imports from test to test."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
MAX_FILES = 22  # of a folder, __init__.py included
# Tests of what is no part of the package: of the repository as a whole, and of scripts/.
OTHERS = ("repository", "scripts", "support")
DATA = ("equations", "golden")
FROM_A_TEST = re.compile(r"from tests\.(?:\w+\.)*test_\w+ import|import tests\.(?:\w+\.)*test_")


def folders() -> list[Path]:
    return sorted({path.parent.relative_to(TESTS) for path in TESTS.rglob("*.py")})


def imported_tests(text: str) -> list[str]:
    """The imports of test modules, also those in programs that are held as text."""
    found = [m[0] for m in FROM_A_TEST.finditer(text)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("tests."):
            found += [f"{node.module}.{a.name}" for a in node.names if a.name.startswith("test_")]
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(f"relative: {node.module}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "from tests.ir.test_graph import f",
        "from tests.ir import test_graph",
        "import tests.ir.test_graph",
        "from .test_graph import f",
        'CODE = """\nfrom tests.ir.test_graph import f\n"""',
    ],
)
def test_an_import_from_a_test_would_be_seen(text: str) -> None:
    assert imported_tests(text)


def test_no_test_is_imported() -> None:
    files = [p for top in ("tests", "scripts") for p in sorted((ROOT / top).rglob("*.py"))]
    found = {
        str(p.relative_to(ROOT)): imported_tests(p.read_text("utf-8"))
        for p in files
        if p != Path(__file__)
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_folders_are_those_of_the_package(folder: Path) -> None:
    if folder.parts and folder.parts[0] not in OTHERS:
        assert (ROOT / "superopt" / folder).is_dir()


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_folders_are_small(folder: Path) -> None:
    assert len(list((TESTS / folder).glob("*.py"))) <= MAX_FILES


def test_tests_and_their_helpers_are_apart() -> None:
    for path in TESTS.rglob("*.py"):
        within = path.relative_to(TESTS).parts
        if within[0] in DATA or path.name in ("__init__.py", "conftest.py"):
            continue
        is_test = path.name.startswith("test_")
        assert is_test != (within[0] == "support"), path.relative_to(ROOT)
