"""Text made by a model or another program, without what a terminal, an editor or a browser would obey."""

from __future__ import annotations

import re

# C0 and C1 but for tab and newline; and the marks that turn the direction of whatever follows them. The two that give
# a direction to a neighbour alone (LRM, RLM) and the joiners that emoji and scripts need stay.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def text_of(value: str) -> str:
    """`value` with lone surrogates replaced: they stand for nothing and no file takes them."""
    return _SURROGATE.sub("\ufffd", value) if not value.isascii() else value


def printable(text: str) -> str:
    """`text` with newlines for all line ends, without control characters, as any file and terminal takes it."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _OBEYED.sub("", text_of(text))


def one_line(text: str, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters, for titles and lists."""
    line = " ".join(printable(text[: limit * 8]).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
