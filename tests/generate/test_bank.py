"""The bank of tensors against plain evaluation, and equations against floats."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from superopt.generate.bank import COMMUTATIVE, Bank, _firsts, begin, grow
from superopt.generate.build import value
from superopt.generate.families import FAMILIES
from superopt.generate.family import Family, Use, parts, use
from superopt.generate.find import Found, find, general, sayable
from superopt.generate.pattern import Equation, Hole, Made, Pattern, Reader, apart, in_order, size
from superopt.generate.relate import Relations
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
        use("MatMul", 2),
        use("Add", 2),
        use("Relu", 1),
        use("Transpose", 1, perm=(1, 0)),
        use("Concat", 2, axis=0),
        *parts("Split", 2, axis=0, split=(2, 2)),
    ),
    8,
    8,
)
USES = sorted({(name, u) for name, make in FAMILIES.items() for u in make().uses}, key=str)


def shapes_for(family: Family, u: Use) -> list[tuple[tuple[int, ...], ...]]:
    """Shapes among those of the first level that the use takes."""
    bank = begin(family, SEED)
    grow(bank)
    some = list(dict.fromkeys(bank.shapes))
    found = []
    for shapes in product(some, repeat=u.arity):
        try:
            types = tuple(TensorType(F32, s) for s in shapes)
            if u.takes(shapes):
                canonical_attrs(u.op, types, dict(u.attrs))
                found.append(shapes)
        except InferError:
            continue
    return found


@pytest.mark.parametrize(("family", "u"), USES, ids=lambda v: str(v).replace(" ", "-"))
def test_a_batch_is_what_one_by_one_gives(family: str, u: Use) -> None:
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
    bank = begin(family, SEED)
    known: dict[bytes, tuple[np.ndarray, int]] = {}
    for (_, level), held in bank.held.items():
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


def _applied(family: Family, u: Use, operands: list[np.ndarray]) -> np.ndarray | None:
    shapes = [v.shape[2:] for v in operands]
    types = tuple(TensorType(F32, s) for s in shapes)
    try:
        attrs = canonical_attrs(u.op, types, dict(u.attrs))
        found = evaluate_batch(u.op, types, attrs, [v[:, None] for v in operands], SEED)[u.result][
            :, 0
        ]
    except InferError:
        return None
    return found if found[0, 0].size <= family.largest else None


def test_the_bank_has_every_tensor_once() -> None:
    bank = begin(TINY, SEED)
    for level, known in enumerate(by_hand(TINY, 2), 1):
        grow(bank)
        assert len(bank.level) == len(known), level


def test_a_level_that_takes_too_much_is_cut() -> None:
    """It says so, and what is tried is part of all."""
    whole, bank = begin(TINY, SEED), begin(TINY, SEED)
    for b, room in ((whole, 1 << 30), (bank, 1 << 30), (whole, 1 << 30), (bank, 1 << 16)):
        grow(b, room=room)
    assert whole.cut == [1, 1, 1]
    assert bank.cut[:2] == [1, 1]
    assert bank.cut[2] > 1
    ways = [set(zip(b.apps.use, b.apps.left, b.apps.right, strict=True)) for b in (whole, bank)]
    assert ways[1] < ways[0]
    assert len(ways[0]) / (bank.cut[2] + 2) < len(ways[1]) < len(ways[0]) / bank.cut[2] * 1.5
    assert {tuple(p) for p in bank.prints} < {tuple(p) for p in whole.prints}


def test_what_is_first_is_found_by_both_halves() -> None:
    prints = np.array([[5, 1], [3, 1], [5, 2], [3, 1], [5, 1]], np.uint64)
    assert _firsts(prints).tolist() == [0, 1, 2, 1, 0]
    assert _firsts(prints[[0, 1, 3, 4]]).tolist() == [0, 1, 1, 0]


def test_every_application_computes_its_class() -> None:
    bank = begin(TINY, SEED)
    for _ in range(2):
        grow(bank)
    values = {
        int(c): held.values[:, n].astype(np.int64)
        for held in bank.held.values()
        for n, c in enumerate(held.classes)
    }
    a = bank.apps
    for n in range(len(a)):
        u = TINY.uses[int(a.use[n])]
        operands = [values[int(c)] for c in (a.left[n], a.right[n])[: u.arity]]
        found = _applied(TINY, u, operands)
        assert found is not None
        known = values.get(int(a.of[n]))  # none where nothing is built on it
        assert _constant(found) if known is None else _key(found) == _key(known)


@pytest.fixture(scope="module", params=["tiny", "matrices", "layouts"])
def found(request: pytest.FixtureRequest) -> Found:
    family = TINY if request.param == "tiny" else FAMILIES[request.param]()
    return find(family, 3, SEED)


def test_equations_hold_over_floats(found: Found) -> None:
    family = found.bank.family
    rng = np.random.default_rng(SEED)
    assert found.equations
    for e in found.equations:
        inputs = tuple(
            graph.Input(f"v{k}", TensorType(F32, family.inputs[n])) for k, n in enumerate(e.inputs)
        )
        sides = [value(p, family, inputs) for p in (e.left, e.right)]
        feeds = {
            i.name: rng.standard_normal(family.inputs[n], np.float32)
            for i, n in zip(inputs, e.inputs, strict=True)
        }
        left, right = evaluate(graph.Graph(inputs, tuple(sides)), feeds)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4, err_msg=str(e))


def test_all_that_is_equal_is_related(found: Found) -> None:
    related = Relations.of(found.bank, len(found.levels))
    assert len(related.apart())
    for e in found.equations:
        related.apply(e)
    assert len(related.apart()) <= found.doubtful + found.unsayable
    assert found.doubtful <= 3


def test_beyond_what_is_whole_only_what_saves_two_operators_is_related() -> None:
    """And all of that is."""
    found = find(replace(TINY, whole=2), 3, SEED)
    sizes = [sorted((size(e.left), size(e.right))) for e in found.equations]
    assert [2, 2] in sizes
    assert [1, 3] in sizes
    assert [2, 3] not in sizes
    assert [3, 3] not in sizes
    bank = found.bank
    related = Relations.of(bank, 3)
    for e in found.equations:
        related.apply(e)
    apart = related.apart()
    assert len(apart)
    smaller = apart[bank.level[bank.apps.of[apart]] < 2]
    left = [e for e in map(Reader.of(bank).equation, map(int, smaller)) if sayable(e)]
    assert not [e for e in left if general(e, bank.family, SEED)]


def test_operands_that_commute_are_kept_in_one_order() -> None:
    bank: Bank = begin(TINY, SEED)
    grow(bank)
    a = bank.apps
    for n in range(len(a)):
        if TINY.uses[int(a.use[n])].op.name in COMMUTATIVE:
            assert a.left[n] <= a.right[n]


def test_a_class_is_read_as_its_smallest_term() -> None:
    bank = begin(TINY, SEED)
    for _ in range(2):
        grow(bank)
    reader = Reader.of(bank)
    assert all(size(reader.term(c)) == bank.level[c] for c in range(len(bank.level)))


def test_occurrences_are_told_apart() -> None:
    """(x + x) + y = x + (x + y) is a law of three."""
    x, y = Hole(0), Hole(1)

    def add(a: Pattern, b: Pattern) -> Made:
        return Made(1, (a, b))

    e = Equation(add(add(x, x), y), add(x, add(x, y)), ("x", "y"))
    z = Hole(2)
    wider = Equation(add(add(x, y), z), add(x, add(y, z)), ("x", "x", "y"))
    assert wider in [in_order(w) for w in apart(e, 0)]
    assert len(list(apart(e, 0))) == 2  # for each way to pair them
    assert not list(apart(e, 1))
    assert not list(apart(Equation(add(x, x), x, ("x",)), 0))
