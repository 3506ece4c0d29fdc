"""The active branch as one page that needs nothing else and does nothing.

The page has no script, and its policy forbids every request, frame, form and style but its own. What a model wrote is
turned into markup by a Markdown reader that passes no HTML through; an image is named, not loaded, and a link shows
where it leads.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from rvchat.store.export import labels
from rvchat.store.export.markdown import closed
from rvchat.store.printable import one_line, printable
from rvchat.types import Conversation, Message

LONGEST_CODE = 50_000  # characters of a block that are highlighted: some lexers take quadratic time
_SCHEMES = ("http", "https", "mailto")


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    """One page for all of them; its title is the first one's."""
    remaining = iter(conversations)
    first = next(remaining, None)
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    yield (
        '<!doctype html>\n<html lang="und">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(labels.title(first)) if first else 'Conversations'}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
    )
    if first is not None:
        yield from _conversation(first)
    for conversation in remaining:
        yield from _conversation(conversation)
    yield "</body>\n</html>\n"


@cache
def _style() -> str:
    light = HtmlFormatter(style="default").get_style_defs("code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("code")
    page = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{page}"


def _conversation(conversation: Conversation) -> Iterator[str]:
    yield f"<main>\n<header>\n<h1>{escape(labels.title(conversation))}</h1>\n"
    yield f"<p>{escape(labels.about(conversation))}</p>\n</header>\n"
    if conversation.system:
        yield _folded("System prompt", conversation.system)
    for message in conversation.branch():
        yield _message(message)
    yield "</main>\n"


def _message(message: Message) -> str:
    parts = [f'<article class="{message.role}">\n<h2>{escape(labels.speaker(message))}</h2>\n']
    if message.reasoning:
        parts.append(_folded(labels.thought(message), message.reasoning))
    for entry in message.attachments:
        parts.append(f'<p class="note">{escape(one_line(f"{entry.kind}: {entry.name}", 200))}</p>\n')
    if message.content and message.role == "assistant":
        parts.append(f'<div class="text">\n{markup(printable(message.content))}</div>\n')
    elif message.content:  # what a person typed and a tool gave stands as it is, line for line
        parts.append(f'<div class="plain">{escape(printable(message.content))}</div>\n')
    parts.extend(_folded("Tool call", labels.call(call)) for call in message.tool_calls)
    notes = [note for note in (labels.status(message), labels.statistics(message)) if note]
    notes.append(labels.date(message.created))
    parts.append(f'<p class="note">{escape(" · ".join(notes))}</p>\n</article>\n')
    return "".join(parts)


def _folded(summary: str, text: str) -> str:
    body = f'<div class="plain">{escape(printable(text))}</div>'
    return f"<details>\n<summary>{escape(summary)}</summary>\n{body}\n</details>\n"


# --- Markdown --------------------------------------------------------------------------------------------------


def markup(text: str) -> str:
    """Markdown as HTML in which nothing of `text` is markup of its own."""
    # What is nested deeper than that is left out by the reader; its default of 20 is soon reached by lists in quotes.
    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["table", "strikethrough"])
    tokens = reader.parse(closed(text))
    for token in tokens:
        if token.type == "fence":
            token.type, token.content = "html_block", _code(token.content, token.info)
        elif token.type == "code_block":
            token.type, token.content = "html_block", _code(token.content, "")
        elif token.children:
            token.children = _harmless(token.children)
    rendered: str = reader.renderer.render(tokens, reader.options, {})
    return rendered


def _code(code: str, info: str) -> str:
    """A fenced block, coloured if its language is known."""
    language = one_line(info.split(maxsplit=1)[0], 40) if info.strip() else ""
    body = escape(code)
    if language and len(code) <= LONGEST_CODE:
        try:
            lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
        except ClassNotFound:
            pass
        else:
            body = highlight(code, lexer, HtmlFormatter(nowrap=True))
    label = f'<div class="language">{escape(language)}</div>' if language else ""
    return f'{label}<pre dir="ltr"><code>{body}</code></pre>\n'


def _harmless(children: list[Token]) -> list[Token]:
    """The pieces of a paragraph with images named, links of other kinds than web and mail undone, and every link
    followed by where it leads if its text is something else."""
    result: list[Token] = []
    links: list[tuple[Token, int]] = []
    for token in children:
        if token.type == "image":
            result.append(_text(f"[image: {token.content or 'untitled'}] ({token.attrGet('src')})"))
        elif token.type == "link_open":
            links.append((token, len(result)))
            result.append(token)
        elif token.type == "link_close" and links:
            opened, at = links.pop()
            address = str(opened.attrGet("href") or "")
            shown = "".join(piece.content for piece in result[at + 1 :])
            if _may_link(address):
                opened.attrs = {"href": address, "rel": "noopener noreferrer nofollow"}
                result.append(token)
            else:
                del result[at]
            if shown.strip() != address.removeprefix("mailto:"):
                result.append(_text(f" ({address})"))
        else:
            result.append(token)
    return result


def _may_link(address: str) -> bool:
    try:
        return urlsplit(address).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)
