"""Branches that differ in numbers of indices and in what they read only, as one.

What is joined of many parts is a tree of conditions on indices with a leaf for each:

    select(i < 6, f(x0[i]), select(i < 12, f(x1[i - 6]), ...))    ->    f(x[n, i - 6 n])
    where n = select(i < 6, 0, select(i < 12, 1, ...)), and x[n] is the n-th of x0, x1, ...

An element of it takes as many steps then as one of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from superopt.te.analysis.walk import node_key, operands, subexpressions, with_operands
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, INDEX
from superopt.te.expr.node import Apply, Const, Expr, Index, Load
from superopt.te.expr.tensor import Tensor, TensorType

MIN_BRANCHES = 4  # branches that are worth it
Memo = dict[int, tuple[Expr, Expr]]  # by ids, of what is held


class _DifferentBranches(Exception):
    """Branches differ in more than numbers of indices."""


def stack_branches(bodies: Sequence[Expr]) -> list[Expr]:
    """Return the expressions with merged branches, which read stacks of inputs; unchanged if no
    branches are alike."""
    some = [e for b in bodies for e in subexpressions(b)]
    if sum(map(_is_index_select, some)) < MIN_BRANCHES - 1:
        return list(bodies)
    stacks = _Stacks()
    for e in some:
        if isinstance(e, Load) and e.tensor.body is None:
            own = stacks.index_of_input.setdefault(e.tensor.type, {})
            own.setdefault(e.tensor, len(own))
    made = _BranchMerger(stacks)
    out = [made.merge(b) for b in bodies]
    if not made.has_merged:
        return list(bodies)
    done: Memo = {}
    return [stacks.read_stacks(b, done) for b in out]


@dataclass(slots=True)
class _Stacks:
    """given: for each type its inputs with their numbers. of: the stack of each input that is read
    from one. A stack has one element for each input of its type."""

    index_of_input: dict[TensorType, dict[Tensor, int]] = field(default_factory=dict)
    stack_of_input: dict[Tensor, Tensor] = field(default_factory=dict)

    def stack(self, some: Sequence[Tensor]) -> Tensor:
        """Return the stack of these inputs. Raises _DifferentBranches if they are in several
        stacks."""
        first = some[0]
        own = self.index_of_input.get(first.type, {})
        found = {self.stack_of_input[t] for t in some if t in self.stack_of_input}
        if len(found) > 1 or any(t not in own for t in some):
            raise _DifferentBranches
        new = Tensor(f"stack of {first.name}", first.dtype, (len(own), *first.shape))
        stack = found.pop() if found else new
        self.stack_of_input.update(dict.fromkeys(some, stack))
        return stack

    def position(self, t: Tensor) -> int:
        return self.index_of_input[t.type][t]

    def read_stacks(self, e: Expr, done: Memo) -> Expr:
        """Replace loads of stacked inputs by loads of the stack."""
        if _is_index(e):
            return e
        if id(e) not in done:
            made = with_operands(e, [self.read_stacks(x, done) for x in operands(e)])
            if isinstance(made, Load) and made.tensor in self.stack_of_input:
                place = Const(self.position(made.tensor), INDEX)
                made = Load(self.stack_of_input[made.tensor], (place, *made.index), made.dtype)
            done[id(e)] = (e, made)
        return done[id(e)][1]


@dataclass(slots=True)
class _BranchMerger:
    """Merges branches. fewer: whether any were merged. done: memo. keys: see `structure_hash`."""

    stacks: _Stacks
    has_merged: bool = False
    done: Memo = field(default_factory=dict)
    keys: dict[int, tuple[Expr, int]] = field(default_factory=dict)

    def merge(self, e: Expr) -> Expr:
        if _is_index(e):
            return e
        if id(e) not in self.done:
            made = (
                self.merge_tree(e)
                if _is_index_select(e)
                else with_operands(e, list(map(self.merge, operands(e))))
            )
            self.done[id(e)] = (e, made)
        return self.done[id(e)][1]

    def merge_tree(self, e: Expr) -> Expr:
        """Merge the branches of a select tree."""
        leaves = list(map(self.merge, _tree_leaves(e)))
        alike: dict[int, list[int]] = {}
        for n, x in enumerate(leaves):
            alike.setdefault(self.structure_hash(x), []).append(n)
        if len(leaves) >= MIN_BRANCHES and 2 * len(alike) <= len(leaves):
            try:
                return self.merge_groups(e, leaves, list(alike.values()))
            except _DifferentBranches:
                pass
        return _rebuild_tree(e, iter(leaves))

    def merge_groups(self, e: Expr, leaves: Sequence[Expr], alike: Sequence[Sequence[int]]) -> Expr:
        """Merge each group of similar leaves, and select the group."""
        one = _LeafMerger(self.stacks, e, len(leaves))
        made = [one.merge(tuple(leaves[n] for n in some), some) for some in alike]
        groups = {n: k for k, some in enumerate(alike) for n in some}
        which = one.leaf_number([groups[n] for n in range(len(leaves))], range(len(leaves)))
        self.has_merged = True
        out = made.pop()
        while made:
            guard = Apply("eq", (which, Const(len(made) - 1, INDEX)), BOOL)
            out = Apply("select", (guard, made.pop(), out), out.dtype)
        return out

    def structure_hash(self, e: Expr) -> int:
        """Return a structural hash that ignores constants in indices, and which input of a type is
        read."""
        if id(e) not in self.keys:
            inner = (
                _without_constant(e)
                if _is_index(e)
                else (_shape_head(e), *map(self.structure_hash, operands(e)))
            )
            self.keys[id(e)] = (e, hash(inner))
        return self.keys[id(e)][1]


@dataclass(slots=True)
class _LeafMerger:
    """Merges leaves of a tree. place: the leaf's number as an expression. done: memo by leaves and
    ids."""

    stacks: _Stacks
    tree: Expr
    count: int
    leaf_index: Expr = field(init=False)
    done: dict[tuple[int, ...], Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leaf_index = _rebuild_tree(self.tree, (Const(n, INDEX) for n in range(self.count)))

    def merge(self, branches: tuple[Expr, ...], branch_indices: Sequence[int]) -> Expr:
        """Merge the branches of the leaves `branch_indices`. Raises _DifferentBranches."""
        first = branches[0]
        if all(e is first for e in branches):
            return first
        # the same index is another number of other leaves
        key = (*branch_indices, *map(id, branches))
        if key not in self.done:
            self.done[key] = self.merge_operands(branches, branch_indices)
        return self.done[key]

    def merge_operands(self, branches: tuple[Expr, ...], branch_indices: Sequence[int]) -> Expr:
        first = branches[0]
        if _is_index(first):
            if any(_without_constant(e) != _without_constant(first) for e in branches):
                raise _DifferentBranches
            number = self.leaf_number(
                [dict(index.polynomial(e)).get((), 0) for e in branches], branch_indices
            )
            return index.as_index(index.from_polynomial(dict(_without_constant(first))) + number)
        if any(_shape_head(e) != _shape_head(first) for e in branches):
            raise _DifferentBranches
        each = [self.merge(x, branch_indices) for x in zip(*map(operands, branches), strict=True)]
        tensors = [e.tensor for e in branches if isinstance(e, Load)]
        if len(set(tensors)) > 1:
            assert isinstance(first, Load)
            place = self.leaf_number([self.stacks.position(t) for t in tensors], branch_indices)
            return Load(self.stacks.stack(tensors), (place, *each), first.dtype)
        return with_operands(first, each)

    def leaf_number(self, values: Sequence[int], branch_indices: Sequence[int]) -> Expr:
        """Return an index expression with these values at these leaves, and any value at others."""
        step = (values[-1] - values[0]) // max(1, branch_indices[-1] - branch_indices[0])
        base = values[0] - step * branch_indices[0]
        if all(v == base + step * n for v, n in zip(values, branch_indices, strict=True)):
            return index.as_index(self.leaf_index * step + base)
        at = dict(zip(branch_indices, values, strict=True))
        last = values[0]
        leaf_values = [last := at.get(n, last) for n in range(self.count)]
        return _rebuild_tree(self.tree, (Const(n, INDEX) for n in leaf_values))


def _is_index_select(e: Expr) -> bool:
    """True for a select by indices alone whose branches are not constants."""
    if not isinstance(e, Apply) or e.fn != "select" or e.dtype == INDEX:
        return False
    if any(isinstance(x, Const) for x in e.args):
        return False
    return not any(isinstance(x, Load | Index) for x in subexpressions(e.args[0]))


def _tree_leaves(e: Expr) -> Iterator[Expr]:
    if _is_index_select(e):
        _, yes, no = operands(e)
        yield from _tree_leaves(yes)
        yield from _tree_leaves(no)
    else:
        yield e


def _rebuild_tree(e: Expr, leaves: Iterator[Expr]) -> Expr:
    """Rebuild a tree with other leaves."""
    if not _is_index_select(e):
        return next(leaves)
    guard, *some = operands(e)
    yes, no = (_rebuild_tree(x, leaves) for x in some)
    if isinstance(yes, Const) and yes == no:
        return yes
    return Apply("select", (guard, yes, no), yes.dtype)


def _is_index(e: Expr) -> bool:
    return e.dtype == INDEX and not isinstance(e, Index)


def _without_constant(e: Expr) -> frozenset[tuple[index.Monomial, int]]:
    """Return an index without its constant."""
    return frozenset((atoms, c) for atoms, c in index.polynomial(e).items() if atoms)


def _shape_head(e: Expr) -> object:
    """Return the head of an expression, ignoring which input of a type it reads."""
    return e.tensor.type if isinstance(e, Load) and e.tensor.body is None else node_key(e)
