"""The bank of tensors against plain evaluation, and equations against floats."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from superopt.generate.enumeration.bank import (
    COMMUTATIVE,
    Bank,
    _first_occurrences,
    add_level,
    initial_bank,
)
from superopt.generate.enumeration.ematching import Relations
from superopt.generate.enumeration.find_equations import (
    FoundEquations,
    find_equations,
    generalize_variables,
    is_orientable,
)
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternVariable,
    TermReader,
    call_count,
    number_in_order,
    split_variable,
)
from superopt.generate.families.family import Family, OperatorUse, operator_use, result_uses
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.term_graphs import term_value
from superopt.ir import graph
from superopt.ir.batched_evaluation import evaluate_batch
from superopt.ir.evaluate import evaluate, evaluate_node
from superopt.ir.op import InferError, canonical_attrs
from superopt.te.eval import residues
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

SEED = 3
TINY = Family(
    "tiny",
    {"x": (2, 2), "y": (2, 2), "s": ()},
    {"0": ("zeros", (2, 2))},
    (
        operator_use("MatMul", 2),
        operator_use("Add", 2),
        operator_use("Relu", 1),
        operator_use("Transpose", 1, perm=(1, 0)),
        operator_use("Concat", 2, axis=0),
        *result_uses("Split", 2, axis=0, split=(2, 2)),
    ),
    8,
    8,
)
USES = sorted({(name, u) for name, make in FAMILIES.items() for u in make().uses}, key=str)


def shapes_for(family: Family, u: OperatorUse) -> list[tuple[tuple[int, ...], ...]]:
    """Shapes among those of the first level that the use takes."""
    bank = initial_bank(family, SEED)
    add_level(bank)
    some = list(dict.fromkeys(bank.shapes))
    found = []
    for shapes in product(some, repeat=u.arity):
        try:
            types = tuple(TensorType(F32, s) for s in shapes)
            if u.accepts(shapes):
                canonical_attrs(u.op, types, dict(u.attrs))
                found.append(shapes)
        except InferError:
            continue
    return found


@pytest.mark.one_in(25)
@pytest.mark.parametrize(("family", "u"), USES, ids=lambda v: str(v).replace(" ", "-"))
def test_a_batch_is_what_one_by_one_gives(family: str, u: OperatorUse) -> None:
    rng = np.random.default_rng(SEED)
    tried = 0
    for shapes in shapes_for(FAMILIES[family](), u):
        operands = [
            np.stack([rng.integers(0, m, (3, 2, *s), np.int64) for m in residues.MODULI])
            for s in shapes
        ]
        types = [TensorType(F32, s) for s in shapes]
        try:
            attrs = canonical_attrs(u.op, tuple(types), dict(u.attrs))
            together = evaluate_batch(u.op, types, attrs, operands, SEED)[u.result]
        except InferError:
            continue
        for candidate, sample in product(range(3), range(2)):
            alone = [x[:, candidate, sample] for x in operands]
            one = evaluate_node(u.op, dict(attrs), alone, PrimeField(SEED), [F32] * len(alone))
            assert np.array_equal(one[u.result], together[:, candidate, sample])
        tried += 1
        if tried == 3:
            break
    assert tried


def by_hand(family: Family, top: int) -> list[dict[bytes, int]]:
    """Every term of up to `top` operators, evaluated alone: for each level its tensors by their
    values. Nothing is made of constants only, nor of what is the same on all samples."""
    bank = initial_bank(family, SEED)
    known: dict[bytes, tuple[np.ndarray, int]] = {}
    for (_, level), held in bank.values.items():
        for v in held.values.astype(np.int64).swapaxes(0, 1):
            known[_key(v)] = (v, level)
    out: list[dict[bytes, int]] = []
    for level in range(1, top + 1):
        fresh: dict[bytes, tuple[np.ndarray, int]] = {}
        for u in family.uses:
            for some in product(list(known.values()), repeat=u.arity):
                if sum(k for _, k in some) != level - 1:
                    continue
                if all(_constant(v) for v, _ in some) or any(
                    _constant(v) and k > 0 for v, k in some
                ):
                    continue
                found = _applied(family, u, [v for v, _ in some])
                if found is not None and _key(found) not in known:
                    fresh.setdefault(_key(found), (found, level))
        known |= fresh
        out.append(dict.fromkeys(known, 0))
    return out


def _constant(v: np.ndarray) -> bool:
    return bool((v == v[:, :1]).all())


def _key(v: np.ndarray) -> bytes:
    return bytes(str(v.shape[2:]), "utf-8") + np.ascontiguousarray(v[0]).tobytes()


def _applied(family: Family, u: OperatorUse, operands: list[np.ndarray]) -> np.ndarray | None:
    shapes = [v.shape[2:] for v in operands]
    types = tuple(TensorType(F32, s) for s in shapes)
    try:
        attrs = canonical_attrs(u.op, types, dict(u.attrs))
        found = evaluate_batch(u.op, types, attrs, [v[:, None] for v in operands], SEED)[u.result][
            :, 0
        ]
    except InferError:
        return None
    return found if found[0, 0].size <= family.max_elements else None


def test_the_bank_has_every_tensor_once() -> None:
    bank = initial_bank(TINY, SEED)
    for level, known in enumerate(by_hand(TINY, 2), 1):
        add_level(bank)
        assert len(bank.level) == len(known), level


def test_a_level_that_takes_too_much_is_cut() -> None:
    """It says so, and what is tried is part of all."""
    whole, bank = initial_bank(TINY, SEED), initial_bank(TINY, SEED)
    for b, room in ((whole, 1 << 30), (bank, 1 << 30), (whole, 1 << 30), (bank, 1 << 16)):
        add_level(b, max_bytes=room)
    assert whole.sample_steps == [1, 1, 1]
    assert bank.sample_steps[:2] == [1, 1]
    assert bank.sample_steps[2] > 1
    ways = [
        set(zip(b.applications.use, b.applications.left, b.applications.right, strict=True))
        for b in (whole, bank)
    ]
    assert ways[1] < ways[0]
    assert (
        len(ways[0]) / (bank.sample_steps[2] + 2)
        < len(ways[1])
        < len(ways[0]) / bank.sample_steps[2] * 1.5
    )
    assert {tuple(p) for p in bank.fingerprints} < {tuple(p) for p in whole.fingerprints}


def test_first_occurrences() -> None:
    prints = np.array([[5, 1], [3, 1], [5, 2], [3, 1], [5, 1]], np.uint64)
    assert _first_occurrences(prints).tolist() == [0, 1, 2, 1, 0]
    assert _first_occurrences(prints[[0, 1, 3, 4]]).tolist() == [0, 1, 1, 0]


def test_every_application_computes_its_class() -> None:
    bank = initial_bank(TINY, SEED)
    for _ in range(2):
        add_level(bank)
    values = {
        int(c): held.values[:, n].astype(np.int64)
        for held in bank.values.values()
        for n, c in enumerate(held.classes)
    }
    a = bank.applications
    for n in range(len(a)):
        u = TINY.uses[int(a.use[n])]
        operands = [values[int(c)] for c in (a.left[n], a.right[n])[: u.arity]]
        found = _applied(TINY, u, operands)
        assert found is not None
        known = values.get(int(a.result_class[n]))  # none where nothing is built on it
        assert _constant(found) if known is None else _key(found) == _key(known)


@pytest.fixture(scope="module", params=["tiny", "matrices", "layouts"])
def found(request: pytest.FixtureRequest) -> FoundEquations:
    family = TINY if request.param == "tiny" else FAMILIES[request.param]()
    return find_equations(family, 3, SEED)


@pytest.mark.one_in(2)
def test_equations_hold_over_floats(found: FoundEquations) -> None:
    family = found.bank.family
    rng = np.random.default_rng(SEED)
    assert found.equations
    for e in found.equations:
        inputs = tuple(
            graph.Input(f"v{k}", TensorType(F32, family.inputs[n])) for k, n in enumerate(e.inputs)
        )
        sides = [term_value(p, family, inputs) for p in (e.left, e.right)]
        feeds = {
            i.name: rng.standard_normal(family.inputs[n], np.float32)
            for i, n in zip(inputs, e.inputs, strict=True)
        }
        left, right = evaluate(graph.Graph(inputs, tuple(sides)), feeds)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4, err_msg=str(e))


def test_all_that_is_equal_is_related(found: FoundEquations) -> None:
    related = Relations.build(found.bank, len(found.levels))
    assert len(related.unrelated_applications())
    for e in found.equations:
        related.apply_equation(e)
    assert len(related.unrelated_applications()) <= found.doubtful + found.non_orientable
    assert found.doubtful <= 3


def test_beyond_what_is_whole_only_what_saves_two_operators_is_related() -> None:
    """And all of that is."""
    found = find_equations(replace(TINY, complete_ops=2), 3, SEED)
    sizes = [sorted((call_count(e.left), call_count(e.right))) for e in found.equations]
    assert [2, 2] in sizes
    assert [1, 3] in sizes
    assert [2, 3] not in sizes
    assert [3, 3] not in sizes
    bank = found.bank
    related = Relations.build(bank, 3)
    for e in found.equations:
        related.apply_equation(e)
    apart = related.unrelated_applications()
    assert len(apart)
    smaller = apart[bank.level[bank.applications.result_class[apart]] < 2]
    left = [
        e for e in map(TermReader.for_bank(bank).equation, map(int, smaller)) if is_orientable(e)
    ]
    assert not [e for e in left if generalize_variables(e, bank.family, SEED)]


def test_operands_that_commute_are_kept_in_one_order() -> None:
    bank: Bank = initial_bank(TINY, SEED)
    add_level(bank)
    a = bank.applications
    for n in range(len(a)):
        if TINY.uses[int(a.use[n])].op.name in COMMUTATIVE:
            assert a.left[n] <= a.right[n]


def test_a_class_is_read_as_its_smallest_term() -> None:
    bank = initial_bank(TINY, SEED)
    for _ in range(2):
        add_level(bank)
    reader = TermReader.for_bank(bank)
    assert all(call_count(reader.term(c)) == bank.level[c] for c in range(len(bank.level)))


def test_occurrences_are_distinguished() -> None:
    """(x + x) + y = x + (x + y) is a law of three."""
    x, y = PatternVariable(0), PatternVariable(1)

    def add(a: Pattern, b: Pattern) -> PatternCall:
        return PatternCall(1, (a, b))

    e = Equation(add(add(x, x), y), add(x, add(x, y)), ("x", "y"))
    z = PatternVariable(2)
    wider = Equation(add(add(x, y), z), add(x, add(y, z)), ("x", "x", "y"))
    assert wider in [number_in_order(w) for w in split_variable(e, 0)]
    assert len(list(split_variable(e, 0))) == 2  # for each way to pair them
    assert not list(split_variable(e, 1))
    assert not list(split_variable(Equation(add(x, x), x, ("x",)), 0))
