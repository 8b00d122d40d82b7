"""Apply equations to a whole bank: e-matching as joins over the table of applications.

(Zhang et al., Relational e-matching, POPL 2022.) An equation relates two applications of one class
if both of its sides are in the bank. Applications that are related, in any number of steps, are one
*component*; a class in one component needs no further equation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.generate.enumeration.bank import COMMUTATIVE, Bank
from superopt.generate.enumeration.pattern import (
    Equation,
    Pattern,
    PatternCall,
    PatternConstant,
    PatternVariable,
    variable_numbers,
)

MAX_JOIN_ROWS = 1 << 22  # of a join; further rows are dropped


@dataclass(slots=True)
class UseTable:
    """The applications of one use, sorted by class and size, which form `keys`; commutative ones in
    both orders."""

    row: np.ndarray
    keys: np.ndarray
    operands: tuple[np.ndarray, np.ndarray]
    size: np.ndarray


@dataclass(slots=True)
class _Join:
    """Rows so far: the root's application, the size of the whole term, the classes of variables;
    and the patterns still to be matched, with the classes that they must compute."""

    root: np.ndarray
    size: np.ndarray
    bound: dict[int, np.ndarray]
    pending: list[tuple[Pattern, np.ndarray]]

    def priority(self, p: Pattern) -> int:
        """Return the matching priority: patterns that leave fewer rows come first."""
        match p:
            case PatternConstant():
                return 0
            case PatternVariable(n):
                return 0 if n in self.bound else 1
            case PatternCall():
                return 2

    def keep_rows(self, rows: np.ndarray) -> None:
        self.root, self.size = self.root[rows], self.size[rows]
        self.bound = {n: c[rows] for n, c in self.bound.items()}
        self.pending = [(p, c[rows]) for p, c in self.pending]


@dataclass(slots=True)
class Relations:
    """A bank's applications up to a size as tables, and their components.

    labels: of each application and, after them, of each leaf's class.
    """

    bank: Bank
    max_ops: int
    tables: dict[int, UseTable]
    keys: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    @staticmethod
    def build(bank: Bank, max_ops: int, labels: np.ndarray | None = None) -> Relations:
        """Build the tables of applications of at most `max_ops` operators; `labels` of an earlier
        one."""
        a = bank.applications
        rows = np.flatnonzero(a.size <= max_ops).astype(np.int32)
        tables: dict[int, UseTable] = {}
        for number, u in enumerate(bank.uses()):
            some = rows[a.use[rows] == number]
            left, right, of, size = a.left[some], a.right[some], a.result_class[some], a.size[some]
            if u.name in COMMUTATIVE:
                other = left != right
                some = np.concatenate([some, some[other]])
                left, right = (
                    np.concatenate([left, right[other]]),
                    np.concatenate([right, left[other]]),
                )
                of, size = np.concatenate([of, of[other]]), np.concatenate([size, size[other]])
            sized = _class_size_keys(of, size)
            order = np.argsort(sized, kind="stable")
            operands = left[order], right[order]
            tables[number] = UseTable(some[order], sized[order], operands, size[order])
        keys = _application_keys(a.use[rows], a.left[rows], a.right[rows])
        order = np.argsort(keys, kind="stable")
        fresh = np.arange(len(a) + len(bank.level), dtype=np.int32)
        if labels is not None:
            fresh[: len(labels)] = labels
        return Relations(bank, max_ops, tables, keys[order], rows[order], fresh)

    # --- components ---

    def class_nodes(self, classes: np.ndarray) -> np.ndarray:
        """Return the first application of each class, or the leaf."""
        first = self.bank.first_application[classes]
        return np.asarray(np.where(first >= 0, first, len(self.bank.applications) + classes))

    def components_of(self, nodes: np.ndarray) -> np.ndarray:
        """Return the component of each node."""
        at: np.ndarray = self.labels[nodes]
        while True:
            up = self.labels[at]
            if np.array_equal(up, at):
                return at
            at = up

    def unite(self, a: np.ndarray, b: np.ndarray) -> int:
        """Unite the components of each pair; return by how many the components decreased."""
        gone = 0
        moved: list[np.ndarray] = []  # former representatives
        while True:
            one, two = self.components_of(a), self.components_of(b)
            apart = one != two
            if not apart.any():
                break
            a, b = a[apart], b[apart]
            low, high = np.minimum(one, two)[apart], np.maximum(one, two)[apart]
            before = self.labels[high].copy()
            np.minimum.at(self.labels, high, low)
            gone += len(np.unique(high[self.labels[high] != before]))
            moved.append(high)
        if moved:  # every label is a representative again
            some = np.unique(np.concatenate(moved))
            self.labels[some] = self.components_of(some)
            self.labels = self.labels[self.labels]
        return gone

    def unrelated_applications(self) -> np.ndarray:
        """Return the applications that are in another component than their class's smallest
        term."""
        rows = np.sort(self.rows)
        first = self.class_nodes(self.bank.applications.result_class[rows])
        return np.asarray(rows[self.components_of(rows) != self.components_of(first)])

    # --- equations ---

    def apply_equation(self, e: Equation) -> int:
        """Relate the matches of `e`; return by how many the components decreased."""
        left, right = e.left, e.right
        if set(variable_numbers(right)) - set(variable_numbers(left)) or isinstance(
            left, PatternVariable
        ):
            left, right = right, left
        root, bound = self.match_pattern(left)
        if not len(root):
            return 0
        other, kept = self.look_up(right, bound, np.arange(len(root)))
        if isinstance(right, (PatternVariable, PatternConstant)):
            other = self.class_nodes(other)
        root = root[kept]
        classes = np.where(
            other < len(self.bank.applications),
            self.bank.applications.result_class[np.minimum(other, len(self.bank.applications) - 1)],
            other - len(self.bank.applications),
        )
        same = classes == self.bank.applications.result_class[root]
        return self.unite(root[same], other[same])

    def match_pattern(self, p: Pattern) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Return the applications that match `p`, and the classes of its variables there."""
        assert isinstance(p, PatternCall)
        t = self.tables[p.use]
        join = _Join(t.row, t.size.astype(np.int16), {}, [])
        join.pending += [(o, t.operands[n]) for n, o in enumerate(p.operands)]
        while join.pending:
            at = min(range(len(join.pending)), key=lambda n: join.priority(join.pending[n][0]))
            q, classes = join.pending.pop(at)
            match q:
                case PatternVariable(n) if n not in join.bound:
                    join.bound[n] = classes
                case PatternVariable(n):
                    join.keep_rows(np.flatnonzero(join.bound[n] == classes))
                case PatternConstant(name):
                    join.keep_rows(np.flatnonzero(classes == self.bank.leaves[name]))
                case PatternCall(u, operands):
                    self.join_operand(join, self.tables[u], classes, operands)
        return join.root, join.bound

    def join_operand(
        self, join: _Join, inner: UseTable, classes: np.ndarray, operands: tuple[Pattern, ...]
    ) -> None:
        """Join with the applications that compute `classes`, up to the largest term size."""
        # an application may be a larger term of its class than the smallest one
        most = np.maximum(self.max_ops - join.size + self.bank.level[classes], -1)
        low = np.searchsorted(inner.keys, _class_size_keys(classes, np.zeros_like(most)), "left")
        count = np.searchsorted(inner.keys, _class_size_keys(classes, most + 1), "left") - low
        if count.sum() > MAX_JOIN_ROWS:
            count = np.where(np.cumsum(count) > MAX_JOIN_ROWS, 0, count)
        rows = np.repeat(np.arange(len(classes)), count)
        ends = np.cumsum(count)
        at = np.arange(len(rows)) - np.repeat(ends - count, count) + low[rows]
        grown = join.size[rows] + inner.size[at] - self.bank.level[classes[rows]]
        join.keep_rows(rows)
        join.size = grown
        join.pending += [(o, inner.operands[n][at]) for n, o in enumerate(operands)]

    def look_up(
        self, p: Pattern, bound: dict[int, np.ndarray], live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the application (for variables and constants the class) that equals `p`, and the
        rows that have one."""
        match p:
            case PatternVariable(n):
                return bound[n][live], live
            case PatternConstant(name):
                return np.full(len(live), self.bank.leaves[name], np.int32), live
            case PatternCall(u, operands):
                parts: list[tuple[np.ndarray, np.ndarray]] = []
                for o in operands:
                    found, live = self.look_up(o, bound, live)
                    classes = (
                        self.bank.applications.result_class[found]
                        if isinstance(o, PatternCall)
                        else found
                    )
                    parts.append((classes, live))
                columns = [c[np.searchsorted(rows, live)] for c, rows in parts]
                left = columns[0]
                right = columns[1] if len(columns) > 1 else np.full(len(left), -1, np.int32)
                if self.bank.uses()[u].name in COMMUTATIVE:
                    left, right = np.minimum(left, right), np.maximum(left, right)
                key = _application_keys(np.full(len(left), u, np.int16), left, right)
                at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
                there = self.keys[at] == key
                return self.rows[at[there]], live[there]


def _class_size_keys(classes: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return sort keys: class << 8 | size (size < 256)."""
    return (classes.astype(np.int64) << 8) | size.astype(np.int64)


def _application_keys(use: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return keys of applications: use << 52 | left << 26 | right + 1 (classes < 2^26)."""
    return (
        (use.astype(np.uint64) << np.uint64(52))
        | (left.astype(np.uint64) << np.uint64(26))
        | (right + 1).astype(np.uint64)
    )
