"""The values that an open attribute of a rule may take: the scope of a proof.

Numbers that only scale sizes (strides, pads, kernels, groups) are symbols. Axes and permutations
are enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, permutations

from superopt.ir.op import Attr, Op
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F16, F32, F64, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Dim
from superopt.verifier.context import ProofContext

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
    limit = COUNT_LIMITS.get((op.name, key))
    if limit is not None:
        return [limit]
    if key == "axes" and op.name.startswith("Reduce"):
        return ["reductions over at least one axis"]
    if op.name == "ConvTranspose" and key in ENUMERATED_ATTRIBUTES:
        return [SMALL_STRIDES_NOTE]
    return [SCOPE_LIMITS[key]] if key in SCOPE_LIMITS else []


class Unsupported(Exception):
    """The prover has no scope for something that a rule leaves open."""


@dataclass(frozen=True, slots=True)
class OpenAttribute:
    """Attribute `key` of `op`, for operands of these ranks. name: the rule's name of the attribute;
    known: the attributes that have values."""

    context: ProofContext
    op: Op
    key: str
    name: str
    ranks: list[int]
    known: dict[str, Attr]
    max_rank: int

    @property
    def rank(self) -> int:
        return self.ranks[0] if self.ranks else 0

    @property
    def spatial_rank(self) -> int:
        return self.rank - 2

    def unknown(self) -> float:
        return self.context.unknowns.mark(self.name)

    def axis_subsets(self, counts: Iterable[int]) -> Options:
        return _each(s for n in counts for s in combinations(range(self.rank), n))


def attribute_options(a: OpenAttribute) -> Options:
    """Return the possible values of an open attribute."""
    family = "Pool" if a.op.name.endswith("Pool") else a.op.name
    options = OPTIONS.get((family, a.key)) or OPTIONS.get((ANY_OPERATOR, a.key))
    if options is not None:
        return options(a)
    if a.key in FLAGS:
        return _each((0, 1))
    if a.key in FIXED_ATTRIBUTES:
        return _each((FIXED_ATTRIBUTES[a.key],))
    raise Unsupported(f"{a.op.name} with any {a.key}")


def _each(values: Iterable[Attr]) -> Options:
    return [lambda fresh, v=v: v for v in values]  # type: ignore[misc]


def _tuples(lengths: Iterable[int], item: Callable[[FreshSize, int], Dim]) -> Options:
    """Return a tuple of fresh symbols for each length."""
    return [
        lambda fresh, n=n: tuple(item(fresh, k) for k in range(n))  # type: ignore[misc]
        for n in lengths
    ]


def _symbols(lengths: Iterable[int], prefix: str) -> Options:
    return _tuples(lengths, lambda fresh, k: fresh(f"{prefix}{k}"))


def _natural(fresh: FreshSize, name: str) -> Dim:
    """Return a fresh integer that is at least 0."""
    return index.dim(index.as_index(fresh(name)) - 1)


def _signed_dim(fresh: FreshSize, n: int) -> Dim:
    """Return a fresh integer of any sign."""
    return index.dim(index.as_index(fresh(f"p{n}")) - fresh(f"q{n}"))


def _slice_steps(a: OpenAttribute) -> Options:
    axes = a.known.get("axes")
    if not isinstance(axes, tuple):
        raise Unsupported("Slice with open steps and axes")
    return _each((step,) * len(axes) for step in (1, 2, -1))


def _slice_starts(a: OpenAttribute) -> Options:
    if "ends" in a.known:
        raise Unsupported("Slice with open starts and given ends")
    return _each((None,))


def _slice_axes(a: OpenAttribute) -> Options:
    counts = [len(v) for v in a.known.values() if isinstance(v, tuple)] or [0, 1, 2]
    return a.axis_subsets(counts[:3])


def _new_axes(a: OpenAttribute) -> Options:
    ranks = [a.rank + n for n in (1, 2) if a.rank + n <= a.max_rank + 1]
    return _each(s for rank in ranks for s in combinations(range(rank), rank - a.rank))


def _expanded_shapes(a: OpenAttribute) -> Options:
    most = min(a.rank + 1, a.max_rank) if a.rank else a.max_rank
    return _symbols(range(a.rank, most + 1), "t")


def _transposed_pads(a: OpenAttribute) -> Options:
    n = a.spatial_rank
    return _each(((0,) * 2 * n, (1,) * 2 * n, (0,) * n + (1,) * n))


def _scale_numbers(a: OpenAttribute) -> Options:
    return _each((a.unknown(), 0.0, 1.0))


def _unknown_number(a: OpenAttribute) -> Options:
    return _each((a.unknown(),))


def _small_strides(a: OpenAttribute) -> Options:
    return _each((n,) * a.spatial_rank for n in (1, 2))


def _stride_symbols(a: OpenAttribute) -> Options:
    return _symbols((a.spatial_rank,), a.key[0])


def _groups(a: OpenAttribute) -> Options:
    return [lambda fresh: fresh("g")]


def _block_size(a: OpenAttribute) -> Options:
    return [lambda fresh: fresh("b")]


ANY_OPERATOR = "any"
# By operator (or family) and attribute; an entry of an operator goes before one of ANY_OPERATOR.
OPTIONS: dict[tuple[str, str], Callable[[OpenAttribute], Options]] = {
    ("Pool", "kernel_shape"): lambda a: _symbols((a.spatial_rank,), "k"),
    ("ConvTranspose", "strides"): _small_strides,
    ("ConvTranspose", "dilations"): _small_strides,
    (ANY_OPERATOR, "strides"): _stride_symbols,
    (ANY_OPERATOR, "dilations"): _stride_symbols,
    ("Pad", "pads"): lambda a: _tuples((2 * a.rank,), _signed_dim),
    ("ConvTranspose", "pads"): _transposed_pads,
    (ANY_OPERATOR, "pads"): lambda a: _tuples(
        (2 * a.spatial_rank,), lambda fresh, n: _natural(fresh, f"p{n}")
    ),
    ("ConvTranspose", "output_padding"): lambda a: _each((n,) * a.spatial_rank for n in (0, 1)),
    (ANY_OPERATOR, "group"): _groups,
    ("GroupNormalization", "num_groups"): _groups,
    ("Flatten", "axis"): lambda a: _each(range(a.rank + 1)),
    (ANY_OPERATOR, "axis"): lambda a: _each(range(a.rank)),
    ("Unsqueeze", "axes"): _new_axes,
    ("Squeeze", "axes"): lambda a: a.axis_subsets(range(a.rank + 1)),
    ("Slice", "axes"): _slice_axes,
    (ANY_OPERATOR, "axes"): lambda a: a.axis_subsets(range(1, a.rank + 1)),
    ("Slice", "steps"): _slice_steps,
    ("Slice", "starts"): _slice_starts,
    ("Slice", "ends"): lambda a: _each((None,)),
    ("DepthToSpace", "blocksize"): _block_size,
    ("SpaceToDepth", "blocksize"): _block_size,
    ("DepthToSpace", "mode"): lambda a: _each(("DCR", "CRD")),
    ("SpaceToDepth", "mode"): lambda a: _each(("DCR", "CRD")),
    ("Upsample", "scales"): lambda a: _symbols((a.rank,), "s"),
    ("Expand", "shape"): _expanded_shapes,
    ("Reshape", "shape"): lambda a: _symbols(range(1, a.max_rank + 1), "t"),
    ("Tile", "repeats"): lambda a: _symbols((a.rank,), "r"),
    ("Split", "split"): lambda a: _tuples(
        range(1, MAX_PARTS + 1), lambda fresh, k: _natural(fresh, f"c{k}")
    ),
    ("STFT", "frame_step"): lambda a: [lambda fresh: fresh("step")],
    ("DFT", "dft_length"): lambda a: [lambda fresh: fresh("length")],
    ("DFT", "onesided"): lambda a: _each((0, 1)),
    ("Cast", "to"): lambda a: _each((F32, F64, F16, I64, BOOL)),
    ("Gelu", "approximate"): lambda a: _each(("none", "tanh")),
    ("Pad", "mode"): lambda a: _each(("constant", "edge", "reflect", "wrap")),
    (ANY_OPERATOR, "perm"): lambda a: _each(permutations(range(a.rank))),
    (ANY_OPERATOR, "stash_type"): lambda a: _each((F32,)),
    **{(ANY_OPERATOR, k): _scale_numbers for k in ("alpha", "beta", "gamma", "lambd", "bias")},
    **{(ANY_OPERATOR, k): _unknown_number for k in ("epsilon", "momentum")},
}


def option_ranks(op: Op, key: str, ranks: list[int], attribute_values: Options) -> list[int] | None:
    """Return the rank level at which each option is tried: the rank of the result, of which one
    new axis is free. None if all options give the same rank."""
    match op.name, key:
        case (("Reshape" | "Expand"), "shape"):
            extra = 0
        case "Unsqueeze", "axes":
            extra = ranks[0] - 1
        case _:
            return None
    return [len(v) + extra for o in attribute_values if isinstance(v := o(lambda _: 1), tuple)]


def show_dim(d: Dim) -> str:
    return d.name if isinstance(d, Size) else str(d)
