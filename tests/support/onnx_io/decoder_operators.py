"""Operators of decoders with random attributes and symbolic sizes, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator
Sizes = dict[str, int]
Feeds = dict[str, np.ndarray]
Results = list[np.ndarray]
Shape = tuple[int | str, ...]
OPSET = 24
MAX_POSITIONS = 600  # of the rotary caches
BATCHES = (1, 1, 2, 3)
LENGTHS = (2, 3, 5, 17, 33)
PASTS = (1, 2, 3, 7, 15, 16, 31, 40, 64, 70, 130, 300)


@dataclass(slots=True)
class Case:
    """A model of one operator. inputs: symbolic shapes of float inputs. draw_sizes: sizes that are
    possible together. draw_integers: the other inputs at these sizes. clear: sets elements that the
    operator leaves undefined to 0."""

    label: str
    inputs: dict[str, Shape] = field(default_factory=dict)
    integer_inputs: dict[str, tuple[int, Shape]] = field(default_factory=dict)
    outputs: dict[str, Shape] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    draw_sizes: Callable[[Rng], Sizes] = lambda rng: {}
    draw_integers: Callable[[Rng, Sizes], Feeds] = lambda rng, sizes: {}
    clear: Callable[[Feeds, Results], None] = lambda feeds, results: None

    def model(self) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        inputs = [value(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()]
        inputs += [value(n, kind, s) for n, (kind, s) in self.integer_inputs.items()]
        outputs = [value(n, TensorProto.FLOAT, s) for n, s in self.outputs.items()]
        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, rng: Rng, sizes: Sizes) -> Feeds:
        def shape(dims: Shape) -> list[int]:
            return [d if isinstance(d, int) else sizes[d] for d in dims]

        floats = {n: draw_floats(rng, *shape(s)) for n, s in self.inputs.items()}
        return floats | self.draw_integers(rng, sizes)

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "",
            **attrs: object) -> None:  # fmt: skip
        names = list(inputs)
        while names and not names[-1]:
            names.pop()
        self.nodes.append(helper.make_node(op, names, outputs, domain=domain, **attrs))


def draw_floats(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _some(rng: Rng, values: Sequence[int]) -> int:
    return int(rng.choice(values))


def _is_drawn(rng: Rng, share: float = 0.4) -> bool:
    return bool(rng.random() < share)


def _add_rotary_caches(rng: Rng, case: Case, angles: int) -> None:
    drawn = rng.random((MAX_POSITIONS, angles)).astype(np.float32) * 6
    case.constants |= {"cos": np.cos(drawn), "sin": np.sin(drawn)}


def _step_sizes(rng: Rng) -> Sizes:
    """Sizes of a prefill, a chunk after a past, or a step of one token."""
    past, length = _some(rng, PASTS), 1 if _is_drawn(rng, 0.6) else _some(rng, LENGTHS)
    batch = _some(rng, BATCHES)
    return {"b": batch, "s": length, "p": past, "t": past + length}


def attention_with_past(rng: Rng) -> Case:
    """ONNX's Attention with a growing past."""
    groups, size = _some(rng, (1, 2)), _some(rng, (8, 16))
    heads, flat = groups * _some(rng, (1, 2, 3)), _is_drawn(rng, 0.5)
    attrs: dict[str, object] = {"is_causal": int(_is_drawn(rng, 0.7))}
    if flat:
        attrs |= {"q_num_heads": heads, "kv_num_heads": groups}
    case = Case("attention_with_past", draw_sizes=_step_sizes)
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        case.inputs[name] = ("b", "s", count * size) if flat else ("b", count, "s", size)
    mask = _is_drawn(rng)
    if mask:
        heads_of_mask = _some(rng, (1, heads))
        case.inputs["mask"] = (_some(rng, (1, 1)), heads_of_mask, "s", "t")
    case.inputs |= {"pk": ("b", groups, "p", size), "pv": ("b", groups, "p", size)}
    if _is_drawn(rng):
        attrs["softcap"] = 2.0
    if _is_drawn(rng):
        attrs["scale"] = 0.3
    case.outputs = {"y": case.inputs["q"]}
    case.outputs |= {"nk": ("b", groups, "t", size), "nv": ("b", groups, "t", size)}
    names = ["q", "k", "v", "mask" if mask else "", "pk", "pv"]
    case.add("Attention", names, [*case.outputs], **attrs)
    return case


def attention_with_cache(rng: Rng) -> Case:
    """TensorScatter into caches, and ONNX's Attention with nonpad_kv_seqlen."""
    groups, size = _some(rng, (1, 2)), _some(rng, (8, 16))
    heads = groups * _some(rng, (1, 2, 3))
    case = Case("attention_with_cache")
    case.inputs = {"q": ("b", heads, "s", size), "k": ("b", groups, "s", size)}
    case.inputs |= {"v": ("b", groups, "s", size), "pk": ("b", groups, "c", size)}
    case.inputs |= {"pv": ("b", groups, "c", size)}
    kind = TensorProto.INT64
    case.integer_inputs = {"at": (kind, ("b",)), "valid": (kind, ("b",))}
    case.outputs = {"y": case.inputs["q"], "nk": case.inputs["pk"], "nv": case.inputs["pv"]}
    attrs: dict[str, object] = {"is_causal": int(_is_drawn(rng, 0.7))}
    if _is_drawn(rng):
        attrs["softcap"] = 2.0
    case.add("TensorScatter", ["pk", "k", "at"], ["nk"], axis=2)
    case.add("TensorScatter", ["pv", "v", "at"], ["nv"])
    case.add("Attention", ["q", "nk", "nv", "", "", "", "valid"], ["y"], **attrs)

    def sizes(rng: Rng) -> Sizes:
        step = _step_sizes(rng)
        return {"b": step["b"], "s": step["s"], "c": step["t"] + _some(rng, (0, 1, 9))}

    def integers(rng: Rng, sizes: Sizes) -> Feeds:
        at = rng.integers(0, sizes["c"] - sizes["s"] + 1, sizes["b"])
        return {"at": at, "valid": at + sizes["s"]}

    case.draw_sizes, case.draw_integers = sizes, integers
    return case


def grouped_query_attention(rng: Rng, fixed_capacity: bool | None = None) -> Case:
    """GroupQueryAttention with a growing past, or with caches of a fixed capacity."""
    fixed = _is_drawn(rng, 0.5) if fixed_capacity is None else fixed_capacity
    groups, size = _some(rng, (1, 2)), _some(rng, (16, 32))
    heads = groups * _some(rng, (1, 2, 3))
    before, after = ("c", "c") if fixed else ("p", "t")
    case = Case(f"grouped_query_attention, {'fixed' if fixed else 'growing'}")
    packed = _is_drawn(rng)
    case.inputs = {"q": ("b", "s", (heads + (2 * groups if packed else 0)) * size)}
    if not packed:
        case.inputs |= {"k": ("b", "s", groups * size), "v": ("b", "s", groups * size)}
    case.inputs |= {"pk": ("b", groups, before, size), "pv": ("b", groups, before, size)}
    case.outputs = {"y": ("b", "s", heads * size), "nk": ("b", groups, after, size)}
    case.outputs |= {"nv": ("b", groups, after, size)}
    names = ["q", *(["", ""] if packed else ["k", "v"]), "pk", "pv", "last", "total"]
    names += [""] * 5
    attrs: dict[str, object] = {"num_heads": heads, "kv_num_heads": groups}
    if _is_drawn(rng, 0.6):
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(_is_drawn(rng))}
        _add_rotary_caches(rng, case, 8 * _some(rng, range(1, size // 16 + 1)))
        names[7:9] = ["cos", "sin"]
    positions = "do_rotary" in attrs and _is_drawn(rng, 0.3)
    if positions:
        case.integer_inputs["places"] = (TensorProto.INT64, ("b", "s"))
        names[9] = "places"
    if not fixed and _is_drawn(rng, 0.3):
        case.inputs["bias"] = (1, _some(rng, (1, heads)), "s", "t")
        names[10] = "bias"
    if _is_drawn(rng, 0.2):
        attrs["smooth_softmax"] = 1
    elif _is_drawn(rng, 0.2):
        case.inputs["sink"] = (heads,)
        names[11] = "sink"
    if _is_drawn(rng, 0.3):
        attrs["softcap"] = 1.5
    if _is_drawn(rng, 0.3):
        attrs["scale"] = 0.4
    if _is_drawn(rng):
        attrs["local_window_size"] = int(rng.integers(1, 6))
    if fixed:
        case.integer_inputs |= {
            "last": (TensorProto.INT32, ("b",)),
            "total": (TensorProto.INT32, ()),
        }
    else:
        _add_lengths_of_mask(case)
    case.add("GroupQueryAttention", names, [*case.outputs], "com.microsoft", **attrs)

    def sizes(rng: Rng) -> Sizes:
        step = _step_sizes(rng)
        if step["s"] > 1:
            step["b"] = 1
        return step | {"c": step["t"] + _some(rng, (0, 1, 9))}

    def integers(rng: Rng, sizes: Sizes) -> Feeds:
        batch, length, total = sizes["b"], sizes["s"], sizes["t"]
        prompt = fixed and length > 1 and _is_drawn(rng)
        valid = rng.integers(length, total + 1, batch)
        valid[0] = total = length if prompt else total
        out: Feeds = {}
        if fixed:
            out = {"last": (valid - 1).astype(np.int32), "total": np.array(total, np.int32)}
        else:
            out["attention_mask"] = (np.arange(total) < valid[:, None]).astype(np.int64)
        if positions:
            out["places"] = rng.integers(0, MAX_POSITIONS - length, (batch, length))
        return out

    def clear(feeds: Feeds, results: Results) -> None:
        mask = feeds.get("attention_mask")
        counts = feeds["last"] + 1 if mask is None else mask.sum(1)
        for cache in results[1:]:
            for b, count in enumerate(counts):
                cache[b, :, count:] = 0

    case.draw_sizes, case.draw_integers, case.clear = sizes, integers, clear
    return case


def _add_lengths_of_mask(case: Case) -> None:
    """Compute the lengths as exported decoders do: from the sums and the shape of a mask."""
    case.integer_inputs["attention_mask"] = (TensorProto.INT64, ("b", "t"))
    case.constants |= {"one": np.array([1]), "second": np.array(1)}
    case.add("ReduceSum", ["attention_mask", "one"], ["valid"], keepdims=0)
    case.add("Sub", ["valid", "one"], ["last64"])
    case.add("Cast", ["last64"], ["last"], to=TensorProto.INT32)
    case.add("Shape", ["attention_mask"], ["shape"])
    case.add("Gather", ["shape", "second"], ["total64"])
    case.add("Cast", ["total64"], ["total"], to=TensorProto.INT32)


def multi_head_attention(rng: Rng) -> Case:
    """MultiHeadAttention with a growing past."""
    heads, size = _some(rng, (1, 2, 4)), _some(rng, (8, 16))
    hidden = heads * size
    case = Case("multi_head_attention", draw_sizes=_step_sizes)
    case.inputs = dict.fromkeys("qkv", ("b", "s", hidden))
    names = ["q", "k", "v", "", "", "", "pk", "pv"]
    if _is_drawn(rng, 0.5):
        case.constants["bias"] = draw_floats(rng, 3 * hidden)
        names[3] = "bias"
    shapes: tuple[Shape, ...] = ((), ("b",), ("b", "t"), ("b", "s", "t"))
    mask = shapes[_some(rng, range(4))]
    if mask:
        case.integer_inputs["mask"] = (TensorProto.INT32, mask)
        names[4] = "mask"
    if _is_drawn(rng):
        case.inputs["scores"] = (1, _some(rng, (1, heads)), "s", "t")
        names[5] = "scores"
    case.inputs |= {"pk": ("b", heads, "p", size), "pv": ("b", heads, "p", size)}
    case.outputs = {"y": ("b", "s", hidden), "nk": ("b", heads, "t", size)}
    case.outputs |= {"nv": ("b", heads, "t", size)}
    attrs: dict[str, object] = {"num_heads": heads, "unidirectional": int(_is_drawn(rng))}
    if _is_drawn(rng, 0.3):
        attrs["scale"] = 0.4
    if _is_drawn(rng):
        attrs["mask_filter_value"] = float(rng.choice([np.finfo(np.float32).min, -5.0]))
    case.add("MultiHeadAttention", names, [*case.outputs], "com.microsoft", **attrs)

    def integers(rng: Rng, sizes: Sizes) -> Feeds:
        if not mask:
            return {}
        shape = [sizes[str(d)] for d in mask]
        counts = (
            rng.integers(1, sizes["t"] + 1, shape) if len(shape) == 1 else rng.random(shape) < 0.7
        )
        return {"mask": counts.astype(np.int32)}

    case.draw_integers = integers
    return case


def rotary_embedding(rng: Rng) -> Case:
    """RotaryEmbedding of com.microsoft, or ONNX's with positions."""
    heads, size, own = _some(rng, (1, 2, 4)), _some(rng, (8, 16)), _is_drawn(rng, 0.3)
    rotated = size // _some(rng, (1, 1, 2))
    flat = _is_drawn(rng, 0.5)
    case = Case("rotary_embedding", draw_sizes=_step_sizes)
    case.inputs = {"x": ("b", "s", heads * size) if flat else ("b", heads, "s", size)}
    one = not own and _is_drawn(rng, 0.5)
    case.integer_inputs["places"] = (TensorProto.INT64, (1,) if one else ("b", "s"))
    _add_rotary_caches(rng, case, rotated // 2)
    attrs: dict[str, object] = {"interleaved": int(_is_drawn(rng, 0.5))}
    if rotated != size or own:
        attrs |= {"num_heads": heads, "rotary_embedding_dim": rotated}
    if own:
        case.add("RotaryEmbedding", ["x", "cos", "sin", "places"], ["y"], **attrs)
    else:
        case.add("RotaryEmbedding", ["x", "places", "cos", "sin"], ["y"], "com.microsoft", **attrs)
    case.outputs = {"y": case.inputs["x"]}

    def integers(rng: Rng, sizes: Sizes) -> Feeds:
        shape = (1,) if one else (sizes["b"], sizes["s"])
        return {"places": rng.integers(0, MAX_POSITIONS - sizes["s"], shape)}

    case.draw_integers = integers
    return case


def skip_normalization(rng: Rng) -> Case:
    """SkipLayerNormalization or SkipSimplifiedLayerNormalization, and SimplifiedLayerNormalization
    of the sum."""
    width, simplified = _some(rng, (16, 48, 70)), _is_drawn(rng, 0.5)
    case = Case("skip_normalization", draw_sizes=_step_sizes)
    case.inputs = {"x": ("b", "s", width), "skip": ("b", "s", width)}
    names = ["gamma"] if simplified else ["gamma", "beta" if _is_drawn(rng, 0.7) else ""]
    names.append("bias" if _is_drawn(rng, 0.5) else "")
    case.constants = {n: draw_floats(rng, width) for n in names if n}
    kind = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    case.add(kind, ["x", "skip", *names], ["y", "", "", "sum"], "com.microsoft", epsilon=1e-5)
    case.add("SimplifiedLayerNormalization", ["sum", "gamma"], ["z"], axis=-1, epsilon=1e-6)
    case.outputs = {"y": case.inputs["x"], "z": case.inputs["x"]}
    return case


DRAWS: Mapping[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        attention_with_past,
        attention_with_cache,
        grouped_query_attention,
        multi_head_attention,
        rotary_embedding,
        skip_normalization,
    )
}
