"""ChatGPT's data export: `conversations.json`, an array of trees under `mapping`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rvchat.store.imports.draft import (
    Draft,
    Node,
    NotAConversationError,
    call,
    joined,
    mapping,
    mappings,
    seconds,
    string,
    tree,
)
from rvchat.types import Attachment, Role

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}
_CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201")
_ABOUT_THE_USER = "user_editable_context"
_HIDDEN = (_ABOUT_THE_USER, "model_editable_context", "thoughts", "reasoning_recap")


def recognises(entry: Mapping[str, Any]) -> bool:
    return "mapping" in entry or "current_node" in entry or ("conversation_id" in entry and "create_time" in entry)


def read(entry: Mapping[str, Any]) -> Draft:
    if not isinstance(entry.get("mapping"), dict):
        raise NotAConversationError("no mapping")
    # A node's place in the mapping is its id; what it says of itself may differ.
    found = {name: mapping(node) for name, node in entry["mapping"].items()}
    messages = {name: mapping(node.get("message")) for name, node in found.items()}
    nodes = tree(_node(name, node.get("parent"), messages[name]) for name, node in found.items())
    _hand_down_thoughts(nodes, messages)
    draft = Draft(
        "chatgpt",
        id=string(entry.get("conversation_id")) or string(entry.get("id")),
        title=string(entry.get("title")),
        created=seconds(entry.get("create_time")),
        changed=seconds(entry.get("update_time")),
        system=joined(_about_the_user(messages[node.id]) for node in nodes) or None,
        nodes=nodes,
        leaf=string(entry.get("current_node")),
        pinned=entry.get("is_starred") is True,
        archived=entry.get("is_archived") is True,
    )
    named = next((node.model for node in reversed(draft.branch()) if node.model), None)
    draft.model = named or string(entry.get("default_model_slug"))
    return draft


def _node(name: str, parent: Any, message: Mapping[str, Any]) -> Node:
    content, metadata = mapping(message.get("content")), mapping(message.get("metadata"))
    role = _ROLES.get(string(mapping(message.get("author")).get("role")))
    node = Node(
        name, parent if isinstance(parent, str) else None, role or "user", created=seconds(message.get("create_time"))
    )
    node.model = string(metadata.get("model_slug")) or None
    node.dropped = (
        role is None
        or metadata.get("is_visually_hidden_from_conversation") is True
        or content.get("content_type") in _HIDDEN
    )
    if node.dropped:
        return node
    text = _text(content)
    recipient = string(message.get("recipient")) or "all"
    if role == "assistant" and recipient != "all":
        node.tool_calls = [call(recipient, text)]
    else:
        node.text = _with_citations(text, metadata)
    node.attachments = _attachments(content, metadata)
    return node


def _text(content: Mapping[str, Any]) -> str:
    if isinstance(content.get("parts"), list):
        return joined(
            part if isinstance(part, str) else string(part.get("text"))
            for part in content["parts"]
            if isinstance(part, str) or mapping(part).get("content_type") == "audio_transcription"
        )
    return string(content.get("text")) or string(content.get("result"))


def _with_citations(text: str, metadata: Mapping[str, Any]) -> str:
    """`text` with links where it has marks that stand for sources."""
    spans = [
        (start, end, mapping(citation.get("metadata")))
        for citation in mappings(metadata.get("citations"))
        if isinstance(start := citation.get("start_ix"), int) and isinstance(end := citation.get("end_ix"), int)
    ]
    pieces, at = [], 0
    for start, end, source in sorted(spans, key=lambda span: span[:2]):
        if at <= start < end <= len(text) and text[start] == "【" and text[end - 1] == "】":
            link = f" ([{string(source.get('title'))}]({string(source.get('url'))}))" if source.get("url") else ""
            pieces += [text[at:start], link]
            at = end
    text = "".join(pieces) + text[at:]
    named = {
        string(reference.get("matched_text")): string(reference.get("alt"))
        for reference in mappings(metadata.get("content_references"))
    }
    return _CITATION.sub(lambda mark: named.get(mark[0], ""), text)


def _attachments(content: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[Attachment]:
    parts = content.get("parts")
    found = []
    for part in mappings(parts):
        kind = string(part.get("content_type"))
        audio = mapping(part.get("audio_asset_pointer"))
        if kind == "image_asset_pointer":
            found.append(Attachment("image", string(part.get("asset_pointer"))))
        elif audio or kind == "audio_asset_pointer":
            found.append(Attachment("audio", string((audio or part).get("asset_pointer"))))
    pointers = {entry.name.rpartition("/")[2] for entry in found}
    for file in mappings(metadata.get("attachments")):
        if string(file.get("id")) not in pointers:
            kind = string(file.get("mime_type")).split("/")[0]
            found.append(
                Attachment(kind if kind in ("image", "audio", "video", "text") else "file", string(file.get("name")))
            )
    return found


def _about_the_user(message: Mapping[str, Any]) -> str:
    content = mapping(message.get("content"))
    if content.get("content_type") != _ABOUT_THE_USER:
        return ""
    return joined((string(content.get("user_profile")), string(content.get("user_instructions"))))


def _hand_down_thoughts(nodes: list[Node], messages: Mapping[str, Mapping[str, Any]]) -> None:
    """Thoughts are nodes of their own; they belong to the next answer on every way down."""
    pending: dict[str, list[str]] = {}
    for node in nodes:
        above = pending.get(node.parent or "", [])
        content = mapping(messages[node.id].get("content"))
        if content.get("content_type") == "thoughts":
            above = above + [
                string(thought.get("content")) or string(thought.get("summary"))
                for thought in mappings(content.get("thoughts"))
            ]
        elif node.role == "assistant" and node.is_kept:
            node.reasoning, above = joined(above), []
        elif node.role == "user" and node.is_kept:
            above = []
        pending[node.id] = above
