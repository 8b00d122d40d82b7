"""What the C texts of an exported model are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.report.compilation.compile_report import Port

HEADER_BYTES = 64  # bytes of the header of the weights file
# ONNX's code (TensorProto.DataType) and the bytes of each element type.
ELEMENT_TYPES = {
    "float32": (1, 4), "uint8": (2, 1), "int8": (3, 1), "uint16": (4, 2), "int16": (5, 2),
    "int32": (6, 4), "int64": (7, 8), "bool": (9, 1), "float16": (10, 2), "float64": (11, 8),
    "uint32": (12, 4), "uint64": (13, 8), "bfloat16": (16, 2),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Where a tensor is: the caller's INPUT or OUTPUT with this index, or HELD at this byte offset
    in the weights."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{{{self.buffer}, {self.offset}}}"


@dataclass(frozen=True, slots=True)
class DerivedConstant:
    """A constant that is made when the model is opened: the products of a matrix and of filters, in
    the order in which kernels read them (export/constants.c).

    filters: the offset of `count` of these in the weights; matrix: its rows. shape, strides, first:
    of the constant in elements of the products, which are [row][filter]. bytes: a multiple of 64.
    """

    filters: int
    count: int
    matrix: tuple[tuple[float, ...], ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    """A program of a library, for all sizes for which its guards hold.

    guards, shared, memory, workspace, words: formulas (c_formula.py); shared: those of t0, t1, ...;
    memory, workspace: bytes, the latter for each thread; words: the values that it reads.
    output_dimensions: formulas, of each output. arguments: of `run`. constants: their offsets in
    the weights, or how they are made. uses_threads: it has `work`. state: bytes that threads share,
    a multiple of 64.
    """

    guards: tuple[str, ...]
    memory: str
    workspace: str
    words: tuple[str, ...]
    output_dimensions: tuple[tuple[str, ...], ...]
    arguments: tuple[BufferRef, ...]
    constants: tuple[int | DerivedConstant, ...]
    uses_threads: bool
    state: int
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedLimit:
    """A limit of the values of an input. number: of the input. least, greatest: formulas, "" for
    none. what: the reason, for messages. summed_axis: of sums along it, or -1."""

    number: int
    least: str
    greatest: str
    what: str
    summed_axis: int = -1


@dataclass(frozen=True, slots=True)
class ExportedLibrary:
    """The contents of the generated texts.

    name: a C identifier, the prefix of all names; file_name: the files' base name; library_file:
    the library's name, as libNAME.so; system: what it is for; platform: the C file of what it needs
    of that (export/linux.c). fixed_sizes: of dimensions of the model, by name. symbols: names of
    the sizes that `run` takes, s0, s1, ... in formulas. places: of each, the numbers of an input
    and of an axis. cpu_features: LLVM's names; feature_checks: C conditions that the processor has
    them. input_dimensions: formulas, of each input; output_dimensions: of each output, of a library
    without programs. limits: of values. defaults: the offset in the weights of each optional input,
    by its index. programs: the first that has the sizes is run. copies: to outputs that no kernel
    writes, by their indices. weights: bytes, a multiple of 64. digest: of the weights; checksums:
    the sum of their 64-bit words modulo 2^64, and the sum of these sums. pool: the offsets of words
    in `run`'s state.
    """

    superopt_version: str
    model: str
    name: str
    file_name: str
    library_file: str
    system: str
    platform: str
    fixed_sizes: Mapping[str, int]
    symbols: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    cpu_features: tuple[str, ...]
    feature_checks: tuple[str, ...]
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    input_dimensions: tuple[tuple[str, ...], ...]
    output_dimensions: tuple[tuple[str, ...], ...]
    limits: tuple[ExportedLimit, ...]
    defaults: Mapping[int, int]
    programs: tuple[ExportedProgram, ...]
    copies: tuple[tuple[int, BufferRef], ...]
    weights: int
    digest: str
    checksums: tuple[int, int]
    pool: Mapping[str, int]

    @property
    def ports(self) -> tuple[Port, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def weights_header(self) -> str:
        """Return the header of the weights file."""
        return f"superopt weights 1 {self.digest}\n".ljust(HEADER_BYTES)
