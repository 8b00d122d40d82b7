"""What models are compiled for, and what each target has."""

from superopt.errors import UsageError


def known_target(target: str, precision: str, vendor: bool = True, tune: bool = False) -> None:
    """Raises UsageError for another target, and for what it has not."""
    if target not in ("cpu", "cuda"):
        raise UsageError(f"target {target} is unknown", "there are cpu and cuda", "use one of them")
    for name, value in (("vendor", vendor), ("tune", tune)):
        if not isinstance(value, bool):
            raise UsageError(f"{name} = {value!r}", "it is True or False", "give one of them")
    asked = f"precision {precision!r}" if precision != "fp32" else "" if vendor else "vendor=False"
    if target == "cpu" and asked:
        raise UsageError(
            f"{asked} of target cpu", "kernels of the processor are fp32, and superopt's own",
            'leave it out, or give target="cuda"',
        )  # fmt: skip
