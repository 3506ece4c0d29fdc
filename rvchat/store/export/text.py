"""The active branch as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rvchat.store.export import labels
from rvchat.store.printable import one_line, printable
from rvchat.types import Conversation, Message

_RULE = "-" * 72


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    separator = ""
    for conversation in conversations:
        heading = labels.title(conversation)
        yield f"{separator}{heading}\n{'=' * min(len(heading), 72)}\n{labels.about(conversation)}\n"
        if conversation.system:
            yield f"\nSystem prompt:\n{_indented(conversation.system)}\n"
        for message in conversation.branch():
            yield "\n" + _message(message)
        separator = f"\n{_RULE}\n\n"


def _message(message: Message) -> str:
    parts = [f"{labels.speaker(message)}, {labels.date(message.created)}:"]
    if message.reasoning:
        parts.append(f"[{labels.thought(message)}]\n{_indented(message.reasoning)}\n")
    parts.extend(f"[{one_line(f'{entry.kind}: {entry.name}', 200)}]" for entry in message.attachments)
    if message.content:
        parts.append(printable(message.content))
    parts.extend(f"[tool call] {labels.call(call)}" for call in message.tool_calls)
    if status := labels.status(message):
        parts.append(f"[{status}]")
    return "\n".join(parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in printable(text).split("\n"))
