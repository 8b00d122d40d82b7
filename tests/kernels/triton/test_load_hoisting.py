"""What is read before a loop, of what stands behind it; which needs no Triton."""

from __future__ import annotations

from superopt.kernels.triton.codegen import triton_text
from superopt.te.expr.dtype import F32, I32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, compare, compute, const, reduce_sum, select
from tests.support.kernels.blocks import made_by

TERMS = "reorder(i0, k0); split(i0, {}); reorder(i0.o, k0, i0.i); parallel(i0.o); vectorize(i0.i)"
N = 512
W, B, C = Tensor("w", F32, (64, N)), Tensor("b", F32, (N,)), Tensor("c", F32, (N,))
ONE, SHORT, FLAG = Tensor("one", F32, (N,)), Tensor("short", F32, (5,)), Tensor("flag", I32, (N,))


def lines(y: Tensor, given: list[Tensor], size: int = 64) -> list[str]:
    """Of the kernel, up to the loop, and from there on."""
    text = triton_text(made_by(given, y, {y: TERMS.format(size)})).source
    before, after = text.split("    for ", 1)
    return [before, after]


def total(i: Expr) -> Expr:
    return reduce_sum(64, lambda k: W[k, i])


def test_what_stands_behind_a_loop_is_read_before_it() -> None:
    y = compute((N,), lambda i: total(i) * B[i] + C[i])
    before, after = lines(y, [W, B, C])
    assert "tl.load(b" in before
    assert "tl.load(c" in before
    assert "tl.load(w" in after
    assert "tl.load(b" not in after


def test_much_is_read_where_it_is_needed() -> None:
    """Registers would hold it meanwhile."""
    y = compute((N,), lambda i: total(i) * B[i])
    before, after = lines(y, [W, B], N)
    assert "tl.load(b" not in before
    assert "tl.load(b" in after


def test_no_more_is_held_than_there_is_room_for() -> None:
    some = [Tensor(f"t{n}", F32, (N,)) for n in range(40)]
    y = compute((N,), lambda i: sum((t[i] for t in some), total(i)))
    before, after = lines(y, [W, *some])
    assert before.count("tl.load(") == 2048 // 64
    assert after.count("tl.load(t") == 40 - 2048 // 64


def test_what_both_cases_read_is_read_always() -> None:
    """And once; what one of them reads, when it is read at all."""
    s = compute(
        (N,),
        lambda i: select(
            compare("lt", FLAG[i], 3), total(i) * B[i], total(i) + B[i]
        ),
    )  # fmt: skip
    before, after = lines(s, [W, FLAG, B])
    # A condition that is read from memory is none that is known before the loop.
    assert "tl.load(b" not in before
    t = compute(
        (N,),
        lambda i: select(compare("lt", i, 3), total(i) * B[i] + ONE[i], total(i) + B[i] * C[i]),
    )
    before, after = lines(t, [W, B, ONE, C])
    (b,) = (x for x in before.splitlines() if "tl.load(b" in x)
    assert "mask" not in b
    assert all("mask" in x for x in before.splitlines() if "load(one" in x or "load(c" in x)
    assert before.count("tl.load(") == 3
    assert after.count("tl.load(") == after.count("tl.load(w")


def test_what_is_beyond_a_buffer_is_read_by_no_case() -> None:
    """Each case asks for itself whether there is an element."""

    def there(i: Expr) -> Expr:
        return select(compare("lt", i, 5), SHORT[i], const(0, F32))

    y = compute(
        (N,),
        lambda i: select(compare("lt", i, 300), total(i) * there(i), total(i) - there(i)),
    )
    before, after = lines(y, [W, SHORT])
    loads = [x for x in (before + after).splitlines() if "tl.load(short" in x]
    assert loads
    assert all("< 5" in x for x in loads)
