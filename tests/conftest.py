"""What all tests share: paths, the models beside the checkout, a deterministic hypothesis."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from superopt import api as superopt_api
from superopt.cli.main import run
from superopt.cost.machine import this_machine
from superopt.kernels.runtime.cpu import MissingFloat16, converts_float16, host
from superopt.kernels.runtime.target_cpu import LEVELS, VARIABLE, MissingInstructions
from tests.support.breadth import (
    DEFAULT_EXAMPLES,
    SOME_EXAMPLES,
    draws_all_examples,
    mark_breadth,
    select_shard,
)
from tests.support.paths import ROOT
from tests.support.report.fake_api import FakeApi

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported


# A shell that starts a job in the background has it ignore Ctrl-C, and what the job starts as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Of the time of all tests a seventh was the collector's, which walked what they all share again and
# again: rules, cases, modules.
gc.set_threshold(50_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target-cpu",
        choices=["native", *LEVELS],
        default=os.environ.get(VARIABLE) or "native",
        help="compile kernels for this level of x86-64; without its instructions they do not run",
    )
    parser.addoption(
        "--breadth-shard",
        default="0/1",
        metavar="K/N",
        help="of the cases with the marker `breadth` run every N-th one, the K-th of N such shares",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ[VARIABLE] = config.getoption("target_cpu")  # for what tests start, too
    configure_hypothesis(config)
    if not config.option.collectonly and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        share_bytecode(config)


def configure_hypothesis(config: pytest.Config) -> None:
    """Timings on a shared machine say nothing, and a failure must come back on the next run."""
    every = are_named(config) or draws_all_examples(config.option.markexpr, shard_of(config)[0])
    settings.register_profile(
        "superopt",
        deadline=None,
        derandomize=True,
        max_examples=DEFAULT_EXAMPLES if every else SOME_EXAMPLES,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("superopt")


def shard_of(config: pytest.Config) -> tuple[int, int]:
    """K and N of the option --breadth-shard."""
    shard, _, shards = config.getoption("breadth_shard").partition("/")
    return int(shard), int(shards)


def share_bytecode(config: pytest.Config) -> None:
    """Keep bytecode in a folder of this run. Without it each of the commands that tests start would
    compile all modules again: 1.5 seconds."""
    folder = tempfile.mkdtemp(prefix="superopt-bytecode-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
    sys.dont_write_bytecode = False


def are_named(config: pytest.Config) -> bool:
    """True where the command line names tests one by one, not files or folders."""
    return bool(config.args) and all("::" in arg for arg in config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """A worker for each core that this process may use; none for tests that are named, which take
    less time than workers to start."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 0 if are_named(config) else this_machine().cores_allowed


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not ask for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))
    if not are_named(config):
        mark_breadth(items)
        items[:] = select_shard(items, *shard_of(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """With --target-cpu, kernels are compiled also where this processor cannot run them. Where the
    target cannot convert float16 there are no kernels of it."""
    try:
        yield
    except MissingInstructions as e:
        if item.config.getoption("target_cpu") == "native":
            raise
        pytest.skip(f"compiled only: {e.what}; {e.why}")
    except MissingFloat16 as e:
        pytest.skip(str(e))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def float16() -> None:
    """Skips where there are no kernels of float16, so that onnxruntime computes them."""
    if not converts_float16(host()):
        pytest.skip("the target CPU has no instructions for float16")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def weightless_models() -> dict[str, Path]:
    """The weightless models in ../shared/models by name; skips where the folder is absent."""
    folder = ROOT.parent / "shared" / "models"
    found = {path.stem: path for path in sorted(folder.glob("*.onnx"))}
    if not found:
        pytest.skip("no models in ../shared/models")
    return found


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` must be that of tests/golden/NAME.

    UPDATE_GOLDEN=1 writes the files instead; read the difference before committing it.
    """

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8")
        # How lines are broken is the libraries' business, and changes with their versions.
        assert text.split() == wanted.split() if name.startswith("help-") else text == wanted

    return check


@pytest.fixture
def superopt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., SimpleNamespace]:
    """`superopt(*arguments, api=FakeApi())` runs the command line: gives code, out and err."""

    def call(*arguments: object, api: FakeApi | None = None) -> SimpleNamespace:
        monkeypatch.setattr(superopt_api, "functions", api or FakeApi(), raising=False)
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels for a GPU run in Triton's interpreter, or on a GPU with SUPEROPT_TEST_GPU=1."""
    from tests.support.gpu.interpreted import interpret

    interpret(monkeypatch, tmp_path_factory.mktemp("cache"))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled models in an empty cache; files may be read as soon as written."""
    from tests.support.compilation.cache import at_rest

    return at_rest(tmp_path, monkeypatch)


@pytest.fixture
def gpu_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`empty_cache`, where kernels for a GPU run, for fixed sizes."""
    from superopt.compilation.cuda.device import CudaDevice
    from tests.support.gpu.device import choose

    choose(monkeypatch)
    monkeypatch.setattr(CudaDevice, "has_size_classes", False)
    return empty_cache


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are for fixed sizes, as of models that no class of sizes supports."""
    from superopt.compilation.cpu.device import CpuDevice

    for name in ("has_size_classes", "has_runtime_sizes"):
        monkeypatch.setattr(CpuDevice, name, False)
