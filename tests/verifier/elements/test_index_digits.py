"""Indices that are split into a quotient and a remainder."""

from superopt.verifier.context import ProofContext
from superopt.verifier.elements.index_digits import _split_index
from superopt.verifier.poly.polynomial import Poly, atom_poly, fresh_var, quotient_atom, symbol


def _extents(extent: Poly, q: Poly) -> list[Poly] | None:
    """Return the extents of the parts of an index below `extent` whose quotient by q is read."""
    v = fresh_var(extent)
    found = _split_index(v, [atom_poly(quotient_atom(atom_poly(v), q))], "i")
    return None if found is None else [w.extent for w in found]


def test_an_index_is_split_by_a_proper_divisor_of_its_extent() -> None:
    context = ProofContext()
    n, q = symbol(context, "n"), symbol(context, "q")
    assert _extents(n * q, q) == [n, q]
    assert _extents(n * q + 1, q) is None  # n q is in range, too
    assert _extents(q, q) is None
    assert _extents(n, q) is None
