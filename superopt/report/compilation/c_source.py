"""The C header of an exported model, and the source that implements it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from textwrap import fill

from superopt.report.compilation.compile_report import Port
from superopt.report.formatting import phrases

HEADER_BYTES = 64  # bytes of the header of the weights file
# Element types by ONNX's codes (TensorProto.DataType).
ONNX_TYPE_CODES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Where a tensor is: the caller's INPUT or OUTPUT with this index, or HELD at this byte offset
    in the weights."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{{{self.buffer}, {self.offset}}}"


@dataclass(frozen=True, slots=True)
class ExportedLibrary:
    """The contents of the generated texts.

    name: a C identifier, the prefix of all names; file_name: the files' base name, as in
    libNAME.so. sizes: of symbolic dimensions. cpu_features: as in `__builtin_cpu_supports`.
    defaults: the offset in the weights of each optional input, by its index. arguments: of `run`;
    copies: to outputs that no kernel writes, by their indices. weights, memory, workspace: bytes,
    the last one for each thread, multiples of 64. digest: of the weights; checksums: the sum of
    their 64-bit words modulo 2^64, and the sum of these sums. pool: the offsets of words in `run`'s
    state, and their initial values.
    """

    superopt_version: str
    model: str
    name: str
    file_name: str
    sizes: Mapping[str, int]
    cpu_features: tuple[str, ...]
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaults: Mapping[int, int]
    arguments: tuple[BufferRef, ...]
    copies: tuple[tuple[int, BufferRef], ...]
    weights: int
    memory: int
    workspace: int
    digest: str
    checksums: tuple[int, int]
    pool: Mapping[str, int]

    @property
    def weights_header(self) -> str:
        """Return the header of the weights file."""
        return f"superopt weights 1 {self.digest}\n".ljust(HEADER_BYTES)


def header_text(x: ExportedLibrary) -> str:
    """Return the text of the C header."""
    upper = x.name.upper()
    types = {p.dtype for p in (*x.inputs, *x.outputs)}
    sizes = {"INPUTS": len(x.inputs), "OUTPUTS": len(x.outputs), "THREADS": x.threads}
    for what, ports in (("INPUT", x.inputs), ("OUTPUT", x.outputs)):
        sizes |= {f"{what}_{n}_BYTES": p.bytes for n, p in enumerate(ports)}
    numbers = (f"#define {upper}_{t.upper()} {n}" for t, n in ONNX_TYPE_CODES.items() if t in types)
    text = _HEADER.replace("NAME", upper).replace("name_", f"{x.name}_")
    text = text.replace("@TYPES@", "\n".join(numbers))
    text = text.replace("@SIZES@", "\n".join(f"#define {upper}_{k} {n}" for k, n in sizes.items()))
    return "\n".join([*_header_comment(x), text])


def _header_comment(x: ExportedLibrary) -> Iterator[str]:
    needs = f", on processors with {', '.join(x.cpu_features)}" if x.cpu_features else ""
    yield f"/* {c_comment(x.model)} as machine code, compiled by superopt {x.superopt_version}."
    yield ""
    yield _paragraph(f"For Linux on x86-64{needs}. Link with lib{x.file_name}.so.")
    if x.sizes:
        yield _paragraph(f"Compiled for {', '.join(f'{k} = {n}' for k, n in x.sizes.items())}.")
    yield ""
    for what, ports in (("inputs", x.inputs), ("outputs", x.outputs)):
        for n, p in enumerate(ports):
            other = ", or NULL for its default" if what == "inputs" and n in x.defaults else ""
            shown = c_comment(c_literal(p.name))
            yield f"   {what}[{n}]: {shown}, {p.type}, {p.bytes} bytes{other}"
    yield ""
    yield _paragraph(
        "Tensors are dense and row-major, aligned to the element size. A bool is one byte, "
        "0 or 1; float16 and bfloat16 are two bytes."
    )
    yield ""
    weights = c_comment(c_literal(f"{x.file_name}.weights"))
    yield "       int error;"
    yield f"       {x.name}_model *model = {x.name}_open({weights}, &error);"
    yield f"       if (model == NULL) {{ puts({x.name}_error(error)); exit(1); }}"
    yield f"       error = {x.name}_run(model, inputs, outputs);"
    yield f"       {x.name}_close(model);"
    yield "*/"


_HEADER = """\
#ifndef NAME_H
#define NAME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

@SIZES@

/* Element types, by ONNX's numbers. */
@TYPES@

/* Error codes; name_error returns their messages. */
enum {
    NAME_OK = 0,
    NAME_NO_FILE = 1,      /* the weights cannot be read; see errno */
    NAME_OTHER_FILE = 2,   /* not a weights file, or another model's */
    NAME_DAMAGED = 3,      /* the weights are damaged */
    NAME_NO_PROCESSOR = 4, /* this processor lacks a required feature */
    NAME_NO_MEMORY = 5,
    NAME_NO_THREADS = 6,   /* a thread could not be started */
    NAME_NO_TENSOR = 7     /* a required pointer is NULL */
};

typedef struct {
    const char *name;     /* the model's, in UTF-8 */
    int type;             /* element type */
    int rank;
    const int64_t *shape; /* `rank` dimensions */
    size_t bytes;         /* size of the data */
} name_tensor;

/* Each array ends with a tensor whose name is NULL. */
extern const name_tensor name_inputs[NAME_INPUTS + 1];
extern const name_tensor name_outputs[NAME_OUTPUTS + 1];

typedef struct name_model name_model;

/* Open the model with its own memory and threads. The weights file is checked and mapped; it must
   not change until the model is closed. Returns NULL on failure and sets *error (may be NULL). */
name_model *name_open(const char *weights, int *error);

/* Compute all outputs into the caller's memory, which must not overlap an input. Returns NAME_OK or
   NAME_NO_TENSOR. Not reentrant for one model, and not to be called in a fork of the process that
   opened it; several models may run at once. */
int name_run(name_model *model, const void *const inputs[], void *const outputs[]);

/* Release the model. NULL is ignored. */
void name_close(name_model *model);

/* Return the message of an error code. */
const char *name_error(int error);

#ifdef __cplusplus
}
#endif

#endif
"""


def source_text(x: ExportedLibrary) -> str:
    """Return the C source; it includes the header as model.h."""
    return "\n".join(_source_tables(x)) + files("superopt.report").joinpath("export.c").read_text(
        "utf-8"
    )


def _source_tables(x: ExportedLibrary) -> Iterator[str]:
    yield "#define _GNU_SOURCE"
    yield '#include "model.h"'
    yield f"#define NAME(x) {x.name}_##x"
    yield f"#define CODE(x) {x.name.upper()}_##x"
    numbers = {
        "INPUTS": len(x.inputs), "OUTPUTS": len(x.outputs), "THREADS": x.threads,
        "ARGUMENTS": len(x.arguments), "COPIES": len(x.copies), "WEIGHTS": x.weights,
        "MEMORY": x.memory, "WORKSPACE": x.workspace, **x.pool,
        "SUM": f"UINT64_C({x.checksums[0]})", "SUMS": f"UINT64_C({x.checksums[1]})",
        "NONE": "SIZE_MAX",
        "FITS": " && ".join(["1", *(f'__builtin_cpu_supports("{f}")' for f in x.cpu_features)]),
        "NEEDS": c_literal(", ".join(x.cpu_features)),
    }  # fmt: skip
    yield from (f"#define {k} {v}" for k, v in numbers.items())
    yield f"static const char head[] = {c_literal(x.weights_header)};"
    yield "typedef struct { enum { INPUT, OUTPUT, HELD } where; size_t at; } place;"
    yield f"static const place arguments[] = {_initializer(x.arguments, '{0}')};"
    yield "static const struct { int to; place from; } copies[] = " + _initializer(
        (f"{{{to}, {place}}}" for to, place in x.copies), "{0}"
    ) + ";"  # fmt: skip
    defaults = (x.defaults.get(n, "NONE") for n in range(len(x.inputs)))
    yield f"static const size_t defaults[] = {_initializer(defaults, 'NONE')};"
    for what, ports in (("inputs", x.inputs), ("outputs", x.outputs)):
        for n, p in enumerate(ports):
            yield f"static const int64_t shape_of_{what}_{n}[] = {_initializer(p.shape, '0')};"
        rows = (
            f"{{{c_literal(p.name)}, CODE({p.dtype.upper()}), {len(p.shape)}, shape_of_{what}_{n}, "
            f"{p.bytes}}}"
            for n, p in enumerate(ports)
        )
        yield f"const {x.name}_tensor {x.name}_{what}[] = {_initializer(rows, '{0}')};"
    yield ""


def _initializer(items: Iterable[object], last: str) -> str:
    """Return an array initializer, closed by `last`: C has no empty arrays."""
    return f"{{{', '.join([*map(str, items), last])}}}"


def c_literal(text: str) -> str:
    """Return a C string literal in UTF-8."""
    plain = set(range(32, 127)) - set(b'"\\?')  # trigraphs begin with ??
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def c_comment(text: str) -> str:
    """Return the text without comment delimiters."""
    return phrases.printable(text).replace("*/", "* /").replace("/*", "/ *")


def _paragraph(text: str) -> str:
    margin = "   "
    text = c_comment(text)
    return fill(text, 100, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
