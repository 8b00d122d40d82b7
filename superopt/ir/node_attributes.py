"""The attributes of nodes, with and without tensor expressions."""

from __future__ import annotations

from typing import Any

from superopt.ir import graph
from superopt.ir.op import Payload


def node_attributes(n: graph.Node) -> dict[str, Any]:
    """Return the attributes of a node, with or without a tensor expression."""
    if not n.op.opaque:
        return dict(n.attrs)
    payload = n.attr("payload")
    assert isinstance(payload, Payload)
    content: Any = payload.content
    return {k: a.value for k, a in content.attributes.items()}
