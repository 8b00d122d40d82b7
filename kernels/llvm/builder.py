"""A builder of LLVM text: values, fresh names, and declarations."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from superopt.te.expr.dtype import BOOL, F64, INDEX, DType, to_numpy
from superopt.te.expr.node import Number

_FLOATS = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}


@dataclass(frozen=True, slots=True)
class Value:
    """A value: a vector of `lanes` elements, or a scalar if that is 0."""

    text: str
    dtype: DType
    lanes: int = 0

    @property
    def type(self) -> str:
        one = element_type(self.dtype)
        return f"<{self.lanes} x {one}>" if self.lanes else one

    @property
    def suffix(self) -> str:
        """The type suffix of an intrinsic's name."""
        letter = "bf" if self.dtype.name == "bf16" else "f" if self.dtype.is_float else "i"
        bits = 1 if self.dtype == BOOL else self.dtype.bits
        return f"v{self.lanes}{letter}{bits}" if self.lanes else f"{letter}{bits}"

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def element_type(dtype: DType) -> str:
    """Return LLVM's type of a value; a bool is one bit, and a byte in memory."""
    if dtype == BOOL:
        return "i1"
    if dtype.name in _FLOATS:
        return _FLOATS[dtype.name]
    if not (dtype.is_int or dtype == INDEX) or dtype.bits < 8:
        raise NotImplementedError(f"no kernel computes {dtype}")
    return f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    return "i8" if dtype == BOOL else element_type(dtype)


@dataclass(slots=True)
class TextBuilder:
    """A function's lines, its entry block, and the declarations it needs.

    has_avx512: the target has AVX-512. has_bf16: the kernel uses AVX512-BF16. emits_entry: lines
    go to the entry block now.
    """

    lines: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    marks: list[list[str]] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    count: int = 0
    has_avx512: bool = False
    has_bf16: bool = False

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def make(self, text: str, dtype: DType, lanes: int) -> Value:
        """Emit an instruction; return its value."""
        out = f"%{self.fresh()}"
        self.line(f"{out} = {text}")
        return Value(out, dtype, lanes)

    def pointer(self, kind: str, base: str, offset: str) -> str:
        """Emit the address that is so many elements of a type behind another one."""
        at = f"%{self.fresh()}"
        self.line(f"{at} = getelementptr {kind}, ptr {base}, {offset}")
        return at

    def call(self, name: str, args: Sequence[Value], dtype: DType) -> Value:
        """Emit a call of an LLVM intrinsic or of libm."""
        lanes = args[0].lanes
        out = Value("", dtype, lanes)
        kinds = ", ".join(a.type for a in args)
        self.declared.add(f"declare {out.type} @{name}({kinds})")
        given = ", ".join(map(str, args))
        return self.make(f"call {out.type} @{name}({given})", dtype, lanes)

    def call_per_lane(self, name: str, args: Sequence[Value]) -> Value:
        """Emit calls of a libm function for each lane."""
        a = args[0]
        if not a.lanes:
            return self.call(name, args, a.dtype)
        out = Value("poison", a.dtype, a.lanes)
        for k in range(a.lanes):
            one = [self.make(f"extractelement {v}, i64 {k}", v.dtype, 0) for v in args]
            found = self.call(name, one, a.dtype)
            out = self.make(f"insertelement {out}, {found}, i64 {k}", a.dtype, a.lanes)
        return out

    @contextmanager
    def loop(self, extent: str, may_be_empty: bool = False, begin: str = "0") -> Iterator[Value]:
        """Emit a loop around what is emitted meanwhile; yield its counter, from `begin` on.
        may_be_empty: the extent may be at most `begin`."""
        n = self.fresh("loop")
        self.entry.append(f"  %{n}.at = alloca i64")
        self.line(f"store i64 {begin}, ptr %{n}.at")
        if may_be_empty:
            self.line(f"%{n}.some = icmp sgt i64 {extent}, {begin}")
            self.line(f"br i1 %{n}.some, label %{n}, label %{n}.end")
        else:
            self.line(f"br label %{n}")
        self.lines.append(f"{n}:")
        counter = self.make(f"load i64, ptr %{n}.at", INDEX, 0)
        yield counter
        self.line(f"%{n}.next = add nuw nsw {counter}, 1")
        self.line(f"store i64 %{n}.next, ptr %{n}.at")
        self.line(f"%{n}.more = icmp ult i64 %{n}.next, {extent}")
        self.line(f"br i1 %{n}.more, label %{n}, label %{n}.end")
        self.lines.append(f"{n}.end:")

    @contextmanager
    def emit_at(self, place: list[str]) -> Iterator[None]:
        """Emit what is emitted meanwhile at a place before: the entry, or a mark."""
        before, self.lines = self.lines, place
        yield
        self.lines = before

    def mark(self) -> list[str]:
        """Return this place, for lines that are emitted later."""
        self.marks.append([])
        self.lines.append(f"; mark {len(self.marks) - 1}")
        return self.marks[-1]

    def text_lines(self) -> Iterator[str]:
        """Yield all lines in order."""
        marked = {f"; mark {n}": own for n, own in enumerate(self.marks)}
        yield from self.entry
        for line in self.lines:
            yield from marked.get(line, (line,))

    def splat(self, v: Value, lanes: int) -> Value:
        """Broadcast `v` to `lanes`."""
        if v.lanes == lanes:
            return v
        if not v.text.startswith("%"):
            return splat_constant(v, lanes)
        wide = Value("", v.dtype, lanes)
        one = self.make(f"insertelement {wide.type} poison, {v}, i64 0", v.dtype, lanes)
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.make(f"shufflevector {one}, {wide.type} poison, {zeros}", v.dtype, lanes)


def number(value: Number | bool, dtype: DType, lanes: int = 0) -> Value:
    """Return a constant; floats are written as the bits of a double."""
    if dtype.is_float:
        x = float(value)
        if dtype != F64:
            with np.errstate(over="ignore"):
                x = float(np.float64(x).astype(to_numpy(dtype)))
        text = "0x" + struct.pack(">d", x).hex().upper()
    elif dtype == BOOL:
        text = "true" if value else "false"
    else:
        text = str(int(value))
    only = Value(text, dtype)
    return splat_constant(only, lanes) if lanes else only


def splat_constant(only: Value, lanes: int) -> Value:
    """Return a vector of one constant."""
    return Value("<" + ", ".join([str(only)] * lanes) + ">", only.dtype, lanes)
