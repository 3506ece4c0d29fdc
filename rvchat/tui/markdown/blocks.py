"""Markdown read into blocks. Marks inside a line are spans whose style is a name; the widget gives names a look.

The reader is CommonMark with tables and strikethrough. HTML is text: what the model wrote is shown, not interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content, Span


@dataclass(frozen=True, slots=True)
class Paragraph:
    content: Content


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    content: Content


@dataclass(frozen=True, slots=True)
class Code:
    """A code block. `text` is its source without the newline that ends it."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    pass


@dataclass(frozen=True, slots=True)
class Quote:
    children: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list, `number` None where it is a bullet. `delimiter` is what stands behind the number."""

    number: int | None
    delimiter: str
    children: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`align` per column: "left", "right" or "center"."""

    align: tuple[str, ...]
    head: tuple[Content, ...]
    rows: tuple[tuple[Content, ...], ...]


Block = Paragraph | Heading | Code | Rule | Quote | Item | Table


@dataclass(frozen=True, slots=True)
class Placed:
    """A top-level block and the line of the source at which it starts. The items of a list are placed one by one."""

    block: Block
    line: int


def reader() -> MarkdownIt:
    """A parser; making one costs a millisecond, so each document keeps its own."""
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False})
    return parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])


def parse(parser: MarkdownIt, source: str, env: dict[str, Any]) -> list[Placed]:
    """The top-level blocks of `source`. `env` carries link definitions from one call to the next."""
    tokens = parser.parse(source, env)
    placed: list[Placed] = []
    at = 0
    while at < len(tokens):
        end = _end(tokens, at)
        token = tokens[at]
        if token.type in ("bullet_list_open", "ordered_list_open"):
            placed.extend(Placed(item, line) for item, line in _items(tokens, at, end))
        else:
            line = token.map[0] if token.map else 0
            placed.extend(Placed(block, line) for block in _blocks(tokens[at:end]))
        at = end
    return placed


def _end(tokens: Sequence[Token], at: int) -> int:
    """The index behind the token that closes the one at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += tokens[index].nesting
        if depth <= 0:
            return index + 1
    return len(tokens)


def _blocks(tokens: Sequence[Token]) -> Iterator[Block]:
    at = 0
    while at < len(tokens):
        token, end = tokens[at], _end(tokens, at)
        inside = tokens[at + 1 : end - 1]
        match token.type:
            case "paragraph_open":
                yield Paragraph(_inline(inside[0]) if inside else Content(""))
            case "heading_open":
                yield Heading(int(token.tag[1:]), _inline(inside[0]) if inside else Content(""))
            case "fence" | "code_block":
                yield Code(language_of(token.info), token.content.removesuffix("\n"))
            case "hr":
                yield Rule()
            case "blockquote_open":
                yield Quote(tuple(_blocks(inside)))
            case "bullet_list_open" | "ordered_list_open":
                for item, _ in _items(tokens, at, end):
                    yield item
            case "table_open":
                yield _table(inside)
            case "inline":
                yield Paragraph(_inline(token))
        at = end


def language_of(info: str) -> str:
    """The language named behind the opening of a code fence, empty where none is."""
    words = info.split()
    return words[0].strip("{}.").lower() if words else ""


def _items(tokens: Sequence[Token], at: int, end: int) -> Iterator[tuple[Item, int]]:
    ordered = tokens[at].type == "ordered_list_open"
    number = int(tokens[at].attrs.get("start", 1))
    delimiter = tokens[at].markup
    index = at + 1
    while index < end - 1:
        stop = _end(tokens, index)
        opening = tokens[index]
        children = tuple(_blocks(tokens[index + 1 : stop - 1]))
        yield Item(number if ordered else None, delimiter, children), opening.map[0] if opening.map else 0
        number += 1
        index = stop


def _table(tokens: Sequence[Token]) -> Table:
    align: list[str] = []
    rows: list[tuple[Content, ...]] = []
    row: list[Content] = []
    for index, token in enumerate(tokens):
        if token.type in ("th_open", "td_open"):
            row.append(_inline(tokens[index + 1]))
            if token.type == "th_open":
                style = str(token.attrs.get("style", ""))
                align.append(style.removeprefix("text-align:") or "left")
        elif token.type == "tr_close":
            rows.append(tuple(row))
            row = []
    return Table(tuple(align), rows[0] if rows else (), tuple(rows[1:]))


_MARKS = {"em_open": "em", "strong_open": "strong", "s_open": "strike"}
_SPACES = re.compile(r"[ \n]+")


def _inline(token: Token) -> Content:
    """A line of text with its marks as named spans; that of a link is "link:" and its target. The target is shown
    behind the text where it differs."""
    text: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[str, int, str]] = []
    length = 0

    def add(piece: str) -> None:
        nonlocal length
        text.append(piece)
        length += len(piece)

    for child in token.children or ():
        kind = child.type
        if kind == "text":
            add(_SPACES.sub(" ", child.content))
        elif kind == "softbreak":
            add(" ")
        elif kind == "hardbreak":
            add("\n")
        elif kind == "code_inline":
            spans.append(Span(length, length + len(child.content), "inline-code"))
            add(child.content)
        elif kind in _MARKS:
            opened.append((_MARKS[kind], length, ""))
        elif kind == "link_open":
            opened.append(("link", length, str(child.attrs.get("href", ""))))
        elif kind == "image":
            spans.append(Span(length, length + len(child.content) + 2, f"link:{child.attrs.get('src', '')}"))
            add(f"[{child.content}]")
            add(f" ({child.attrs.get('src', '')})")
        elif kind.endswith("_close") and opened:
            name, start, target = opened.pop()
            spans.append(Span(start, length, f"{name}:{target}" if target else name))
            if target and "".join(text)[start:] not in (target, target.removeprefix("mailto:")):
                add(" (")
                spans.append(Span(length, length + len(target), "target"))
                add(target)
                add(")")
        else:
            add(child.content)
    return Content("".join(text), spans)
