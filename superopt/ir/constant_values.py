"""Find values that are computed from constants only."""

from __future__ import annotations

from collections.abc import MutableMapping

from superopt.ir import graph
from superopt.te.expr.tensor import TensorType


def is_constant(v: graph.Value, memo: MutableMapping[graph.Node, bool]) -> bool:
    """True if `v` is computed from constants only, by operators with tensor expressions.

    `memo` caches answers by node; a node with the entry False is never visited.
    """
    top = graph.producer(v)
    if top is None:
        return isinstance(v, graph.Constant)
    stack = [top]
    while stack:
        n = stack[-1]
        if n in memo:
            stack.pop()
            continue
        pending: list[graph.Node] = []
        verdict = not n.op.opaque and all(map(has_static_shape, n.types))
        for i in n.inputs if verdict else ():
            if i is None or isinstance(i, graph.Constant):
                continue
            p = graph.producer(i)
            known = False if p is None else memo.get(p)
            if known is None:
                assert p is not None
                pending.append(p)
            elif not known:
                verdict = False
                break
        if verdict and pending:
            stack.extend(pending)
            continue
        memo[n] = verdict
        stack.pop()
    return memo[top]


def has_static_shape(t: TensorType) -> bool:
    return t.dtype is not None and t.shape is not None and all(isinstance(d, int) for d in t.shape)
