"""Rules in the texts of TASO (`f(x,y)==g(x)`) and Tensat (`(f ?x ?y)=>(g ?x)`), read as graphs.

The texts give no shapes. Each side is followed with sizes as unknowns, which the operators equate;
what is left free is given sizes that differ, so that nothing holds because two sizes happen to.

Operators are TASO's: `conv2d` and pools have strides of height and width, then padding (0 same,
1 valid) and, a convolution, an activation (0 none, 1 sigmoid, 2 relu, 3 tanh); a mean counts the
padding; `enlarge` puts zeros around a kernel; `Iconv`, `Imatmul`, `Iewmul` are the identities, and
`Cpool` is the kernel of the mean. A split cuts where the last concatenation along the axis joined.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from superopt.errors import UsageError

# How many arguments an operator has; a second form is Tensat's.
ARITY = {
    **dict.fromkeys(("ewadd", "ewmul", "smul"), (2,)),
    **dict.fromkeys(("relu", "tanh", "sigmoid", "transpose"), (1,)),
    **dict.fromkeys(("poolavg", "poolmax", "conv2d"), (6,)),
    **dict.fromkeys(("split_0", "split_1"), (2, 1)),
    **dict.fromkeys(("Cpool", "Iconv", "split"), (2,)),
    **dict.fromkeys(("Imatmul", "Iewmul"), (0,)),
    "matmul": (2, 3),
    "concat": (3, 4),
    "enlarge": (3,),
}
NUMBERS = {"conv2d": 4, "poolavg": 5, "poolmax": 5, "enlarge": 2, "Cpool": 2, "Iconv": 2}
ACTIVATIONS = {0: "", 1: "Sigmoid", 2: "Relu", 3: "Tanh"}
CODES = {"padding": "0 same, 1 valid", "activation": "0 none, 1 sigmoid, 2 relu, 3 tanh"}
ODD = (3, 1, 5)  # sizes of kernels, as they are tried
TRIED = 5_000
_TOKEN = re.compile(r"\s*(==|=>|[(),]|\??\w+|$)")


@dataclass(frozen=True, slots=True)
class Term:
    """An operator and its operands, or a name or a number, which have none."""

    op: str
    args: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}({','.join(map(str, self.args))})" if self.args else self.op


@dataclass(frozen=True, slots=True)
class Published:
    """A rule and the line where it stands."""

    line: int
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.left}=={self.right}"


def read_rules(path: Path) -> list[Published]:
    """The rules of a file. UsageError says the line that is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {path}", str(e), "give text files of rules") from None
    reader = _Reader(path, text)
    rules = []
    while reader.peek():
        line, left = reader.line(), reader.term()
        reader.expect("=>" if reader.prefix else "==")
        rules.append(Published(line, left, reader.term()))
    if not rules:
        raise UsageError(f"{path} has no rules", "it is empty", "give a file of rules")
    return rules


class _Reader:
    """A place in a text."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text, self.at = path, text, 0
        self.prefix = "=>" in text

    def line(self) -> int:
        found = _TOKEN.match(self.text, self.at)
        return self.text.count("\n", 0, found.start(1) if found else self.at) + 1

    def peek(self) -> str:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.error(f"{self.text[self.at :].strip()[0]!r} is not part of a rule")
        return found[1]

    def take(self) -> str:
        token = self.peek()
        self.at = self.text.index(token, self.at) + len(token)
        return token

    def expect(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise self.error(f"{self.peek() or 'the end'!r} stands where {wanted!r} is expected")
        self.take()

    def error(self, why: str) -> UsageError:
        todo = "rules are f(x,y)==g(x), or (f ?x ?y)=>(g ?x), of TASO's operators"
        return UsageError(f"{self.path}:{self.line()}: not a rule", why, todo)

    def word(self) -> str:
        if not re.fullmatch(r"\??\w+", self.peek()):
            raise self.error(f"{self.peek() or 'the end'!r} stands where a name is expected")
        return self.take().lstrip("?")

    def term(self) -> Term:
        args: list[Term] = []
        if not self.prefix:
            op = self.word()
            if self.peek() == "(":
                while not args or self.peek() == ",":
                    self.take()
                    args.append(self.term())
                self.expect(")")
        elif self.peek() == "(":
            self.take()
            op = self.word()
            while self.peek() not in (")", ""):
                args.append(self.term())
            self.expect(")")
        else:
            op = self.word()
        self.check(op, args)
        return Term(op, tuple(args))

    def check(self, op: str, args: list[Term]) -> None:
        if args and op not in ARITY:
            raise self.error(f"{op} is no operator of TASO")
        if op in ARITY and len(args) not in ARITY[op]:
            takes = " or ".join(map(str, ARITY[op]))
            raise self.error(f"{op} takes {takes} arguments, not {len(args)}")
        for k in range(numbers(op, len(args))):
            if not args[k].op.isdigit():
                raise self.error(f"argument {k + 1} of {op} is a number, not {args[k]}")
        codes = args[2:4] if op == "conv2d" else args[4:5] if op.startswith("pool") else []
        for code, known, what in zip(codes, (2, len(ACTIVATIONS)), CODES, strict=False):
            if int(code.op) >= known:
                raise self.error(f"{code} is no code of {what}: {CODES[what]}")


def numbers(op: str, args: int) -> int:
    """How many of an operator's arguments come first and are numbers."""
    if op == "concat":
        return args - 2
    if op in ("matmul", "split_0", "split_1"):
        return args - ARITY[op][op != "matmul"]
    return NUMBERS.get(op, int(op == "split"))


# --- sizes ----------------------------------------------------------------------------------------


class IllFormed(Exception):
    """The operands do not fit, whatever the sizes."""


Form = tuple[tuple[int, Fraction], ...]  # unknowns and their factors; unknown 0 is one


def number(n: int) -> Form:
    return ((0, Fraction(n)),) if n else ()


def plus(a: Form, b: Form, times: int | Fraction = 1) -> Form:
    """a + times * b"""
    out = dict(a)
    for k, v in b:
        out[k] = out.get(k, Fraction(0)) + times * v
    return tuple((k, v) for k, v in sorted(out.items()) if v)


@dataclass(frozen=True, slots=True)
class Sized:
    """A term with its sizes; cuts: along each axis, the size of what a concatenation had first."""

    op: str
    nums: tuple[int, ...]
    args: tuple[Sized, ...]
    dims: tuple[Form, ...]
    cuts: tuple[Form | None, ...]


class Unknowns:
    """Sizes that are not known yet, and equations between them."""

    def __init__(self) -> None:
        self.count = 0
        self.solved: dict[int, Form] = {}
        self.whole: list[Form] = []  # numbers that are no size
        self.kernels: list[tuple[Form, int]] = []  # odd, and at most so large

    def fresh(self) -> Form:
        self.count += 1
        return ((self.count, Fraction(1)),)

    def now(self, form: Form) -> Form:
        """`form` without the unknowns that are solved."""
        while any(k in self.solved for k, _ in form):
            out: Form = ()
            for k, v in form:
                out = plus(out, self.solved.get(k, ((k, Fraction(1)),)), v)
            form = out
        return form

    def equate(self, a: Form, b: Form) -> None:
        rest = self.now(plus(a, b, -1))
        names = [k for k, _ in rest if k]
        if not names and rest:
            raise IllFormed(f"two sizes differ by {abs(rest[0][1])}")
        if names:
            factor = dict(rest)[names[-1]]
            others = tuple((k, v) for k, v in rest if k != names[-1])
            self.solved[names[-1]] = plus((), others, -1 / factor)

    def values(self, every: list[Form], alike: bool) -> dict[int, int]:
        """Small numbers for the unknowns, first those that differ (or are alike), so that all
        sizes are positive whole numbers, and kernels odd."""
        every = [self.now(f) for f in (*every, *self.whole)]
        kernels = [(self.now(f), most) for f, most in self.kernels]
        free = sorted({k for f in (*every, *(f for f, _ in kernels)) for k, _ in f if k})
        odd = dict.fromkeys((k for f, _ in kernels for k, _ in f if k), ODD[-1])
        for f, most in kernels:
            if len(f) == 1 and f[0][0]:
                odd[f[0][0]] = min(odd[f[0][0]], most)
        for wished in itertools.islice(_wishes(free, odd, alike), TRIED):
            found = {0: 1, **wished}
            sizes = [valued(f, found) for f in every]
            fits = all(s.denominator == 1 and s >= 1 for s in sizes)
            tops = [(valued(f, found), most) for f, most in kernels]
            if fits and all(s % 2 == 1 and s <= most for s, most in tops):
                return found
        raise IllFormed("no small sizes fit")

    def known(self, form: Form, found: dict[int, int]) -> int:
        return int(valued(self.now(form), found))


def _wishes(free: list[int], odd: dict[int, int], alike: bool) -> Iterator[dict[int, int]]:
    """Numbers for the unknowns, odd ones for some, up to a most: each begins with one of its own,
    or all with the same."""
    lists: dict[int, list[int]] = {}
    for k in free:
        among = [d for d in ODD if d <= odd[k]] if k in odd else list(range(2, len(free) + 4))
        turn = 0 if alike else sum((other in odd) == (k in odd) for other in lists)
        lists[k] = [among[(turn + i) % len(among)] for i in range(len(among))]
    for chosen in itertools.product(*lists.values()):
        yield dict(zip(lists, chosen, strict=True))


def valued(form: Form, found: dict[int, int]) -> Fraction:
    return sum((v * found[k] for k, v in form), Fraction(0))
