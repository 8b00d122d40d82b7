"""How C code tests at run time that the processor has a feature: conditions for superopt/report/
export, whose x86.c and linux.c have the functions and headers.

CPUID instead of __builtin_cpu_supports: the run-time library of some compilers leaves its table
empty.
"""

from __future__ import annotations

# Leaf, subleaf, register (eax to edx) and bit of CPUID (Intel, Software Developer's Manual,
# volume 2A, CPUID; AMD has the same numbers).
X86_BITS = {
    "sse3": (1, 0, 2, 0), "ssse3": (1, 0, 2, 9), "sse4.1": (1, 0, 2, 19), "sse4.2": (1, 0, 2, 20),
    "popcnt": (1, 0, 2, 23), "avx": (1, 0, 2, 28), "f16c": (1, 0, 2, 29), "avx2": (7, 0, 1, 5),
    "fma": (1, 0, 2, 12), "bmi": (7, 0, 1, 3), "bmi2": (7, 0, 1, 8), "gfni": (7, 0, 2, 8),
    "avxvnni": (7, 1, 0, 4),
    "avx512f": (7, 0, 1, 16), "avx512cd": (7, 0, 1, 28), "avx512bw": (7, 0, 1, 30),
    "avx512dq": (7, 0, 1, 17), "avx512vl": (7, 0, 1, 31), "avx512ifma": (7, 0, 1, 21),
    "avx512vbmi": (7, 0, 2, 1), "avx512vbmi2": (7, 0, 2, 6), "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12), "avx512vpopcntdq": (7, 0, 2, 14), "avx512bf16": (7, 1, 0, 5),
}  # fmt: skip
AVX_REGISTERS, AVX512_REGISTERS = 0x6, 0xE6  # of XCR0: the system saves them
# Bits of Linux's auxiliary vector (Documentation/arch/arm64/elf_hwcaps.rst).
AARCH64_BITS = {
    "neon": "HWCAP_ASIMD", "fp-armv8": "HWCAP_FP", "crc": "HWCAP_CRC32", "dotprod": "HWCAP_ASIMDDP",
    "fullfp16": "HWCAP_ASIMDHP", "lse": "HWCAP_ATOMICS", "rdm": "HWCAP_ASIMDRDM",
    "bf16": "HWCAP2_BF16", "i8mm": "HWCAP2_I8MM", "sve": "HWCAP_SVE",
}  # fmt: skip
SVE_BYTES = 32  # of the vectors for which SVE is compiled


def feature_check(feature: str, architecture: str) -> str:
    """Return the C condition that a processor has a feature, by LLVM's name.

    >>> feature_check("avx2", "x86_64")
    'has_bit(7, 0, 1, 5) && saves_registers(0x6)'
    """
    if architecture == "x86_64":
        found = f"has_bit({', '.join(map(str, X86_BITS[feature]))})"
        wide = feature.startswith("avx") or feature in ("fma", "f16c")
        mask = AVX512_REGISTERS if feature.startswith("avx512") else AVX_REGISTERS * wide
        return f"{found} && saves_registers({mask:#x})" if mask else found
    if architecture == "aarch64":
        bit = AARCH64_BITS[feature]
        word = "AT_HWCAP2" if bit.startswith("HWCAP2") else "AT_HWCAP"
        found = f"(getauxval({word}) & {bit}) != 0"
        length = f"(prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == {SVE_BYTES}"
        return f"{found} && {length}" if feature == "sve" else found
    return "1"  # a module of WebAssembly with unknown instructions is not valid


def feature_title(feature: str) -> str:
    """Return the name of a feature for messages."""
    return f"sve of {8 * SVE_BYTES} bits" if feature == "sve" else feature
