"""LM Studio's `*.conversation.json`: one conversation a file, each message with its versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rvchat.store.imports.draft import (
    Draft,
    Node,
    call,
    joined,
    mapping,
    mappings,
    parsed,
    seconds,
    string,
    whole,
    without_think,
)
from rvchat.types import Attachment, Role, Stats

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant"}


def recognises(entry: Mapping[str, Any]) -> bool:
    messages = entry.get("messages")
    if not isinstance(messages, list):
        return False
    return any("versions" in message for message in mappings(messages)) or "lastUsedModel" in entry


def read(entry: Mapping[str, Any], name: str, folder: str) -> Draft:
    """`name` is the file's, which is the only id there is; `folder` the group it lies in."""
    nodes: list[Node] = []
    parent: str | None = None
    system: list[str] = [string(entry.get("systemPrompt")) or _configured(entry, "llm.prediction.systemPrompt")]
    model = ""
    for index, message in enumerate(mappings(entry.get("messages"))):
        versions = mappings(message.get("versions"))
        chosen = whole(message.get("currentlySelected"))
        chosen = chosen if chosen < len(versions) else 0
        below = parent
        for number, version in enumerate(versions):
            if version.get("role") == "system":
                system.append(_node(version, "", None)[0].text)
                continue
            node, made_by = _node(version, f"{index}.{number}", parent)
            nodes.append(node)
            if number == chosen:
                below = node.id
                model = made_by or model
        parent = below
    id = name.removesuffix(".json").removesuffix(".conversation")
    return Draft(
        "lmstudio",
        id=id,
        key=f"{id}:{entry.get('createdAt')}",  # files can be renamed, and copied to the same name
        title=string(entry.get("name")),
        created=seconds(entry.get("createdAt"), 1000.0),
        changed=seconds(entry.get("userLastMessagedAt"), 1000.0),
        model=model or string(mapping(entry.get("lastUsedModel")).get("identifier")),
        system=joined(system) or None,
        nodes=nodes,
        leaf=parent,
        pinned=entry.get("pinned") is True,
        folder=folder,
    )


def _node(version: Mapping[str, Any], place: str, parent: str | None) -> tuple[Node, str]:
    """One version, and the model that its last block names."""
    node = Node("", parent, _ROLES.get(string(version.get("role")), "assistant"))
    blocks = [step for step in mappings(version.get("steps")) if step.get("type") == "contentBlock"] or [version]
    texts: list[str] = []
    thoughts: list[str] = []
    results: dict[str, str] = {}
    calls: list[tuple[str, Mapping[str, Any]]] = []
    model = ""
    for block in blocks:
        pieces = mappings(block.get("content"))
        text = "".join(
            string(piece.get("text"))
            for piece in pieces
            if piece.get("type") == "text" and not piece.get("isStructural")
        )
        (thoughts if mapping(block.get("style")).get("type") == "thinking" else texts).append(text)
        for piece in pieces:
            kind = piece.get("type")
            if kind == "file":
                sort = string(piece.get("fileType"))
                sort = sort if sort in ("image", "audio", "video", "text") else "file"
                node.attachments.append(Attachment(sort, string(piece.get("fileIdentifier"))))
            elif kind == "toolCallRequest":
                calls.append((string(piece.get("toolCallRequestId")) or str(piece.get("callId")), piece))
            elif kind == "toolCallResult":
                results[string(piece.get("toolCallRequestId")) or str(piece.get("callId"))] = _result(piece)
        generation = mapping(block.get("genInfo"))
        if generation:
            model = string(generation.get("identifier")) or model
            node.stats = _stats(mapping(generation.get("stats")))
    for name, piece in calls:
        arguments = piece["parameters"] if "parameters" in piece else piece.get("arguments")
        node.tool_calls.append(call(piece.get("name"), arguments, name, results.get(name)))
    node.text, node.reasoning = joined(texts), joined(thoughts)
    if node.role == "assistant":
        node.model = model or string(mapping(version.get("senderInfo")).get("senderName")) or None
        if not node.reasoning:
            node.reasoning, node.text = without_think(node.text)
    # Versions have no ids. What was said is part of the id, so that an edited one is not taken for the one before.
    node.id = f"{place}.{hashlib.sha256(repr((node.text, node.reasoning)).encode()).hexdigest()[:16]}"
    return node, model


def _result(piece: Mapping[str, Any]) -> str:
    """Text, or the parts of an MCP answer written as JSON."""
    content = piece.get("content")
    parts = parsed(content) if isinstance(content, str) else content
    if isinstance(parts, list):
        return joined(string(part.get("text")) for part in mappings(parts))
    return string(content)


def _stats(stats: Mapping[str, Any]) -> Stats:
    tokens, speed = whole(stats.get("predictedTokensCount")), seconds(stats.get("tokensPerSecond"))
    return Stats(
        prompt_tokens=whole(stats.get("promptTokensCount")),
        new_tokens=tokens,
        ttft_s=seconds(stats.get("timeToFirstTokenSec")) or 0.0,
        decode_s=max(tokens - 1, 0) / speed if speed else 0.0,
    )


def _configured(entry: Mapping[str, Any], key: str) -> str:
    fields = mapping(entry.get("perChatPredictionConfig")).get("fields")
    return next((string(field.get("value")) for field in mappings(fields) if field.get("key") == key), "")
