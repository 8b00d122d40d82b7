"""The ES module of a model in WebAssembly, and its TypeScript declarations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from superopt.report.compilation.c_header import model_functions
from superopt.report.compilation.c_text import c_comment
from superopt.report.compilation.compile_report import Port
from superopt.report.compilation.exported_library import HEADER_BYTES, ExportedLibrary

ARRAY_TYPES = {
    "float32": "Float32Array", "float64": "Float64Array", "int8": "Int8Array",
    "uint8": "Uint8Array", "int16": "Int16Array", "uint16": "Uint16Array", "int32": "Int32Array",
    "uint32": "Uint32Array", "int64": "BigInt64Array", "uint64": "BigUint64Array",
    "bool": "Uint8Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
}  # fmt: skip


def module_text(x: ExportedLibrary) -> str:
    """Return the text of the module: its `load` returns a model, which has `run`."""
    code = files("superopt.report").joinpath("export", "wasm.mjs").read_text("utf-8")
    about = json.dumps(_describe_model(x), indent=1, ensure_ascii=False)
    return f"{_comment(x)}\nconst MODEL = {about};\n\n{code}"


def _comment(x: ExportedLibrary) -> str:
    name = c_comment(f"{x.file_name}.mjs")
    return (
        f"/* {c_comment(x.model)} in WebAssembly, compiled by superopt {x.superopt_version}.\n\n"
        f'     import {{ load }} from "./{name}";\n'
        "     const model = await load();\n"
        "     const outputs = model.run({ ... });  // {name: {data, dims}} */"
    )


def _describe_model(x: ExportedLibrary) -> dict[str, Any]:
    return {
        "model": x.model,
        "name": x.name,
        "files": {"wasm": f"./{x.library_file}", "weights": f"./{x.file_name}.weights"},
        "weightsBytes": HEADER_BYTES + x.weights,
        "functions": [*model_functions(x), "allocate", "free"],
        "sizes": [*x.symbols],
        "inputs": [
            {**_describe_port(p), "isOptional": n in x.defaults} for n, p in enumerate(x.inputs)
        ],
        "outputs": [_describe_port(p) for p in x.outputs],
    }


def _describe_port(p: Port) -> dict[str, Any]:
    return {"name": p.name, "type": p.dtype, "dims": [*p.shape], "bytes": p.bytes}


def declarations_text(x: ExportedLibrary) -> str:
    """Return the TypeScript declarations of the module."""
    return "\n".join([*_declarations(x), ""])


def _declarations(x: ExportedLibrary) -> Iterator[str]:
    yield _comment(x)
    yield ""
    yield "export interface Tensor<T> {"
    yield "  data: T;"
    yield "  dims: readonly number[];"
    yield "}"
    yield ""
    yield "/* Arrays of float16, bfloat16 and bool hold their bits. */"
    yield "export interface Inputs {"
    for n, p in enumerate(x.inputs):
        kind = ARRAY_TYPES[p.dtype]
        whole = "" if p.is_symbolic else f"{kind} | "
        optional = "?" if n in x.defaults else ""
        yield f"  /* [{', '.join(map(str, p.shape))}] */"
        yield f"  {json.dumps(p.name)}{optional}: {whole}Tensor<{kind}>;"
    yield "}"
    yield ""
    yield from _port_types("Outputs", x.outputs)
    yield ""
    yield "export type Source = string | URL | Response | ArrayBuffer | ArrayBufferView;"
    yield ""
    yield "export interface Port {"
    yield "  name: string;"
    yield "  type: string;"
    yield "  dims: readonly (number | string)[];"
    yield "}"
    yield ""
    yield "export class Model {"
    yield "  readonly inputs: readonly Port[];"
    yield "  readonly outputs: readonly Port[];"
    yield "  run(feeds: Inputs): Outputs;"
    yield "  close(): void;"
    yield "}"
    yield ""
    yield "export function load(sources?: { wasm?: Source; weights?: Source }): Promise<Model>;"


def _port_types(name: str, ports: Sequence[Port]) -> Iterator[str]:
    yield f"export interface {name} {{"
    for p in ports:
        yield f"  /* [{', '.join(map(str, p.shape))}] */"
        yield f"  {json.dumps(p.name)}: Tensor<{ARRAY_TYPES[p.dtype]}>;"
    yield "}"
