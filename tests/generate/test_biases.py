"""Claims about convolutions with a bias."""

from functools import partial

from superopt.generate.biases import biased
from superopt.generate.build import instance
from superopt.generate.choice import most_general
from superopt.generate.claims import Claim, claims
from superopt.generate.closing import said
from superopt.generate.families import FAMILIES
from superopt.generate.find import find
from superopt.generate.pattern import Hole, Made


def test_claims_with_a_bias_are_rules_for_any_geometry() -> None:
    family = FAMILIES["groups"]()
    found = find(family, 2, seed=0)
    every = [c for e in found.equations for c in claims(e, family)]
    some = [b for b in (biased(c, family) for c in every) if b is not None]
    assert 3 <= len(some) < len(every)
    assert len({said(b, family) for b in some}) == len(some)
    assert all(b.shapes[-1] == (2,) for b in some)
    texts = [str(most_general(b, family, 0, partial(instance, b, family))) for b in some[:3]]
    assert ": Conv(Mul(x, y), z, w, **e) => Conv(x, Mul(z, y), w, **e)" in texts[0]
    assert ": Conv(x, Mul(z, y), w, **e) => Conv(Mul(x, y), z, w, **e)" in texts[1]
    assert ": Conv(Add(x, x), y, z, **e) => Conv(x, Add(y, y), z, **e)" in texts[2]


def test_joined_kernels_have_joined_biases() -> None:
    family = FAMILIES["groups"]()
    conv, join, out = (
        next(n for n, u in enumerate(family.uses) if str(u) == name)
        for name in (
            "Conv strides=(1, 1) group=1 pads=(1, 1, 1, 1)",
            "Concat axis=0",
            "Concat axis=1",
        )
    )
    x, v, w = map(Hole, range(3))
    shapes = ((1, 2, 3, 3), (2, 2, 2, 2), (3, 2, 2, 2))
    left = Made(out, (Made(conv, (x, v)), Made(conv, (x, w))))
    right = Made(conv, (x, Made(join, (v, w))))
    made = biased(Claim((left,), right, shapes), family)
    assert made is not None
    assert made.shapes[3:] == ((2,), (3,))
    b, c = Hole(3), Hole(4)
    assert made.left == (Made(out, (Made(conv, (x, v, b)), Made(conv, (x, w, c)))),)
    assert made.right == Made(conv, (x, Made(join, (v, w)), Made(join, (b, c))))
    assert biased(Claim((Made(join, (v, w)),), v, shapes), family) is None
