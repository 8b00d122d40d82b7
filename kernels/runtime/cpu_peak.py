"""Measure this machine's peak rates: FMAs, and bytes of memory and of caches."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from superopt.kernels.runtime.cpu import Machine, link_objects, object_code
from superopt.kernels.runtime.dot_product_peak import spin_text, step_operations

FMA_CHAINS = 12  # independent FMA dependency chains
SPIN_STEPS = 100_000  # of a call, whose overhead is below a hundredth of it
DOT_PRODUCT_STEPS = 10_000
BUFFER_BYTES = tuple(1 << n for n in (14, 16, 18, *range(20, 29)))  # 16 KiB to 256 MiB
MEMORY_CACHE_RATIO = 2  # bytes that are read from memory for each of the last level cache
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
TAKES, FLOP_TAKES = 3, 12  # the best of so many takes counts
MIN_TAKE_SECONDS = 0.002  # of a take
MIN_CALL_BYTES = 1 << 22  # traversed by one call


_SUM_ARGUMENT_TYPES = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class CpuPeak:
    """flops: fp32 operations per second; bandwidths: bytes per second, by the bytes that are
    traversed repeatedly. bf16_flops: operations of products in bfloat16, and int8_flops: of 8-bit
    integers; 0 if they are not measured."""

    flops: float
    bandwidths: tuple[tuple[int, float], ...]
    bf16_flops: float = 0.0
    int8_flops: float = 0.0

    def bandwidth(self, size: int) -> float:
        """Return the rate for `size` bytes: of the cache that holds them, or of memory."""
        return next((rate for n, rate in self.bandwidths if n >= size), self.memory_bandwidth)

    @property
    def memory_bandwidth(self) -> float:
        return self.bandwidths[-1][1]


@lru_cache(maxsize=8)
def measure_cpu_peak(
    machine: Machine, threads: int, bf16_instructions: str = "", integer_instructions: str = ""
) -> CpuPeak:
    """Measure the peak rates of so many threads together. bf16_instructions: of products in
    bfloat16, and integer_instructions: of 8-bit integers, if they are measured."""
    _, spin, read = _benchmark_functions(machine)
    sink = np.zeros(16, np.float32)
    operations = 2 * FMA_CHAINS * SPIN_STEPS * (machine.width // 4)
    with ThreadPoolExecutor(threads) as pool:

        def least(runs: Sequence[Callable[[], object]], takes: int = TAKES) -> float:
            """Return the seconds of all runs concurrently."""
            count, best = 1, float("inf")
            for _ in range(takes):
                while True:
                    begin = time.perf_counter()
                    for waiting in [pool.submit(_repeat, run, count) for run in runs]:
                        waiting.result()
                    taken = time.perf_counter() - begin
                    if taken > MIN_TAKE_SECONDS:
                        break
                    count *= 2
                best = min(best, taken / count)
            return best

        def dot_product_rate(instructions: str) -> float:
            multiply, done = dot_product_run(machine, instructions)
            return threads * done / least([multiply] * threads, FLOP_TAKES)

        flops = (
            threads
            * operations
            / least([lambda: spin(SPIN_STEPS, sink.ctypes.data)] * threads, FLOP_TAKES)
        )
        bf16_flops, int8_flops = (
            dot_product_rate(how) if how else 0.0
            for how in (bf16_instructions, integer_instructions)
        )
        rates = []
        sizes = buffer_sizes(threads)
        held = [np.ones(sizes[-1] // 4, np.float32) for _ in range(threads)]
        for size in sizes:
            given = [a[: size // 4] for a in held]
            halves = [(a[: len(a) // 2], a[len(a) // 2 :]) for a in given]
            again = max(1, MIN_CALL_BYTES // size)
            reads = [lambda a=a: read(a.ctypes.data, a.nbytes, again) for a in given]  # noqa: B023
            copies = [lambda h=h: np.copyto(*h) for h in halves]
            rates.append((size, threads * size / min(least(reads) / again, least(copies))))
    return CpuPeak(flops, tuple(rates), bf16_flops, int8_flops)


def buffer_sizes(threads: int) -> tuple[int, ...]:
    """Return the bytes that each thread traverses. The last ones do not fit in a cache together."""
    most = MEMORY_CACHE_RATIO * last_cache_bytes() // threads
    unit = BUFFER_BYTES[0]
    return (*BUFFER_BYTES, *[-(-most // unit) * unit] * (most > BUFFER_BYTES[-1]))


def last_cache_bytes() -> int:
    """Return the bytes of the last level cache; 0 if the system does not tell."""
    out = 0
    for path in CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            out = max(out, _parse_size(path.read_text("ascii").strip()))
    return out


def data_caches() -> tuple[int, ...]:
    """Return the bytes of the caches of data of a core, from L1 on; empty if the system does not
    tell."""
    found = {}
    for folder in CACHES.glob("index*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = (folder / "size").read_text("ascii").strip()
            if (folder / "type").read_text("ascii").strip() != "Instruction":
                found[int((folder / "level").read_text("ascii"))] = _parse_size(text)
    return tuple(found[level] for level in sorted(found))


def _parse_size(text: str) -> int:
    """Return the bytes of a size such as 48K."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1:]]


def memory_reader(machine: Machine) -> Callable[[np.ndarray], None]:
    """Return a function that reads an array, of a multiple of 8 vectors, on one thread."""
    *_, read = _benchmark_functions(machine)
    return lambda x: read(x.ctypes.data, x.nbytes, 1)


def fma_run(machine: Machine, steps: int = SPIN_STEPS) -> tuple[Callable[[], None], int]:
    """Return a call of one thread at the peak rate of FMAs, and its operations, to time in turns
    with others."""
    _, spin, _ = _benchmark_functions(machine)
    sink = np.zeros(16, np.float32)
    operations = 2 * FMA_CHAINS * steps * (machine.width // 4)
    return lambda: spin(steps, sink.ctypes.data), operations


def dot_product_run(machine: Machine, instructions: str) -> tuple[Callable[[], None], int]:
    """Return a call of one thread at the peak rate of products of groups of terms, and its
    operations."""
    _, multiply = _dot_product_function(machine, instructions)
    sink = np.zeros(16, np.float32)
    operations = step_operations(instructions, machine.width // 4) * DOT_PRODUCT_STEPS
    return lambda: multiply(DOT_PRODUCT_STEPS, sink.ctypes.data), operations


@lru_cache(maxsize=8)
def _benchmark_functions(
    machine: Machine,
) -> tuple[object, Callable[..., None], Callable[..., None]]:
    """Return what owns the code of `_benchmark_text`, and its functions spin and sum."""
    engine = link_objects([object_code(_benchmark_text(machine.width // 4), machine)], machine)
    kinds = {"spin": (ctypes.c_int64, ctypes.c_void_p), "sum": _SUM_ARGUMENT_TYPES}
    spin, read = (
        ctypes.CFUNCTYPE(None, *kind)(engine.get_function_address(name))
        for name, kind in kinds.items()
    )
    return engine, spin, read


@lru_cache(maxsize=4)
def _dot_product_function(
    machine: Machine, instructions: str
) -> tuple[object, Callable[..., None]]:
    """Return what owns the code of `spin_text`, and its function."""
    text = spin_text(instructions, machine.width // 4)
    engine = link_objects([object_code(text, machine)], machine)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
    return engine, kind(engine.get_function_address("multiply"))


def _repeat(run: Callable[[], object], count: int) -> None:
    for _ in range(count):
        run()


def _benchmark_text(lanes: int) -> str:
    """Return LLVM text. spin: `steps` FMAs of each chain. sum: the sum of `bytes` (a multiple of 8
    vectors), `times` times."""
    kind = f"<{lanes} x float>"
    fma = f"@llvm.fmuladd.v{lanes}f32"
    half = "<" + ", ".join(["float 0.5"] * lanes) + ">"
    chains, rows = range(FMA_CHAINS), range(8)
    lines = [
        f"declare {kind} {fma}({kind}, {kind}, {kind})",
        "define void @spin(i64 %steps, ptr %out) {\nentry:\n  br label %loop\nloop:",
        "  %n = phi i64 [0, %entry], [%more, %loop]",
        *(f"  %a{k} = phi {kind} [zeroinitializer, %entry], [%b{k}, %loop]" for k in chains),
        *(
            f"  %b{k} = call {kind} {fma}({kind} %a{k}, {kind} {half}, {kind} {half})"
            for k in chains
        ),
        "  %more = add i64 %n, 1",
        "  %on = icmp ult i64 %more, %steps",
        "  br i1 %on, label %loop, label %done\ndone:",
        *_store_total([f"%b{k}" for k in chains], kind),
        "  ret void\n}",
        "define void @sum(ptr %from, i64 %bytes, i64 %times) {\nentry:\n  %out = alloca float",
        "  br label %again\nagain:",
        "  %time = phi i64 [0, %entry], [%next, %done]",
        "  br label %loop\nloop:\n  %n = phi i64 [0, %again], [%more, %loop]",
        *(f"  %a{k} = phi {kind} [zeroinitializer, %again], [%b{k}, %loop]" for k in rows),
        "  %at = getelementptr i8, ptr %from, i64 %n",
        *(f"  %p{k} = getelementptr {kind}, ptr %at, i64 {k}" for k in rows),
        *(f"  %x{k} = load {kind}, ptr %p{k}, align 4" for k in rows),
        *(f"  %b{k} = fadd {kind} %a{k}, %x{k}" for k in rows),
        f"  %more = add i64 %n, {len(rows) * lanes * 4}",
        "  %on = icmp ult i64 %more, %bytes",
        "  br i1 %on, label %loop, label %done\ndone:",
        *_store_total([f"%b{k}" for k in rows], kind),
        "  %next = add i64 %time, 1",
        "  %not.yet = icmp ult i64 %next, %times",
        "  br i1 %not.yet, label %again, label %end\nend:",
        "  ret void\n}",
    ]
    return "\n".join(lines)


def _store_total(values: list[str], kind: str) -> list[str]:
    """Return text that stores a lane of the values' sum, so that none is eliminated."""
    lines = []
    total = values[0]
    for k, v in enumerate(values[1:]):
        lines.append(f"  %t{k} = fadd {kind} {total}, {v}")
        total = f"%t{k}"
    lines.append(f"  %first = extractelement {kind} {total}, i64 0")
    return [*lines, "  store volatile float %first, ptr %out"]
