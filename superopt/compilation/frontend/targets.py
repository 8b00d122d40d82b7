"""Checks of `target` and its options."""

from superopt.errors import UsageError


def check_target(target: str, precision: str, vendor: bool = True, tune: bool = False) -> None:
    """Raise UsageError for an unknown target, and for options that it lacks."""
    if target not in ("cpu", "cuda"):
        raise UsageError(
            f"target {target} is unknown", "targets are cpu and cuda", "use one of them"
        )
    for name, value in (("vendor", vendor), ("tune", tune)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} = {value!r}", "it must be True or False", "pass one of these")
    asked = f"precision {precision!r}" if precision != "fp32" else "" if vendor else "vendor=False"
    if target == "cpu" and asked:
        raise UsageError(
            f"{asked} of target cpu", "CPU kernels are fp32, and superopt's own",
            'omit it, or use target="cuda"',
        )  # fmt: skip
