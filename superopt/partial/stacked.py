"""Branches that differ in numbers of indices and in what they read only, as one.

What is joined of many parts is a tree of conditions on indices with a leaf for each:

    select(i < 6, f(x0[i]), select(i < 12, f(x1[i - 6]), ...))    ->    f(x[n, i - 6 n])
    where n = select(i < 6, 0, select(i < 12, 1, ...)), and x[n] is the n-th of x0, x1, ...

An element of it takes as many steps then as one of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from superopt.te import index as ix
from superopt.te.dtype import BOOL, INDEX
from superopt.te.expr import Tensor, TensorType
from superopt.te.node import Apply, Const, Expr, Index, Load
from superopt.te.walk import head, operands, parts, rebuilt

FEWEST = 4  # branches that are worth it
Done = dict[int, tuple[Expr, Expr]]  # by ids, of what is held


class _Unlike(Exception):
    """Branches differ in more than numbers of indices."""


def stacked(bodies: Sequence[Expr]) -> list[Expr]:
    """Return the expressions with merged branches, which read stacks of inputs; unchanged if no
    branches are alike."""
    some = [e for b in bodies for e in parts(b)]
    if sum(map(_told, some)) < FEWEST - 1:
        return list(bodies)
    stacks = _Stacks()
    for e in some:
        if isinstance(e, Load) and e.tensor.body is None:
            own = stacks.given.setdefault(e.tensor.type, {})
            own.setdefault(e.tensor, len(own))
    made = _Made(stacks)
    out = [made.of(b) for b in bodies]
    if not made.fewer:
        return list(bodies)
    done: Done = {}
    return [stacks.read(b, done) for b in out]


@dataclass(slots=True)
class _Stacks:
    """given: for each type its inputs with their numbers. of: the stack of each input that is read
    from one. A stack has one element for each input of its type."""

    given: dict[TensorType, dict[Tensor, int]] = field(default_factory=dict)
    of: dict[Tensor, Tensor] = field(default_factory=dict)

    def stack(self, some: Sequence[Tensor]) -> Tensor:
        """Return the stack of these inputs. Raises _DifferentBranches if they are in several
        stacks."""
        first = some[0]
        own = self.given.get(first.type, {})
        found = {self.of[t] for t in some if t in self.of}
        if len(found) > 1 or any(t not in own for t in some):
            raise _Unlike
        new = Tensor(f"stack of {first.name}", first.dtype, (len(own), *first.shape))
        stack = found.pop() if found else new
        self.of.update(dict.fromkeys(some, stack))
        return stack

    def place(self, t: Tensor) -> int:
        return self.given[t.type][t]

    def read(self, e: Expr, done: Done) -> Expr:
        """Replace loads of stacked inputs by loads of the stack."""
        if _index(e):
            return e
        if id(e) not in done:
            made = rebuilt(e, [self.read(x, done) for x in operands(e)])
            if isinstance(made, Load) and made.tensor in self.of:
                place = Const(self.place(made.tensor), INDEX)
                made = Load(self.of[made.tensor], (place, *made.index), made.dtype)
            done[id(e)] = (e, made)
        return done[id(e)][1]


@dataclass(slots=True)
class _Made:
    """Merges branches. fewer: whether any were merged. done: memo. keys: see `structure_hash`."""

    stacks: _Stacks
    fewer: bool = False
    done: Done = field(default_factory=dict)
    keys: dict[int, tuple[Expr, int]] = field(default_factory=dict)

    def of(self, e: Expr) -> Expr:
        if _index(e):
            return e
        if id(e) not in self.done:
            made = self.tree(e) if _told(e) else rebuilt(e, list(map(self.of, operands(e))))
            self.done[id(e)] = (e, made)
        return self.done[id(e)][1]

    def tree(self, e: Expr) -> Expr:
        """Merge the branches of a select tree."""
        leaves = list(map(self.of, _leaves(e)))
        alike: dict[int, list[int]] = {}
        for n, x in enumerate(leaves):
            alike.setdefault(self.key(x), []).append(n)
        if len(leaves) >= FEWEST and 2 * len(alike) <= len(leaves):
            try:
                return self.joined(e, leaves, list(alike.values()))
            except _Unlike:
                pass
        return _tree(e, iter(leaves))

    def joined(self, e: Expr, leaves: Sequence[Expr], alike: Sequence[Sequence[int]]) -> Expr:
        """Merge each group of similar leaves, and select the group."""
        one = _Joined(self.stacks, e, len(leaves))
        made = [one.of(tuple(leaves[n] for n in some), some) for some in alike]
        groups = {n: k for k, some in enumerate(alike) for n in some}
        which = one.number([groups[n] for n in range(len(leaves))], range(len(leaves)))
        self.fewer = True
        out = made.pop()
        while made:
            guard = Apply("eq", (which, Const(len(made) - 1, INDEX)), BOOL)
            out = Apply("select", (guard, made.pop(), out), out.dtype)
        return out

    def key(self, e: Expr) -> int:
        """Return a structural hash that ignores constants in indices, and which input of a type is
        read."""
        if id(e) not in self.keys:
            inner = _moving(e) if _index(e) else (_head(e), *map(self.key, operands(e)))
            self.keys[id(e)] = (e, hash(inner))
        return self.keys[id(e)][1]


@dataclass(slots=True)
class _Joined:
    """Merges leaves of a tree. place: the leaf's number as an expression. done: memo by leaves and
    ids."""

    stacks: _Stacks
    tree: Expr
    count: int
    place: Expr = field(init=False)
    done: dict[tuple[int, ...], Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = _tree(self.tree, (Const(n, INDEX) for n in range(self.count)))

    def of(self, some: tuple[Expr, ...], which: Sequence[int]) -> Expr:
        """Merge `some`, which belong to the leaves `which`. Raises _DifferentBranches."""
        first = some[0]
        if all(e is first for e in some):
            return first
        key = (*which, *map(id, some))  # the same index is another number of other leaves
        if key not in self.done:
            self.done[key] = self.made(some, which)
        return self.done[key]

    def made(self, some: tuple[Expr, ...], which: Sequence[int]) -> Expr:
        first = some[0]
        if _index(first):
            if any(_moving(e) != _moving(first) for e in some):
                raise _Unlike
            number = self.number([dict(ix.polynomial(e)).get((), 0) for e in some], which)
            return ix.as_index(ix.from_polynomial(dict(_moving(first))) + number)
        if any(_head(e) != _head(first) for e in some):
            raise _Unlike
        each = [self.of(x, which) for x in zip(*map(operands, some), strict=True)]
        tensors = [e.tensor for e in some if isinstance(e, Load)]
        if len(set(tensors)) > 1:
            assert isinstance(first, Load)
            place = self.number([self.stacks.place(t) for t in tensors], which)
            return Load(self.stacks.stack(tensors), (place, *each), first.dtype)
        return rebuilt(first, each)

    def number(self, some: Sequence[int], which: Sequence[int]) -> Expr:
        """Return an index expression with these values at these leaves, and any value at others."""
        step = (some[-1] - some[0]) // max(1, which[-1] - which[0])
        base = some[0] - step * which[0]
        if all(v == base + step * n for v, n in zip(some, which, strict=True)):
            return ix.as_index(self.place * step + base)
        at = dict(zip(which, some, strict=True))
        last = some[0]
        told = [last := at.get(n, last) for n in range(self.count)]
        return _tree(self.tree, (Const(n, INDEX) for n in told))


def _told(e: Expr) -> bool:
    """True for a select by indices alone whose branches are not constants."""
    if not isinstance(e, Apply) or e.fn != "select" or e.dtype == INDEX:
        return False
    if any(isinstance(x, Const) for x in e.args):
        return False
    return not any(isinstance(x, Load | Index) for x in parts(e.args[0]))


def _leaves(e: Expr) -> Iterator[Expr]:
    if _told(e):
        _, yes, no = operands(e)
        yield from _leaves(yes)
        yield from _leaves(no)
    else:
        yield e


def _tree(e: Expr, leaves: Iterator[Expr]) -> Expr:
    """Rebuild a tree with other leaves."""
    if not _told(e):
        return next(leaves)
    guard, *some = operands(e)
    yes, no = (_tree(x, leaves) for x in some)
    if isinstance(yes, Const) and yes == no:
        return yes
    return Apply("select", (guard, yes, no), yes.dtype)


def _index(e: Expr) -> bool:
    return e.dtype == INDEX and not isinstance(e, Index)


def _moving(e: Expr) -> frozenset[tuple[ix.Monomial, int]]:
    """Return an index without its constant."""
    return frozenset((atoms, c) for atoms, c in ix.polynomial(e).items() if atoms)


def _head(e: Expr) -> object:
    """Return the head of an expression, ignoring which input of a type it reads."""
    return e.tensor.type if isinstance(e, Load) and e.tensor.body is None else head(e)
