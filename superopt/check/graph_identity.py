"""Compare a rebuilt graph with the graph of a file, node by node from the outputs, constants bit by
bit.

Names do not matter, nor whether equal constants or nodes occur once or twice. Where the file has a
constant and the rebuilt graph computes it, it was folded: it is computed again and must be equal in
all bits if its elements were only moved, else within MAX_ULPS units in the last place.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import ml_dtypes
import numpy as np

from superopt.ir import graph
from superopt.ir.evaluate import evaluate
from superopt.ir.syntax import show_attr, show_type
from superopt.ir.text import explicit_attrs
from superopt.onnx_io.import_.model_difference import is_same_opaque_node
from superopt.report.data.certificate import FoldedTensor
from superopt.rules.lang.value_facts import are_attrs_equal
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, to_numpy

MAX_ULPS = 1  # two float64 computations, each rounded once, may round to neighbours
MAX_INTERMEDIATE_BYTES = (
    1 << 34
)  # bytes in float64 of the intermediate tensors of a folded constant
RELEASE_AFTER_BYTES = 128 << 20  # of constants compared, after which their pages are released
TILE = 256  # rows and columns of a transposed matrix that are compared while they are in the cache
ValueName = Callable[[graph.Value], str]  # the name of a value in a certificate


class CertificateRefused(Exception):
    """Two graphs differ, or a certificate is invalid: one line with the value and both sides."""


def compare_graphs(
    rebuilt: graph.Graph,
    file: graph.Graph,
    name_of: ValueName,
    release: Callable[[], None] = lambda: None,
) -> list[tuple[graph.Value, graph.Constant]]:
    """Raise CertificateRefused, naming the value, if `file` does not compute what `rebuilt`
    computes.

    release: of the memory of constants that were read, called from time to time. Returns the
    computed values of `rebuilt` with the constants that replace them in the file; the caller has to
    check these.
    """
    folded: list[tuple[graph.Value, graph.Constant]] = []
    read_bytes = 0
    stack = list(zip(rebuilt.outputs, file.outputs, strict=True))
    seen: set[tuple[graph.Value, graph.Value]] = set(zip(rebuilt.inputs, file.inputs, strict=True))
    partner: dict[
        graph.Node, graph.Node
    ] = {}  # opaque nodes may be random: they must match one to one
    while stack:
        a, b = stack.pop()
        if (a, b) in seen:
            continue
        seen.add((a, b))
        m, n = graph.producer(a), graph.producer(b)
        if isinstance(a, graph.Constant) and isinstance(b, graph.Constant):
            if a is not b and (a.type != b.type or not _same_bits(a.load(), b.load())):
                raise CertificateRefused(
                    f"constant {name_of(a)} of type {show_type(a.type)} differs in the file"
                )
            read_bytes += a.nbytes if a is not b else 0
            if read_bytes > RELEASE_AFTER_BYTES:
                read_bytes = 0
                release()
        elif m is not None and isinstance(b, graph.Constant):
            folded.append((a, b))
        elif (
            m is None or n is None or m.op.name != n.op.name or _result_index(a) != _result_index(b)
        ):
            raise CertificateRefused(
                f"{name_of(a)} is {_describe_value(a)}, in the file {_describe_value(b)}"
            )
        else:
            if m.op.opaque:
                if not is_same_opaque_node(m, n) or m.types != n.types:
                    raise CertificateRefused(f"{name_of(a)}: this {m.op.title} differs in the file")
                if partner.setdefault(m, n) is not n or partner.setdefault(n, m) is not m:
                    raise CertificateRefused(
                        f"{name_of(a)}: two nodes {m.op.title} are one in the file, or one is two"
                    )
            elif not are_attrs_equal(m.attrs, n.attrs):
                raise CertificateRefused(
                    f"{name_of(a)} is {_describe_value(a)}, in the file {_describe_value(b)}"
                )
            if [v is None for v in m.inputs] != [v is None for v in n.inputs]:
                raise CertificateRefused(
                    f"{name_of(a)}: {m.op.title} has other operands in the file"
                )
            pairs = zip(m.inputs, n.inputs, strict=True)
            stack += [(v, w) for v, w in pairs if v is not None and w is not None]
    return folded


def _result_index(v: graph.Value) -> int:
    return v.index if isinstance(v, graph.Item) else 0


def _describe_value(v: graph.Value) -> str:
    n = graph.producer(v)
    if n is None:
        return (
            f"input {v.name}" if isinstance(v, graph.Input) else f"a constant {show_type(v.type)}"
        )
    return f"{n.op.name}({', '.join(f'{k}={show_attr(x)}' for k, x in explicit_attrs(n))})"


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype == object:
        return a.shape == b.shape and a.tolist() == b.tolist()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.itemsize not in (1, 2, 4, 8):
        return np.array_equal(_bytes(a), _bytes(b))
    p, q = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    if p.ndim != 2 or (p.flags.c_contiguous and q.flags.c_contiguous):
        return np.array_equal(p, q)
    tiles = product(range(0, p.shape[0], TILE), range(0, p.shape[1], TILE))
    return all(np.array_equal(p[i : i + TILE, j : j + TILE], q[i : i + TILE, j : j + TILE])
               for i, j in tiles)  # fmt: skip


def _bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def folded_tensor(value: str, v: graph.Value, c: graph.Constant) -> FoldedTensor:
    """Return the certificate's record of value `v`, named `value` and stored in the file as `c`."""
    moved = all("data" in n.op.laws for n in graph.nodes([v]))
    return FoldedTensor(
        value, show_type(c.type), constant_digest(c), "moved" if moved else "rounded"
    )


def constant_digest(c: graph.Constant) -> str:
    """Return the SHA-256 of a constant's bytes."""
    return hashlib.sha256(_bytes(c.load()).data).hexdigest()


def check_all_folded(
    folded_tensors: Sequence[tuple[FoldedTensor, graph.Value, graph.Constant]],
) -> None:
    """Raise CertificateRefused unless each constant has the certificate's digest and the value."""
    with ThreadPoolExecutor(1) as aside:  # numpy and hashlib release the GIL
        digests = [aside.submit(constant_digest, c) for _, _, c in folded_tensors]
        for stated, v, c in folded_tensors:
            check_folded(stated, v, c)
        for (stated, _, _), found in zip(folded_tensors, digests, strict=True):
            if found.result() != stated.sha256:
                raise CertificateRefused(
                    f"{stated.value} folded: the file's has SHA-256 {found.result()}"
                )


def check_folded(stated: FoldedTensor, v: graph.Value, c: graph.Constant) -> None:
    """Raise CertificateRefused unless constant `c` is the value of `v`, as the certificate
    states."""
    moved = all("data" in n.op.laws for n in graph.nodes([v]))
    if v.type != c.type or show_type(c.type) != stated.type or moved != (stated.how == "moved"):
        raise CertificateRefused(
            f"{stated.value} folded: it is {show_type(v.type)}, moved: {moved}; {stated}"
        )
    for t in (t for n in graph.nodes([v]) for t in n.types):
        if 8 * math.prod(d for d in t.shape or () if isinstance(d, int)) > MAX_INTERMEDIATE_BYTES:
            raise CertificateRefused(
                f"{stated.value} folded: on the way there is {show_type(t)}, too large"
            )
    assert c.type.dtype is not None
    want = c.load()
    for domain in (Reals(), Reals(F64))[: 1 if stated.how == "moved" else 2]:
        try:
            (found,) = evaluate(graph.Graph((), (v,)), {}, domain)
        except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as e:
            raise CertificateRefused(f"{stated.value} folded: it cannot be computed: {e}") from None
        with np.errstate(all="ignore"):
            got = np.asarray(found).astype(want.dtype, copy=False)
        if _same_bits(want, got):
            return
    if stated.how == "moved" or not c.type.dtype.is_float or want.shape != got.shape:
        raise CertificateRefused(
            f"{stated.value} folded: its {stated.how} elements are not the file's"
        )
    limits = ml_dtypes.finfo(to_numpy(c.type.dtype))  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        a, b = want.astype(np.float64), got.astype(np.float64)
        room = np.maximum(np.abs(b) * float(limits.eps), float(limits.smallest_subnormal))
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= MAX_ULPS * room))
    if wrong.any():
        k = int(np.argmax(wrong))
        raise CertificateRefused(
            f"{stated.value} folded: element {k} is {a.reshape(-1)[k]!r} in the file,"
            f" {b.reshape(-1)[k]!r} computed again"
        )
