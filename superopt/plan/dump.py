"""Plans after each pass as files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from superopt.errors import UsageError
from superopt.plan.passes import Pass, observe_passes
from superopt.plan.program.plan import Plan
from superopt.plan.program.plan_text import plan_text


@contextmanager
def dump_passes(folder: Path | None) -> Iterator[None]:
    """Write each plan that is made in this context to FOLDER/passes/planN/NN-PASS.txt, after each
    pass that changed it. folder: None to write nothing. Raises UsageError if it cannot write."""
    if folder is None:
        yield
        return
    plans: list[Plan] = []
    texts: list[str] = []  # of each plan, after its last pass

    def write(number: int, each: Pass, p: Plan) -> None:
        known = next((n for n, other in enumerate(plans) if other is p), None)
        if known is None:
            known = len(plans)
            plans.append(p)
            texts.append("")
        text = plan_text(p)
        if text != texts[known]:
            path = folder / "passes" / f"plan{known}" / f"{number:02}-{each.name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {each.name}: {each.summary}\n{text}", "utf-8")
        texts[known] = text

    try:
        with observe_passes(write):
            yield
    except OSError as e:
        raise UsageError(f"cannot write to {folder}", str(e), "name another folder") from None
