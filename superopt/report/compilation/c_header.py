"""The C header of an exported model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from superopt.report.compilation.c_text import c_comment, c_literal, c_paragraph
from superopt.report.compilation.exported_library import (
    ELEMENT_TYPES,
    ExportedLibrary,
    ExportedProgram,
)


def header_text(x: ExportedLibrary) -> str:
    """Return the text of the C header."""
    upper = x.name.upper()
    types = {p.dtype for p in x.ports}
    numbers = (
        f"#define {upper}_{t.upper()} {code}"
        for t, (code, _) in ELEMENT_TYPES.items()
        if t in types
    )
    text = _HEADER
    for mark, value in (_SYMBOLIC_TEXTS if x.symbols else _FIXED_TEXTS).items():
        text = text.replace(f"@{mark}@", value)
    text = text.replace("NAME", upper).replace("name_", f"{x.name}_")
    text = text.replace("@TYPES@", "\n".join(numbers))
    sizes = (f"#define {upper}_{k} {n}" for k, n in _numbers(x).items())
    text = text.replace("@SIZES@", "\n".join(sizes))
    return "\n".join([*_header_comment(x), text])


def model_functions(x: ExportedLibrary) -> tuple[str, ...]:
    """Return the names of the functions of the header, without the prefix."""
    sizes = ("infer_sizes", "input_shape", "output_shape", "memory", "reserve")
    return ("open", "clone", "run", "close", "error", "message", *(sizes if x.symbols else ()))


def _numbers(x: ExportedLibrary) -> dict[str, int]:
    """Return the numbers that the header defines."""
    out = {"INPUTS": len(x.inputs), "OUTPUTS": len(x.outputs), "THREADS": x.threads}
    if x.symbols:
        out["SIZES"] = len(x.symbols)
    for n, name in enumerate(x.symbols):
        macro = f"SIZE_{re.sub('[^0-9A-Za-z_]', '_', name).upper()}"
        out[macro if macro not in out else f"{macro}_{n}"] = n
    for what, ports in (("INPUT", x.inputs), ("OUTPUT", x.outputs)):
        out |= {f"{what}_{n}_BYTES": p.bytes for n, p in enumerate(ports) if not p.is_symbolic}
    return out


def _header_comment(x: ExportedLibrary) -> Iterator[str]:
    needs = f", on processors with {', '.join(x.cpu_features)}" if x.cpu_features else ""
    yield f"/* {c_comment(x.model)} as machine code, compiled by superopt {x.superopt_version}."
    yield ""
    yield c_paragraph(f"For {x.system}{needs}. Link with {x.library_file}.")
    if x.fixed_sizes:
        sizes = ", ".join(f"{k} = {n}" for k, n in x.fixed_sizes.items())
        yield c_paragraph(f"Compiled for {sizes}.")
    if x.symbols:
        yield ""
        yield "   There is code for all sizes for which one of these conditions holds:"
        yield from (c_paragraph(f"- {_condition_text(x, p)}") for p in x.programs)
    yield ""
    for what, ports in (("inputs", x.inputs), ("outputs", x.outputs)):
        for n, p in enumerate(ports):
            other = ", or NULL for its default" if what == "inputs" and n in x.defaults else ""
            size = "" if p.is_symbolic else f", {p.bytes} bytes"
            name, kind = c_comment(c_literal(p.name)), c_comment(p.type)
            yield f"   {what}[{n}]: {name}, {kind}{size}{other}"
    yield ""
    yield c_paragraph(
        "Tensors are dense and row-major, aligned to the element size. A bool is one byte, "
        "0 or 1; float16 and bfloat16 are two bytes."
    )
    yield ""
    weights = c_comment(c_literal(f"{x.file_name}.weights"))
    yield "       int error;"
    yield f"       {x.name}_model *model = {x.name}_open({weights}, &error);"
    yield f"       if (model == NULL) {{ puts({x.name}_error(error)); exit(1); }}"
    if x.symbols:
        ones = ", ".join("1" for _ in x.symbols)
        names = ", ".join(map(c_comment, x.symbols))
        yield f"       const int64_t sizes[] = {{{ones}}}; // {names}"
    yield f"       error = {x.name}_run(model, inputs, outputs{', sizes' * bool(x.symbols)});"
    yield f"       {x.name}_close(model);"
    yield "*/"


def _condition_text(x: ExportedLibrary, p: ExportedProgram) -> str:
    """Return the guards of a program with the names of sizes."""
    guards = list(dict.fromkeys(p.guards))
    return re.sub(r"\bs(\d+)\b", lambda found: x.symbols[int(found[1])], " and ".join(guards))


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
    NAME_NO_TENSOR = 7,    /* a required pointer is NULL */
@SIZE_CODES@    NAME_VALUE_RANGE = 15  /* an input has a value that is not possible */
};

typedef struct {
    const char *name;     /* the model's, in UTF-8 */
    int type;             /* element type */
    int rank;
    const int64_t *shape; /* `rank` dimensions@SHAPE@ */
    size_t bytes;         /* size of the data@BYTES@ */
} name_tensor;

/* Each array ends with a tensor whose name is NULL. */
extern const name_tensor name_inputs[NAME_INPUTS + 1];
extern const name_tensor name_outputs[NAME_OUTPUTS + 1];

typedef struct name_model name_model;

/* Open the model with its own memory and threads. The weights file is checked and mapped; it must
   not change until the model is closed. Returns NULL on failure and sets *error (may be NULL). */
name_model *name_open(const char *weights, int *error);

/* Return another handle of the model, with memory and threads of its own, for another thread; it
   shares the weights. A thread may clone a model while others use it. Returns NULL on failure and
   sets *error. Close each handle, in any order. */
name_model *name_clone(const name_model *model, int *error);

@RUN@

/* Release the model. NULL is ignored. */
void name_close(name_model *model);

/* Return the message of an error code. */
const char *name_error(int error);

/* Write why the last call with this handle failed, with names and values, as snprintf does: return
   the length of the text, of which at most size - 1 characters are written. */
int name_message(const name_model *model, char text[], size_t size);

#ifdef __cplusplus
}
#endif

#endif
"""

# What differs between libraries for fixed and for symbolic sizes.
_FIXED_TEXTS = {
    "SIZE_CODES": "",
    "SHAPE": "",
    "BYTES": "",
    "RUN": """\
/* Compute all outputs into the caller's memory, which must not overlap an input. Returns NAME_OK,
   NAME_NO_TENSOR or NAME_VALUE_RANGE. Not reentrant for one model, and not to be called in a fork
   of the process that opened it; several models may run at once. */
int name_run(name_model *model, const void *const inputs[], void *const outputs[]);""",
}
_SYMBOLIC_TEXTS = {
    "SIZE_CODES": """\
    NAME_NO_CODE = 8,      /* there is no code for these sizes, for a reason of no other code */
    NAME_OTHER_SHAPE = 9,  /* a dimension of an input that is a number is another one */
    NAME_UNEQUAL_SIZES = 10,    /* a size has two values, in two inputs or axes */
    NAME_UNRELATED_SIZES = 11,  /* sizes do not fit each other, as total and past + sequence */
    NAME_SIZE_RANGE = 12,       /* a size is below or above those for which there is code */
    NAME_INDIVISIBLE_SIZE = 13, /* a size has another remainder */
    NAME_UNIT_SIZE = 14,        /* a size is 1, or is not, as the code broadcasts it or not */
""",
    "SHAPE": "; -1 where sizes decide",
    "BYTES": "; 0 if sizes decide",
    "RUN": """\
/* The names of the symbolic sizes. Functions take their values in this order. The last is NULL. */
extern const char *const name_sizes[NAME_SIZES + 1];

/* Compute the sizes of inputs of these shapes: shapes[n] has the dimensions of inputs[n], or is
   NULL for an input with a default. Returns NAME_OK, NAME_NO_TENSOR, NAME_OTHER_SHAPE,
   NAME_UNEQUAL_SIZES or NAME_UNRELATED_SIZES. */
int name_infer_sizes(name_model *model, const int64_t *const shapes[], int64_t sizes[]);

/* Write the shape of inputs[n] or outputs[n] at these sizes: `rank` dimensions; and the size of its
   data, unless `bytes` is NULL. Returns NAME_OK or a code from NAME_NO_CODE on. */
int name_input_shape(int n, const int64_t sizes[], int64_t shape[], size_t *bytes);
int name_output_shape(int n, const int64_t sizes[], int64_t shape[], size_t *bytes);

/* Return the bytes of memory that a model needs for a run at these sizes; 0 if it has no code for
   them. */
size_t name_memory(const int64_t sizes[]);

/* Get the memory and start the threads for runs at these sizes, so that the next run at them does
   not. Memory grows and is kept. Returns NAME_OK, NAME_NO_TENSOR, NAME_NO_MEMORY, NAME_NO_THREADS
   or a code from NAME_NO_CODE on. */
int name_reserve(name_model *model, const int64_t sizes[]);

/* Compute all outputs at these sizes into the caller's memory, which must not overlap an input.
   Reserves what it needs. Returns NAME_OK, NAME_NO_TENSOR or another error of name_reserve. Not
   reentrant for one model, and not to be called in a fork of the process that opened it; several
   models may run at once. */
int name_run(name_model *model, const void *const inputs[], void *const outputs[],
             const int64_t sizes[]);""",
}
