"""Libraries for symbolic sizes: C calls them at several sizes, from several threads."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.cpu.library import library_code
from superopt.compilation.cpu.library.class_examples import class_examples
from superopt.errors import UsageError
from superopt.te.expr.symbolic_int import SIZE_LEVELS
from tests.support.compilation.exporting import (
    CC,
    HERE,
    NO_CODE,
    NO_MEMORY,
    NO_TENSOR,
    OK,
    SIZE_RANGE,
    InC,
    floats,
    node,
    size_array,
)
from tests.support.compilation.models import F, I, model, near, reference

pytestmark = pytest.mark.skipif(
    CC is None or not HERE, reason="shared objects need Linux on x86-64 and a C compiler"
)
WIDTH = 32
LENGTHS = (1, 2, 3, 5, 16, 17, 40, 64, 100, 33)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def mlp() -> onnx.ModelProto:
    """Products and a softmax; an output has more rows than the input."""
    w = floats(WIDTH, 48) / 8
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["y"]),
        helper.make_node("Concat", ["y", "x"], ["both"], axis=0),
    ]
    inputs = {"x": (F, ["rows", WIDTH])}
    return model(nodes, inputs, ["y", "both"], {"w": w, "v": w.T.copy()})


def scores() -> onnx.ModelProto:
    """Two sizes that are independent; they are of two inputs."""
    nodes = [node("Transpose", ["k"], ["t"], perm=[1, 0]), node("MatMul", ["q", "t"], ["s"]),
             node("Softmax", ["s"], ["y"], axis=-1)]  # fmt: skip
    return model(nodes, {"q": (F, ["new", 16]), "k": (F, ["past", 16])}, ["y"])


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)


def with_all_classes(exe: superopt.Executable, base: Mapping[str, int]) -> superopt.Executable:
    """Let calls use the classes that a library has."""
    assert exe.size_classes.variant(base) is None  # also none in the cache
    for example in class_examples(base):
        if not exe.size_classes.admits(example):
            made = exe.size_classes.compile(exe.compiler, example)
            assert made is not None
            exe.size_classes.add(made)
    return exe


def test_examples_that_are_alike_come_first() -> None:
    """A batch of one image of each level, before larger batches."""
    found = [*class_examples({"batch": 1, "height": 224, "width": 224})]
    alike = [found.index({"batch": 1, "height": n, "width": n}) for n in SIZE_LEVELS]
    others = [k for k, sizes in enumerate(found) if sizes["batch"] > 1 and sizes["height"] < 64]
    assert max(alike) < min(others)


MAIN = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mlp.h"

enum { THREADS = 3, REPEATS = 20 };

static int count;
static int64_t lengths[99];
static void *given[99], *wanted[99][2];

static void *contents(const char *what, int64_t length, size_t bytes)
{
    char name[99];
    snprintf(name, sizeof name, "%s%d", what, (int)length);
    void *data = malloc(bytes);
    FILE *file = fopen(name, "rb");
    if (file == NULL || fread(data, 1, bytes, file) != bytes)
        exit(99);
    fclose(file);
    return data;
}

/* Run a clone of the model at all sizes, in another order in each thread. */
static void *calls(void *handle)
{
    size_t failures = 0;
    mlp_model *own = mlp_clone(handle, NULL);
    for (int n = 0; own != NULL && n < count * REPEATS; n++) {
        size_t k = ((size_t)own / 64 + 7 * (size_t)n) % (size_t)count;
        const int64_t sizes[MLP_SIZES] = {lengths[k]};
        size_t bytes[MLP_OUTPUTS];
        int64_t shape[2];
        void *outputs[MLP_OUTPUTS];
        const void *inputs[MLP_INPUTS] = {given[k]};
        for (int i = 0; i < MLP_OUTPUTS; i++) {
            failures += mlp_output_shape(i, sizes, shape, &bytes[i]) != MLP_OK;
            failures += shape[0] != (i + 1) * lengths[k] || shape[1] != 32;
            outputs[i] = malloc(bytes[i]);
        }
        failures += mlp_run(own, inputs, outputs, sizes) != MLP_OK;
        for (int i = 0; i < MLP_OUTPUTS; i++) {
            failures += memcmp(outputs[i], wanted[k][i], bytes[i]) != 0;
            free(outputs[i]);
        }
    }
    mlp_close(own);
    return (void *)(own == NULL ? 1 : failures);
}

int main(int argc, char **argv)
{
    int error = 0;
    pthread_t threads[THREADS];
    size_t failures = 0;
    mlp_model *model = mlp_open("mlp.weights", &error);
    if (model == NULL || strcmp(mlp_sizes[MLP_SIZE_ROWS], "rows") != 0)
        return 98;
    for (count = 0; count < argc - 1; count++) {
        lengths[count] = atoi(argv[count + 1]);
        size_t bytes = lengths[count] * 32 * sizeof(float);
        given[count] = contents("x", lengths[count], bytes);
        wanted[count][0] = contents("y", lengths[count], bytes);
        wanted[count][1] = contents("both", lengths[count], 2 * bytes);
    }
    for (int n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, calls, model);
    for (int n = 0; n < THREADS; n++) {
        void *some;
        pthread_join(threads[n], &some);
        failures += (size_t)some;
    }
    mlp_close(model);
    printf("%d failures\\n", (int)failures);
    return failures != 0;
}
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_call_a_library_at_several_sizes(threads: int, tmp_path: Path) -> None:
    exe = superopt.compile(mlp(), threads=threads)
    e = exe.export(tmp_path / "mlp")
    assert (e.symbols, e.threads) == (("rows",), threads)
    assert e.classes > 1
    with_all_classes(exe, {"rows": 8})
    for n in LENGTHS:
        x = rows(n)
        x.tofile(tmp_path / f"x{n}")
        for name, a in exe.run({"x": x}).items():
            a.tofile(tmp_path / f"{name}{n}")
    assert len(exe.size_classes.classes) == e.classes  # calls compiled nothing else
    (tmp_path / "main.c").write_text(MAIN)
    assert CC is not None
    options = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "main.c", "-L.", "-lmlp"]
    command = [CC, *options, "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main", *map(str, LENGTHS)], cwd=tmp_path, capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == (b"0 failures\n", b"", 0)


def test_constants_of_several_classes_are_in_the_weights_once(tmp_path: Path) -> None:
    exe = superopt.compile(mlp())
    e = exe.export(tmp_path / "mlp")
    classes = with_all_classes(exe, {"rows": 8}).size_classes.classes
    constants = [(c.load_steps() or ())[0].code.constants for c in classes]  # type: ignore[union-attr]
    each = {d: len(a) for c in constants for d, a in zip(c.digests, c.arrays, strict=True)}
    assert e.files[2][1] == 64 + sum(each.values())
    assert sum(len(c.digests) for c in constants) > len(each)  # some are shared


def run_scores(o: InC, new: int, past: int) -> dict[str, np.ndarray]:
    q, k = floats(new, 16), floats(past, 16)
    return o.run({"q": q, "k": k}, new, past)


@pytest.mark.ci
def test_two_sizes(tmp_path: Path) -> None:
    m = scores()
    o = InC(superopt.compile(m).export(tmp_path / "scores"))
    assert o.e.symbols == ("new", "past")
    assert [p.shape for p in o.e.inputs] == [("new", 16), ("past", 16)]
    for new in (1, 2, 7, 70):
        for past in (1, 3, 20, 130):
            wanted = reference(m, {"q": floats(new, 16), "k": floats(past, 16)})
            near(run_scores(o, new, past), wanted)
    o.close()


def test_a_size_that_is_given_is_fixed(tmp_path: Path) -> None:
    m = scores()
    exe = superopt.compile(m)
    o = InC(exe.export(tmp_path / "scores", shapes={"new": 4}))
    assert (o.e.symbols, o.e.inputs[0].shape, o.e.inputs[0].bytes) == (("past",), (4, 16), 256)
    assert "Compiled for new = 4." in (tmp_path / "scores.h").read_text()
    for past in (1, 9, 100):
        feeds = {"q": floats(4, 16), "k": floats(past, 16)}
        near(o.run(feeds, past), reference(m, feeds))
    o.close()


def test_sizes_without_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_code, "MAX_CLASS_COMPILES", 0)
    exe = superopt.compile(mlp())
    exe.run({"x": rows(64)})  # its class is the only one
    e = exe.export(tmp_path / "mlp")
    (made,) = exe.size_classes.classes
    assert e.classes == 1
    o = InC(e)
    x, out = rows(64), [np.zeros((64, WIDTH), np.float32), np.zeros((128, WIDTH), np.float32)]
    memory, shape = o.lib.mlp_memory, (ctypes.c_int64 * 2)()
    memory.restype = ctypes.c_size_t
    o.lib.mlp_reserve.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    refused = 0
    for n in (*range(-2, 70), 5461, 5462, 2**40, 2**62, -(2**63)):
        sizes = size_array([n])
        wanted = OK if made.formulas.admits({"rows": n}) else SIZE_RANGE
        refused += wanted == SIZE_RANGE
        assert o.lib.mlp_input_shape(0, sizes, shape, None) == wanted
        assert o.lib.mlp_reserve(o.at, sizes) == wanted
        assert (memory(sizes) > 0) == (wanted == OK)
    assert refused > 10
    assert o.call([x], [*out], [1]) == SIZE_RANGE
    assert o.message() == "rows is 1, and must be at least 8 (rows: axis 0 of input x)"
    assert o.words(SIZE_RANGE) == b"there is no code for such a small or large size"
    assert o.call([x], [*out], [64]) == OK  # an error leaves the model as it was
    np.testing.assert_array_equal(out[0], exe.run({"x": x})["y"])
    assert "There is code for all sizes for which" in (tmp_path / "mlp.h").read_text()
    o.close()


def test_sizes_that_are_too_large(tmp_path: Path) -> None:
    m = model(
        [node("Relu", ["x"], ["a"]), node("Softmax", ["a"], ["y"])], {"x": (F, ["n", 64])}, ["y"]
    )
    exe = superopt.compile(m)
    o = InC(exe.export(tmp_path / "m"))
    shape = (ctypes.c_int64 * 2)()
    x = floats(3, 64)
    assert o.lib.m_output_shape(0, size_array([2**40]), shape, None) == OK
    assert [*shape] == [2**40, 64]
    assert o.lib.m_output_shape(0, size_array([2**60]), shape, None) == NO_CODE  # its bytes
    assert o.call([x], [x], [2**60]) == NO_CODE
    near(o.run({"x": x}, 3), reference(m, {"x": x}))
    o.close()


def test_memory_that_there_is_not(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("ReduceMax", ["a"], ["s"], axes=[0]),
             node("Sub", ["a", "s"], ["y"]), node("MatMul", ["y", "w"], ["z"])]  # fmt: skip
    m = model(nodes, {"x": (F, ["n", 64])}, ["z"], {"w": floats(64, 64)})
    o = InC(superopt.compile(m).export(tmp_path / "m"))
    o.lib.m_memory.restype, o.lib.m_reserve.argtypes = ctypes.c_size_t, [ctypes.c_void_p] * 2
    assert o.lib.m_memory(size_array([2**40])) > 2**47  # more than there are addresses
    assert o.lib.m_reserve(o.at, size_array([2**40])) == NO_MEMORY
    x = {"x": floats(2, 64)}
    near(o.run(x, 2), reference(m, x))
    o.close()


def test_pointers_that_are_null(tmp_path: Path) -> None:
    o = InC(superopt.compile(mlp()).export(tmp_path / "mlp"))
    out = [np.zeros((8, WIDTH), np.float32), np.zeros((16, WIDTH), np.float32)]
    assert o.call([None], [*out], [8]) == NO_TENSOR
    assert o.call([rows(8)], [out[0], None], [8]) == NO_TENSOR
    assert o._run(o.at, None, None, None) == NO_TENSOR
    assert o.lib.mlp_clone(None, None) == 0
    o.close()


def test_a_run_after_reserve_gets_no_memory_and_no_threads(tmp_path: Path) -> None:
    o = InC(superopt.compile(mlp(), threads=2).export(tmp_path / "mlp"))
    o.lib.mlp_memory.restype, o.lib.mlp_reserve.argtypes = ctypes.c_size_t, [ctypes.c_void_p] * 2

    def has() -> tuple[int, int]:
        """Return the pages of this process, and its threads."""
        pages = Path("/proc/self/statm").read_text().split()[0]
        return int(pages), len([*Path("/proc/self/task").iterdir()])

    n = 4000
    needs = o.lib.mlp_memory(size_array([n]))
    assert needs >= n * 48 * 4
    x, out = rows(n), [np.zeros((k * n, WIDTH), np.float32) for k in (1, 2)]
    before = has()
    assert o.lib.mlp_reserve(o.at, size_array([n])) == OK
    reserved = has()
    assert reserved[0] >= before[0] + needs // 4096
    assert reserved[1] == before[1] + 1
    assert o.call([x], [*out], [n]) == OK
    assert has() == reserved
    o.close()
    assert has()[1] == before[1]


def copying_model() -> onnx.ModelProto:
    """Outputs that no kernel writes, and inputs with defaults."""
    nodes = [node("Add", ["x", "b"], ["y"]), node("Identity", ["x"], ["z"]),
             node("Identity", ["w"], ["v"]), node("Identity", ["y"], ["again"])]  # fmt: skip
    weights = {"b": floats(3), "w": np.arange(3, dtype=np.int64)}
    inputs = {"x": (F, ["n", 3]), "b": (F, [3])}
    return model(nodes, inputs, ["y", "z", "v", "again"], weights)


def test_outputs_that_no_kernel_writes(tmp_path: Path) -> None:
    m = copying_model()
    o = InC(superopt.compile(m).export(tmp_path / "m"))
    for n in (1, 5, 64):
        x = floats(n, 3)
        got = o.run({"x": x}, n)
        sums = x + floats(3)
        for name, a in {"y": sums, "again": sums, "z": x, "v": np.arange(3)}.items():
            np.testing.assert_array_equal(got[name], a)
    other = o.run({"x": floats(2, 3), "b": np.ones(3, np.float32)}, 2)
    np.testing.assert_array_equal(other["y"], floats(2, 3) + 1)
    o.close()


def test_names_of_sizes_become_macros(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "k"], ["y"])]
    m = model(nodes, {"x": (F, ["batch.size", 4]), "k": (F, [4, "batch_size"])}, ["y"])
    superopt.compile(m).export(tmp_path / "m")
    text = (tmp_path / "m.h").read_text()
    assert "#define M_SIZE_BATCH_SIZE 0\n#define M_SIZE_BATCH_SIZE_1 1\n" in text


def test_clones_live_on_when_the_first_handle_is_closed(tmp_path: Path) -> None:
    m = model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, [3, 4])}, ["y"], {"w": floats(4, 5)})
    exe = superopt.compile(m)
    x = floats(3, 4)
    o = InC(exe.export(tmp_path / "m"))  # of fixed sizes
    clone = o.lib.m_clone
    clone.argtypes, clone.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
    other = clone(o.at, None)
    o.close()
    o.at = other
    np.testing.assert_array_equal(o.run({"x": x})["y"], exe.run({"x": x})["y"])
    o.close()


def test_a_model_without_classes_needs_its_sizes(tmp_path: Path) -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("ReduceProd", ["s"], ["p"], keepdims=1),
             node("Reshape", ["x", "p"], ["f"]), node("Relu", ["f"], ["y"])]  # fmt: skip
    m = model(nodes, {"x": (F, ["n", 3])}, ["y"])
    exe = superopt.compile(m, specialize="eager")
    with pytest.raises(UsageError, match="no value for n"):
        exe.export(tmp_path / "m")
    exe.run({"x": floats(4, 3)})
    e = exe.export(tmp_path / "m")  # for the sizes of the only call
    assert (e.symbols, e.classes, e.inputs[0].shape) == ((), 0, (4, 3))


def test_nodes_in_onnxruntime_are_refused(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["y"], to=I)]
    m = model(nodes, {"x": (F, ["n", 3])}, ["y"])
    with pytest.raises(UsageError, match=r"cannot be exported\n.*NonZero"):
        superopt.compile(m).export(tmp_path / "m")
