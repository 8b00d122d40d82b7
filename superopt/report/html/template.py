"""The page templates; all values are escaped."""

from base64 import b64encode
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from superopt.report.data.diagram import Diagram, Proof
from superopt.report.formatting import phrases
from superopt.report.svg import rule_svg


def load_template(name: str) -> Template:
    """Return the template in this file of the folder."""
    return _environment().get_template(name)


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a page. source: what the content security policy calls it, so that no other
    script runs."""

    text: Markup
    source: str


@cache
def load_script(name: str) -> Script:
    """Return the script in this file of the folder."""
    text = files("superopt.report").joinpath(name).read_text(encoding="utf-8")
    digest = b64encode(sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"'sha256-{digest}'")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("superopt", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": time_text,
        "error": phrases.known_error_text,
        "relative": phrases.relative_error_text,
        "plain": phrases.printable,
        "lines": _printable_lines,
        "count": phrases.count_text,
        "side": _inline_side,
        "shown": _proof_effort,
        "mutants": _proof_mutants,
        "ranks": _proof_ranks,
    }
    environment.globals |= {
        "tiers": phrases.TIER_TEXTS,
        "classes": tuple(phrases.FLOAT_CLASS_TEXTS),
        "floats": phrases.float_class_text,
        "unchecked": phrases.UNCHECKED_TEXT,
    }
    return environment


def time_text(us: float) -> str:
    return phrases.time_text(us).replace("us", "µs")


def _printable_lines(text: str) -> str:
    """Return text with its control characters escaped, line breaks kept."""
    return "\n".join(phrases.printable(line) for line in text.splitlines())


@lru_cache(maxsize=1 << 13)  # most sides of the library are those of two rules
def _inline_side(side: Diagram) -> Markup:
    return Markup(rule_svg.inline_side(side))  # which escapes every name


def _proof_effort(proof: Proof) -> str:
    return phrases.proof_effort_text(proof.obligations, proof.queries, proof.ms).replace(
        " us", " µs"
    )


def _proof_mutants(proof: Proof) -> str:
    return phrases.mutants_text(proof.mutants)


def _proof_ranks(proof: Proof) -> str:
    return phrases.ranks_text(proof.scope)
