"""What all readable exports say about a message, in the same words."""

from __future__ import annotations

import datetime
import json

from rvchat.store.printable import one_line, printable
from rvchat.types import Conversation, Message, ToolCall


def speaker(message: Message) -> str:
    if message.role == "assistant":
        return one_line(message.model or "") or "Assistant"
    return {"user": "You", "tool": "Tool", "system": "System"}[message.role]


def title(conversation: Conversation) -> str:
    """The title, or the first words while it has none."""
    asked = next((message.content for message in conversation.messages if message.role == "user"), "")
    return one_line(conversation.title, 200) or one_line(asked) or "Untitled"


def date(moment: float) -> str:
    """To the minute, in UTC: a file is read anywhere."""
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def about(conversation: Conversation) -> str:
    parts = [date(conversation.created)]
    if conversation.model:
        parts.append(one_line(conversation.model))
    if conversation.origin is not None:
        parts.append(f"from {one_line(conversation.origin.program)}")
    return " · ".join(parts)


def thought(message: Message) -> str:
    seconds = message.reasoning_s
    return "Thoughts" if seconds is None else f"Thought for {seconds:.0f} s" if seconds >= 1 else "Thought briefly"


def status(message: Message) -> str:
    """How the message ended, where that is not by itself."""
    if message.status == "failed":
        return f"Failed: {one_line(message.error or 'no reason was given', 400)}"
    if message.status == "complete" and message.finish == "length":
        return "Ended at the limit of tokens"
    return {"streaming": "Not finished", "stopped": "Stopped"}.get(message.status, "")


def statistics(message: Message) -> str:
    if message.stats is None or not message.stats.new_tokens:
        return ""
    speed = message.stats.tokens_per_second
    tokens = f"{message.stats.new_tokens} token{'s' * (message.stats.new_tokens != 1)}"
    return tokens if speed is None else f"{tokens}, {speed:.1f} tokens/s"


def call(tool_call: ToolCall) -> str:
    """A tool call as one writes it, with what came of it below."""
    arguments = tool_call.raw or json.dumps(tool_call.arguments, ensure_ascii=False)
    result = "" if tool_call.result is None else f"\n→ {tool_call.result}"
    return printable(f"{tool_call.name}({arguments}){result}")
