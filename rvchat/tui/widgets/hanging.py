"""Explanations beside what they explain."""

from __future__ import annotations

from textwrap import wrap

from textual.content import Content

_LEAST = 10  # cells for the explanation, however narrow the terminal


def hanging(term: str, about: str, indent: int, width: int) -> Content:
    """`term`, and behind `indent` cells what it is, which goes on under itself where it is longer than the line. A term
    that reaches so far has a line of its own."""
    below = "\n" + " " * indent
    lines = wrap(about, max(width - indent, _LEAST)) or [""]
    start = term.ljust(indent) if len(term) < indent else term + below
    return Content.styled(start, "$text-accent") + below.join(lines)
