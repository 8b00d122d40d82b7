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

from superopt.verifier.axiom import types
from superopt.verifier.axiom.logic import (
    TRUTH,
    VALUE,
    Clause,
    Fo,
    fo,
    inside,
    is_number,
    number,
    shape,
    variable,
)

if TYPE_CHECKING:
    import z3
else:
    from superopt.verifier.lazy import z3

MILLISECONDS = 2_000  # if the resource limit fails
EFFORT = 20_000  # for a condition of a step


@dataclass(slots=True)
class Words:
    """Z3 sorts, functions and terms for first-order terms."""

    sorts: dict[str, z3.SortRef] = field(default_factory=dict)
    functions: dict[tuple[str, ...], z3.FuncDeclRef] = field(default_factory=dict)
    terms: dict[Fo, z3.ExprRef] = field(default_factory=dict)
    fresh: list[tuple[str, ...]] = field(default_factory=list)  # functions not seen before
    written: list[Fo] = field(default_factory=list)  # operators not seen before

    def sort(self, name: str) -> z3.SortRef:
        if name == VALUE:
            return z3.IntSort()
        if name == TRUTH:
            return z3.BoolSort()
        found = self.sorts.get(name)
        if found is None:
            found = self.sorts[name] = z3.DeclareSort(name)
        return found

    def term(self, t: Fo) -> z3.ExprRef:
        found = self.terms.get(t)
        if found is None:
            found = self.terms[t] = self.new(t)
        return found

    def new(self, t: Fo) -> z3.ExprRef:
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
            self.fresh.append(key)
        if t.sort not in (VALUE, TRUTH) and t.args:
            self.written.append(t)
        return f(*args)


def flat(t: Fo, conditions: list[Fo], count: list[int]) -> Fo:
    """Return a pattern: computed attributes become variables with conditions."""
    if t.sort == VALUE:
        simple = t.fn == "tuple" and all(variable(a) or is_number(a) for a in t.args)
        if not t.args or simple:
            return t
        count[0] += 1
        v = fo(f"?_{count[0]}")
        conditions.append(fo("==", (v, t), TRUTH))
        return v
    return fo(t.fn, tuple(flat(a, conditions, count) for a in t.args), t.sort) if t.args else t


class Theory:
    """A solver with type laws, which axioms are added to."""

    def __init__(self) -> None:
        s = z3.SimpleSolver()
        s.set("auto_config", False)
        s.set("mbqi", False)
        s.set("timeout", MILLISECONDS)
        s.set("ctrl_c", False)
        self.solver = s
        self.words = Words()
        self.done: set[tuple[object, ...]] = set()
        for conditions, what, where in types.general():
            self.law("", conditions, what, where)

    def assume(self, c: Clause, guarded: bool = False) -> None:
        """Add `c` as an axiom. guarded: only where both sides are known to have one type."""
        for i, (a, b) in enumerate(c.sides):
            conditions = list(c.conditions)
            pattern = flat(a, conditions, [0])
            conditions.append(types.typed(pattern))
            if guarded:
                conditions += [types.typed(b), types.equal(shape(a), shape(b))]
            clause = Clause("", tuple(conditions), ((pattern, b),))
            if not pattern.args or not set(clause.variables) <= set(inside(pattern)):
                continue
            name = c.name + (f"/{i}" if len(c.sides) > 1 else "")
            self.law(
                name,
                tuple(conditions),
                fo("and", (fo("==", (pattern, b), TRUTH), types.typed(b)), TRUTH),
                pattern,
            )
        self.types()

    def law(self, name: str, conditions: tuple[Fo, ...], what: Fo, where: Fo) -> None:
        w = self.words
        body = w.term(what)
        if conditions:
            body = z3.Implies(z3.And([w.term(x) for x in conditions]), body)
        vs = Clause("", (*conditions, what, where), ()).variables
        if vs:
            body = z3.ForAll([w.term(v) for v in vs], body, patterns=[w.term(where)])
        if name:
            self.solver.assert_and_track(body, z3.Bool(name))
        else:
            self.solver.add(body)

    def types(self) -> None:
        """Add the type laws of functions that are new."""
        w = self.words
        done = self.done
        while w.fresh or w.written:
            if w.fresh:
                some = types.laws(w.fresh.pop())
            else:
                t = w.written.pop()
                if (t.fn, *t.args[1:]) in done or any(
                    variable(p) for a in t.args[1:] for p in inside(a)
                ):
                    continue
                done.add((t.fn, *t.args[1:]))
                some = types.literals(t)
            for conditions, what, where in some:
                self.law("", conditions, what, where)

    def proves(self, c: Clause, effort: int) -> tuple[set[str] | None, float]:
        """Return the names of axioms from which `c` follows, None if that is not shown, and
        seconds."""
        begin = time.perf_counter()
        s, w = self.solver, self.words
        facts = [w.term(t) for t in given(c)]
        wrong = z3.Or([w.term(a) != w.term(b) for a, b in c.sides])
        self.types()
        s.push()
        try:
            s.set("rlimit", effort)
            s.add(*facts, wrong)
            shown = s.check() == z3.unsat
            core = {str(x).partition("/")[0] for x in s.unsat_core()} if shown else None
            return core, time.perf_counter() - begin
        finally:
            s.pop()

    def consistent(self, c: Clause, effort: int) -> bool:
        """True if the premises of `c` alone are consistent; otherwise everything follows."""
        facts = [self.words.term(t) for t in given(c)]
        self.types()
        self.solver.push()
        try:
            self.solver.set("rlimit", effort)
            self.solver.add(*facts)
            return bool(self.solver.check() != z3.unsat)
        finally:
            self.solver.pop()

    @contextmanager
    def given(self, c: Clause) -> Iterator[Callable[[Fo], bool]]:
        """Yield a function that is True for conditions that follow from the premises of `c`."""
        s, w = self.solver, self.words
        facts = [w.term(t) for t in given(c)]
        self.types()
        s.push()
        answers: dict[Fo, bool] = {}

        def holds(t: Fo) -> bool:
            found = answers.get(t)
            if found is None:
                question = w.term(t)
                s.push()
                s.set("rlimit", EFFORT)
                self.types()
                s.add(z3.Not(question))
                found = answers[t] = bool(s.check() == z3.unsat)
                s.pop()
            return found

        try:
            s.add(*facts)
            yield holds
        finally:
            s.pop()


def given(c: Clause) -> list[Fo]:
    """Return the conditions of `c`, and that both sides have the same type."""
    out = list(c.conditions)
    for e, rank in c.axes:
        out += [fo("<=", (number(1), e), TRUTH), fo("<=", (e, rank), TRUTH)]
    for a, b in c.sides:
        out.append(fo("==", (shape(a), shape(b)), TRUTH))
        for t in {*inside(a), *inside(b)}:
            if t.sort not in (VALUE, TRUTH):  # `own` makes Z3 see its shape and apply laws to it
                out += [types.typed(t), types.equal(shape(t), fo("own", (shape(t),)))]
    return out
