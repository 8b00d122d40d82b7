"""Modules of WebAssembly as JavaScript calls them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import superopt
from tests.support.compilation.exporting import by_default
from tests.support.targets.emulators import missing
from tests.support.targets.models import attention, product

pytestmark = pytest.mark.skipif(bool(missing("wasm")), reason=missing("wasm"))


def run_script(text: str, folder: Path) -> list[str]:
    """Return the lines that a script prints; `load` and `said` are its own."""
    script = folder / "script.mjs"
    script.write_text(f"""
import {{ load }} from "./m.mjs";
import {{ readFileSync }} from "node:fs";
async function said(f) {{
  try {{ await f(); console.log("no error"); }} catch (e) {{ console.log(e.message); }}
}}
{text}
""")
    done = subprocess.run(["node", script], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    m, _, _ = product()
    superopt.compile(m).export(tmp_path / "m", target="wasm")
    found = run_script(
        """
        const model = await load();
        const x = (rows) => ({ data: new Float32Array(128 * rows), dims: [rows, 128] });
        await said(() => model.run({}));
        await said(() => model.run({ x: new Float32Array(128) }));
        await said(() => model.run({ x: { data: new Float64Array(128), dims: [1, 128] } }));
        await said(() => model.run({ x: { data: new Float32Array(127), dims: [1, 127] } }));
        await said(() => model.run({ x: { data: new Float32Array(127), dims: [1, 128] } }));
        await said(() => model.run({ x: x(2), z: x(2) }));
        for (const rows of [1, 3, 200, 7]) console.log(model.run({ x: x(rows) }).y.dims);
        model.close(); model.close();
        await said(() => model.run({ x: x(2) }));
        const weights = readFileSync("%s");
        weights[100] ^= 1;
        await said(() => load({ weights }));
        await said(() => load({ weights: new Uint8Array(10) }));
        weights[100] ^= 1;
        await said(() => load({ weights: weights.subarray(0, weights.length - 9) }));
        await said(() => load({ weights: Buffer.concat([weights, Buffer.from("!")]) }));
        """
        % (tmp_path / "m.weights"),
        tmp_path,
    )
    size = (tmp_path / "m.weights").stat().st_size
    assert found == [
        "the model: no value for input x",
        "input x needs dims: {data, dims: [rows, 128]}",
        "input x is Float64Array, and must be Float32Array",
        "input x has the shape [1,127], and must have [rows, 128]",
        "input x has 127 elements, and must have 128",
        "the model has no input z: it has x",
        "[ 1, 96 ]", "[ 3, 96 ]", "[ 200, 96 ]", "[ 7, 96 ]",
        "the model is closed",
        "the model: the weights are damaged",
        "the model: the file holds no weights of this model",
        "the model: the weights are damaged",
        f"the model: the weights have {size + 1} bytes, and must have {size}",
    ]  # fmt: skip


def test_models_and_sizes_do_not_share_memory(tmp_path: Path) -> None:
    """Runs of two models in turns, which grow: each has its own results."""
    m, _, _ = attention()
    superopt.compile(m).export(tmp_path / "m", target="wasm")
    found = run_script(
        """
        const [a, b] = [await load(), await load()];
        const x = (n, v) => ({ data: new Float32Array(n * 32).map((_, k) => Math.sin(k * v)),
                               dims: [1, n, 32] });
        const first = a.run({ x: x(5, 1) }).y.data;
        const other = b.run({ x: x(5, 2) }).y.data;
        for (const n of [64, 200, 3]) { a.run({ x: x(n, 3) }); b.run({ x: x(n, 4) }); }
        const same = (p, q) => p.length === q.length && p.every((v, k) => v === q[k]);
        console.log(same(first, a.run({ x: x(5, 1) }).y.data),
                    same(other, b.run({ x: x(5, 2) }).y.data), same(first, other));
        """,
        tmp_path,
    )
    assert found == ["true true false"]


def test_inputs_with_a_default(tmp_path: Path) -> None:
    superopt.compile(by_default()[0]).export(tmp_path / "m", target="wasm")
    found = run_script(
        """
        const model = await load();
        const x = new Float32Array(12);
        const [own, other] = [model.run({ x }).y.data,
                              model.run({ x, b: new Float32Array([1, 2, 3]) }).y.data];
        console.log(own[0] !== 1, other.slice(0, 4).join());
        """,
        tmp_path,
    )
    assert found == ["true 1,2,3,1"]


def test_declarations(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    m, _, _ = attention()
    superopt.compile(m).export(tmp_path / "m", target="wasm")
    golden("wasm-declarations.txt", (tmp_path / "m.d.mts").read_text())
