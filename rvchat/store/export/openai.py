"""One line a conversation: the messages as OpenAI's chat API takes them, on the active branch.

Reasoning is in `reasoning_content`, as the servers that give it do. A result that is kept with its call becomes a
message of role tool behind it. Attachments, of which only names are known, are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from rvchat.store.printable import printable
from rvchat.store.values import dumps
from rvchat.types import Conversation


def write(conversations: Iterable[Conversation]) -> Iterator[str]:
    for conversation in conversations:
        line: dict[str, Any] = {"messages": list(_messages(conversation))}
        if conversation.model:
            line["model"] = printable(conversation.model)
        yield dumps(line) + "\n"


def _messages(conversation: Conversation) -> Iterator[dict[str, Any]]:
    numbers = itertools.count(1)
    waiting: list[str] = []  # calls whose results follow in messages of their own
    if conversation.system:
        yield {"role": "system", "content": printable(conversation.system)}
    for message in conversation.branch():
        value: dict[str, Any] = {"role": message.role, "content": printable(message.content)}
        if message.role == "tool":
            value["tool_call_id"] = waiting.pop(0) if waiting else f"call_{next(numbers)}"
        if message.reasoning:
            value["reasoning_content"] = printable(message.reasoning)
        results = []
        if message.tool_calls:
            value["tool_calls"] = []
            for call in message.tool_calls:
                name = printable(call.id) or f"call_{next(numbers)}"
                function = {"name": printable(call.name), "arguments": printable(call.raw or dumps(call.arguments))}
                value["tool_calls"].append({"id": name, "type": "function", "function": function})
                if call.result is None:
                    waiting.append(name)
                else:
                    results.append({"role": "tool", "content": printable(call.result), "tool_call_id": name})
        yield value
        yield from results
