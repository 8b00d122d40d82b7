"""Equality of two graph values for all inputs, by the tensor expressions of their nodes.

Sizes are those of the graphs; a symbolic size stands for every size >= 1. Values that both share
may be assumed arbitrary, so that a large graph is proved in pieces.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from superopt.ir.graph import Constant, Node, Value, producer, results
from superopt.rules.library.records import Scope
from superopt.te.expr.tensor import Tensor, placeholder
from superopt.verifier.compare.constant_patterns import constant_tensor
from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader, Unreadable
from superopt.verifier.elements.scalars import POWERS_NOTE
from superopt.verifier.equality.element_equality import are_equal_elements
from superopt.verifier.poly.facts import Facts
from superopt.verifier.poly.polynomial import atom_poly, fresh_var
from superopt.verifier.prove import ASSUMPTIONS, Limits
from superopt.verifier.verdict import Proved, Unknown


def prove_equal(
    a: Value,
    b: Value,
    given: Collection[Value] = (),
    limits: Limits | None = None,
    deadline: float = float("inf"),
) -> Proved | Unknown:
    """Prove b == a, element by element, for all inputs. given: values that both are computed from
    and that may be anything. deadline: of `time.monotonic()`, besides the limits of CPU time and
    work."""
    limit = limits or Limits()
    begin = time.thread_time()
    context = ProofContext.with_limits(limit.seconds, limit.work, deadline)
    context.has_exact_casts = limit.has_exact_casts

    def since() -> float:
        return time.thread_time() - begin

    if a.type != b.type:
        return Unknown(f"{a.type} and {b.type}", since())
    try:
        known = _Tensors(frozenset(given))
        left, right = known.tensor_of(a), known.tensor_of(b)
        reader = Reader(context, {})
        nothing = Facts(context)
        axes = tuple(fresh_var(reader.dim(d), "i") for d in left.shape)
        place = tuple(atom_poly(v) for v in axes)
        one = reader.element(left, place, nothing)
        two = reader.element(right, place, nothing)
        if reader.out_of_bounds:
            return Unknown(f"may read outside: {reader.out_of_bounds[0]}", since())
        if not are_equal_elements(one, two, reader.types.integer_type(left.dtype), nothing):
            return Unknown("not shown equal", since())
    except OutOfTime:
        return Unknown(
            f"{limit.seconds:.1f} seconds, or the work, are over", since(), is_out_of_budget=True
        )
    except (Unreadable, Undefined) as e:
        return Unknown(str(e), since())
    except RecursionError:
        return Unknown("nested too deep", since())
    finally:
        context.close()
    if POWERS_NOTE in context.scope_notes:
        return Unknown(f"shown of {POWERS_NOTE} only", since())
    scope = Scope("these shapes", 1, (*ASSUMPTIONS, *sorted(context.scope_notes)))
    shown = reader.reads_checked + 1 + context.matched_sums
    return Proved(scope, (), (), shown, context.queries, since(), 0)


@dataclass(slots=True)
class _Tensors:
    """The tensor of each value, down to given values, inputs and large constants."""

    given: frozenset[Value]
    tensors: dict[Value, Tensor] = field(default_factory=dict)

    def tensor_of(self, v: Value) -> Tensor:
        for n in self.nodes(v):
            operands = [None if x is None else self.leaf(x) for x in n.inputs]
            if n.op.compute is None:
                raise Unreadable(f"{n.op.title} has no tensor expression")
            found = n.op.compute(*operands, **dict(n.attrs))
            every = found if isinstance(found, tuple) else (found,)
            self.tensors.update(zip(results(n), every, strict=True))
        return self.leaf(v)

    def nodes(self, v: Value) -> Iterator[Node]:
        """Yield the nodes between `v` and the given values, operands first."""
        stack: list[tuple[Node, bool]] = []
        seen: set[Node] = set()
        if v not in self.given and (p := producer(v)) is not None:
            stack.append((p, False))
        while stack:
            n, done = stack.pop()
            if done:
                yield n
                continue
            if n in seen:
                continue
            seen.add(n)
            stack.append((n, True))
            for x in n.inputs:
                if x is not None and x not in self.given and (p := producer(x)) is not None:
                    stack.append((p, False))

    def leaf(self, v: Value) -> Tensor:
        found = self.tensors.get(v)
        if found is None:
            found = self.tensors[v] = self.make_leaf(v)
        return found

    def make_leaf(self, v: Value) -> Tensor:
        if isinstance(v, Constant) and v not in self.given:
            return constant_tensor(v, f"v{len(self.tensors)}")
        if v.type.dtype is None or v.type.shape is None:
            raise Unreadable(f"a value of unknown type: {v.type}")
        return placeholder(f"v{len(self.tensors)}", v.type)
