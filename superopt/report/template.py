"""The page templates; all values are escaped."""

from functools import cache, lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from superopt.report import svg, words
from superopt.report.diagram import Diagram, Proof


def template(name: str) -> Template:
    """Return the template in this file of the folder."""
    return _environment().get_template(name)


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
        "time": time,
        "error": words.error,
        "plain": words.plain,
        "lines": _lines,
        "count": words.count,
        "side": _side,
        "shown": _shown,
        "mutants": _mutants,
        "ranks": _ranks,
    }
    environment.globals |= {
        "tiers": words.TIERS,
        "classes": tuple(words.FLOAT_CLASSES),
        "floats": words.floats,
        "unchecked": words.UNCHECKED,
    }
    return environment


def time(us: float) -> str:
    return words.time(us).replace("us", "µs")


def _lines(text: str) -> str:
    """Return text with its control characters escaped, line breaks kept."""
    return "\n".join(words.plain(line) for line in text.splitlines())


@lru_cache(maxsize=1 << 13)  # most sides of the library are those of two rules
def _side(side: Diagram) -> Markup:
    return Markup(svg.inline(side))  # which escapes every name


def _shown(proof: Proof) -> str:
    return words.shown(proof.obligations, proof.queries, proof.ms).replace(" us", " µs")


def _mutants(proof: Proof) -> str:
    return words.mutants(proof.mutants)


def _ranks(proof: Proof) -> str:
    return words.ranks(proof.scope)
