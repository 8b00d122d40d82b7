"""Axioms in Z3: quantified equations with patterns, queried rule by rule.

`SimpleSolver` without model-based instantiation: an axiom applies where its left side occurs (an
axiom in both directions is two). Only `unsat` is a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superopt.verifier.axiom import type_laws
from superopt.verifier.axiom.logic import (
    TRUTH_SORT,
    VALUE_SORT,
    Clause,
    FoTerm,
    fo,
    is_number,
    is_variable,
    number,
    shape,
    subterms,
)

if TYPE_CHECKING:
    import z3
else:
    from superopt.verifier.poly.lazy_z3 import z3

TIMEOUT_MS = 2_000  # if the resource limit fails
CONDITION_RLIMIT = 20_000  # for a condition of a step


@dataclass(slots=True)
class Z3Terms:
    """Z3 sorts, functions and terms for first-order terms."""

    sorts: dict[str, z3.SortRef] = field(default_factory=dict)
    functions: dict[tuple[str, ...], z3.FuncDeclRef] = field(default_factory=dict)
    terms: dict[FoTerm, z3.ExprRef] = field(default_factory=dict)
    new_functions: list[tuple[str, ...]] = field(default_factory=list)  # functions not seen before
    new_operators: list[FoTerm] = field(default_factory=list)  # operators not seen before

    def sort(self, name: str) -> z3.SortRef:
        if name == VALUE_SORT:
            return z3.IntSort()
        if name == TRUTH_SORT:
            return z3.BoolSort()
        found = self.sorts.get(name)
        if found is None:
            found = self.sorts[name] = z3.DeclareSort(name)
        return found

    def term(self, t: FoTerm) -> z3.ExprRef:
        found = self.terms.get(t)
        if found is None:
            found = self.terms[t] = self.make(t)
        return found

    def make(self, t: FoTerm) -> z3.ExprRef:
        if is_number(t):
            return z3.IntVal(int(t.fn))
        args = [self.term(a) for a in t.args]
        match t.fn, len(args):
            case "==", 2:
                return args[0] == args[1]
            case "<", 2:
                return args[0] < args[1]
            case "<=", 2:
                return args[0] <= args[1]
            case "not", 1:
                return z3.Not(args[0])
            case "or", _:
                return z3.Or(args)
            case "and", _:
                return z3.And(args)
            case "if", 3:
                return z3.If(*args)
            case "max", 2:
                return z3.If(args[0] >= args[1], args[0], args[1])
            case "+", 2:
                return args[0] + args[1]
            case "-", 2:
                return args[0] - args[1]
            case "*", 2:
                return args[0] * args[1]
        key = (t.fn, *(a.sort for a in t.args), t.sort)
        f = self.functions.get(key)
        if f is None:
            f = z3.Function(t.fn, *(self.sort(s) for s in key[1:]))
            self.functions[key] = f
            self.new_functions.append(key)
        if t.sort not in (VALUE_SORT, TRUTH_SORT) and t.args:
            self.new_operators.append(t)
        return f(*args)


def flatten_pattern(t: FoTerm, conditions: list[FoTerm], count: list[int]) -> FoTerm:
    """Return a pattern: computed attributes become variables with conditions."""
    if t.sort == VALUE_SORT:
        simple = t.fn == "tuple" and all(is_variable(a) or is_number(a) for a in t.args)
        if not t.args or simple:
            return t
        count[0] += 1
        v = fo(f"?_{count[0]}")
        conditions.append(fo("==", (v, t), TRUTH_SORT))
        return v
    return (
        fo(t.fn, tuple(flatten_pattern(a, conditions, count) for a in t.args), t.sort)
        if t.args
        else t
    )


class Theory:
    """A solver with type laws, which axioms are added to."""

    def __init__(self) -> None:
        s = z3.SimpleSolver()
        s.set("auto_config", False)
        s.set("mbqi", False)
        s.set("timeout", TIMEOUT_MS)
        s.set("ctrl_c", False)
        self.solver = s
        self.z3_terms = Z3Terms()
        self.typed_operators: set[tuple[object, ...]] = set()
        for conditions, law, where in type_laws.broadcast_laws():
            self.add_law("", conditions, law, where)

    def assume(self, c: Clause, guarded: bool = False) -> None:
        """Add `c` as an axiom. guarded: only where both sides are known to have one type."""
        for i, (a, b) in enumerate(c.sides):
            conditions = list(c.conditions)
            pattern = flatten_pattern(a, conditions, [0])
            conditions.append(type_laws.is_typed(pattern))
            if guarded:
                conditions += [type_laws.is_typed(b), type_laws.equality(shape(a), shape(b))]
            clause = Clause("", tuple(conditions), ((pattern, b),))
            if not pattern.args or not set(clause.variables) <= set(subterms(pattern)):
                continue
            name = c.name + (f"/{i}" if len(c.sides) > 1 else "")
            self.add_law(
                name,
                tuple(conditions),
                fo("and", (fo("==", (pattern, b), TRUTH_SORT), type_laws.is_typed(b)), TRUTH_SORT),
                pattern,
            )
        self.add_type_laws()

    def add_law(
        self, name: str, conditions: tuple[FoTerm, ...], conclusion: FoTerm, pattern: FoTerm
    ) -> None:
        w = self.z3_terms
        body = w.term(conclusion)
        if conditions:
            body = z3.Implies(z3.And([w.term(x) for x in conditions]), body)
        vs = Clause("", (*conditions, conclusion, pattern), ()).variables
        if vs:
            body = z3.ForAll([w.term(v) for v in vs], body, patterns=[w.term(pattern)])
        if name:
            self.solver.assert_and_track(body, z3.Bool(name))
        else:
            self.solver.add(body)

    def add_type_laws(self) -> None:
        """Add the type laws of functions that are new."""
        w = self.z3_terms
        done = self.typed_operators
        while w.new_functions or w.new_operators:
            if w.new_functions:
                laws = type_laws.function_laws(w.new_functions.pop())
            else:
                t = w.new_operators.pop()
                if (t.fn, *t.args[1:]) in done or any(
                    is_variable(p) for a in t.args[1:] for p in subterms(a)
                ):
                    continue
                done.add((t.fn, *t.args[1:]))
                laws = type_laws.attribute_laws(t)
            for conditions, law, where in laws:
                self.add_law("", conditions, law, where)

    def prove(self, c: Clause, rlimit: int) -> tuple[set[str] | None, float]:
        """Return the names of axioms from which `c` follows, None if that is not shown, and
        seconds."""
        begin = time.perf_counter()
        s, w = self.solver, self.z3_terms
        facts = [w.term(t) for t in premises(c)]
        wrong = z3.Or([w.term(a) != w.term(b) for a, b in c.sides])
        self.add_type_laws()
        s.push()
        try:
            s.set("rlimit", rlimit)
            s.add(*facts, wrong)
            shown = s.check() == z3.unsat
            core = {str(x).partition("/")[0] for x in s.unsat_core()} if shown else None
            return core, time.perf_counter() - begin
        finally:
            s.pop()

    def is_consistent(self, c: Clause, rlimit: int) -> bool:
        """True if the premises of `c` alone are consistent; otherwise everything follows."""
        facts = [self.z3_terms.term(t) for t in premises(c)]
        self.add_type_laws()
        self.solver.push()
        try:
            self.solver.set("rlimit", rlimit)
            self.solver.add(*facts)
            return bool(self.solver.check() != z3.unsat)
        finally:
            self.solver.pop()

    @contextmanager
    def assuming(self, c: Clause) -> Iterator[Callable[[FoTerm], bool]]:
        """Yield a function that is True for conditions that follow from the premises of `c`."""
        s, w = self.solver, self.z3_terms
        facts = [w.term(t) for t in premises(c)]
        self.add_type_laws()
        s.push()
        answers: dict[FoTerm, bool] = {}

        def holds(t: FoTerm) -> bool:
            found = answers.get(t)
            if found is None:
                question = w.term(t)
                s.push()
                s.set("rlimit", CONDITION_RLIMIT)
                self.add_type_laws()
                s.add(z3.Not(question))
                found = answers[t] = bool(s.check() == z3.unsat)
                s.pop()
            return found

        try:
            s.add(*facts)
            yield holds
        finally:
            s.pop()


def premises(c: Clause) -> list[FoTerm]:
    """Return the conditions of `c`, and that both sides have the same type."""
    out = list(c.conditions)
    for e, rank in c.axes:
        out += [fo("<=", (number(1), e), TRUTH_SORT), fo("<=", (e, rank), TRUTH_SORT)]
    for a, b in c.sides:
        out.append(fo("==", (shape(a), shape(b)), TRUTH_SORT))
        for t in {*subterms(a), *subterms(b)}:
            if t.sort not in (
                VALUE_SORT,
                TRUTH_SORT,
            ):  # `own` makes Z3 see its shape and apply laws to it
                out += [type_laws.is_typed(t), type_laws.equality(shape(t), fo("own", (shape(t),)))]
    return out
