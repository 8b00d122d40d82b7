"""How numbers and codes are said to a person: shared by the text and the HTML report."""

import re
from collections import Counter
from collections.abc import Iterable

from superopt.report.data import Bar, Interval, Reason, WorstStep

SHOWN = 4  # names in a sentence

TIERS = {
    "A": "proved for all sizes",
    "B": "proved at the one shape that there is, or for all sizes up to a bound",
    "C": "tested over floats and a prime field, not proved",
}
UNCHECKED = "not checked; `superopt rules check FILE` tries and proves it"
FLOAT_CLASSES = {
    "E0": "bit-exact",
    "E1": "sums and products in another order",
    "E2": "products distributed over sums",
    "E3": "may change overflow, inf or NaN",
}
REASONS: dict[Reason, str] = {
    "cost": "no gain",
    "untaken": "not taken",
    "match": "it does not match",
    "condition": "a condition does not hold",
    "shape": "the shapes do not fit",
    "cycle": "it would make a cycle",
    "opset": "the model's opset cannot express it",
    "unsafe": "not allowed",
    "rounding": "rounds badly",
}
LEFT_OUT: dict[Bar, str] = {
    "opset": "the model's opset cannot say what they make",
    "divides": "they divide by what may be 0, and may make a NaN",
    "float": "they change floats more than was asked (--float-class)",
    "tier": "they are not proved as far as was asked (--tier)",
    "unseen": "they match nowhere, or what they made led to no better graph",
}
KINDS = {
    "rule": "rewrite rule",
    "tactic": "tactic (a script of rules)",
    "fold": "constant folding",
    "cse": "common subexpression",
    "dce": "dead code",
}


def floats(own: str, computed: str, growth: float | None) -> str:
    """A float class; the one that was computed, where the rule says more; how errors grow."""
    said = f"{own}: {FLOAT_CLASSES.get(own, 'unknown')}"
    if computed not in ("", own):
        said += f" (its operations: {computed})"
    return said if growth is None else f"{said}; error {growth:.3g} times the left side's"


def time(us: float) -> str:
    """A time with its unit, three digits: 842 us, 4.21 ms, 1.93 s."""
    sign, size = ("-" if us < 0 else ""), abs(us)
    for limit, scale, unit in ((999.5, 1, "us"), (999_500.0, 1e3, "ms"), (float("inf"), 1e6, "s")):
        if size < limit:
            return f"{sign}{_digits(size / scale)} {unit}"
    return f"{us} us"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def size(count: int) -> str:
    """Bytes with a decimal unit: 512 B, 16.8 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{_digits(value)} {unit}"


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def library_verdict(rules: int, unproved: int) -> str:
    """The headline of a report of rules."""
    proved = "all proved for all sizes" if rules > 1 else "proved for all sizes"
    if unproved:
        proved = f"{rules - unproved:,} proved for all sizes, {unproved:,} not"
    return f"{count(rules, 'rule')}, {proved}"


def shown(obligations: int, queries: int, ms: float) -> str:
    """How much a proof had to show, and what that took."""
    asked = f", {count(queries, 'question')} to Z3" if queries else ""
    return f"{count(obligations, 'obligation')}{asked}, {time(ms * 1e3)}"


def mutants(found: tuple[int, int] | None) -> str:
    """What became of changed rules; empty where none were tried."""
    return "" if found is None else f"{found[0]} of {count(found[1], 'changed rule')} refused"


def otherwise(rules: int, journal: object) -> str:
    """What is said of rules that were not believed."""
    return f"of {count(rules, 'rule')} {journal} said otherwise than was proved now"


def ranks(scope: str) -> str:
    """The short of a proof's scope: "ranks 0 to 4", "any rank"."""
    return re.split("[,;(]", scope)[0].strip()


def worst_step(found: WorstStep) -> str:
    """Which step adds most to the error."""
    one = found.first == found.last
    which = f"step {found.first}" if one else f"steps {found.first} to {found.last}"
    rules = ", ".join(found.rules[:SHOWN]) + ", ..." * (len(found.rules) > SHOWN)
    off = f"by {error(found.before)} before, {error(found.after)} after, on {found.inputs} inputs"
    return f"{which} of {found.of} ({rules}) add{'s' * one} most: {found.output} is off {off}"


def by_class(classes: Iterable[str]) -> str:
    """How many steps there are of each float class; empty without steps."""
    found = Counter(c for c in classes if c)
    return ", ".join(f"{count(found[c], 'step')} of class {c}" for c in sorted(found))


def ratio(interval: Interval) -> str:
    """A speedup and its bounds: 2.13x (2.05 to 2.20)."""
    low, middle, high = interval
    return f"{middle:.2f}x ({low:.2f} to {high:.2f})"


def verdict(speedup: Interval | None, changed: bool) -> str:
    """The headline: what the measurement allows to be said, and no more."""
    if not changed:
        return "unchanged: no faster graph was found"
    if speedup is None:
        return "changed; not timed"
    low, middle, high = speedup
    if low > 1:
        return f"{middle:.2f}x faster ({low:.2f} to {high:.2f})"
    if high < 1:
        return f"slower: {ratio(speedup)}"
    return f"no difference beyond noise: {ratio(speedup)}"


def error(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if abs(value) >= 0.001 else f"{value:.1e}"


def at(sizes: Iterable[tuple[str, int]]) -> str:
    """The values of symbolic sizes, behind a model's name."""
    return "".join(f", {plain(name)}={n}" for name, n in sizes)


def plain(text: str) -> str:
    """`text` with control characters spelt out.

    Names come from the model's file, and a terminal obeys what it is sent.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
