"""Repair models that ONNX's checker rejects and ONNX Runtime loads.

Each repair applies what ONNX Runtime does, so the repaired model computes what ONNX Runtime
computes for the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx

from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.topological_sort import sort_nodes


class Repair(NamedTuple):
    """note: what changed, for the user. apply: changes a model in place and returns whether it
    did."""

    note: str
    apply: Callable[[onnx.ModelProto], bool]


def repair_model(source: Source) -> tuple[Source, tuple[str, ...]]:
    """Apply all repairs; return the model and the notes of those that changed something.

    The source keeps its file: copies and runs use the original model.
    """
    model = source.skeleton.new_proto()
    notes = tuple(repair.note for repair in REPAIRS if repair.apply(model))
    return (source.with_imported_proto(model) if notes else source), notes


def _keep_last_initializers(model: onnx.ModelProto) -> bool:
    """Keep the last of several initializers of one name, as ONNX Runtime does."""
    changed = False
    for place in all_bodies(model):
        if isinstance(place.body, onnx.FunctionProto):
            continue
        last = {t.name: n for n, t in enumerate(place.body.initializer)}
        for n in reversed(range(len(place.body.initializer))):
            if last[place.body.initializer[n].name] != n:
                del place.body.initializer[n]
                changed = True
    return changed


def _use_default_domain(model: onnx.ModelProto) -> bool:
    """Replace the domain "ai.onnx" by "", as ONNX Runtime does."""
    nodes = [n for place in all_bodies(model) for n in place.body.node if n.domain == "ai.onnx"]
    for n in nodes:
        n.domain = ""
    for owner in (model, *model.functions) if nodes else ():
        taken = {o.domain for o in owner.opset_import}
        for o in owner.opset_import:
            if o.domain == "ai.onnx" and "" not in taken:
                o.domain = ""
    return bool(nodes)


def _drop_training_info(model: onnx.ModelProto) -> bool:
    """Drop training information, which ONNX Runtime's inference ignores."""
    changed = bool(model.training_info)
    del model.training_info[:]
    return changed


REPAIRS = (
    Repair("nodes were sorted", sort_nodes),
    Repair("of initializers that share a name the last is read", _keep_last_initializers),
    Repair('the domain "ai.onnx" is read as the default one', _use_default_domain),
    Repair("its training information is left out of a rewritten model", _drop_training_info),
)
