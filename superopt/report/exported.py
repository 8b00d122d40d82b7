"""A model as a shared object: what C is told of it, and what a person is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from superopt.report import words
from superopt.report.table import joined, table

HEAD = 64  # bytes of a file of weights before the first of them
TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""Element types by ONNX's numbers (TensorProto.DataType)."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. default: where in the weights the value is that an input has by itself;
    None where it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    default: int | None = None

    @property
    def type(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is that the caller gives ("inputs", "outputs": its number) or that is held
    ("weights": bytes after the head)."""

    where: str
    at: int


@dataclass(frozen=True, slots=True)
class Library:
    """What the C texts of a model say.

    name: a C identifier, with which all names begin; file: of all files, without what tells them
    apart. sizes: of symbolic dimensions. needs: features of processors, by the names of
    `__builtin_cpu_supports`. arguments: of `run`; copies: to outputs that no kernel writes.
    weights, memory, workspace: bytes, the last ones for each thread, multiples of 64. digest: of
    the weights; sums: of their words modulo 2^64, and of these sums. pool: where words are in
    `run`'s state, and what they are at first.
    """

    superopt: str
    model: str
    name: str
    file: str
    sizes: Mapping[str, int]
    needs: tuple[str, ...]
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arguments: tuple[Place, ...]
    copies: tuple[tuple[int, Place], ...]
    weights: int
    memory: int
    workspace: int
    digest: str
    sums: tuple[int, int]
    pool: Mapping[str, int]

    @property
    def head(self) -> str:
        """How the file of weights begins."""
        return f"superopt weights 1 {self.digest}\n".ljust(HEAD)


@dataclass(frozen=True, slots=True)
class Exported:
    """What `superopt export` did: files with their bytes (library, header, weights)."""

    model: str
    name: str
    threads: int
    needs: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: tuple[tuple[str, int], ...]


def header(library: Library) -> str:
    """The C header."""
    return _rendered("export.h.jinja", library)


def source(library: Library) -> str:
    """The C source of what the header declares, around `run` and `work`."""
    return _rendered("export.c.jinja", library)


def _rendered(name: str, library: Library) -> str:
    types = {p.dtype for p in (*library.inputs, *library.outputs)}
    return _environment().get_template(name).render(
        x=library, name=library.name, NAME=library.name.upper(), head=HEAD, numbers=TYPES,
        types=[t for t in TYPES if t in types],
    )  # fmt: skip


@cache
def _environment() -> Environment:
    """Of C's text: names of a model's are in string literals and comments only."""
    environment = Environment(
        loader=PackageLoader("superopt", "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"literal": literal, "comment": comment}
    return environment


def literal(text: str) -> str:
    """A string literal of C, of UTF-8."""
    plain = set(range(32, 127)) - set(b'"\\?')  # no trigraphs
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def comment(text: str) -> str:
    """Text that ends no comment."""
    return words.plain(text).replace("*/", "* /").replace("/*", "/ *")


def exported(e: Exported) -> str:
    """What `superopt export` says."""
    needs = f"; needs {', '.join(e.needs)}" if e.needs else ""
    threads = words.count(e.threads, "thread")
    lines = [f"{words.plain(e.model)}: {e.name}_open, {e.name}_run in C, on {threads}{needs}"]
    lines += table([(words.plain(f), words.size(n)) for f, n in e.files])
    for what, ports in (("input", e.inputs), ("output", e.outputs)):
        rows = [(f"{what} {n}", words.plain(p.name), p.type) for n, p in enumerate(ports)]
        lines += table(rows, shown=len(rows))
    return joined(lines)
