"""ONNX's node tests survive import, folding and export: runtimes give the same before and after.

Every case of the suite goes through, those whose operators are opaque to us included. One that
comes out as it went in needs no runtime; every other one is run in onnxruntime, where it can run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx.backend.test.case.test_case import TestCase

from superopt.errors import ModelError
from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.rounds import plain, session
from tests.support.ops.suite import cases

# Models that onnxruntime runs only because it does not notice what is wrong with them: they feed
# Range a tensor of one element, not a scalar. Once constants are folded it sees the shape.
# `optimize` loads every candidate before it is written, and refuses these.
NOTICED = {"test_affine_grid_2d_expanded", "test_affine_grid_2d_align_corners_expanded"}
# What onnx's own checker refuses.
REFUSED = {"test_mvn": "One and only one of the attributes"}
RANDOM = ("Bernoulli", "RandomNormal", "RandomUniform", "Multinomial", "Dropout")
RTOL, ATOL = 1e-3, 1e-6  # of operators whose constant operands were folded in float64


def out_again(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after import, folding and export."""
    model = import_model(read_model(proto))
    return onnx_ir.to_proto(export_model(model, fold_constants(model.graph).graph))


def outcome(case: TestCase) -> str:
    """What became of a case: `unchanged`, `same`, or why it was not run; else what broke."""
    new = out_again(case.model)
    if plain(new) == plain(case.model):
        return "unchanged"
    try:
        before = session(case.model)
    except Exception:  # onnxruntime's errors have no common type
        return "not loaded by onnxruntime"
    names = [i.name for i in before.get_inputs()]
    feeds = dict(zip(names, case.data_sets[0][0], strict=False))
    try:
        wanted = before.run(None, feeds)
    except Exception:
        return "not run by onnxruntime"
    try:
        got = session(new).run(None, feeds)
    except Exception as e:
        return f"{case.name}: {e}"
    if any(n.op_type.startswith(RANDOM) for n in case.model.graph.node):
        return "random"
    different = [k for k, (a, b) in enumerate(zip(got, wanted, strict=True)) if not alike(a, b)]
    return f"{case.name}: results {different} differ" if different else "same"


def alike(a: object, b: object) -> bool:
    """Are two results the same, floats within the tolerance?"""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b) and a == b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "fc":
        return bool(np.allclose(a, b, RTOL, ATOL, equal_nan=True))
    return bool(np.array_equal(a, b))


@lru_cache(maxsize=1)
def outcomes() -> Mapping[str, str]:
    return {name: outcome(case) for name, case in cases().items()}


def broken() -> Iterator[str]:
    for name, what in outcomes().items():
        if what.startswith("test_") and name not in NOTICED:
            yield what


@pytest.mark.one_in(0)
def test_every_case_survives() -> None:
    assert list(broken()) == []
    kinds = Counter(what for what in outcomes().values() if not what.startswith("test_"))
    assert sum(kinds.values()) == len(cases()) - len(NOTICED)
    # enough was really compared
    assert kinds["unchanged"] >= 1500
    assert kinds["same"] >= 200


@pytest.mark.parametrize("name", sorted(NOTICED))
def test_what_only_the_original_loads_is_seen_when_it_is_loaded(name: str) -> None:
    case = cases()[name]
    session(case.model)
    with pytest.raises(Exception, match="Input to 'Range' op should be scalars"):
        session(out_again(case.model))


def test_valid_cases_are_accepted_and_stay_valid() -> None:
    """A sample, because the checker runs in a process of its own."""
    for name in sorted(cases())[::12]:
        proto = cases()[name].model
        try:
            onnx.checker.check_model(proto, full_check=True)
        except Exception:
            with pytest.raises(ModelError):
                validate(read_model(proto))
            continue
        validate(read_model(proto))
        onnx.checker.check_model(out_again(proto), full_check=True)


@pytest.mark.slow
def test_all_valid_cases_are_accepted_and_stay_valid() -> None:
    for name, case in cases().items():
        if name in REFUSED:
            with pytest.raises(ModelError, match=REFUSED[name]):
                validate(read_model(case.model))
            continue
        validate(read_model(case.model))
        onnx.checker.check_model(out_again(case.model), full_check=True)
