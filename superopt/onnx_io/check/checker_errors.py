"""Translate messages of onnx's checker into errors with a cause and a remedy."""

import re
from typing import Final

import onnx
import onnx.defs

from superopt.errors import ModelError
from superopt.onnx_io.check.forked_checker import CheckFailure
from superopt.onnx_io.read.protos import all_bodies, node_label

_DEFAULT_REMEDY: Final = "correct the exporter, or export the model again"
_NODE_CONTEXT: Final = re.compile(
    r"==> Context: Bad node spec for node\. Name: (.*?) OpType: (\w*)"
)
_INFERENCE_CONTEXT: Final = re.compile(r"\(op_type:([\w.]+)(?:, node name: (.*?))?\): ")
_TAGS: Final = re.compile(r"\[\w+Error\] |Inference error\(s\): |\(op_type:[^)]*\): ")
_MISSING_OPERATOR: Final = re.compile(r"No Op registered for (\S+) with domain_version of (\d+)")

# The checker's words, and what helps.
_REMEDIES: Final = (
    ("existing", "the model declares a shape or type that its operators do not give: drop stale "
                 "value_info and correct the declared outputs"),
    ("typestr", "insert a Cast, or correct the type of this input"),
    ("inconsistent type", "insert a Cast: all inputs of this operator must have one type"),
    ("input size", "connect the number of inputs that the operator has in this opset"),
    ("output size", "connect the number of outputs that the operator has in this opset"),
    ("marked single", "connect this input: it is not optional"),
    ("Required attribute", "add the attribute that is missing"),
    ("Unrecognized attribute", "remove the attribute, or declare an opset that knows it"),
    ("attribute", "correct this attribute"),
    ("No opset import", "declare the opset of this domain in the model's opset_import"),
    ("deprecated", "use the operator that replaced it, or declare an older opset"),
    ("imension", "correct the shapes of this node's inputs"),
    ("more memory", "look for a size that is far out of range, and correct it"),
)  # fmt: skip


def to_model_error(complaint: CheckFailure, model: onnx.ModelProto, label: str) -> ModelError:
    """Return the error for a failure that the checker reports for `model`."""
    text = complaint.text
    if not complaint.from_checker:
        return ModelError(
            f"{label}: the model cannot be checked",
            text,
            "look for an attribute, equation or size that is far out of range, and correct it",
        )
    node = ""
    if (found := _NODE_CONTEXT.search(text)) is not None:
        node = _checked_node_label(model, found[1], found[2])
        text = text[: found.start()]
    elif (found := _INFERENCE_CONTEXT.search(text)) is not None:
        node = _checked_node_label(model, found[2] or "", found[1])
        text = text[found.start() :].partition("\n")[0]  # what follows comes from this one
    why = " ".join(_TAGS.sub("", text).split()).rstrip(".")
    what = f"{label}: node {node} is not valid" if node else f"{label}: the model is not valid"
    if (missing := _MISSING_OPERATOR.search(text)) is not None:
        return missing_operator_error(missing[1], int(missing[2]), what)
    todo = next((remedy for words, remedy in _REMEDIES if words in text), _DEFAULT_REMEDY)
    return ModelError(what, f"onnx says: {why[:400]}", todo)


def _checked_node_label(model: onnx.ModelProto, name: str, op_type: str) -> str:
    """Return a label for a node that the checker gives by name and operator; the name may be
    empty."""
    name = name.strip()
    if name:
        return f"{name!r} ({op_type})"
    nameless = [
        node
        for place in all_bodies(model)
        for node in place.body.node
        if node.op_type == op_type and not node.name
    ]
    if len(nameless) == 1:
        return node_label(nameless[0])
    return f"({op_type}, one of {len(nameless)} without a name)"


def missing_operator_error(op_type: str, version: int, what: str) -> ModelError:
    """Return the error for an operator that ai.onnx does not have in this opset."""
    since = sorted(
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and schema.domain == ""
    )
    if since and since[0] > version:
        why = f"{op_type} exists since opset {since[0]}, and the model declares opset {version}"
        return ModelError(what, why, f"export the model with opset {since[0]} or newer")
    return ModelError(
        what,
        f"there is no operator {op_type!r} in opset {version} of ai.onnx",
        "a custom operator must name its own domain, not ai.onnx; else correct its name",
    )
