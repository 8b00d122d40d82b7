"""The values that an open attribute of a rule may take: the scope of a proof.

Numbers that only scale sizes (strides, pads, kernels, groups) are symbols. Axes and permutations
are enumerated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

from superopt.ir.op import Attr, Op
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F16, F32, F64, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Dim

FreshSize = Callable[[str], Dim]
Options = list[Callable[[FreshSize], Attr]]
MAX_PARTS = 3
FLAGS = frozenset(
    (
        *("keepdims", "transA", "transB", "count_include_pad", "ceil_mode", "upper", "fmod"),
        "select_last_index",
    )
)
FIXED_ATTRIBUTES: dict[str, Attr] = {
    "auto_pad": "NOTSET",
    "kernel_shape": None,
    "noop_with_empty_axes": 0,
    "storage_order": 0,
    "allowzero": 0,
    "num_outputs": None,
    "output_shape": None,
    "training_mode": 0,
}


# Each open float attribute has one of these marker numbers, which the reader turns back into an
# unknown. A marker is exact in float32 and unlikely to occur in a rule.
_MARK_BY_NAME: dict[str, float] = {}
_NAME_BY_MARK: dict[Fraction, str] = {}


def unknown_mark(name: str) -> float:
    """Return the marker number of the unknown with this name."""
    found = _MARK_BY_NAME.get(name)
    if found is None:
        n = (len(_MARK_BY_NAME) + 1) * 0x9E3779B1 % 2**24 | 1
        while Fraction(n, 2**24) in _NAME_BY_MARK:
            n = (n + 2) % 2**24
        found = _MARK_BY_NAME[name] = n / 2**24
        _NAME_BY_MARK[Fraction(n, 2**24)] = name
    return found


def unknown_name(v: object) -> str | None:
    """Return the name of the unknown that the number `v` marks, None for other numbers."""
    if not isinstance(v, (float, Fraction)) or not 0 < v < 1:
        return None
    return _NAME_BY_MARK.get(Fraction(v))


def unknown_root_name(v: Fraction) -> str | None:
    """Return the name of the unknown of which `v` is the computed square root."""
    square = float(v) ** 2
    return next(
        (name for name, m in _MARK_BY_NAME.items() if abs(m - square) < 1e-14 and v > 0), None
    )


# What the options leave out; the scope of a proof that used one lists it.
SCOPE_LIMITS = {
    "starts": "slices inside their axes",
    "steps": "slices by steps of 1, 2 and -1",
    "split": f"splits into at most {MAX_PARTS} parts",
    "to": "casts to f32, f64, f16, i64 and bool",
    "auto_pad": "explicit pads",
    "training_mode": "inference",
    "stash_type": "statistics in float32",
}
COUNT_LIMITS = {
    ("Unsqueeze", "axes"): "one or two new axes",
    ("Slice", "axes"): "slices along at most two axes",
    ("Expand", "shape"): "expansions by at most one axis",
}
ENUMERATED_ATTRIBUTES = ("strides", "dilations", "output_padding", "pads")
SMALL_STRIDES_NOTE = "transposed convolutions with small numbers as strides, dilations and pads"
NO_PADDING_WINDOWS_NOTE = "no window of a pool sees only padding"
SMALL_DILATIONS_NOTE = "dilations of pools that are no larger than the image"
FEW_BROADCAST_NOTE = "at most two sizes of 1 broadcast at once at rank 3, and one above"
NATURALS_NOTE = "whole numbers 1 to 3 where a rule takes any"
RUNS_NOTE = f"runs of at most {MAX_PARTS} operands"


def scope_limits(op: Op, key: str) -> list[str]:
    """Return what a proof leaves out if this attribute is open."""
    some = COUNT_LIMITS.get((op.name, key))
    if some is not None:
        return [some]
    if key == "axes" and op.name.startswith("Reduce"):
        return ["reductions over at least one axis"]
    if op.name == "ConvTranspose" and key in ENUMERATED_ATTRIBUTES:
        return [SMALL_STRIDES_NOTE]
    return [SCOPE_LIMITS[key]] if key in SCOPE_LIMITS else []


class Unsupported(Exception):
    """The prover has no scope for something that a rule leaves open."""


def attribute_options(
    op: Op, key: str, ranks: list[int], known_attrs: dict[str, Attr], max_rank: int, name: str
) -> Options:
    """Return the possible values of attribute `key` of `op` for operands of these ranks. `name` is
    the rule's name of the attribute."""
    rank = ranks[0] if ranks else 0
    space = rank - 2

    def each(values: list[Attr]) -> Options:
        return [lambda fresh, v=v: v for v in values]  # type: ignore[misc]

    def symbols(count: int, what: str) -> Options:
        return [lambda fresh: tuple(fresh(f"{what}{n}") for n in range(count))]

    match op.name, key:
        case (("Conv" | "ConvTranspose"), "kernel_shape"):
            return each([None])
        case _, "kernel_shape" if op.name.endswith("Pool"):
            return symbols(space, "k")
        case "ConvTranspose", ("strides" | "dilations"):
            return each([(1,) * space, (2,) * space])
        case _, ("strides" | "dilations"):
            return symbols(space, key[0])
        case "Pad", "pads":
            return [lambda fresh: tuple(_signed_dim(fresh, n) for n in range(2 * rank))]
        case "ConvTranspose", "pads":
            return each([(0,) * 2 * space, (1,) * 2 * space, (0,) * space + (1,) * space])
        case _, "pads":
            return [lambda fresh: tuple(_natural(fresh, f"p{n}") for n in range(2 * space))]
        case _, "group":
            return [lambda fresh: fresh("g")]
        case "Flatten", "axis":
            return each(list(range(rank + 1)))
        case _, "axis":
            return each(list(range(rank)))
        case "Unsqueeze", "axes":
            return each(
                [
                    s
                    for n in range(1, 3)
                    if rank + n <= max_rank + 1
                    for s in itertools.combinations(range(rank + n), n)
                ]
            )
        case "Slice", "axes":
            counts = [len(v) for v in known_attrs.values() if isinstance(v, tuple)] or [0, 1, 2]
            return each([s for n in counts[:3] for s in itertools.combinations(range(rank), n)])
        case "Slice", "steps":
            axes = known_attrs.get("axes")
            if not isinstance(axes, tuple):
                raise Unsupported("Slice with open steps and axes")
            return each([(1,) * len(axes), (2,) * len(axes), (-1,) * len(axes)])
        case "Slice", "starts":
            if "ends" in known_attrs:
                raise Unsupported("Slice with open starts and given ends")
            return each([None])
        case "Slice", "ends":
            return each([None])
        case "ConvTranspose", "output_padding":
            return each([(0,) * space, (1,) * space])
        case (("DepthToSpace" | "SpaceToDepth"), "blocksize"):
            return [lambda fresh: fresh("b")]
        case "GroupNormalization", "num_groups":
            return [lambda fresh: fresh("g")]
        case "Upsample", "scales":
            return symbols(rank, "s")
        case (("DepthToSpace" | "SpaceToDepth"), "mode"):
            return each(["DCR", "CRD"])
        case "Squeeze", "axes":
            sizes = range(rank + 1)
            return each([s for n in sizes for s in itertools.combinations(range(rank), n)])
        case "Expand", "shape":
            return [
                lambda fresh, n=n: tuple(fresh(f"t{k}") for k in range(n))  # type: ignore[misc]
                for n in range(rank, (min(rank + 1, max_rank) if rank else max_rank) + 1)
            ]
        case "Tile", "repeats":
            return symbols(rank, "r")
        case "Cast", "to":
            return each([F32, F64, F16, I64, BOOL])
        case "Gelu", "approximate":
            return each(["none", "tanh"])
        case "Pad", "mode":
            return each(["constant", "edge", "reflect", "wrap"])
        case _, ("alpha" | "beta" | "gamma" | "lambd" | "bias"):
            return each([unknown_mark(name), 0.0, 1.0])
        case _, ("epsilon" | "momentum"):
            return each([unknown_mark(name)])
        case _, "stash_type":
            return each([F32])
        case _, "axes":
            sizes = range(1, rank + 1)
            return each([s for n in sizes for s in itertools.combinations(range(rank), n)])
        case _, "perm":
            return each(list(itertools.permutations(range(rank))))
        case "Reshape", "shape":
            return [
                lambda fresh, n=n: tuple(fresh(f"t{k}") for k in range(n))  # type: ignore[misc]
                for n in range(1, max_rank + 1)
            ]
        case "Split", "split":
            return [
                lambda fresh, n=n: tuple(_natural(fresh, f"c{k}") for k in range(n))  # type: ignore[misc]
                for n in range(1, MAX_PARTS + 1)
            ]
        case _, _ if key in FLAGS:
            return each([0, 1])
        case _, _ if key in FIXED_ATTRIBUTES:
            return each([FIXED_ATTRIBUTES[key]])
        case _:
            raise Unsupported(f"{op.name} with any {key}")


def option_ranks(op: Op, key: str, ranks: list[int], attribute_values: Options) -> list[int] | None:
    """Return the rank of the result for each option, None if all options give the same rank."""
    match op.name, key:
        case (("Reshape" | "Expand"), "shape"):
            extra = 0
        case "Unsqueeze", "axes":
            extra = ranks[0] - 1
        case _:
            return None
    return [len(v) + extra for o in attribute_values if isinstance(v := o(lambda _: 1), tuple)]


def _natural(fresh: FreshSize, name: str) -> Dim:
    """Return a fresh integer that is at least 0."""
    return index.dim(index.as_index(fresh(name)) - 1)


def _signed_dim(fresh: FreshSize, n: int) -> Dim:
    """Return a fresh integer of any sign."""
    return index.dim(index.as_index(fresh(f"p{n}")) - fresh(f"q{n}"))


def show_dim(d: Dim) -> str:
    return d.name if isinstance(d, Size) else str(d)
