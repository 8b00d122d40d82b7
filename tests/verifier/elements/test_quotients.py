"""Factors that quotients are simplified by."""

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.elements.quotients import _proper_factors
from superopt.verifier.poly.polynomial import Monomial, Poly, const, symbol


def _atom(p: Poly) -> Monomial:
    return p.terms[0][0]


@pytest.mark.parametrize(
    ("size", "number", "factors"),
    [
        ("n", 1, {}),
        ("n", 2, {"n": (1,), "": (2,)}),
        ("n", 6, {"n": (1, 2, 3), "": (6,)}),
        ("", 6, {"": (2, 3)}),
        ("nm", 1, {"n": (1,), "m": (1,)}),
    ],
)
def test_proper_factors(size: str, number: int, factors: dict[str, tuple[int, ...]]) -> None:
    context = ProofContext()
    n, m = symbol(context, "n"), symbol(context, "m")
    polys = {"": const(context, 1), "n": n, "m": m}
    atoms = {"": (), "n": _atom(n), "nm": _atom(n * m)}
    wanted = [polys[name] * c for name, some in factors.items() for c in some]
    assert set(_proper_factors(context, atoms[size], number)) == set(wanted)
