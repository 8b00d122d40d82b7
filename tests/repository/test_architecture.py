"""Who may import whom, which part owns which heavy library, and how long a file may be.

Read from the source with `ast`, so that imports inside functions and under TYPE_CHECKING count too.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LINKED = ("rules", "verifier", "kernels")
LONGEST_FILE = 400

# Every part may import `errors`, `guard` and itself.
EVERYWHERE = {"errors", "guard"}
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "guard": set(),
    "te": set(),
    "ir": {"te"},
    "ops": {"ir", "te"},
    "kernels": {"te"},
    "rules": {"ops", "ir", "te"},
    "onnx_io": {"ops", "ir", "te"},
    "ort": {"onnx_io", "ir"},
    "verifier": {"rules", "ops", "ir", "te"},
    "partial": {"verifier", "rules", "ops", "ir", "te"},
    "generate": {"verifier", "rules", "ops", "ir", "te"},
    "cost": {"ort", "onnx_io", "kernels", "ir", "te"},
    "search": {"cost", "rules", "ir"},
    "check": {"report", "rules", "ort", "onnx_io", "ops", "ir", "te"},
    "plan": {"rules", "cost", "kernels", "ops", "ort", "onnx_io", "ir", "te"},
    "report": set(),  # plain data and text: whoever writes a report fills in the data
}
BELOW["baselines"] = set()  # peers to be compared with
BELOW["loading"] = {"cost", "kernels", "ops", "ort", "onnx_io", "report", "rules", "ir", "te"}
BELOW["compilation"] = {
    "loading", "plan", "check", "cost", "kernels", "ort", "onnx_io", "report", "ir", "te",
}  # fmt: skip
BELOW["ort_plugin"] = {
    "compilation", "loading", "plan", "cost", "kernels", "onnx_io", "ort", "report", "ir", "te",
}  # fmt: skip
BELOW["verification"] = {
    "loading", "check", "verifier", "rules", "ort", "onnx_io", "report", "ir", "te",
}  # fmt: skip
BELOW["rulegen"] = {
    "loading", "compilation", "verification", "generate", "partial", "verifier", "rules", "cost",
    "kernels", "ort", "onnx_io", "report", "ops", "ir", "te",
}  # fmt: skip
BELOW["optimization"] = {
    "loading", "verification", "rulegen", "search", "partial", "check", "verifier", "rules", "cost",
    "ort", "onnx_io", "report", "ir", "te",
}  # fmt: skip
BELOW["jobs"] = {
    "loading", "compilation", "optimization", "verification", "search", "plan", "check", "cost",
    "kernels", "ort", "onnx_io", "report", "ir", "baselines",
}  # fmt: skip
PARTS = set(BELOW)
BELOW["api"] = PARTS
BELOW["backend"] = PARTS | {"api"}
BELOW["cli"] = PARTS | {"api"}
BELOW["torch_backend"] = PARTS | {"api"}
BELOW["__main__"] = {"cli"}
BELOW["__init__"] = PARTS | {"api"}

OWNERS: dict[str, set[str]] = {
    "onnx": {"onnx_io", "ort_plugin", "backend"},
    "onnx_ir": {"onnx_io", "backend"},
    "onnxruntime": {"ort"},
    "openvino": {"baselines"},
    "z3": {"verifier"},
    "llvmlite": {"kernels"},
    "triton": {"kernels"},
    "torch": {"kernels", "baselines", "torch_backend"},
    "onnx2torch": {"baselines"},
    "lightgbm": {"cost"},
    "ray": {"generate"},
    "jinja2": {"report"},
    "click": {"cli"},
    "rich": {"cli"},
}
# Importing these in a function is how a part works without them.
OPTIONAL = {"onnxruntime", "openvino", "torch", "onnx2torch", "triton", "lightgbm", "ray"}
# Whose start must be fast: they import what a call needs when it is made.
LAZY = {"__init__", "api", "cli"}
# What LAZY parts may import at the top of a file.
LIGHT = {"click", "superopt"}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    module: str  # dotted, absolute
    deferred: bool  # inside a function
    typing: bool  # under `if TYPE_CHECKING:`

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def sources() -> list[Path]:
    return sorted(
        Path(folder) / name
        for folder, _, names in os.walk(ROOT / "superopt", followlinks=True)
        for name in names
        if name.endswith(".py")
    )


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "superopt").parts[0].removesuffix(".py")


def imports_of(text: str, path: Path) -> Iterator[Import]:
    """Every import in the source, made absolute; `from superopt import x` counts as superopt.x."""
    file = str(path.relative_to(ROOT))
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]

    def walk(node: ast.AST, deferred: bool, typing: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names):
                for alias in names:
                    yield Import(file, node.lineno, alias.name, deferred, typing)
            case ast.ImportFrom(module, names, level):
                base = package[: len(package) - level + 1] if level else ()
                full = ".".join((*base, *([module] if module else [])))
                for alias in names:
                    name = f"{full}.{alias.name}" if full == "superopt" else full
                    yield Import(file, node.lineno, name, deferred, typing)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                for child in ast.iter_child_nodes(node):
                    yield from walk(child, True, typing)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                for child in node.body:
                    yield from walk(child, deferred, True)
                for child in node.orelse:
                    yield from walk(child, deferred, typing)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from walk(child, deferred, typing)

    yield from walk(ast.parse(text), False, False)


def violations(path: Path, text: str) -> list[str]:
    """What a file does against the table, one sentence each."""
    part = part_of(path)
    if part not in BELOW:
        return [f"{path.relative_to(ROOT)}: {part!r} is not in the table of parts"]
    found = []
    for item in imports_of(text, path):
        library, _, rest = item.module.partition(".")
        if library == "superopt":
            target = rest.partition(".")[0]
            # Not a part: a plain name of superopt/__init__ such as __version__.
            if target in BELOW and target not in BELOW[part] | {part} | EVERYWHERE:
                found.append(f"{item}, but {part} may not import {target}")
        elif library in OWNERS and part not in OWNERS[library]:
            found.append(f"{item}, but only {sorted(OWNERS[library])} may")
        if part in LAZY:
            if not item.deferred and not item.typing and library not in LIGHT | STANDARD:
                found.append(f"{item} when it is loaded: import it where it is used")
        elif item.deferred and library not in OPTIONAL:
            found.append(f"{item} inside a function: import it at the top of the file")
    return found


STANDARD = set(sys.stdlib_module_names)


@pytest.mark.parametrize("part", sorted({part_of(path) for path in sources()}))
def test_imports_follow_the_table(part: str) -> None:
    paths = [path for path in sources() if part_of(path) == part]
    assert [what for path in paths for what in violations(path, path.read_text())] == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("te/x.py", "from superopt.ir.graph import Graph", "te may not import ir"),
        ("te/x.py", "from ..ir.graph import Graph", "te may not import ir"),
        ("te/x.py", "from superopt import ir", "te may not import ir"),
        ("kernels/x.py", "import superopt.ops.reductions.matmul", "kernels may not import ops"),
        ("rules/x.py", "import z3", "only ['verifier'] may"),
        (
            "check/x.py",
            "if TYPE_CHECKING:\n    from superopt.search import backtrack",
            "check may not import search",
        ),
        ("ir/x.py", "def f():\n    import numpy", "at the top of the file"),
        ("cli/main.py", "import rich", "import it where it is used"),
        ("stray/x.py", "", "not in the table of parts"),
    ],
)
def test_the_rules_see_a_violation(file: str, text: str, complaint: str) -> None:
    (found,) = violations(ROOT / "superopt" / file, text)
    assert complaint in found


def test_allowed_imports_are_allowed() -> None:
    text = "import numpy\nfrom superopt.errors import ModelError\nfrom superopt.te import expr"
    assert not violations(ROOT / "superopt" / "ir" / "x.py", text)
    assert not violations(ROOT / "superopt" / "ort.py", "def f():\n    import onnxruntime")


CHECKER = ROOT / "superopt" / "check" / "certificate"
# What the checker of certificates must not stand on: who finds matches, and who looks for rewrites.
NOT_THE_CHECKERS = {
    "superopt.search", "superopt.generate", "superopt.verifier",
    "superopt.loading", "superopt.compilation", "superopt.verification", "superopt.rulegen",
    "superopt.optimization", "superopt.jobs",
    "superopt.rules.match.matcher", "superopt.rules.match.pattern",
    "superopt.rules.match.pattern_builder", "superopt.rules.match.operand_steps",
    "superopt.rules.match.check_steps", "superopt.rules.match.leaf_steps",
    "superopt.rules.match.shape_steps",
    "superopt.rules.match.rule_index", "superopt.rules.match.derive",
    "superopt.rules.match.rewrite",
}  # fmt: skip


def module_file(module: str) -> Path | None:
    """The file of a module of ours."""
    path = ROOT.joinpath(*module.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.is_file() and module != "superopt":  # whose names are loaded when they are asked
            return found
    return None


def reached(start: list[Path]) -> dict[str, str]:
    """The modules of ours that these files import, and those import, each with who imports it."""
    found: dict[str, str] = {}
    stack = list(start)
    while stack:
        path = stack.pop()
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert not node.level, f"{path}: write imports from the top"
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                file = module_file(name) if name.startswith("superopt") else None
                if file is not None and name not in found:
                    found[name] = str(path.relative_to(ROOT))
                    stack.append(file)
    return found


def test_the_checker_of_certificates_stands_alone() -> None:
    files = sorted(CHECKER.glob("*.py"))
    assert len(files) >= 2
    statements = sum(
        isinstance(node, ast.stmt) for f in files for node in ast.walk(ast.parse(f.read_text()))
    )
    assert statements <= 300  # short enough to be read in one sitting
    found = reached(files)
    assert {"superopt.ir.graph", "superopt.rules.lang.interpreter"} <= found.keys()
    bad = [
        f"{name} ({by})"
        for name, by in found.items()
        if any(name == no or name.startswith(no + ".") for no in NOT_THE_CHECKERS)
    ]
    assert not bad


def test_what_the_checker_must_not_load_would_be_seen() -> None:
    assert (
        NOT_THE_CHECKERS
        & reached([ROOT / "superopt" / "optimization" / "certificate_rounds.py"]).keys()
    )


@pytest.mark.parametrize("name", LINKED)
def test_the_linked_folders(name: str) -> None:
    link = ROOT / "superopt" / name
    if link.is_symlink():  # a source distribution holds the folders themselves
        assert os.readlink(link) == f"../{name}"
    assert link.is_dir()
    assert not (link / "__init__.py").exists(), f"a top-level package {name} would shadow another"


def test_no_file_is_too_long() -> None:
    folders = ("superopt", "tests", "scripts")
    files = {
        Path(folder) / name
        for top in folders
        for folder, _, names in os.walk(ROOT / top, followlinks=True)
        for name in names
        if name.endswith(".py")
    }
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sorted(files)}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


LONG_FUNCTION_BRANCHES = 15
MAX_LONG_FUNCTIONS = 20


def long_functions(folder: Path, branches: int) -> list[str]:
    """The functions with a cyclomatic complexity above `branches`, by ruff; also those that a
    comment excepts from the limit of pyproject.toml."""
    options = ["--isolated", "--ignore-noqa", "--quiet", "--output-format", "concise"]
    options += ["--select", "C901", "--config", f"lint.mccabe.max-complexity={branches}"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode in (0, 1), found.stderr
    return [line for line in found.stdout.splitlines() if "C901" in line]


def test_few_functions_have_many_branches() -> None:
    assert len(long_functions(ROOT, LONG_FUNCTION_BRANCHES)) <= MAX_LONG_FUNCTIONS


def test_a_function_with_many_branches_is_counted(tmp_path: Path) -> None:
    branches = "\n".join(f"    if x == {n}:\n        return {n}" for n in range(16))
    (tmp_path / "long.py").write_text(f"def f(x):  # noqa: C901\n{branches}\n")
    (tmp_path / "short.py").write_text("def f(x):\n    return x\n")
    (line,) = long_functions(tmp_path, LONG_FUNCTION_BRANCHES)
    assert "`f` is too complex (17 > 15)" in line
