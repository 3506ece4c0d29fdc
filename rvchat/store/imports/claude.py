"""Claude's data export: `conversations.json`, an array of conversations with `chat_messages`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rvchat.store.imports.draft import Draft, Node, call, iso, joined, mapping, mappings, string
from rvchat.types import Attachment

_NO_PARENT = "00000000-0000-4000-8000-000000000000"


def recognises(entry: Mapping[str, Any]) -> bool:
    return "chat_messages" in entry


def read(entry: Mapping[str, Any]) -> Draft:
    messages = mappings(entry.get("chat_messages"))
    nodes = [_node(index, message) for index, message in enumerate(messages)]
    if not any("parent_message_uuid" in message for message in messages):
        for before, node in pairwise(nodes):
            node.parent = before.id
    # Nothing says which branch was shown: the one that was touched last.
    inner = {node.parent for node in nodes}
    touched = [
        (iso(message.get("updated_at")) or node.created or 0.0, index, node.id)
        for index, (node, message) in enumerate(zip(nodes, messages, strict=True))
        if node.id not in inner
    ]
    return Draft(
        "claude",
        id=string(entry.get("uuid")),
        title=string(entry.get("name")),
        created=iso(entry.get("created_at")),
        changed=iso(entry.get("updated_at")),
        nodes=nodes,
        leaf=max(touched)[2] if touched else None,
    )


def _node(index: int, message: Mapping[str, Any]) -> Node:
    blocks = mappings(message.get("content"))
    parent = string(message.get("parent_message_uuid"))
    node = Node(
        string(message.get("uuid")) or str(index),
        parent if parent and parent != _NO_PARENT else None,
        "user" if message.get("sender") == "human" else "assistant",
        created=iso(message.get("created_at")),
    )
    node.text = joined(string(block.get("text")) for block in blocks if block.get("type") == "text")
    if not blocks:
        node.text = string(message.get("text"))
    node.reasoning = joined(string(block.get("thinking")) for block in blocks if block.get("type") == "thinking")
    results = {
        string(block.get("tool_use_id")): _result(block) for block in blocks if block.get("type") == "tool_result"
    }
    node.tool_calls = [
        call(block.get("name"), block.get("input"), block.get("id"), results.get(string(block.get("id"))))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    node.attachments = [
        Attachment(
            "text" if "extracted_content" in entry else "file",
            string(entry.get("file_name")),
            string(entry.get("extracted_content")),
        )
        for entry in mappings(message.get("attachments"))
    ] + [Attachment("file", string(entry.get("file_name"))) for entry in mappings(message.get("files"))]
    return node


def _result(block: Mapping[str, Any]) -> str:
    content = block.get("content")
    if isinstance(content, str):
        return content
    return joined(string(mapping(part).get("text")) for part in mappings(content))
