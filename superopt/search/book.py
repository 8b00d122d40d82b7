"""The rules of a search, indexed by the nodes that they can start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from superopt.rules.index import Index
from superopt.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Book:
    """Rules in order, and the index of their matches."""

    rules: tuple[Rule, ...]
    index: Index

    def where(self, keep: Callable[[Rule], bool]) -> Book:
        """Return the rules that `keep` is True for."""
        return book(r for r in self.rules if keep(r))


def book(rules: Iterable[Rule]) -> Book:
    """Return a set of `rules`, each name once."""
    each = tuple({r.name: r for r in rules}.values())
    return Book(each, Index(each))
