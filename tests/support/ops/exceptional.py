"""What operators that order, compare or select make of NaN, infinities, signed zeros and ties.

`RULES` are the rows of the table in docs/reference/exceptional_values.md, with their cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx

Array = np.ndarray
KINDS = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
}
FLOATS = ("float", "double", "float16", "bfloat16")
ALL = tuple(KINDS)
BYTES = (*FLOATS, "int8", "uint8")
SIGNED = (*FLOATS, "int32", "int64", "int8")
NAN, INF = np.nan, np.inf
LINES = [
    [2, NAN, 7, 4, NAN, 1],
    [NAN, 2, 7, 4, 3, 1],
    [2, 7, 4, 3, 1, NAN],
    [NAN, NAN, NAN, NAN, 5, NAN],
    [NAN, NAN, NAN, NAN, NAN, NAN],
    [INF, NAN, -INF, INF, NAN, -INF],
    [INF, -INF, INF, -INF, 0, 1],
    [-INF, -INF, -INF, -INF, -INF, -INF],
    [-INF, NAN, -INF, -INF, 3, -INF],
    [0.0, -0.0, 0.0, -0.0, -1, -0.0],
    [-0.0, 0.0, -0.0, 0.0, 1, 1],
    [0.5, 1.5, 2.5, -0.5, -1.5, -2.5],
    [-0.25, -0.75, 0.25, 0.75, -0.0, 0.0],
    [3, 3, 3, 3, 3, 3],
    [1, 2, 2, 1, 2, 1],
    [-1, -2, -2, -1, -2, -1],
]
INTEGER_LINES = [[3, 3, 3, 3, 3, 3], [1, 2, 2, 1, 2, 1], [5, 4, 5, 4, 0, 5], [0, 0, 0, 1, 0, 1]]
REPEATED = 3  # so that there are more lines than lanes of a vector
LONG = 34  # elements that go before a line, so that it is longer than a vector


@dataclass(frozen=True)
class Case:
    """Nodes that compute $y of lines $a (and $b), along the axis $axis, with other names after $.

    {n} is the number of the element type, [rows] and [length] are the sizes of $a. wanted: the
    result of arrays of lines, whose last axis is the line. along: the operator reads a line
    altogether, so that it is tested along other axes, and on longer lines. signed: the sign of
    a zero in the result is specified. gives: the element type of $y, if it is another.
    """

    nodes: str
    wanted: Callable[[Array, Array], Array]
    kinds: tuple[str, ...] = FLOATS
    along: bool = False
    signed: bool = False
    gives: str = ""


@dataclass(frozen=True)
class Rule:
    """A row of the table: operators, what they do, and which definition that is."""

    operators: str
    exceptional: str
    ties: str
    source: str
    cases: tuple[Case, ...]


def _order(x: Array, largest: bool) -> Array:
    d = x.astype(np.float64)
    key, nan = (-d if largest else d), np.isnan(d)
    return np.lexsort((np.where(nan, 0, key), ~nan if largest else nan), axis=-1)


def _top(k: int, largest: bool) -> tuple[Case, Case]:
    def indices(x: Array, _: Array) -> Array:
        return _order(x, largest)[..., :k]

    nodes = (
        f"$k = Constant<value_ints=[{k}]>()"
        f" $v, $i = TopK<axis=$axis, largest={int(largest)}>($a, $k) $y = Identity"
    )
    return (
        Case(nodes + "($i)", indices, ALL, along=True, gives="int64"),
        Case(nodes + "($v)", lambda x, b: np.take_along_axis(x, indices(x, b), -1), ALL,
             along=True, signed=True),
    )  # fmt: skip


def _first(x: Array, greatest: bool) -> Array:
    d = x.astype(np.float64)
    return np.argmax(d, -1) if greatest else np.argmin(d, -1)


def _last(x: Array, greatest: bool) -> Array:
    return x.shape[-1] - 1 - _first(x[..., ::-1], greatest)


def _arg(op: str, greatest: bool) -> tuple[Case, ...]:
    nodes = f"$y = {op}<axis=$axis, keepdims=0, select_last_index="
    return (
        Case(nodes + "0>($a)", lambda x, _: _first(x, greatest), ALL, along=True, gives="int64"),
        Case(nodes + "1>($a)", lambda x, _: _last(x, greatest), ALL, along=True, gives="int64"),
    )


def _hardmax(x: Array, _: Array) -> Array:
    return (np.arange(x.shape[-1]) == _first(x, True)[..., None]).astype(x.dtype)


def _windows(x: Array, _: Array) -> Array:
    lowest = -INF if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    d = np.pad(x.astype(np.float64), ((0, 0), (1, 1)), constant_values=lowest)
    return np.max(np.lib.stride_tricks.sliding_window_view(d, 3, -1), -1).astype(x.dtype)


def _compared(op: str, fn: np.ufunc, kinds: tuple[str, ...] = ALL) -> Case:
    return Case(f"$y = {op}($a, $b)", lambda a, b: fn(a, b), kinds, gives="bool")


def _same(fn: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, _: np.asarray(fn(a.astype(np.float64))).astype(a.dtype)


def _both(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(fn(a.astype("d"), b.astype("d"))).astype(a.dtype)


def _infinite(x: Array, sign: int) -> Array:
    return x.astype(np.float64) == sign * INF


def _quantized(x: Array, _: Array) -> Array:
    d = x.astype(np.float64)
    return np.where(np.isnan(d), -128, np.clip(np.rint(d), -128, 127)).astype(np.int8)


# Limits of Clip: numbers, and NaN as the root of -1.
_LIMITS = (
    "$z = Constant<value_float=0.0>() $l = Cast<to={n}>($z)"
    " $o = Constant<value_float=2.0>() $h = Cast<to={n}>($o) "
)
_NAN = "$z = Constant<value_float=-1.0>() $c = Cast<to={n}>($z) $l = Sqrt($c) "
_AS_IMAGE = "$s = Constant<value_ints=[1, [rows], [length]]>() $p = Reshape($a, $s) "
_BACK = " $t = Constant<value_ints=[[rows], -1]>() $y = Reshape($q, $t)"

RULES = (
    Rule("TopK", "NaN is greater than all numbers; -0 equals 0",
         "The lower index comes first, for `largest=0`, too",
         "ONNX Runtime, numpy's sort", (*_top(3, True), *_top(4, False), *_top(6, True))),
    Rule("ArgMax, ArgMin", "NaN is the extreme",
         "The first index; the last with `select_last_index=1`",
         "numpy. In ONNX Runtime a NaN counts only where it comes first",
         (*_arg("ArgMax", True), *_arg("ArgMin", False))),
    Rule("Hardmax", "NaN is the maximum", "1 at the first index", "ONNX's reference",
         (Case("$y = Hardmax<axis=$axis>($a)", _hardmax, along=True),)),
    Rule("Max, Min", "NaN where an operand is NaN; the sign of a zero result is not specified",
         "", "numpy, ONNX Runtime",
         (Case("$y = Max($a, $b)", _both(np.maximum), ALL),
          Case("$y = Min($a, $b)", _both(np.minimum), ALL))),
    Rule("Clip", "NaN stays NaN, and so does all that a NaN limits; the sign of a zero is not"
         " specified", "The upper limit wins over the lower one",
         "numpy's minimum(maximum(x, min), max). ONNX Runtime ignores a limit that is NaN",
         (Case(_LIMITS + "$y = Clip($a, $l, $h)", _same(lambda x: np.clip(x, 0, 2)), ALL),
          Case(_LIMITS + "$y = Clip($a, $h, $l)", _same(lambda x: np.clip(x, 2, 0)), ALL),
          Case(_NAN + "$y = Clip($a, $l)", _same(lambda x: x * NAN)))),
    Rule("Relu", "NaN stays NaN; the sign of a zero is not specified", "",
         "ONNX's reference, ONNX Runtime",
         (Case("$y = Relu($a)", _same(lambda x: np.maximum(x, 0))),)),
    Rule("ReduceMax, ReduceMin", "NaN where an element is NaN; of no elements the least, or the"
         " greatest, number of the type; the sign of a zero is not specified", "",
         "numpy. In ONNX Runtime a NaN counts only where it comes first",
         tuple(Case(f"$x = Constant<value_ints=[$axis]>() $y = {op}<keepdims=0>($a, $x)",
                    _same(lambda x, fn=fn: fn(x, -1)), ALL, along=True)
               for op, fn in (("ReduceMax", np.max), ("ReduceMin", np.min)))),
    Rule("MaxPool, GlobalMaxPool", "NaN where a window has a NaN; padding is less than all, and"
         " a window of -inf is -inf", "", "numpy. ONNX Runtime leaves NaN out, and -inf becomes"
         " the least finite number",
         (Case(_AS_IMAGE + "$q = MaxPool<kernel_shape=[3], pads=[1, 1]>($p)" + _BACK, _windows,
               BYTES),
          Case(_AS_IMAGE + "$q = GlobalMaxPool($p)" + _BACK,
               _same(lambda x: np.max(x, -1, keepdims=True))))),
    Rule("Equal, Less, LessOrEqual, Greater, GreaterOrEqual",
         "False where an operand is NaN; -0 equals 0", "", "IEEE 754",
         (_compared("Equal", np.equal), _compared("Less", np.less),
          _compared("LessOrEqual", np.less_equal), _compared("Greater", np.greater),
          _compared("GreaterOrEqual", np.greater_equal))),
    Rule("Where", "The chosen element as it is, NaN and the sign of a zero, too", "", "ONNX",
         (Case("$c = Less($a, $b) $y = Where($c, $a, $b)", lambda a, b: np.where(a < b, a, b), ALL,
               signed=True),)),
    Rule("IsNaN, IsInf", "As asked; both infinities, or one", "", "ONNX",
         (Case("$y = IsNaN($a)", lambda a, _: np.isnan(a), gives="bool"),
          Case("$y = IsInf($a)", lambda a, _: np.isinf(a), gives="bool"),
          Case("$y = IsInf<detect_negative=0>($a)", lambda a, _: _infinite(a, 1), gives="bool"),
          Case("$y = IsInf<detect_positive=0>($a)", lambda a, _: _infinite(a, -1),
               gives="bool"))),
    Rule("Sign", "NaN stays NaN; 0 of both zeros", "", "numpy, ONNX Runtime",
         (Case("$y = Sign($a)", _same(np.sign), SIGNED),)),
    Rule("Abs, Neg", "The sign changes, of zeros and infinities, too", "", "IEEE 754",
         (Case("$y = Abs($a)", _same(np.abs), SIGNED, signed=True),
          Case("$y = Neg($a)", _same(np.negative), SIGNED, signed=True))),
    Rule("Floor, Ceil, Round", "NaN, infinities and zeros stay, with their signs",
         "Round: halves to even", "ONNX, ONNX Runtime",
         (Case("$y = Floor($a)", _same(np.floor), signed=True),
          Case("$y = Ceil($a)", _same(np.ceil), signed=True),
          Case("$y = Round($a)", _same(np.rint), signed=True))),
    Rule("Mod (`fmod=1`)", "NaN of an infinite dividend and of a divisor that is zero", "",
         "C's fmod, ONNX Runtime",
         (Case("$y = Mod<fmod=1>($a, $b)", _both(np.fmod)),)),
    Rule("ThresholdedRelu, Shrink", "0 of NaN", "", "ONNX's function, ONNX Runtime",
         (Case("$y = ThresholdedRelu<alpha=0.5>($a)",
               _same(lambda x: np.where(x > 0.5, x, 0))),
          Case("$y = Shrink<lambd=0.5>($a)", _same(lambda x: np.where(abs(x) > 0.5, x, 0)),
               ("float", "double", "float16")))),
    Rule("Cast to bool", "True of NaN, False of both zeros", "", "ONNX Runtime, numpy",
         (Case("$y = Cast<to=9>($a)", lambda a, _: a.astype("d") != 0, gives="bool"),)),
    Rule("QuantizeLinear", "NaN becomes the least integer of the type, infinities the nearest",
         "Quotients that are halves to even", "ONNX Runtime",
         (Case("$f = Constant<value_float=1.0>() $s = Cast<to={n}>($f)"
               " $z = Constant<value=int8 {0}>() $y = QuantizeLinear($a, $s, $z)", _quantized,
               ("float", "float16", "bfloat16"), gives="int8"),)),
)  # fmt: skip


# DynamicQuantizeLinear: x, and y, scale and zero point; of NaN as ONNX's reference has it, else as
# ONNX Runtime does.
DYNAMIC: list[tuple[list[float], list[int], float, int]] = [
    ([0.0, 0.0, 0.0], [0, 0, 0], 1, 0),
    ([-0.0, 0.0], [0, 0], 1, 0),
    ([], [], 1, 0),
    ([5, 5], [255, 255], 5 / 255, 0),
    ([-5, -5], [0, 0], 5 / 255, 255),
    ([1e-40, 0], [255, 0], 1e-40 / 255, 0),
    ([1e-45, 0], [255, 0], 0, 255),
    ([-1e-45, 0], [0, 0], 0, 255),
    ([INF, 1], [0, 0], INF, 0),
    ([-INF, 1], [0, 255], INF, 255),
    ([3e38, -3e38], [0, 0], INF, 0),
    ([NAN, 1], [0, 0], NAN, 255),
    ([1, NAN, -1], [0, 0, 0], NAN, 255),
    ([NAN] * 40, [0] * 40, NAN, 255),
]


def dynamic_model(size: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{size}] x)'
        f" => (uint8[{size}] y, float s, uint8 z) {{ y, s, z = DynamicQuantizeLinear(x) }}"
    )


def check_dynamic(got: dict[str, Array], y: list[int], scale: float, zero: int) -> None:
    assert got["y"].dtype == got["z"].dtype == np.uint8
    np.testing.assert_array_equal(got["y"], y)
    np.testing.assert_array_equal(got["z"], zero)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got["s"], np.float32(scale), 1e-6, 2e-45)


def lines(kind: str, few: bool = False) -> tuple[Array, Array, Array]:
    """a; b, which has each element of a beside others; and long lines. few: each line once."""
    some = np.array(INTEGER_LINES if KINDS[kind].kind in "iu" else LINES)
    a = np.tile(some, (1 if few else REPEATED, 1))
    b = np.roll(np.roll(a, 2, 1), 1, 0)
    before = np.tile([0, 1, 0, 2, 1], 7)[:LONG]
    long = np.concatenate([np.broadcast_to(before, (len(a), LONG)), a], 1)
    return tuple(x.astype(KINDS[kind]) for x in (a, b, long))  # type: ignore[return-value]


@dataclass(frozen=True)
class Output:
    """One output of the model: a case on lines in one of the layouts."""

    name: str
    case: Case
    layout: str  # lines, columns or long


def outputs(rule: Rule, kind: str, few: bool = False) -> list[Output]:
    out = []
    for n, case in enumerate(rule.cases):
        if kind in case.kinds:
            layouts = ("lines", "columns", "long") if case.along and not few else ("lines",)
            out += [Output(f"y{n}{layout}", case, layout) for layout in layouts]
    return out


def feeds(kind: str, few: bool = False) -> dict[str, Array]:
    a, b, long = lines(kind, few)
    return {"a": a, "b": b, "columns": np.ascontiguousarray(a.T), "long": long}


def model(rule: Rule, kind: str, few: bool = False) -> onnx.ModelProto:
    """All cases of a rule, each an output. few: of each line once, and of no long ones."""
    number = onnx.TensorProto.DataType.Value(kind.upper())
    given = feeds(kind, few)
    ins = ", ".join(f"{kind}[{x.shape[0]}, {x.shape[1]}] {name}" for name, x in given.items())
    outs, text = [], ""
    for o in outputs(rule, kind, few):
        source = {"lines": "a"}.get(o.layout, o.layout)
        nodes = o.case.nodes.replace("{n}", str(number))
        nodes = nodes.replace("$axis", str(int(o.layout != "columns")))
        nodes = nodes.replace("[rows]", str(len(given["a"]))).replace("[length]", "6")
        nodes = nodes.replace("$a", source).replace("$b", "b").replace("$y", o.name)
        text += nodes.replace("$", f"{o.name}_") + " "
        outs.append(f"{o.case.gives or kind}[] {o.name}")
    return onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g ({ins}) => ({", ".join(outs)}) {{ {text} }}'
    )


def check(
    rule: Rule, kind: str, got: dict[str, Array], zeros: bool = True, few: bool = False
) -> None:
    """Raise AssertionError where a result is not the wanted one. zeros: are there signs of zeros?

    Messages name the case and the lines of the first differences.
    """
    given = feeds(kind, few)
    for o in outputs(rule, kind, few):
        x = given["long" if o.layout == "long" else "a"]
        with np.errstate(all="ignore"):
            wanted = np.asarray(o.case.wanted(x, given["b"]))
        result = got[o.name]
        if o.layout == "columns" and result.ndim == 2:
            result = result.T
        wanted = wanted.astype(KINDS.get(o.case.gives, wanted.dtype))
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), o.case.nodes
        r, w = result.astype("d"), wanted.astype("d")
        wrong = ~((r == w) | (np.isnan(r) & np.isnan(w)))
        if o.case.signed and zeros:
            wrong |= (w == 0) & (np.signbit(r) != np.signbit(w))
        bad = np.unique(np.nonzero(wrong)[0])[:3]
        assert not wrong.any(), f"{o.case.nodes} {o.layout}: {x[bad]} gives {r[bad]}, not {w[bad]}"


def table() -> str:
    """The rows as Markdown."""
    head = "| Operator | NaN, infinities, signed zeros | Ties | As |\n|---|---|---|---|\n"
    rows = (f"| {r.operators} | {r.exceptional} | {r.ties} | {r.source} |\n" for r in RULES)
    return head + "".join(rows)
