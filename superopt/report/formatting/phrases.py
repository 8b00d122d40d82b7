"""Numbers and codes as text, shared by the text and HTML reports."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.report.data.report import Interval, Reason, Report, UnusedReason, WorstStep

MAX_NAMES = 4  # names in a sentence

TIER_TEXTS = {
    "A": "proved for all sizes",
    "B": "proved at its only shape, or for all sizes up to a bound",
    "C": "tested over floats and a prime field, not proved",
}
UNCHECKED_TEXT = "not checked; `superopt rules check FILE` tests and proves it"
FLOAT_CLASS_TEXTS = {
    "E0": "bit-exact",
    "E1": "sums and products in another order",
    "E2": "products distributed over sums",
    "E3": "may change overflow, inf or NaN",
}
REJECTION_TEXTS: dict[Reason, str] = {
    "cost": "not cheaper, by the estimated cost",
    "untaken": "not chosen",
    "match": "no match",
    "condition": "a condition does not hold",
    "shape": "the shapes do not fit",
    "cycle": "it would create a cycle",
    "opset": "the model's opset lacks its operators",
    "unsafe": "not allowed",
    "rounding": "too large a rounding error",
}
UNUSED_REASON_TEXTS: dict[UnusedReason, str] = {
    "opset": "the model's opset lacks their operators",
    "divides": "they may divide by 0 and return NaN",
    "float": "their float deviation is not allowed (--float-class)",
    "tier": "their proof is weaker than required (--tier)",
    "unseen": "they match nowhere, or led to no better graph",
}
STEP_KIND_TEXTS = {
    "rule": "rewrite rule",
    "tactic": "tactic (a script of rules)",
    "fold": "constant folding",
    "cse": "common subexpression",
    "dce": "dead code",
}


def float_class_text(own: str, computed: str, growth: float | None) -> str:
    """Return a float class; the computed one if it differs; and the error growth."""
    said = f"{own}: {FLOAT_CLASS_TEXTS.get(own, 'unknown')}"
    if computed not in ("", own):
        said += f" (its operations: {computed})"
    return said if growth is None else f"{said}; error {growth:.3g} times the left side's"


def time_text(us: float) -> str:
    """Return a time with its unit and three digits: 842 us, 4.21 ms, 1.93 s."""
    sign, size = ("-" if us < 0 else ""), abs(us)
    for limit, scale, unit in ((999.5, 1, "us"), (999_500.0, 1e3, "ms"), (float("inf"), 1e6, "s")):
        if size < limit:
            return f"{sign}{_digits(size / scale)} {unit}"
    return f"{us} us"


def _digits(value: float) -> str:
    """Return three significant digits without an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def size_text(count: int) -> str:
    """Return bytes with a decimal unit: 512 B, 16.8 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{_digits(value)} {unit}"


def count_text(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def steps_text(count: int) -> str:
    return count_text(count, "quantization step")


def library_verdict_text(rules: int, unproved: int) -> str:
    """Return the headline of a report of rules."""
    proved = "all proved for all sizes" if rules > 1 else "proved for all sizes"
    if unproved:
        proved = f"{rules - unproved:,} proved for all sizes, {unproved:,} not"
    return f"{count_text(rules, 'rule')}, {proved}"


def proof_effort_text(obligations: int, queries: int, ms: float) -> str:
    """Return the size and time of a proof."""
    asked = f", {count_text(queries, 'Z3 call')}" if queries else ""
    return f"{count_text(obligations, 'obligation')}{asked}, {time_text(ms * 1e3)}"


def mutants_text(found: tuple[int, int] | None) -> str:
    """Return how many mutated rules were refused; empty if none were tested."""
    return "" if found is None else f"{found[0]} of {count_text(found[1], 'mutated rule')} refused"


def distrusted_rules_text(rules: int, journal: object) -> str:
    """Return the note on journal entries that disagree with the proof."""
    return f"{count_text(rules, 'rule')} of {journal} disagreed with the proof"


def ranks_text(scope: str) -> str:
    """Return the short form of a proof's scope: "ranks 0 to 4", "any rank"."""
    return re.split("[,;(]", scope)[0].strip()


def worst_step_text(found: WorstStep) -> str:
    """Return which step adds most error."""
    one = found.first == found.last
    which = f"step {found.first}" if one else f"steps {found.first} to {found.last}"
    rules = ", ".join(found.rules[:MAX_NAMES]) + ", ..." * (len(found.rules) > MAX_NAMES)
    off = (
        f"by {error_text(found.before)} before, {error_text(found.after)} after, "
        f"on {found.inputs} inputs"
    )
    return f"{which} of {found.of} ({rules}) add{'s' * one} most error: {found.output} is off {off}"


def short_worst_step_text(found: WorstStep) -> str:
    """Return the errors and the step, for one line."""
    one = found.first == found.last
    which = f"step {found.first}" if one else f"steps {found.first} to {found.last}"
    rules = ", ".join(found.rules[:MAX_NAMES]) + ", ..." * (len(found.rules) > MAX_NAMES)
    errors = f"{error_text(found.before)} -> {error_text(found.after)}"
    return f"{errors} in {found.output}: {which} of {found.of} ({rules}) add{'s' * one} most"


def class_counts_text(classes: Iterable[str]) -> str:
    """Return how many steps there are of each float class; empty without steps."""
    found = Counter(c for c in classes if c)
    return ", ".join(f"{count_text(found[c], 'step')} of class {c}" for c in sorted(found))


def ratio_text(interval: Interval) -> str:
    """Return a speedup and its bounds: 2.13x (2.05 to 2.20)."""
    low, middle, high = interval
    return f"{middle:.2f}x ({low:.2f} to {high:.2f})"


def report_verdict_text(r: Report) -> str:
    """Return the headline of a report: a predicted ratio only where nothing can be measured."""
    if r.changed and r.cost_source and r.latency_before is None and r.cost_after_us:
        ratio = r.cost_before_us / r.cost_after_us
        return f"changed; predicted {ratio:.2f}x as fast, not measured here"
    return verdict_text(r.speedup, r.changed)


def verdict_text(speedup: Interval | None, changed: bool) -> str:
    """Return the headline: only what the measurement supports."""
    if not changed:
        return "unchanged: no faster graph was found"
    if speedup is None:
        return "changed; not timed"
    low, middle, high = speedup
    if low > 1:
        return f"{middle:.2f}x faster ({low:.2f} to {high:.2f})"
    if high < 1:
        return f"slower: {ratio_text(speedup)}"
    return f"no difference beyond noise: {ratio_text(speedup)}"


def error_text(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if abs(value) >= 0.001 else f"{value:.1e}"


def known_error_text(value: float) -> str:
    """Return an error; "unknown" if no element was compared."""
    return error_text(value) if math.isfinite(value) else "unknown"


def relative_error_text(error: float, rms: float) -> str:
    """Return an error relative to the output's rms; "-" if that is 0."""
    return known_error_text(error / rms) if rms else "-"


def sizes_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return the values of symbolic dimensions, to follow a model's name."""
    return "".join(f", {printable(name)}={n}" for name, n in sizes)


def printable(text: str) -> str:
    """Return `text` with control characters escaped.

    Names come from the model's file, and a terminal would execute control characters.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cost_change_text(us: float) -> str:
    """Return why a rewrite was not applied that changes the estimated cost by `us` at least."""
    if us < 0:
        return f"would save {-us:.2f} us, which is within noise"
    return f"would cost {us:.2f} us more" if us >= 0.005 else "would cost as much as before"
