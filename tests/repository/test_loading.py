"""Public functions load what they use, when they are called: the rest takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

CALL = """
import json, sys, superopt
import superopt.api.functions
superopt.api = superopt.api.functions
before = sorted(sys.modules)
model = sys.argv[1]
superopt.{call}
print(json.dumps([before, sorted(sys.modules)]))
"""
HEAVY = {"onnx", "onnx_ir", "onnxruntime", "z3", "llvmlite", "sympy"}
SEARCH = {
    "superopt.optimization.optimize",
    "superopt.search.improve",
    "superopt.verifier.prove",
    "z3",
}
COMPILER = {"superopt.compilation.model.compiler", "superopt.plan.passes", "llvmlite"}
PEERS = {
    "superopt.jobs.benchmark",
    "superopt.compilation.cuda.code_generator",
    "superopt.baselines.openvino",
}
UNUSED = {"onnxruntime", "sympy.core"}  # by a model that is compiled; sympy is a lazy module
GENERATION = {"superopt.generate.engine.run", "superopt.rulegen.generate_rules"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("call", "absent"),
    [
        ("compile(model)(x=[1.0, 2.0, 3.0, 4.0])", SEARCH | PEERS | GENERATION | UNUSED),
        ("optimize(model, budget=20, cost='roofline')", COMPILER | PEERS | GENERATION),
        ("verify(model, model)", COMPILER | PEERS | GENERATION),
        ("api.cache_list()", HEAVY | SEARCH | PEERS | GENERATION),
    ],
    ids=["compile", "optimize", "verify", "cache_list"],
)
def test_a_call_loads_what_it_uses(call: str, absent: set[str], tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(call=call), str(tmp_path / "m.onnx")],
        env={**os.environ, "SUPEROPT_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = map(set, json.loads(done.stdout.splitlines()[-1]))
    assert not sorted(before & (HEAVY | SEARCH | PEERS | GENERATION))
    assert not sorted(after & absent)
