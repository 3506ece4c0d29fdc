"""Messages as OpenAI's chat API takes them, one conversation an object, usually one a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rvchat.store.imports.draft import Draft, Node, NotAConversationError, call, joined, mapping, mappings, string
from rvchat.types import Attachment, Role

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}


def recognises(entry: Mapping[str, Any]) -> bool:
    messages = entry.get("messages")
    return isinstance(messages, list) and any("role" in message for message in mappings(messages))


def read(entry: Mapping[str, Any], number: int) -> Draft:
    """`number` is the line's, from 1."""
    draft = Draft("openai", id=str(number), model=string(entry.get("model")), same_by_content=True)
    system = []
    for index, message in enumerate(mappings(entry["messages"])):
        role = string(message.get("role"))
        text, attachments = _content(message.get("content"))
        if role in ("system", "developer"):
            system.append(text)
            continue
        if role not in _ROLES:
            raise NotAConversationError(f"a message has the role {role[:40] or 'none'}")
        node = Node(str(index), draft.leaf, _ROLES[role], text or string(message.get("refusal")))
        node.attachments = attachments
        node.reasoning = string(message.get("reasoning_content")) or string(message.get("reasoning"))
        for entry_ in mappings(message.get("tool_calls")):
            function = mapping(entry_.get("function"))
            node.tool_calls.append(call(function.get("name"), function.get("arguments"), entry_.get("id")))
        if function := mapping(message.get("function_call")):
            node.tool_calls.append(call(function.get("name"), function.get("arguments")))
        draft.nodes.append(node)
        draft.leaf = node.id
    draft.system = joined(system) or None
    return draft


def _content(content: Any) -> tuple[str, list[Attachment]]:
    if not isinstance(content, list):
        return string(content), []
    attachments = []
    for part in mappings(content):
        kind = string(part.get("type"))
        value = mapping(part.get(kind))
        if kind == "image_url":
            address = string(value.get("url"))
            name = address.partition(";")[0].partition(",")[0] if address.startswith("data:") else address
            attachments.append(Attachment("image", name))
        elif kind == "input_audio":
            attachments.append(Attachment("audio", string(value.get("format"))))
        elif kind == "file":
            attachments.append(Attachment("file", string(value.get("filename")) or string(value.get("file_id"))))
    return joined(string(part.get("text")) for part in mappings(content)), attachments
