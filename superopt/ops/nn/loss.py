"""Classification losses."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.ops.nn.norm import log_softmax
from superopt.ops.shared.scalars import accumulation_dtype, expect_kinds
from superopt.te.expr import index
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    cast,
    compare,
    compute,
    const,
    gather,
    product,
    reduce_sum,
    select,
)


def _negative_log_likelihood(
    what: str, x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, ignore: int | None
) -> Tensor:
    """-weight[t] * x[n, t, ...] for t = target[n, ...], 0 where t is `ignore`; reduced."""
    expect_kinds(what, "f", x, weight)
    expect_kinds(what, "ui", target)
    classes = x.shape[1] if x.rank > 1 else 0
    if x.rank < 2 or target.shape != (x.shape[0], *x.shape[2:]):
        raise InferError(f"{what} of {x.type} for the classes {target.type}")
    if weight is not None and weight.shape != (classes,):
        raise InferError(f"{what} of {classes} classes with weights {weight.type}")
    kind = accumulation_dtype(x.dtype)

    def weight_of(i: tuple[Expr, ...]) -> Expr:
        t = target[i]
        # the ignored class may be no class at all: it must not be looked up
        class_ = t if ignore is None else select(compare("eq", t, ignore), 0, t)
        own = const(1, kind) if weight is None else cast(weight[gather(class_, classes)], kind)
        return own if ignore is None else select(compare("eq", t, ignore), 0, own)

    def loss_of(*i: Expr) -> Expr:
        t = target[i]
        class_ = t if ignore is None else select(compare("eq", t, ignore), 0, t)
        e = -cast(x[(i[0], gather(class_, classes), *i[1:])], kind)
        if weight is None:
            return e if ignore is None else select(compare("eq", t, ignore), 0, e)
        return e * weight_of(i)

    each = compute(target.shape, loss_of)
    match reduction:
        case "none":
            return compute(target.shape, lambda *i: cast(each[i], x.dtype))
        case "sum" | "mean":
            total = reduce_sum(target.shape, lambda *k: each[k])
        case _:
            raise InferError(f"{what} has no reduction {reduction!r}: none, sum or mean")
    if reduction == "mean" and weight is None and ignore is None:
        total = total / cast(index.as_index(product(target.shape)), kind)
    elif reduction == "mean":
        total = total / reduce_sum(target.shape, lambda *k: weight_of(k))
    return compute((), lambda: cast(total, x.dtype))


@op(
    "NegativeLogLikelihoodLoss",
    example=("f32[3,5] i64[3] f32[5]", 'f32[3,5,2] i64[3,2] reduction="none"'),
    since=12,
)
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    what = "NegativeLogLikelihoodLoss"
    return _negative_log_likelihood(what, x, target, weight, reduction, ignore_index)


@op(
    "SoftmaxCrossEntropyLoss",
    example=("f32[3,5] i64[3] f32[5]", 'f32[3,5,2] i64[3,2] reduction="none"'),
    since=12,
)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The negative log likelihood of the LogSoftmax along axis 1, and that LogSoftmax."""
    what = "SoftmaxCrossEntropyLoss"
    if scores.rank < 2:
        raise InferError(f"{what} of {scores.type}: needs a batch and classes")
    assert log_softmax.compute is not None
    log_prob = log_softmax.compute(scores, axis=1)
    assert isinstance(log_prob, Tensor)
    loss = _negative_log_likelihood(what, log_prob, labels, weights, reduction, ignore_index)
    return loss, log_prob
