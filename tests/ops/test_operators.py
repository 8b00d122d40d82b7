"""What holds of every operator: its example fits, and its name and operands are ONNX's."""

import onnx
import pytest

from superopt.ir.graph import node
from superopt.ir.op import expression
from superopt.ops import OPS
from superopt.te.analysis.walk import computed_tensors, reductions
from superopt.te.expr.node import Apply, Expr, Reduce
from tests.support.ops.build import made

STANDARD = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
EXAMPLES = [pytest.param(n, e, id=f"{n} {e}") for n, o in OPS.items() for e in o.example]


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_the_example_fits(name: str, text: str) -> None:
    n = made(name, text)
    assert n.types
    # attributes in their one form stay as they are
    assert node(n.op, n.inputs, **dict(n.attrs)) is n


@pytest.mark.parametrize("name", sorted(OPS))
def test_it_is_declared_as_onnx_declares_it(name: str) -> None:
    op = OPS[name]
    assert op.example, "needs an example"
    if op.domain is None or not onnx.defs.has(name, op.domain):  # ours, or of a newer onnx
        return
    schema = onnx.defs.get_schema(name, domain=op.domain)
    assert op.since <= schema.since_version
    # operands that ONNX has and the expression does not take are attributes of that name
    formals = [i.name.lower() for i in schema.inputs]
    left = [f for f in formals if f not in op.attrs]
    assert len(op.inputs) == len(left)
    known = {*formals, *schema.attributes, "dtype"}
    assert set(op.attrs) <= known, set(op.attrs) - known


def test_there_are_enough() -> None:
    assert len(set(OPS) & STANDARD) >= 100


FEWER = "f32[3,2,5] i64[1,1,5] f32[1,1,5] axis=2 reduction="


@pytest.mark.parametrize(
    ("name", "text"), [*EXAMPLES, *(("ScatterElements", f'{FEWER}"{r}"') for r in ("add", "max"))]
)
def test_no_sum_is_under_a_guard(name: str, text: str) -> None:
    """Kernels compute it whole, also where the guard fails, and what it reads is out of range."""
    n = made(name, text)
    types = tuple(v and v.type for v in n.inputs)
    for t in computed_tensors(() if n.op.opaque else expression(n.op, types, n.attrs)):
        assert t.body is not None
        guarded = [a for e in applied(t.body, "select") for a in e.args[1:]]
        assert not any(map(reductions, guarded))


def applied(e: Expr, fn: str) -> list[Apply]:
    """Where a function is applied in an expression."""
    match e:
        case Apply(name, args):
            return [e] * (name == fn) + [x for a in args for x in applied(a, fn)]
        case Reduce(_, _, body):
            return applied(body, fn)
    return []
