"""What machine this is: measurements are only worth something on the same kind."""

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
    """The processor, what this process may use of the machine, and its system.

    Two machines are of the same kind if `cpu` and `flags_digest` are equal.  `memory` is in bytes,
    0 where unknown.
    """

    cpu: str
    flags_digest: str  # of the instruction set extensions; "" where the system does not tell
    cores_allowed: int  # by the process's affinity and its container's quota
    memory: int  # of the machine, or the container's limit where that is lower
    os: str

    @property
    def text(self) -> str:
        """One line for reports."""
        memory = f", {self.memory / 2**30:.1f} GiB" if self.memory else ""
        cores = f"{self.cores_allowed} core{'s' if self.cores_allowed != 1 else ''}"
        return f"{self.cpu}, {cores}{memory}, {self.os}"

    @property
    def kind(self) -> str:
        """What measurements depend on, for messages."""
        return f"{self.cpu} (flags {self.flags_digest or 'unknown'})"


@functools.cache
def machine() -> Machine:
    """This machine."""
    cpu, flags = processor()
    system = f"{platform.system() or sys.platform} {platform.release()}".strip()
    return Machine(cpu, digest(flags), _cores(), memory(), system)


def digest(flags: list[str]) -> str:
    """A short digest of a set of names, whatever their order; "" for none."""
    if not flags:
        return ""
    return hashlib.sha256(" ".join(sorted(set(flags))).encode()).hexdigest()[:12]


@functools.cache
def processor() -> tuple[str, list[str]]:
    """The processor's name, and the names of its instruction set extensions as the system has
    them; none where it does not tell."""
    if text := _read("/proc/cpuinfo"):
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
    """The processor's name and flags in the text of Linux's /proc/cpuinfo, for x86 and ARM.

    A name alone may stand for several designs (virtual machines say "AMD EPYC"), so the family and
    model are part of it.
    """
    fields: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or fields.get("cpu model") or ""
    if not name:  # ARM names numbers only
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


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not period:
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    limit = _number(quota) / max(_number(period), 1)
    return max(1, min(cores, round(limit))) if limit > 0 else cores


PART = 4  # of the memory, that a model's programs for all its sizes take
UNKNOWN = 8 << 30  # bytes of memory, where the system does not say


def memory() -> int:
    """Bytes of memory that this machine, or its container, has; 0 where unknown."""
    total = 0
    if text := _read("/proc/meminfo"):
        found = re.search(r"MemTotal:\s*(\d+) kB", text)
        total = int(found[1]) * 1024 if found else 0
    elif sys.platform == "darwin":
        total = _number(_sysctl("hw.memsize"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(_read(f"/sys/fs/cgroup/{name}") or "")
        if 0 < limit < total:
            total = limit
    return total


def _number(text: str) -> int:
    """The number in a text, 0 for another text such as the `max` of an unlimited quota."""
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else 0


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None
