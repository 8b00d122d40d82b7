"""Who does the work: processes that end with their parent, and Ray; always with one result."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from superopt.api.functions import generate_rules
from superopt.errors import UsageError
from superopt.generate.engine import workers as module
from superopt.generate.engine.workers import limit_jobs, worker_pool

OPS = "MatMul,Transpose(perm=(1,0)),Concat(axis=0),Sigmoid,Tanh,Erf"
SHAPES = "x=3x3,y=3x3"
FILE = "custom.rules"
LIMIT = 60.0  # seconds; a command that hangs is killed
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray")


def generated(out: Path, *, jobs: int = 1, ray: str | None = None) -> bytes:
    generate_rules(out, ops=OPS, shapes=SHAPES, max_ops=2, jobs=jobs, ray=ray)
    return (out / FILE).read_bytes()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return generated(tmp_path_factory.mktemp("rules"))


def double(n: int) -> int:
    return 2 * n


def die(n: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_results_are_in_order() -> None:
    for jobs in (1, 2):
        with worker_pool(jobs) as each:
            assert list(each(double, range(50))) == [2 * n for n in range(50)]
            assert list(each(double, [])) == []


def test_more_processes_than_cores_are_not_started() -> None:
    cores = os.cpu_count() or 1
    assert limit_jobs(1) == 1
    assert limit_jobs(2) == 2
    assert limit_jobs(1_000_000) <= max(2, cores)


@pytest.mark.one_in(0)
def test_more_jobs_than_cores(wanted: bytes, tmp_path: Path) -> None:
    assert generated(tmp_path, jobs=1_000_000) == wanted


def test_a_killed_process_is_reported() -> None:
    with (
        pytest.raises(UsageError, match="a process of the generator was killed") as caught,
        worker_pool(2) as each,
    ):
        list(each(die, range(4)))
    assert "the same call continues" in caught.value.todo


@pytest.mark.one_in(0)
def test_an_error_of_ones_own_comes_through() -> None:
    begun = worker_pool(2)
    each = begun.__enter__()
    assert list(each(double, [1])) == [2]
    mine = LookupError("mine")
    assert not begun.__exit__(LookupError, mine, None)


# --- stopped from outside -------------------------------------------------------------------------


@contextmanager
def command(out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`superopt rules generate` in a session of its own, as a terminal would have it."""
    given = ["--ops", OPS, "--shapes", SHAPES, "--max-ops", "2", "--out", str(out), *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "superopt", "rules", "generate", *given],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_results(out: Path, process: subprocess.Popen[str], count: int) -> None:
    """Until the journal has so many lines."""
    begin = time.monotonic()
    while time.monotonic() - begin < LIMIT:
        path = out / "journal.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None
        time.sleep(0.01)
    pytest.fail(f"no {count} lines in the journal")


def session(number: int) -> list[str]:
    """The commands that live in a session; what has ended and is not yet waited for does not."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(") ")
        except OSError:
            continue  # gone meanwhile
        fields = rest.split()
        if int(fields[3]) == number and fields[0] not in "ZX":
            found.append(name)
    return found


def wait_for_the_end(number: int) -> None:
    begin = time.monotonic()
    while left := session(number):
        assert time.monotonic() - begin < LIMIT, left
        time.sleep(0.05)


@pytest.mark.ci
@pytest.mark.one_in(6)
@needs_proc
@pytest.mark.parametrize("lines", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_process_and_goes_on(
    sent: signal.Signals, lines: int, wanted: bytes, tmp_path: Path
) -> None:
    """SIGINT goes to all of its processes, as Ctrl-C does."""
    with command(tmp_path, "--jobs", "2") as process:
        wait_for_results(tmp_path, process, lines)
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
        out, err = process.communicate(timeout=LIMIT)
        wait_for_the_end(process.pid)
    assert process.returncode == (-sent if sent == signal.SIGKILL else 130), err
    if sent == signal.SIGINT or lines > 1:  # one that dies unheard leaves processes half started
        assert "Traceback" not in err
    assert out == ""
    if sent == signal.SIGINT:
        assert f"run the same command to continue in {tmp_path}" in err
    assert [p.name for p in tmp_path.iterdir()] == ["journal.jsonl"]
    assert generated(tmp_path) == wanted


# --- Ray ------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
def test_the_same_bytes_from_ray(wanted: bytes, tmp_path: Path) -> None:
    """In a process of its own: Ray leaves sockets and threads behind."""
    with command(tmp_path, "--ray", "local", "--jobs", "2") as process:
        _, err = process.communicate(timeout=3 * LIMIT)
    assert process.returncode == 0, err
    assert (tmp_path / FILE).read_bytes() == wanted


@needs_ray
@needs_proc
@pytest.mark.slow
def test_an_interrupted_ray_leaves_no_process_and_goes_on(wanted: bytes, tmp_path: Path) -> None:
    with command(tmp_path, "--ray", "local", "--jobs", "2") as process:
        wait_for_results(tmp_path, process, 2)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
        wait_for_the_end(process.pid)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert generated(tmp_path) == wanted


@needs_ray
@pytest.mark.parametrize(
    ("address", "complaint"),
    [("127.0.0.1:1", "Connection"), ("nonsense", "an address is HOST:PORT")],
)
def test_no_ray_at_an_address(address: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=f"Ray at {address} cannot be used\n.*{complaint}"):
        worker_pool(2, address).__enter__()


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="ray is not installed") as caught:
        worker_pool(2, "local").__enter__()
    assert caught.value.todo == 'pip install "superopt-onnx[dist]"'


class FakeRay:
    """What the generator needs of Ray, without it."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, version: str) -> None:
        self.version = version
        self.asked: list[dict[str, object]] = []
        self.up = False

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **asked: object) -> None:
        self.asked.append(asked)
        self.up = True

    def shutdown(self) -> None:
        self.up = False

    def remote(self, do: object) -> "FakeRay.Task":
        return FakeRay.Task(self, do)

    def get(self, result: object) -> object:
        assert self.up
        return result

    class Task:
        def __init__(self, ray: "FakeRay", do: object) -> None:
            self.ray, self.do = ray, do

        def remote(self, *what: Sequence[object]) -> object:
            if self.do is module._version:
                return self.ray.version
            assert callable(self.do)
            return self.do(*what)


def test_the_work_is_handed_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay(module._version())
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(module, "MAX_PENDING_TASKS", 3)
    with worker_pool(2, "local") as each:
        assert list(each(double, range(10))) == [2 * n for n in range(10)]
    assert fake.asked[0]["address"] == "local"
    assert fake.asked[0]["num_cpus"] == 2
    assert not fake.up
    fake.up = True  # a caller who is in a cluster already stays in it
    with worker_pool(2, "local") as each:
        assert list(each(double, [4])) == [8]
    assert fake.up
    assert len(fake.asked) == 1


def test_workers_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay("0.0.9")
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(UsageError, match=r"have another superopt version\n0\.0\.9 there"):
        worker_pool(2, "local").__enter__()
    assert not fake.up
