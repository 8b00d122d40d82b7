"""Certificates of optimized models: they hold, and whatever is forged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from superopt.api import functions
from superopt.check.graph_identity import folded_tensor
from superopt.errors import UsageError
from superopt.ir import graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.report.data.certificate import (
    Certificate,
    StatedRule,
    certificate_json,
    read_certificate,
)
from tests.support.check.certified import Certified, certified, model, verdict


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("certified"))


def test_what_optimize_writes_is_certified(made: Certified) -> None:
    c = made.read()
    assert made.certificate.name == "fast.superopt.json"
    assert (c.original, c.optimized) == (
        read_model(made.original).sha256,
        read_model(made.optimized).sha256,
    )
    assert sorted(f.how for f in c.folded) == ["moved", "rounded"]
    assert len(c.rules) >= 2
    found = functions.verify(made.original, made.optimized, certificate=made.certificate)
    assert found.decision == "certified", found.reason
    assert any("bit for bit" in n for n in found.notes)


def test_the_text_is_read_back(made: Certified) -> None:
    c = made.read()
    assert read_certificate(certificate_json(c)) == c
    assert certificate_json(c) == made.certificate.read_text()


def test_nothing_is_written_for_a_model_that_did_not_change(tmp_path: Path) -> None:
    path = tmp_path / "same.onnx"
    path.write_bytes(model().SerializeToString())
    done = functions.optimize(path, library=False, cost="roofline", store=tmp_path / "store.db")
    assert done.save(tmp_path / "out.onnx") is None
    assert done.certificate is None
    assert not (tmp_path / "out.superopt.json").exists()


def test_decisions_that_are_replayed_are_certified(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(model().SerializeToString())
    first = functions.optimize(path, cost="roofline", budget=30, store=tmp_path / "s")
    again = functions.optimize(path, replay=first.decisions, store=tmp_path / "s")
    assert again.certificate == first.certificate != None  # noqa: E711


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "outside.onnx"
    onnx.save(model(), str(path), save_as_external_data=True, location="w.data", size_threshold=64)
    done = functions.optimize(path, cost="roofline", budget=30, store=tmp_path / "store.db")
    beside = done.save(tmp_path / "out.onnx")
    assert beside is not None
    assert functions.verify(path, tmp_path / "out.onnx", certificate=beside).decision == "certified"


# --- models that are changed ----------------------------------------------------------------------


def _weight(proto: onnx.ModelProto, name: str) -> None:
    """Change the last bit of one element."""
    (t,) = [t for t in proto.graph.initializer if t.name == name]
    array = numpy_helper.to_array(t).copy()
    array.reshape(-1)[7] = np.nextafter(array.reshape(-1)[7], np.float32(np.inf))
    t.CopyFrom(numpy_helper.from_array(array, name))


def _kept_weight(proto: onnx.ModelProto) -> None:
    _weight(proto, "b")


def _moved_weight(proto: onnx.ModelProto) -> None:
    _weight(proto, next(t.name for t in proto.graph.initializer if list(t.dims) == [64, 32]))


def _rounded_weight(proto: onnx.ModelProto) -> None:
    _weight(proto, next(t.name for t in proto.graph.initializer if list(t.dims) == [64]))


def _attribute(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Softmax"]
    n.attribute[0].i = 0


def _swap(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Sub"]
    n.input[:] = [n.input[1], n.input[0]]


def _exchange(proto: onnx.ModelProto) -> None:
    first, second = proto.graph.input
    first.name, second.name = second.name, first.name


def _operator(proto: onnx.ModelProto) -> None:
    (n,) = [n for n in proto.graph.node if n.op_type == "Sub"]
    n.op_type = "Add"


def _opset(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 18


def _sign(proto: onnx.ModelProto) -> None:
    """A zero gets a sign: equal, and not the same bits."""
    (t,) = [t for t in proto.graph.initializer if t.name == "b"]
    array = numpy_helper.to_array(t).copy()
    array.reshape(-1)[0] = -0.0
    t.CopyFrom(numpy_helper.from_array(array, "b"))


def _outputs(proto: onnx.ModelProto) -> None:
    some = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in proto.graph.output]
    proto.graph.output[0].CopyFrom(some[1])
    proto.graph.output[1].CopyFrom(some[0])


def _less(proto: onnx.ModelProto) -> None:
    del proto.graph.output[-1]


def _overridable(proto: onnx.ModelProto) -> None:
    """A weight that a caller may replace."""
    proto.graph.input.append(helper.make_tensor_value_info("b", 1, [64, 48]))


def _own_relu(proto: onnx.ModelProto) -> None:
    """Another operator of the same name."""
    proto.opset_import.append(helper.make_opsetid("my", 1))
    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("my", "Relu", ["x"], ["y"], body, opsets))
    next(n for n in proto.graph.node if n.op_type == "Relu").domain = "my"


def _function_of_onnx(proto: onnx.ModelProto) -> None:
    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("", "Relu", ["x"], ["y"], body, opsets))


def _symbol(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"


def _no_relu(proto: onnx.ModelProto) -> None:
    (gone,) = [n for n in proto.graph.node if n.op_type == "Relu"]
    proto.graph.node.remove(gone)
    for n in proto.graph.node:
        n.input[:] = [gone.input[0] if i == gone.output[0] else i for i in n.input]


CHANGES: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "transposed weight": (_moved_weight, "folded"),
    "computed weight": (_rounded_weight, "folded"),
    "weight": (_kept_weight, "constant"),
    "attribute": (_attribute, "Softmax"),
    "swapped input": (_swap, "input"),
    "exchanged inputs": (_exchange, "inputs"),
    "operator": (_operator, "Sub"),
    "opset": (_opset, "opsets"),
    "sign of a zero": (_sign, "constant"),
    "exchanged outputs": (_outputs, "outputs"),
    "an output less": (_less, "outputs"),
    "a weight as an input": (_overridable, "inputs"),
    "a function in place of an operator": (_own_relu, "opsets"),
    "a function of ONNX's name": (_function_of_onnx, "functions"),
    "a size that is a symbol": (_symbol, "input x"),
    "an operator less": (_no_relu, "Relu"),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_refused(name: str, made: Certified, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    path = made.changed(change, tmp_path)
    as_it_is = verdict(made, made.read(), tmp_path, b=path)
    assert as_it_is.decision == "refused"
    assert "another optimized model" in as_it_is.reason
    forged = replace(made.read(), optimized=read_model(path).sha256)
    found = verdict(made, forged, tmp_path, b=path)
    assert found.decision == "refused"
    assert said in found.reason, found.reason


def test_another_original_is_refused(made: Certified, tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(model(seed=1).SerializeToString())
    found = verdict(made, made.read(), tmp_path, a=path)
    assert found.decision == "refused"
    assert "another original model" in found.reason
    forged = replace(made.read(), original=read_model(path).sha256)
    assert verdict(made, forged, tmp_path, a=path).decision == "refused"


def _more(proto: onnx.ModelProto) -> None:
    (t,) = [t for t in proto.graph.initializer if list(t.dims) == [64]]
    array = numpy_helper.to_array(t).copy()
    array[7] *= np.float32(1.00001)
    t.CopyFrom(numpy_helper.from_array(array, t.name))


@pytest.mark.parametrize("change", [_moved_weight, _more])
def test_a_digest_forged_for_a_changed_weight_is_refused(
    change: Callable[[onnx.ModelProto], None], made: Certified, tmp_path: Path
) -> None:
    path = made.changed(change, tmp_path)
    new = import_model(read_model(path))
    digests = [folded_tensor("", c, c) for c in graph.constants(new.graph)]
    folded = [
        replace(f, sha256=next(d.sha256 for d in digests if d.type == f.type))
        for f in made.read().folded
    ]
    forged = replace(made.read(), optimized=read_model(path).sha256, folded=tuple(folded))
    assert forged.folded != made.read().folded
    found = verdict(made, forged, tmp_path, b=path)
    assert found.decision == "refused"
    assert "elements are not the file's" in found.reason or "computed again" in found.reason


# --- certificates that are changed ----------------------------------------------------------------


def _first(c: Certificate, **fields: object) -> Certificate:
    (one, *more), *others = c.rounds
    return replace(c, rounds=((replace(one, **fields), *more), *others))  # type: ignore[arg-type]


def _rebound(c: Certificate, change: Callable[[str], str]) -> Certificate:
    bound = c.rounds[0][0].bound
    return _first(c, bound=tuple((name, *map(change, texts)) for name, *texts in bound))


def _longest(c: Certificate, keep: bool) -> Certificate:
    k = max(range(len(c.rounds)), key=lambda k: len(c.rounds[k]))
    some = c.rounds[k][: -1 if keep else 0]
    return replace(c, rounds=(*c.rounds[:k], *((some,) if some else ()), *c.rounds[k + 1 :]))


FORGED: dict[str, tuple[Callable[[Certificate], Certificate], str]] = {
    "library": (lambda c: replace(c, library="0" * 64), "another rule library"),
    "no steps": (lambda c: replace(c, rounds=(), rules=()), "v"),
    "a round less": (lambda c: replace(c, rounds=c.rounds[:-1]), ""),
    "a step less": (lambda c: _longest(c, True), ""),
    "rounds in another order": (lambda c: replace(c, rounds=c.rounds[::-1]), "round"),
    "a round twice": (lambda c: replace(c, rounds=(c.rounds[0], *c.rounds)), "round"),
    "an empty round": (lambda c: replace(c, rounds=((), *c.rounds)), "is empty"),
    "another place": (lambda c: _first(c, at=("v0",) * len(c.rounds[0][0].at)), "left side"),
    "no place": (lambda c: _first(c, at=()), "round 0"),
    "no such value": (lambda c: _first(c, at=("v999",)), "names no value"),
    "no value": (lambda c: _first(c, at=("w1",)), "is not a value name"),
    "a part of no n-ary operator": (lambda c: _first(c, at=("v5[0:2]",)), "these operands"),
    "other types": (lambda c: _rebound(c, lambda t: t.replace("f32", "f64")), "f32"),
    "other operands": (lambda c: _rebound(c, lambda t: t.replace("v", "v1")), "v"),
    "no names": (lambda c: _first(c, bound=()), "binds"),
    "other conditions": (lambda c: _first(c, where=("1 == 1",)), "conditions read"),
    "a constant too many": (lambda c: _first(c, constants=("v2: f32[64, 32]",)), ""),
    "no folded tensors": (lambda c: replace(c, folded=()), "folded constants: the graph has"),
    "another digest": (
        lambda c: replace(c, folded=tuple(replace(f, sha256="0" * 64) for f in c.folded)),
        "folded",
    ),
    "rounded, not moved": (
        lambda c: replace(c, folded=tuple(replace(f, how="rounded") for f in c.folded)),
        "folded",
    ),
    "a folded tensor too many": (
        lambda c: replace(c, folded=(*c.folded, replace(c.folded[0], value="v3"))),
        "folded",
    ),
    "another tier": (
        lambda c: replace(c, rules=tuple(replace(r, tier="S") for r in c.rules)),
        "rule",
    ),
    "another float class": (
        lambda c: replace(c, rules=tuple(replace(r, float_class="E9") for r in c.rules)),
        "rule",
    ),
    "another text of a rule": (
        lambda c: replace(c, rules=tuple(replace(r, text=r.text + " ") for r in c.rules)),
        "rule",
    ),
    "a rule that is not applied": (
        lambda c: replace(c, rules=(*c.rules, c.rules[0])),
        "listed rules",
    ),
    "a rule that is false": (
        lambda c: replace(
            c,
            rules=(*c.rules, StatedRule("relu-away", "relu-away(x: f): Relu(x) => x", "C", "E0")),
            rounds=((replace(c.rounds[0][0], rule="relu-away"),), *c.rounds),
        ),
        "rule relu-away is wrong: x: f32[] = -1; lhs = 0; rhs = -1",
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_certificate_is_refused(name: str, made: Certified, tmp_path: Path) -> None:
    forge, said = FORGED[name]
    forged = forge(made.read())
    assert forged != made.read()
    found = verdict(made, forged, tmp_path)
    assert found.decision == "refused"
    assert said in found.reason, found.reason


def test_every_step_matters(made: Certified, tmp_path: Path) -> None:
    c = made.read()
    for k in range(len(c.rounds)):
        for j in range(len(c.rounds[k])):
            some = (*c.rounds[k][:j], *c.rounds[k][j + 1 :])
            rounds = (*c.rounds[:k], *((some,) if some else ()), *c.rounds[k + 1 :])
            used = {a.rule for r in rounds for a in r}
            less = replace(c, rounds=rounds, rules=tuple(r for r in c.rules if r.name in used))
            assert verdict(made, less, tmp_path).decision == "refused", (k, j)


# --- files that are none --------------------------------------------------------------------------


def _with(text: str, **fields: object) -> str:
    return json.dumps({**json.loads(text), **fields})


DAMAGED: dict[str, tuple[Callable[[str], str], str]] = {
    "cut off": (lambda t: t[: len(t) // 2], "not JSON"),
    "empty": (lambda t: "", "not JSON"),
    "a list": (lambda t: "[]", "no field `certificate`"),
    "deep": (lambda t: "[" * 100_000, "not JSON"),
    "another field": (lambda t: _with(t, more=1), "the fields"),
    "newer": (lambda t: _with(t, certificate=2), "version 2"),
    "version as text": (lambda t: _with(t, certificate="1"), "version number"),
    "a number for a digest": (lambda t: _with(t, library=1), "library"),
    "no rounds": (lambda t: _with(t, rounds=None), "rounds"),
    "a field twice": (lambda t: t.replace("{", '{"library": "0",', 1), "twice"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_said_to_be_none(name: str, made: Certified, tmp_path: Path) -> None:
    damage, said = DAMAGED[name]
    path = tmp_path / "damaged.superopt.json"
    path.write_text(damage(made.certificate.read_text()))
    with pytest.raises(UsageError, match=said):
        functions.verify(made.original, made.optimized, certificate=path)


def test_a_file_that_is_no_text(made: Certified, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        functions.verify(made.original, made.optimized, certificate=made.optimized)
    with pytest.raises(UsageError, match="cannot be read"):
        functions.verify(made.original, made.optimized, certificate=tmp_path / "missing.json")
