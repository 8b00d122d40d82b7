"""The C source of an exported model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import accumulate

from superopt.report.compilation.c_checks import check_definitions
from superopt.report.compilation.c_formula import c_condition, c_formula
from superopt.report.compilation.c_text import c_literal, initializer
from superopt.report.compilation.exported_library import (
    ELEMENT_TYPES,
    DerivedConstant,
    ExportedLibrary,
    ExportedProgram,
)


def source_text(x: ExportedLibrary) -> str:
    """Return the C source; it includes the header as model.h."""
    folder = files("superopt.report").joinpath("export")
    interface, formulas, *rest = (
        folder.joinpath(name).read_text("utf-8")
        for name in ("model_interface.h", "formulas.c", "checks.c", "weights.c", "x86.c",
                     f"{x.platform}.c", "constants.c", "model.c", "interface.c")
    )  # fmt: skip
    own = *_formulas(x), *check_definitions(x), *_tables(x)
    return "\n".join([*_definitions(x), interface, formulas, *own, "", *rest])


def _definitions(x: ExportedLibrary) -> Iterator[str]:
    yield "#define _GNU_SOURCE"
    yield '#include "model.h"'
    yield from (
        f"#include <{name}.h>" for name in ("inttypes", "limits", "stdio", "stdlib", "string")
    )
    yield f"#define NAME(x) {x.name}_##x"
    yield f"#define CODE(x) {x.name.upper()}_##x"
    numbers = {
        "INPUTS": len(x.inputs), "OUTPUTS": len(x.outputs), "THREADS": x.threads,
        "SIZES": len(x.symbols), "PROGRAMS": len(x.programs),
        "WORDS": max((len(p.words) for p in x.programs), default=0),
        "ARGUMENTS": max((len(p.arguments) for p in x.programs), default=0),
        "CONSTANTS": sum(len(p.constants) for p in x.programs),
        "STATE_BYTES": max((p.state for p in x.programs), default=0),
        "DIMENSIONS": sum(len(p.shape) for p in x.ports),
        # sizes of a library for fixed ones have code
        "OTHER_SIZES": "CODE(NO_CODE)" if x.symbols else "CODE(NO_MEMORY)",
        "COPIES": len(x.copies), "WEIGHTS": x.weights, **x.pool,
        "SUM": f"UINT64_C({x.checksums[0]})", "SUMS": f"UINT64_C({x.checksums[1]})",
        "NONE": "SIZE_MAX",
        "FITS": " && ".join(["1", *x.feature_checks]),
        "NEEDS": c_literal(", ".join(x.cpu_features)),
    }  # fmt: skip
    yield from (f"#define {k} {v}" for k, v in numbers.items())
    yield f"static const char head[] = {c_literal(x.weights_header)};"
    yield "typedef struct { enum { INPUT, OUTPUT, HELD } where; size_t at; } place;"


def _formulas(x: ExportedLibrary) -> Iterator[str]:
    """Yield the functions of sizes; each returns whether its values are right."""
    own = _flat(x.input_dimensions)
    if x.symbols:
        yield from _function("input_dimensions", own)
    yield from _function("dimensions", [*own, *_flat(x.output_dimensions)])
    for n, p in enumerate(x.programs):
        yield from _function(f"dimensions{n}", [*own, *_flat(p.output_dimensions)], p.shared)
        yield f"static int admits{n}(const int64_t s[])\n{{"
        yield "    int bad[1] = {0};"
        yield "    (void)s;"
        yield f"    return {c_condition(p.guards)} && !*bad;\n}}"
        yield from _function(f"values{n}", [p.memory, p.workspace, *p.words], p.shared)


def _flat(shapes: Iterable[Iterable[str]]) -> list[str]:
    return [d for shape in shapes for d in shape]


def _function(name: str, formulas: Iterable[str], shared: Iterable[str] = ()) -> Iterator[str]:
    yield f"static int {name}(const int64_t s[], int64_t out[])\n{{"
    yield "    int bad[1] = {0};"
    yield "    (void)s;"
    yield "    (void)out;"
    wanted, shared = [*formulas], [*shared]
    needed = _used_names(wanted, shared)
    for k, f in enumerate(shared):
        if f"t{k}" in needed:  # another one may exceed an int64_t
            yield f"    const int64_t t{k} = {c_formula(f)};"
    yield from (f"    out[{k}] = {c_formula(f)};" for k, f in enumerate(wanted))
    yield "    return !*bad;\n}"


def _used_names(formulas: Sequence[str], shared: Sequence[str]) -> set[str]:
    """Return the names of the shared formulas that these use, also through others."""
    found: set[str] = set()
    texts = [*formulas]
    while texts:
        names = {*re.findall(r"\bt\d+\b", texts.pop())} - found
        found |= names
        texts += [shared[int(name[1:])] for name in names]
    return found


def _tables(x: ExportedLibrary) -> Iterator[str]:
    yield from _constants(x)
    for n, p in enumerate(x.programs):
        yield f"void run{n}(void **, void *, const void *const *, void *, void *);"
        if p.uses_threads:
            yield f"void work{n}(void *, void *);"
        yield f"static const place arguments{n}[] = {initializer(p.arguments, '{0}')};"
    yield (
        "static const struct program {\n"
        "    int (*admits)(const int64_t[]);\n"
        "    int (*values)(const int64_t[], int64_t[]); /* bytes of memory, workspace; words */\n"
        "    int (*dimensions)(const int64_t[], int64_t[]); /* of inputs and outputs */\n"
        "    void (*sides)(const int64_t[], int64_t[][2], int[]); /* of guards; overflows */\n"
        "    const struct guard *guards;\n"
        "    int guard_count;\n"
        "    void (*run)(void **args, void *memory, const void *const *constants,\n"
        "                void *workspace, void *state);\n"
        "    void (*work)(void *state, void *workspace); /* NULL if it uses one thread */\n"
        "    const place *arguments;\n"
        "    int argument_count;\n"
        "    size_t first_constant;\n"
        f"}} programs[] = {initializer(_program_rows(x.programs), '{0}')};"
    )
    yield "static const struct { int to; place from; } copies[] = " + initializer(
        (f"{{{to}, {place}}}" for to, place in x.copies), "{0}"
    ) + ";"  # fmt: skip
    defaults = (x.defaults.get(n, "NONE") for n in range(len(x.inputs)))
    yield f"static const size_t defaults[] = {initializer(defaults, 'NONE')};"
    yield from _ports(x)
    if x.symbols:
        names = initializer(map(c_literal, x.symbols), "NULL")
        yield f"const char *const {x.name}_sizes[] = {names};"


def _constants(x: ExportedLibrary) -> Iterator[str]:
    """Yield where the constants of programs are, and how those that are not stored are derived."""
    places = [at for p in x.programs for at in p.constants]
    derived = [*dict.fromkeys(at for at in places if isinstance(at, DerivedConstant))]
    firsts = [*accumulate((m.bytes for m in derived), initial=0)]
    begins = dict(zip(derived, firsts, strict=False))
    yield f"#define DERIVED_BYTES ((size_t){firsts[-1]})"
    rows = (
        f"{{1, {begins[at]}}}" if isinstance(at, DerivedConstant) else f"{{0, {at}}}"
        for at in places
    )
    yield "static const struct { int is_derived; size_t at; } constants[] = " + initializer(
        rows, "{0}"
    ) + ";"  # fmt: skip
    matrices = {m: n for n, m in enumerate(dict.fromkeys(m.matrix for m in derived))}
    for matrix, n in matrices.items():
        values = ", ".join(x.hex() for row in matrix for x in row)
        yield f"static const double matrix{n}[] = {{{values}}};"
    for n, m in enumerate(derived):
        yield f"static const int64_t derived_shape{n}[] = {initializer(m.shape, '0')};"
        yield f"static const int64_t derived_strides{n}[] = {initializer(m.strides, '0')};"
    yield f"#define DERIVED {len(derived)}"
    rows = (
        f"{{{m.filters}, {m.count}, {len(m.matrix)}, {len(m.matrix[0])}, {len(m.shape)}, "
        f"matrix{matrices[m.matrix]}, derived_shape{n}, derived_strides{n}, {m.first}, "
        f"{begins[m]}}}"
        for n, m in enumerate(derived)
    )
    yield (
        "static const struct derived {\n"
        "    size_t filters; /* their offset in the weights */\n"
        "    size_t count;\n"
        "    int rows, taps, rank;\n"
        "    const double *matrix;\n"
        "    const int64_t *shape, *strides;\n"
        "    size_t first, at; /* in the products; the offset of the constant */\n"
        f"}} derived[] = {initializer(rows, '{0}')};"
    )


def _program_rows(programs: Iterable[ExportedProgram]) -> Iterator[str]:
    first = 0
    for n, p in enumerate(programs):
        work = f"work{n}" if p.uses_threads else "NULL"
        count = len(p.arguments)
        checks = f"dimensions{n}, sides{n}, guards{n}, {len(p.guards)}"
        yield f"{{admits{n}, values{n}, {checks}, run{n}, {work}, arguments{n}, {count}, {first}}}"
        first += len(p.constants)


def _ports(x: ExportedLibrary) -> Iterator[str]:
    firsts, item_bytes, first = [], [], 0
    for p in x.ports:
        firsts.append(first)
        _, size = ELEMENT_TYPES[p.dtype]
        item_bytes.append(size)
        first += len(p.shape)
    yield f"static const int first_dimensions[] = {initializer(firsts, '0')};"
    yield f"static const int item_bytes[] = {initializer(item_bytes, '0')};"
    for what, ports in (("inputs", x.inputs), ("outputs", x.outputs)):
        for n, p in enumerate(ports):
            dims = (d if isinstance(d, int) else -1 for d in p.shape)
            yield f"static const int64_t shape_of_{what}_{n}[] = {initializer(dims, '0')};"
        rows = (
            f"{{{c_literal(p.name)}, CODE({p.dtype.upper()}), {len(p.shape)}, shape_of_{what}_{n}, "
            f"{p.bytes}}}"
            for n, p in enumerate(ports)
        )
        yield f"const {x.name}_tensor {x.name}_{what}[] = {initializer(rows, '{0}')};"
