"""Tables of what an exported model checks in C: the guards of its programs, the dimensions of its
inputs, and the values of integer inputs. export/checks.c reads them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from superopt.report.compilation.c_formula import c_formula
from superopt.report.compilation.c_text import c_literal, initializer
from superopt.report.compilation.exported_library import ExportedLibrary, ExportedProgram

_RELATIONS = {  # by comparison and whether it holds: of the left side to the right, and mirrored
    (ast.Lt, True): ("less than", "more than"),
    (ast.Lt, False): ("at least", "at most"),
    (ast.LtE, True): ("at most", "at least"),
    (ast.LtE, False): ("more than", "less than"),
    (ast.Eq, True): ("equal to", "equal to"),
    (ast.Eq, False): ("different from", "different from"),
}
_ORDERS = {ast.Lt: 0, ast.LtE: 1, ast.Eq: 2}  # as in export/checks.c


def check_definitions(x: ExportedLibrary) -> Iterator[str]:
    """Yield the C definitions of what is checked."""
    yield f"#define GUARDS {max((len(p.guards) for p in x.programs), default=0)}"
    yield f"#define LIMITS {len(x.limits)}"
    yield from _GUARD_TYPE
    for n, p in enumerate(x.programs):
        yield from _guard_table(x, n, p)
    yield from _limit_table(x)
    if x.symbols:
        yield from _input_table(x)


_GUARD_TYPE = """\
struct guard {
    int code, order, holds;                    /* order: 0 less, 1 at most, 2 equal */
    const char *left, *relation, *right;       /* texts of the sides */
    int mirrored, is_constant;                 /* left is the second side; right is a number */
    const char *where;                         /* which inputs have these sizes */
};""".splitlines()


def _guard_table(x: ExportedLibrary, n: int, p: ExportedProgram) -> Iterator[str]:
    """Yield the table of a program's guards, and the function that computes their sides."""
    parsed = [_parse_guard(g) for g in p.guards]
    yield f"static const struct guard guards{n}[] = " + initializer(
        (_guard_row(x, *g) for g in parsed), "{0}"
    ) + ";"  # fmt: skip
    yield f"static void sides{n}(const int64_t s[], int64_t out[][2], int is_bad[])\n{{"
    yield "    int *bad = is_bad;"
    yield "    (void)s;"
    yield "    (void)out;"
    for k, (_, compared) in enumerate(parsed):
        left, right = (c_formula(ast.unparse(side)) for side in _sides(compared))
        yield f"    *bad = 0, out[{k}][0] = {left}, out[{k}][1] = {right}, bad++;"
    yield "    (void)bad;\n}"


def _parse_guard(text: str) -> tuple[bool, ast.Compare]:
    """Return whether a comparison must hold, and it."""
    e = ast.parse(text, mode="eval").body
    match e:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare() as compared):
            return False, compared
        case ast.Compare() as compared:
            return True, compared
    raise NotImplementedError(f"the guard {text} in C")


def _sides(compared: ast.Compare) -> tuple[ast.expr, ast.expr]:
    (right,) = compared.comparators
    return compared.left, right


def _guard_row(x: ExportedLibrary, holds: bool, compared: ast.Compare) -> str:
    first, second = _sides(compared)
    (op,) = compared.ops
    relation, mirrored_relation = _RELATIONS[type(op), holds]
    mirrored = isinstance(first, ast.Constant)
    left, right = (second, first) if mirrored else (first, second)
    texts = [c_literal(_with_names(x, ast.unparse(e))) for e in (left, right)]
    own = mirrored_relation if mirrored else relation
    names = dict.fromkeys(re.findall(r"\bs(\d+)\b", ast.unparse(compared)))
    places = ", ".join(_place_text(x, int(k)) for k in names)
    row = (
        f"CODE({_error_name(op, holds, left, right)})", _ORDERS[type(op)], int(holds),
        texts[0], c_literal(own), texts[1], int(mirrored), int(isinstance(right, ast.Constant)),
        c_literal(places),
    )  # fmt: skip
    return f"{{{', '.join(map(str, row))}}}"


def _error_name(op: ast.cmpop, holds: bool, left: ast.expr, right: ast.expr) -> str:
    """Return the name of the error code of a guard."""
    if any(isinstance(e, ast.Mod) for side in (left, right) for e in ast.walk(side)):
        return "INDIVISIBLE_SIZE"
    if not isinstance(op, ast.Eq):
        return "SIZE_RANGE"
    match right:
        case ast.Constant(value=1):
            return "UNIT_SIZE"
        case ast.Constant():
            return "SIZE_RANGE"
    return "UNRELATED_SIZES"


def _with_names(x: ExportedLibrary, text: str) -> str:
    """Return a formula with the names of sizes."""
    return re.sub(r"\bs(\d+)\b", lambda found: x.symbols[int(found[1])], text)


def _place_text(x: ExportedLibrary, symbol: int) -> str:
    n, axis = x.places[symbol]
    return f"{x.symbols[symbol]}: axis {axis} of input {x.inputs[n].name}"


def _limit_table(x: ExportedLibrary) -> Iterator[str]:
    rows = (f"{{{p.number}, {p.summed_axis}, {c_literal(p.what)}}}" for p in x.limits)
    yield "static const struct { int input, axis; const char *what; } limits[] = " + initializer(
        rows, "{0}"
    ) + ";"  # fmt: skip
    yield "static int limit_values(const int64_t s[], int64_t out[])\n{"
    yield "    int bad[1] = {0};"
    yield "    (void)s;"
    yield "    (void)out;"
    for k, limit in enumerate(x.limits):
        for side, text in enumerate((limit.least, limit.greatest)):
            none = ("INT64_MIN", "INT64_MAX")[side]
            yield f"    out[{2 * k + side}] = {c_formula(text) if text else none};"
    yield "    return !*bad;\n}"


def _input_table(x: ExportedLibrary) -> Iterator[str]:
    """Yield where inputs have sizes: for each size the first axis, for each axis its size."""
    places = (f"{{{n}, {axis}}}" for n, axis in x.places)
    yield f"static const struct {{ int input, axis; }} places[] = {initializer(places, '{0}')};"
    dims = [d for p in x.inputs for d in p.shape]
    symbols = (x.symbols.index(d) if d in x.symbols else -1 for d in dims)
    yield f"static const int dimension_symbols[] = {initializer(symbols, '-1')};"
    texts = (c_literal(str(d)) for d in dims)
    yield f"static const char *const dimension_texts[] = {initializer(texts, 'NULL')};"
