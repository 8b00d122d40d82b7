"""Models with windows, and mutants of these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from superopt.cost.machine import this_machine
from superopt.cost.store import Store
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.rulegen.model_mutants import add_mutant_rules
from tests.support.compilation.forms import weights
from tests.support.compilation.models import F, model


def net(batch: int | str = 1) -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[2] * 4, dilations=[2, 2]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("Conv", ["b", "v"], ["y"], pads=[2] * 4, dilations=[2, 2]),
    ]
    known = weights(w=(8, 4, 3, 3), v=(16, 8, 3, 3))
    return model(nodes, {"x": (F, [batch, 4, 8, 8])}, ["y"], known)


def kept(some: list, costs: object) -> Iterator[dict]:
    """Some mutants of each window, whatever they cost."""
    seen = set()
    for _, lines in some:
        for line in lines[:3]:
            if line["corrected"] not in seen:
                seen.add(line["corrected"])
                yield line


def found(path: Path, **asked: object) -> tuple[list[str], tuple[str, ...]]:
    """The rules, and what is said of them."""
    request = Request(budget=6000.0, cost="roofline", store=path.parent / "costs.db", **asked)  # type: ignore[arg-type]
    with Store.open(request.store) as store:
        given = import_model(read_model(path))
        made, _, notes = add_mutant_rules(
            given, request, Deadline.for_request(request), store, this_machine()
        )
        return [str(r) for r in made.rules], notes
