"""A process of its own that checks models says what a fork says, and may die at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import onnx
import pytest

from superopt import guard
from superopt.errors import OutOfTime
from superopt.onnx_io.check import checker_server
from superopt.onnx_io.check.forked_checker import CheckFailure, check_in_fork
from tests.support.children import in_child
from tests.support.onnx_io.files import GOOD
from tests.support.onnx_io.rounds import text

BAD = text("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x) => (float[2,4] y) { y = Relu (x) }""").SerializeToString()
ONES = "x" * (3 << 20)  # more than a pipe holds


def crashing() -> bytes:
    """Seen to crash the checker; another version may say what is wrong."""
    made = text("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2,3,4,5] x, float[5] w) => (float[a,b,c,d] y)
        { y = LayerNormalization <axis = 2147483647> (x, w) }""")
    made.graph.node[0].attribute[0].i = 2**31
    return made.SerializeToString()


def large() -> bytes:
    made = onnx.ModelProto.FromString(GOOD)
    made.doc_string = ONES
    return made.SerializeToString()


@pytest.fixture(autouse=True, scope="module")
def one_from_the_first_model_on() -> Iterator[None]:
    before = checker_server.FORKS_BEFORE_SERVER
    checker_server.FORKS_BEFORE_SERVER = 0  # type: ignore[misc]
    yield
    checker_server.FORKS_BEFORE_SERVER = before  # type: ignore[misc]
    checker_server._stop_server()


def server() -> checker_server._Server:
    """One that is ready."""
    end = time.monotonic() + 60
    while True:
        assert checker_server.run_checker(GOOD, 3) is None
        found = checker_server._server
        assert found is not None, "it did not start"
        if found.ready:
            return found
        assert time.monotonic() < end, "it is not ready"
        time.sleep(0.05)


def never(data: bytes, seconds: int) -> CheckFailure | None:
    raise AssertionError("forked here")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("data", [GOOD, BAD, large(), b"", b"no model"], ids=len)
def test_it_says_what_a_fork_says(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = check_in_fork(data, 3)
    server()
    monkeypatch.setattr(checker_server, "check_in_fork", never)
    for _ in range(2):
        assert checker_server.run_checker(data, 3) == wanted
    assert checker_server.run_checker(GOOD, 3) is None


def test_what_it_does_not_survive_a_fork_says() -> None:
    data = crashing()
    server()
    for _ in range(2):
        assert checker_server.run_checker(data, 3) == check_in_fork(data, 3)
        assert checker_server.run_checker(GOOD, 3) is None


def endless() -> bytes:
    """A model on which the checker never ends."""
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float x, float[5] y) => (float[a] z) { z = Einsum <equation = "i"> (x, y) }""")
    made.graph.node[0].attribute[0].s = b"\xff\0"
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize("served", [False, True])
def test_it_ends_with_the_time_of_the_call(served: bool) -> None:
    ask = checker_server.run_checker if served and server() else check_in_fork
    begin = time.monotonic()
    with guard.limit_call(60) as limits:
        limits.shorten_deadline(1.0)
        with pytest.raises(OutOfTime, match=r"checking a model was (stopped|skipped)"):
            ask(endless(), 30)
    assert time.monotonic() - begin < 15
    assert ask(GOOD, 30) is None


@pytest.mark.ci
def test_what_never_ends_is_ended() -> None:
    kept = server()
    begin = time.monotonic()
    assert checker_server.run_checker(endless(), 1) is not None
    assert time.monotonic() - begin < 30
    assert checker_server._server is None  # it said nothing: a fork did
    with pytest.raises(ProcessLookupError):
        os.kill(kept.process, 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_died_is_done_without(number: int) -> None:
    kept = server()
    os.kill(kept.process, number)
    assert checker_server.run_checker(GOOD, 3) is None
    assert checker_server.run_checker(BAD, 3) == check_in_fork(BAD, 3)
    assert checker_server._server is not kept
    with pytest.raises(ProcessLookupError):
        os.kill(kept.process, 0)  # it was waited for


def test_no_signal_ends_what_writes_to_one_that_died() -> None:
    """Where a program has SIGPIPE end it, as in a shell's pipeline."""

    def asked() -> bool:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        kept = server()
        os.kill(kept.process, signal.SIGKILL)
        os.waitpid(kept.process, 0)
        return checker_server.run_checker(large(), 3) is None

    assert in_child(asked)


def test_one_that_does_not_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    checker_server._stop_server()
    monkeypatch.setattr(checker_server, "_SERVER_SCRIPT", "raise SystemExit(1) # {path}")
    monkeypatch.setattr(checker_server, "_start_failed", False)
    end = time.monotonic() + 60
    while not checker_server._start_failed and time.monotonic() < end:
        assert checker_server.run_checker(BAD, 3) == check_in_fork(BAD, 3)
    assert checker_server._start_failed


@pytest.mark.parametrize("name", ["", "/usr/bin/uwsgi", "/opt/app/model-server"])
def test_a_program_that_embeds_python_is_not_started(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker_server._stop_server()
    monkeypatch.setattr(sys, "executable", name)
    assert checker_server.run_checker(GOOD, 3) is None
    assert checker_server._server is None


def test_a_fork_has_one_of_its_own() -> None:
    kept = server()
    assert in_child(lambda: checker_server._server is None)
    assert in_child(lambda: server().process) != kept.process
    assert checker_server.run_checker(BAD, 3) == check_in_fork(BAD, 3)
    assert checker_server._server is kept


def test_threads_do_not_wait_for_each_other() -> None:
    """And get the answers to their own questions."""
    server()
    wanted = {GOOD: check_in_fork(GOOD, 3), BAD: check_in_fork(BAD, 3)}
    wrong: list[object] = []

    def ask(data: bytes) -> None:
        for _ in range(20):
            if (found := checker_server.run_checker(data, 3)) != wanted[data]:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(data,)) for data in (GOOD, BAD) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_unread_answer_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = server()

    def interrupted(data: bytes) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checker_server.json, "loads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checker_server.run_checker(GOOD, 3)
    assert checker_server._server is not kept
    assert checker_server.run_checker(BAD, 3) == check_in_fork(BAD, 3)


def test_it_ends_with_its_owner() -> None:
    """Also where that is killed."""
    code = """if True:
        import os, signal, time
        from superopt.onnx_io.check import checker_server as checker
        from tests.support.onnx_io.files import GOOD
        checker.FORKS_BEFORE_SERVER = 0
        while checker._server is None or not checker._server.ready:
            checker.run_checker(GOOD, 3)
            time.sleep(0.05)
        print(checker._server.process, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    number = int(done.stdout)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with open(f"/proc/{number}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":  # nobody waits for it here
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError("it is still there")


def test_the_first_check_of_a_process_that_must_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of another library may hold a lock that the fork would wait for."""
    checker_server._stop_server()
    monkeypatch.setattr(checker_server, "check_in_fork", never)
    monkeypatch.setattr(checker_server, "_forked_checks", 0)
    monkeypatch.setattr(checker_server, "_forks_are_unsafe", False)
    checker_server.avoid_forks()
    try:
        assert checker_server.run_checker(GOOD, 3) is None
        assert checker_server._server is not None
    finally:
        checker_server._stop_server()
