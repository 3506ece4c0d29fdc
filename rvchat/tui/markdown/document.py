"""A Markdown document that grows at its end: blocks that can no longer change are read once and kept."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rvchat.tui.markdown.blocks import Block, Code, Item, Placed, language_of, parse, reader

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^\n]*)$")


class OpenFence:
    """A code fence whose end has not come: lines are added to it without reading the rest again."""

    def __init__(self, marker: str, indent: int, info: str) -> None:
        self.language = language_of(info)
        self.lines: list[str] = []
        self.partial = ""
        self._indent = indent
        self._closing = re.compile(rf" {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}[ \t]*$")

    def add(self, text: str) -> str | None:
        """Takes text up to the closing line and returns what is behind it, None while the fence is open."""
        start = 0
        text = self.partial + text
        while (end := text.find("\n", start)) >= 0:
            line = text[start:end]
            start = end + 1
            if self._closing.match(line):
                self.partial = ""
                return text[start:]
            self.lines.append(self._inner(line))
        self.partial = text[start:]
        return None

    def closes(self, line: str) -> bool:
        return self._closing.match(line) is not None

    def _inner(self, line: str) -> str:
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self._indent) :]

    def block(self) -> Code:
        """The fence as it stands; a line that may become the closing one is not shown yet."""
        tail = [self._inner(self.partial)] if self.partial and not self.closes(self.partial) else []
        return Code(self.language, "\n".join([*self.lines, *tail]))


class Document:
    """`frozen` blocks never change again; `tail` is what the last of the source reads as now, and may.

    `fence` is set while the source ends inside a top-level code fence, and is then the whole tail.
    """

    def __init__(self, source: str = "") -> None:
        self.frozen: list[Block] = []
        self.tail: list[Block] = []
        self.fence: OpenFence | None = None
        self._pieces: list[str] = []
        self._rest = ""  # the source of the tail
        self._next: Item | None = None  # the last frozen item, while the tail may go on with its list
        self._parser = reader()
        self._env: dict[str, Any] = {}
        if source:
            self.append(source)

    @property
    def source(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def blocks(self) -> list[Block]:
        return [*self.frozen, *self.tail]

    def append(self, text: str) -> None:
        """Adds `text` at the end, which may be any part of a line."""
        self._pieces.append(text)
        rest: str | None = text
        while rest is not None:
            rest = self._into_fence(rest) if self.fence else self._read(rest)

    def trim(self, source: str) -> bool:
        """Makes `source` the source where it is this one but for white space at its end, which no block shows. False
        where it is something else, or where the end is inside a fence."""
        if self.fence is not None or not self.source.startswith(source) or self.source[len(source) :].strip():
            return False
        self._pieces = [source]
        self._rest = self._rest.rstrip()
        return True

    def _into_fence(self, text: str) -> str | None:
        assert self.fence is not None
        rest = self.fence.add(text)
        if rest is None:
            self.tail = [self.fence.block()]
            return None
        self.frozen.append(self.fence.block())
        self.fence, self.tail, self._rest = None, [], ""
        return rest

    def _read(self, text: str) -> str | None:
        """Reads the tail with `text` behind it, freezes what can no longer change, and returns what is to be read in
        the fence that it ends in."""
        self._rest += text
        placed = self._numbered(parse(self._parser, self._rest, self._env))
        if not placed:
            self.tail = []
            return None
        complete = self._rest.count("\n")  # what begins in an unfinished line may turn out to go on with what is above
        first = max((i for i, p in enumerate(placed) if p.line < complete), default=0)
        if first:
            self.frozen.extend(p.block for p in placed[:first])
            before = placed[first - 1].block
            self._next = before if isinstance(before, Item) else None
            self._rest = self._rest.split("\n", placed[first].line)[-1]
        self.tail = [p.block for p in placed[first:]]
        return self._open_fence() if isinstance(self.tail[-1], Code) and len(self.tail) == 1 else None

    def _open_fence(self) -> str | None:
        head, newline, body = self._rest.lstrip("\n").partition("\n")
        opening = _FENCE.match(head)
        if not opening or not newline:
            return None
        indent, marker, info = opening.groups()
        self.fence = OpenFence(marker, len(indent), info)
        self.tail, self._rest, self._next = [], "", None
        return body

    def _numbered(self, placed: list[Placed]) -> list[Placed]:
        """Items that go on with a list whose beginning is frozen get the numbers that follow."""
        before = self._next
        for index, entry in enumerate(placed):
            block = entry.block
            if not isinstance(block, Item) or before is None or block.delimiter != before.delimiter:
                break
            if block.number is not None and before.number is not None:
                block = replace(block, number=before.number + 1)
                placed[index] = replace(entry, block=block)
            before = block
        return placed
