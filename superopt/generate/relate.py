"""Apply equations to a whole bank: e-matching as joins over the table of applications.

(Zhang et al., Relational e-matching, POPL 2022.) An equation relates two applications of one class
if both of its sides are in the bank. Applications that are related, in any number of steps, are one
*component*; a class in one component needs no further equation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superopt.generate.bank import COMMUTATIVE, Bank
from superopt.generate.pattern import Equation, Hole, Leaf, Made, Pattern, holes

MOST_ROWS = 1 << 22  # of a join; further rows are dropped


@dataclass(slots=True)
class Table:
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
    open: list[tuple[Pattern, np.ndarray]]

    def order(self, p: Pattern) -> int:
        """Return the matching priority: patterns that leave fewer rows come first."""
        match p:
            case Leaf():
                return 0
            case Hole(n):
                return 0 if n in self.bound else 1
            case Made():
                return 2

    def keep(self, rows: np.ndarray) -> None:
        self.root, self.size = self.root[rows], self.size[rows]
        self.bound = {n: c[rows] for n, c in self.bound.items()}
        self.open = [(p, c[rows]) for p, c in self.open]


@dataclass(slots=True)
class Relations:
    """A bank's applications up to a size as tables, and their components.

    labels: of each application and, after them, of each leaf's class.
    """

    bank: Bank
    top: int
    tables: dict[int, Table]
    keys: np.ndarray
    rows: np.ndarray
    label: np.ndarray

    @staticmethod
    def of(bank: Bank, top: int, label: np.ndarray | None = None) -> Relations:
        """Build the tables of applications of at most `max_ops` operators; `labels` of an earlier
        one."""
        a = bank.apps
        rows = np.flatnonzero(a.size <= top).astype(np.int32)
        tables: dict[int, Table] = {}
        for number, u in enumerate(bank.uses()):
            some = rows[a.use[rows] == number]
            left, right, of, size = a.left[some], a.right[some], a.of[some], a.size[some]
            if u.name in COMMUTATIVE:
                other = left != right
                some = np.concatenate([some, some[other]])
                left, right = (
                    np.concatenate([left, right[other]]),
                    np.concatenate([right, left[other]]),
                )
                of, size = np.concatenate([of, of[other]]), np.concatenate([size, size[other]])
            sized = _sized(of, size)
            order = np.argsort(sized, kind="stable")
            operands = left[order], right[order]
            tables[number] = Table(some[order], sized[order], operands, size[order])
        keys = _key(a.use[rows], a.left[rows], a.right[rows])
        order = np.argsort(keys, kind="stable")
        fresh = np.arange(len(a) + len(bank.level), dtype=np.int32)
        if label is not None:
            fresh[: len(label)] = label
        return Relations(bank, top, tables, keys[order], rows[order], fresh)

    # --- components ---

    def node(self, classes: np.ndarray) -> np.ndarray:
        """Return the first application of each class, or the leaf."""
        first = self.bank.first[classes]
        return np.asarray(np.where(first >= 0, first, len(self.bank.apps) + classes))

    def found(self, nodes: np.ndarray) -> np.ndarray:
        """Return the component of each node."""
        at: np.ndarray = self.label[nodes]
        while True:
            up = self.label[at]
            if np.array_equal(up, at):
                return at
            at = up

    def unite(self, a: np.ndarray, b: np.ndarray) -> int:
        """Unite the components of each pair; return by how many the components decreased."""
        gone = 0
        moved: list[np.ndarray] = []  # former representatives
        while True:
            one, two = self.found(a), self.found(b)
            apart = one != two
            if not apart.any():
                break
            a, b = a[apart], b[apart]
            low, high = np.minimum(one, two)[apart], np.maximum(one, two)[apart]
            before = self.label[high].copy()
            np.minimum.at(self.label, high, low)
            gone += len(np.unique(high[self.label[high] != before]))
            moved.append(high)
        if moved:  # every label is a representative again
            some = np.unique(np.concatenate(moved))
            self.label[some] = self.found(some)
            self.label = self.label[self.label]
        return gone

    def apart(self) -> np.ndarray:
        """Return the applications that are in another component than their class's smallest
        term."""
        rows = np.sort(self.rows)
        first = self.node(self.bank.apps.of[rows])
        return np.asarray(rows[self.found(rows) != self.found(first)])

    # --- equations ---

    def apply(self, e: Equation) -> int:
        """Relate the matches of `e`; return by how many the components decreased."""
        left, right = e.left, e.right
        if set(holes(right)) - set(holes(left)) or isinstance(left, Hole):
            left, right = right, left
        root, bound = self.matches(left)
        if not len(root):
            return 0
        other, kept = self.looked_up(right, bound, np.arange(len(root)))
        if isinstance(right, (Hole, Leaf)):
            other = self.node(other)
        root = root[kept]
        classes = np.where(
            other < len(self.bank.apps),
            self.bank.apps.of[np.minimum(other, len(self.bank.apps) - 1)],
            other - len(self.bank.apps),
        )
        same = classes == self.bank.apps.of[root]
        return self.unite(root[same], other[same])

    def matches(self, p: Pattern) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Return the applications that match `p`, and the classes of its variables there."""
        assert isinstance(p, Made)
        t = self.tables[p.use]
        join = _Join(t.row, t.size.astype(np.int16), {}, [])
        join.open += [(o, t.operands[n]) for n, o in enumerate(p.operands)]
        while join.open:
            at = min(range(len(join.open)), key=lambda n: join.order(join.open[n][0]))
            q, classes = join.open.pop(at)
            match q:
                case Hole(n) if n not in join.bound:
                    join.bound[n] = classes
                case Hole(n):
                    join.keep(np.flatnonzero(join.bound[n] == classes))
                case Leaf(name):
                    join.keep(np.flatnonzero(classes == self.bank.leaves[name]))
                case Made(u, operands):
                    self.into(join, self.tables[u], classes, operands)
        return join.root, join.bound

    def into(
        self, join: _Join, inner: Table, classes: np.ndarray, operands: tuple[Pattern, ...]
    ) -> None:
        """Join with the applications that compute `classes`, up to the largest term size."""
        # an application may be a larger term of its class than the smallest one
        most = np.maximum(self.top - join.size + self.bank.level[classes], -1)
        low = np.searchsorted(inner.keys, _sized(classes, np.zeros_like(most)), "left")
        count = np.searchsorted(inner.keys, _sized(classes, most + 1), "left") - low
        if count.sum() > MOST_ROWS:
            count = np.where(np.cumsum(count) > MOST_ROWS, 0, count)
        rows = np.repeat(np.arange(len(classes)), count)
        ends = np.cumsum(count)
        at = np.arange(len(rows)) - np.repeat(ends - count, count) + low[rows]
        grown = join.size[rows] + inner.size[at] - self.bank.level[classes[rows]]
        join.keep(rows)
        join.size = grown
        join.open += [(o, inner.operands[n][at]) for n, o in enumerate(operands)]

    def looked_up(
        self, p: Pattern, bound: dict[int, np.ndarray], live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the application (for variables and constants the class) that equals `p`, and the
        rows that have one."""
        match p:
            case Hole(n):
                return bound[n][live], live
            case Leaf(name):
                return np.full(len(live), self.bank.leaves[name], np.int32), live
            case Made(u, operands):
                parts: list[tuple[np.ndarray, np.ndarray]] = []
                for o in operands:
                    found, live = self.looked_up(o, bound, live)
                    classes = self.bank.apps.of[found] if isinstance(o, Made) else found
                    parts.append((classes, live))
                columns = [c[np.searchsorted(rows, live)] for c, rows in parts]
                left = columns[0]
                right = columns[1] if len(columns) > 1 else np.full(len(left), -1, np.int32)
                if self.bank.uses()[u].name in COMMUTATIVE:
                    left, right = np.minimum(left, right), np.maximum(left, right)
                key = _key(np.full(len(left), u, np.int16), left, right)
                at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
                there = self.keys[at] == key
                return self.rows[at[there]], live[there]


def _sized(classes: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return one number for a class and a size below 2^8, in their order."""
    return (classes.astype(np.int64) << 8) | size.astype(np.int64)


def _key(use: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return one number for a use and its operands: 2^26 classes, 2^12 uses."""
    return (
        (use.astype(np.uint64) << np.uint64(52))
        | (left.astype(np.uint64) << np.uint64(26))
        | (right + 1).astype(np.uint64)
    )
