"""Identify the machine: measurements are valid only on the same kind."""

import functools
import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor, the resources of this process, and the operating system.

    Two machines are of the same kind if `cpu` and `flags_digest` are equal. `memory` is in bytes, 0
    if unknown.
    """

    cpu: str
    flags_digest: str  # of the instruction set extensions; "" if unknown
    cores_allowed: int  # by the process's affinity and its container's quota
    memory: int  # of the machine, or the container's lower limit
    os: str

    @property
    def text(self) -> str:
        """Return one line for reports."""
        memory = f", {self.memory / 2**30:.1f} GiB" if self.memory else ""
        cores = f"{self.cores_allowed} core{'s' if self.cores_allowed != 1 else ''}"
        return f"{self.cpu}, {cores}{memory}, {self.os}"

    @property
    def kind(self) -> str:
        """Return the identity of measurements, for messages."""
        return f"{self.cpu} (flags {self.flags_digest or 'unknown'})"


@functools.cache
def this_machine() -> Machine:
    """Return this machine."""
    cpu, flags = processor_info()
    system = f"{platform.system() or sys.platform} {platform.release()}".strip()
    return Machine(cpu, digest_names(flags), usable_processors(), memory_bytes(), system)


def digest_names(flags: list[str]) -> str:
    """Return a short digest of a set of names, independent of order; "" for none."""
    if not flags:
        return ""
    return hashlib.sha256(" ".join(sorted(set(flags))).encode()).hexdigest()[:12]


@functools.cache
def processor_info() -> tuple[str, list[str]]:
    """Return the processor's name, and the names of its instruction set extensions as the system
    reports them; empty if unknown."""
    if text := _read_text("/proc/cpuinfo"):
        return parse_cpuinfo(text)
    if sys.platform == "darwin":
        cpu = _sysctl("machdep.cpu.brand_string")
        flags = [
            name
            for key in ("features", "leaf7_features")
            if (name := _sysctl(f"machdep.cpu.{key}"))
        ]
        return cpu or platform.machine(), " ".join(flags).split() or _sysctl("hw.optional").split()
    named = os.environ.get("PROCESSOR_IDENTIFIER") or platform.processor()
    return named or platform.machine() or "unknown processor", []


def parse_cpuinfo(text: str) -> tuple[str, list[str]]:
    """Parse the processor's name and flags from Linux's /proc/cpuinfo, for x86 and ARM.

    Several designs may share a name (virtual machines report "AMD EPYC"), so family and model are
    part of it.
    """
    fields: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or fields.get("cpu model") or ""
    if not name:  # ARM reports only numbers
        parts = [
            fields[key] for key in ("cpu implementer", "cpu part", "cpu variant") if key in fields
        ]
        name = " ".join([platform.machine(), *parts]).strip() or "unknown processor"
    design = [
        f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields
    ]
    name = re.sub(r"\s+", " ", name)
    flags = (fields.get("flags") or fields.get("features") or "").split()
    return name + (f" ({', '.join(design)})" if design else ""), flags


if sys.platform == "linux":  # which has /proc; importing subprocess takes 6 ms

    def _sysctl(name: str) -> str:
        return ""

else:
    import subprocess

    def _sysctl(name: str) -> str:
        try:
            found = subprocess.run(
                ["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return found.stdout.strip()


def usable_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota, _, period = (_read_text("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not period:
        quota = _read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = _read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    limit = _parse_number(quota) / max(_parse_number(period), 1)
    return max(1, min(cores, round(limit))) if limit > 0 else cores


PROGRAM_MEMORY_DIVISOR = (
    4  # the fraction of memory for a model's programs for all its sizes is 1 / this
)
UNKNOWN_MEMORY_BYTES = 8 << 30  # bytes of memory, if the system does not tell


def memory_bytes() -> int:
    """Return the bytes of memory of this machine or its container; 0 if unknown."""
    total = 0
    if text := _read_text("/proc/meminfo"):
        found = re.search(r"MemTotal:\s*(\d+) kB", text)
        total = int(found[1]) * 1024 if found else 0
    elif sys.platform == "darwin":
        total = _parse_number(_sysctl("hw.memsize"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _parse_number(_read_text(f"/sys/fs/cgroup/{name}") or "")
        if 0 < limit < total:
            total = limit
    return total


def _parse_number(text: str) -> int:
    """Return the number in a text; 0 for other texts such as the `max` of an unlimited quota."""
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else 0


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None
