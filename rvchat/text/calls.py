"""Reading the tool calls that a model writes: `call:name{key:value,...}`.

Values are JSON's but for strings, which stand between two control tokens `<|"|>` with any character inside and no
escapes. What models slip into is read where it has one meaning only: JSON's own quotes, and a bare word for a string.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from typing import Any

from rvchat.text.control import QUOTE
from rvchat.text.messages import MAX_DEPTH
from rvchat.types import ToolCall

_BLANK = re.compile(r"\s*")
_START = re.compile(r"\s*call:\s*([A-Za-z0-9_.:-]+)\s*(?=\{)")
_KEY = re.compile(r'[^,:{}\[\]"]+')
_WORD = re.compile(r'[^\s,:{}\[\]"]+')
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_STRING = json.JSONDecoder(strict=False)


class MalformedCallError(Exception):
    """The text is no call, or not a whole one."""


class CallBody:
    """What stands between the two control tokens of a call. Quotes are told apart from text that looks like them."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._quotes: list[int] = []
        self._size = 0

    def text(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def quote(self) -> None:
        self._quotes.append(self._size)
        self.text("\0")  # holds the place; the position says that it is a quote

    @property
    def written(self) -> str:
        """The body as the model wrote it, quotes spelled out."""
        text, at, out = "".join(self._parts), 0, []
        for quote in self._quotes:
            out += [text[at:quote], QUOTE]
            at = quote + 1
        return "".join(out) + text[at:]

    def calls(self) -> list[ToolCall]:
        """The calls in it, one or several. Raises MalformedCallError."""
        return _Parser("".join(self._parts), self._quotes).calls()


class _Parser:
    def __init__(self, text: str, quotes: list[int]) -> None:
        self.text, self.quotes, self.at = text, quotes, 0

    def calls(self) -> list[ToolCall]:
        calls: list[ToolCall] = []
        while not calls or self.at < len(self.text):
            start = _START.match(self.text, self.at)
            if start is None:
                raise MalformedCallError
            self.at = start.end()
            calls.append(ToolCall(start[1], self.object(0)))
            self.blank()
        return calls

    def value(self, depth: int) -> Any:
        self.blank()
        if depth > MAX_DEPTH:
            raise MalformedCallError
        if self.is_quote():
            return self.quoted()
        sign = self.text[self.at : self.at + 1]
        if sign == "{":
            return self.object(depth)
        if sign == "[":
            return self.array(depth)
        if sign == '"':
            return self.json_string()
        return self.word()

    def object(self, depth: int) -> dict[str, Any]:
        self.expect("{")
        entries: dict[str, Any] = {}
        if self.take("}"):
            return entries
        while True:
            key = self.key()
            self.expect(":")
            entries[key] = self.value(depth + 1)
            if self.take("}"):
                return entries
            self.expect(",")

    def array(self, depth: int) -> list[Any]:
        self.expect("[")
        values: list[Any] = []
        if self.take("]"):
            return values
        while True:
            values.append(self.value(depth + 1))
            if self.take("]"):
                return values
            self.expect(",")

    def key(self) -> str:
        self.blank()
        if self.is_quote():
            return self.quoted()
        if self.text.startswith('"', self.at):
            return self.json_string()
        return self.plain(_KEY).strip()

    def word(self) -> Any:
        word = self.plain(_WORD)
        if word in _WORDS:
            return _WORDS[word]
        try:
            if _INTEGER.fullmatch(word):
                return int(word)
            if _NUMBER.fullmatch(word) and math.isfinite(number := float(word)):
                return number
        except ValueError as error:  # more digits than Python converts
            raise MalformedCallError from error
        return word

    def plain(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None or self.has_quote(found.start(), found.end()) or not found[0].strip():
            raise MalformedCallError
        self.at = found.end()
        return found[0]

    def quoted(self) -> str:
        following = bisect_left(self.quotes, self.at + 1)
        if following == len(self.quotes):
            raise MalformedCallError
        start, self.at = self.at + 1, self.quotes[following] + 1
        return self.text[start : self.at - 1]

    def json_string(self) -> str:
        try:
            value, end = _JSON_STRING.raw_decode(self.text, self.at)
        except ValueError as error:
            raise MalformedCallError from error
        if self.has_quote(self.at, end):
            raise MalformedCallError
        self.at = end
        return _SURROGATE.sub("\ufffd", value)  # half of a pair that was written \\ud83d: no text holds it

    def is_quote(self) -> bool:
        return self.has_quote(self.at, self.at + 1)

    def has_quote(self, start: int, end: int) -> bool:
        index = bisect_left(self.quotes, start)
        return index < len(self.quotes) and self.quotes[index] < end

    def blank(self) -> None:
        if blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()

    def take(self, sign: str) -> bool:
        self.blank()
        if self.text.startswith(sign, self.at):
            self.at += 1
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise MalformedCallError
