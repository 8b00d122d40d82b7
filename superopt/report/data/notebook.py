"""Results in notebooks."""

from html import escape


def preformatted(text: str) -> str:
    """Return a text as HTML, as `_repr_html_` wants it."""
    return f"<pre>{escape(text)}</pre>"
