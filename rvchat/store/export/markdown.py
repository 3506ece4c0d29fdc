"""The active branch as Markdown. What was said stands as it was written; what is ours around it is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rvchat.store.export import labels
from rvchat.store.printable import one_line, printable
from rvchat.types import Conversation, Message

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    separator = ""
    for conversation in conversations:
        yield f"{separator}# {_escaped(labels.title(conversation))}\n\n*{_escaped(labels.about(conversation))}*\n"
        if conversation.system:
            yield f"\n> **System prompt**\n>\n{_quoted(conversation.system)}\n"
        for message in conversation.branch():
            yield "\n" + _message(message)
        separator = "\n---\n\n"


def _message(message: Message) -> str:
    parts = [f"## {_escaped(labels.speaker(message))}"]
    if message.reasoning:
        parts.append(f"> **{labels.thought(message)}**\n>\n{_quoted(message.reasoning)}")
    parts.extend(f"*{_escaped(one_line(f'{entry.kind}: {entry.name}', 200))}*" for entry in message.attachments)
    if message.content:
        parts.append(closed(printable(message.content)))
    for call in message.tool_calls:
        text = labels.call(call)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        parts.append(f"Tool call:\n\n{fence}\n{text}\n{fence}")
    if status := labels.status(message):
        parts.append(f"*{_escaped(status)}*")
    return "\n\n".join(parts) + "\n"


def closed(text: str) -> str:
    """`text` with the fence closed that a stopped answer left open: it would swallow all that follows."""
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        mark, rest = found[1], found[2]
        if not fence:
            fence = mark if mark[0] == "~" or "`" not in rest else ""
        elif mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip():
            fence = ""
    return f"{text.rstrip(chr(10))}\n{fence}" if fence else text


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in printable(text).split("\n"))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", text)
