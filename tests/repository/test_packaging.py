"""What an installed superopt holds, and how fast it starts."""

import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import superopt
from superopt.errors import ExitCode, SuperoptError, UsageError

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "z3", "llvmlite", "jinja2", "rich")


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of this checkout, with the wheel and the source distribution in dist/.

    Built offline, with the setuptools of the `test` extra.  The wheel is built from the source
    distribution, so both are right or the wheel is not.
    """
    # A copy, because setuptools would reuse what an old build left in the checkout.
    names = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
    folders = ("superopt", "rules", "verifier", "kernels", "tests", "docs", "scripts")
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*names, "CONTRIBUTING.md"):
        shutil.copy(root / name, copy / name)
    for name in folders:
        if (root / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(root / name, copy / name, symlinks=True, ignore=ignore)
    for output in (
        "superopt-demo",
        "superopt_demo",
    ):  # of the demo, as README's first command has it
        (copy / output).mkdir()
        (copy / output / "model.onnx").write_bytes(bytes(1 << 20))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=copy)
    return copy


def wanted(root: Path) -> set[str]:
    """Every file of the packages under `root`, as a path inside the wheel."""
    suffixes = {".py", ".rules", ".onnx", ".jinja", ".css", ".js", ".c", ".typed"}
    found = set()
    for top, place in (
        ("superopt", "superopt"),
        *((name, f"superopt/{name}") for name in ("rules", "verifier", "kernels")),
    ):
        for path in (root / top).rglob("*"):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                inside = path.relative_to(root / top)
                if top != "superopt" or inside.parts[0] not in ("rules", "verifier", "kernels"):
                    found.add(f"{place}/{inside.as_posix()}")
    return found


@pytest.mark.one_in(0)
def test_the_wheel_holds_the_tree(built: Path) -> None:
    (wheel,) = built.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert wanted(built) - names == set()
    assert {"superopt/py.typed", "superopt/demo/nasrnn.onnx"} <= names
    assert {n.split("/")[0] for n in names} == {
        "superopt",
        f"superopt_onnx-{superopt.__version__}.dist-info",
    }
    assert "superopt = superopt.cli.main:main" in scripts


@pytest.mark.parametrize("name", ["rules", "verifier", "kernels"])
def test_a_checkout_without_symbolic_links_is_refused(
    root: Path, tmp_path: Path, name: str
) -> None:
    shutil.copy(root / "setup.py", tmp_path / "setup.py")
    for linked in ("rules", "verifier", "kernels"):
        (tmp_path / "superopt" / linked).mkdir(parents=True)
    (tmp_path / "superopt" / name).rmdir()
    (tmp_path / "superopt" / name).write_text(f"../{name}")  # as Git for Windows writes a link
    done = subprocess.run(
        [sys.executable, "setup.py", "--name"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert f"superopt/{name} is not a folder" in done.stderr
    assert "core.symlinks=true" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.ci
def test_the_source_distribution_holds_the_tree(built: Path) -> None:
    (sdist,) = built.glob("dist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert wanted(built) - names == set()
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/repository/test_packaging.py"} <= names


@pytest.mark.ci
def test_the_wheel_works_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("dist/*.whl")
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "install", *offline, "--target", str(target), str(wheel))
    code = (
        "import superopt, superopt.rules, superopt.verifier, superopt.kernels; "
        "from superopt.onnx_io.read.weightless import demo_models; "
        "model = demo_models()['nasrnn'](); "
        "print(superopt.__file__, len(model.graph.node), len(model.graph.initializer))"
    )
    where, nodes, weights = run(
        sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": str(target)}
    ).split()
    assert Path(where).is_relative_to(target)
    assert int(nodes) > 50
    assert int(weights) > 0


def loaded_by(code: str) -> set[str]:
    return set(run(sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)").split())


def test_importing_loads_nothing_heavy(root: Path) -> None:
    assert loaded_by("import superopt").isdisjoint(HEAVY)
    help_text = "import superopt.cli.main, contextlib, io\nwith contextlib.suppress(SystemExit), "
    help_text += (
        "contextlib.redirect_stdout(io.StringIO()):\n    superopt.cli.main.main(['--help'])"
    )
    assert loaded_by(help_text).isdisjoint(HEAVY)


def best_of(tries: int, limit: float, measure: Callable[[], float]) -> float:
    """The least of up to `tries` measurements; a busy machine only ever adds time."""
    least = float("inf")
    for _ in range(tries):
        least = min(least, measure())
        if least < limit:
            break
        time.sleep(0.2)
    return least


def test_import_time() -> None:
    code = "import time; t = time.perf_counter(); import superopt; print(time.perf_counter() - t)"
    limit = 0.1
    assert best_of(8, limit, lambda: float(run(sys.executable, "-c", code))) < limit


def test_help_time() -> None:
    def measure() -> float:
        start = time.perf_counter()
        run(sys.executable, "-m", "superopt", "--help")
        return time.perf_counter() - start

    limit = 0.4
    assert best_of(12, limit, measure) < limit


def test_every_public_name_resolves() -> None:
    assert [name for name in superopt.__all__ if getattr(superopt, name, None) is None] == []
    assert set(superopt.__all__) <= set(dir(superopt))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = superopt.nothing


def test_an_error_prints_as_three_lines_and_has_one_code() -> None:
    error = UsageError("--budget is no time", "got 'soon'", "write it as 60s, 2m or 1.5")
    assert str(error) == "--budget is no time\ngot 'soon'\nwrite it as 60s, 2m or 1.5"
    assert error.code == 2
    codes = {cls.__name__: cls.code for cls in SuperoptError.__subclasses__()}
    assert codes["Aborted"] == 130
    assert {code.value for code in ExitCode} == {0, 1, 2, 3, 4, 5, 70, 130}
