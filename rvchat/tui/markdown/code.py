"""Colours for code: Pygments' tokens become spans with a dozen names."""

from __future__ import annotations

from functools import lru_cache

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound
from textual.content import Content, Span

_NAMES: dict[_TokenType, str] = {
    Token.Comment: "code-comment",
    Token.Keyword: "code-keyword",
    Token.Keyword.Constant: "code-constant",
    Token.Name.Builtin: "code-builtin",
    Token.Name.Class: "code-definition",
    Token.Name.Function: "code-definition",
    Token.Name.Decorator: "code-builtin",
    Token.Name.Tag: "code-keyword",
    Token.Name.Attribute: "code-builtin",
    Token.Literal.String: "code-string",
    Token.Literal.Number: "code-number",
    Token.Operator.Word: "code-keyword",
    Token.Generic.Deleted: "code-removed",
    Token.Generic.Inserted: "code-string",
    Token.Generic.Heading: "code-definition",
}

# A line longer than this is data, not code for reading; some lexers take quadratic time on it.
_LONGEST_LINE = 2000


@lru_cache(maxsize=32)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _name(kind: _TokenType) -> str:
    while kind is not Token:
        if kind in _NAMES:
            return _NAMES[kind]
        kind = kind.parent
    return ""


def highlight(language: str, lines: list[str]) -> list[Content]:
    """`lines` of code, one after the other from the start of a statement, with spans of colour names."""
    lexer = _lexer(language)
    if lexer is None or any(len(line) > _LONGEST_LINE for line in lines):
        return [Content(line) for line in lines]
    spans: list[list[Span]] = [[] for _ in lines]
    row = column = 0
    for kind, text in lexer.get_tokens("\n".join(lines)):
        name = _name(kind)
        for index, part in enumerate(text.split("\n")):
            if index:
                row, column = row + 1, 0
            if part and name and row < len(spans):
                spans[row].append(Span(column, column + len(part), name))
            column += len(part)
    return [Content(line, marks) for line, marks in zip(lines, spans, strict=True)]
