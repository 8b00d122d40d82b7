"""The targets, and what each of them accepts.

The package of a target has three modules, which are loaded on demand:

    device.py           open_device(options) -> Device: what calls need; light
    program_cache.py    open_program_cache(...) -> ProgramCache; only if `has_program_cache`
    load_compiler.py    make_target_compiler(...): what compilation needs; load_saved(...), if its
                        code generator has `saved_fields`
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from superopt.errors import UsageError


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """package: of the target. has_program_cache: compiled programs are cached on disk. precisions:
    values of `precision`. has_vendor_kernels: `vendor` and `streams` may be given. tuning_seconds:
    the default budget of tuning; 0 if the target cannot be tuned."""

    package: str
    has_program_cache: bool = True
    precisions: tuple[str, ...] = ("fp32",)
    has_vendor_kernels: bool = False
    tuning_seconds: float = 0.0

    def load(self, module: str) -> ModuleType:
        """Return a module of the package."""
        return import_module(f"{self.package}.{module}")


# On a GPU, where kernels are compiled first, 90 s of tuning take about two minutes in all.
TARGETS = {
    "cpu": TargetInfo(
        "superopt.compilation.cpu", precisions=("fp32", "bf16"), tuning_seconds=300.0
    ),
    "cuda": TargetInfo(
        "superopt.compilation.cuda",
        precisions=("fp32", "tf32", "fp16", "bf16"),
        has_vendor_kernels=True,
        tuning_seconds=90.0,
    ),
    "reference": TargetInfo("superopt.compilation.reference", has_program_cache=False),
}


def check_target(target: str, precision: str, vendor: bool = True, tune: bool = False) -> None:
    """Raise UsageError for an unknown target, and for options that it lacks."""
    if target not in TARGETS:
        names = ", ".join(TARGETS)
        raise UsageError(f"target {target} is unknown", f"targets are {names}", "use one of them")
    for name, value in (("vendor", vendor), ("tune", tune)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} = {value!r}", "it must be True or False", "pass one of these")
    about = TARGETS[target]
    if precision not in about.precisions:
        raise UsageError(
            f"precision {precision!r} of target {target}",
            f"precisions are {', '.join(about.precisions)}", "use one of them",
        )  # fmt: skip
    if not vendor and not about.has_vendor_kernels:
        raise UsageError(
            f"vendor=False of target {target}", "its kernels are superopt's own",
            'omit it, or use target="cuda"',
        )  # fmt: skip
    if tune and not about.tuning_seconds:
        raise UsageError(
            f"target {target} cannot be tuned", "its kernels are not measured",
            'use target="cpu" or "cuda"',
        )  # fmt: skip
