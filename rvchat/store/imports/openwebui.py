"""Open WebUI's chat export: an array of chats, each with a tree under `chat.history`."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rvchat.store.imports.draft import (
    Draft,
    Node,
    NotAConversationError,
    call,
    joined,
    mapping,
    mappings,
    parsed,
    seconds,
    string,
    whole,
)
from rvchat.store.values import sampling_of
from rvchat.types import Attachment, Role, Sampling, Stats, ToolCall

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "tool"}
_BLOCK = re.compile(r'<details type="(reasoning|tool_calls)"')
_ATTRIBUTE = re.compile(r'([a-z_]{1,20})="([^"]*)"')
_END = "</details>"


def recognises(entry: Mapping[str, Any]) -> bool:
    if isinstance(entry.get("chat"), dict) or isinstance(entry.get("history"), dict):
        return True
    return isinstance(entry.get("models"), list) and isinstance(entry.get("messages"), list)


def read(entry: Mapping[str, Any]) -> Draft:
    chat = mapping(entry["chat"]) if "chat" in entry else entry  # the oldest exports had the chat alone
    history = mapping(chat.get("history"))
    params = mapping(chat.get("params"))
    found = {name: mapping(message) for name, message in mapping(history.get("messages")).items()}
    flat = not found
    if flat:
        messages = mappings(chat.get("messages"))
        found = {string(message.get("id")) or str(index): message for index, message in enumerate(messages)}
    nodes = [_node(name, message) for name, message in found.items()]
    if flat:
        for before, node in pairwise(nodes):
            node.parent = before.id
    current = string(history.get("currentId"))
    leaf = current if current in found else nodes[-1].id if flat and nodes else _down(found)
    draft = Draft(
        "openwebui",
        id=string(entry.get("id")),
        title=string(entry.get("title")) or string(chat.get("title")),
        created=seconds(entry.get("created_at")) or seconds(chat.get("timestamp"), 1000.0),
        changed=seconds(entry.get("updated_at")),
        system=string(params.get("system")) or string(chat.get("system")) or _system(found) or None,
        nodes=nodes,
        leaf=leaf,
        pinned=entry.get("pinned") is True,
        archived=entry.get("archived") is True,
        sampling=_sampling(params),
    )
    answers = [node for node in draft.branch() if node.role == "assistant" and node.model]
    models = chat.get("models")
    draft.model = answers[-1].model if answers else string(models[0]) if isinstance(models, list) and models else None
    return draft


def _node(name: str, message: Mapping[str, Any]) -> Node:
    role = string(message.get("role"))
    parent = message.get("parentId")
    node = Node(name, parent if isinstance(parent, str) else None, _ROLES.get(role, "user"))
    if role == "system":
        node.dropped = True
    elif role not in _ROLES:
        raise NotAConversationError(f"a message has the role {role[:40] or 'none'}")
    node.created = seconds(message.get("timestamp"))
    node.model = string(message.get("model")) or None
    output = mappings(message.get("output"))
    if output:
        _read_output(node, output)
    elif node.role == "assistant":
        _read_content(node, string(message.get("content")))
    else:
        node.text = string(message.get("content"))
    for file in mappings(message.get("files")):
        kind, address = string(file.get("type")), string(file.get("url"))
        name = string(file.get("name")) or (address.partition(";")[0] if address.startswith("data:") else address)
        node.attachments.append(Attachment(kind if kind in ("image", "audio", "video", "text") else "file", name))
    if usage := mapping(message.get("usage")):
        node.stats = Stats(
            prompt_tokens=whole(usage.get("prompt_tokens")), new_tokens=whole(usage.get("completion_tokens"))
        )
    if error := message.get("error"):
        node.status, node.error = "failed", string(mapping(error).get("content")) or "the answer failed"
    elif message.get("done") is False:
        node.status = "stopped"
    return node


def _read_output(node: Node, output: list[Mapping[str, Any]]) -> None:
    """The newer form of an answer: what the model did, piece by piece."""
    texts, thoughts = [], []
    results = {
        string(item.get("call_id")): _pieces(item.get("output"))
        for item in output
        if item.get("type") == "function_call_output"
    }
    for item in output:
        kind = item.get("type")
        if kind == "message":
            texts.append(_pieces(item.get("content")))
        elif kind == "reasoning":
            thoughts.append(_pieces(item.get("content")) or _pieces(item.get("summary")))
            node.reasoning_s = _add(node.reasoning_s, item.get("duration"))
        elif kind == "function_call":
            name = string(item.get("call_id"))
            node.tool_calls.append(call(item.get("name"), item.get("arguments"), name, results.get(name)))
    node.text, node.reasoning = joined(texts), joined(thoughts)


def _pieces(content: Any) -> str:
    return content if isinstance(content, str) else "".join(string(part.get("text")) for part in mappings(content))


def _read_content(node: Node, content: str) -> None:
    """The older form: thoughts and tool calls are folded blocks in the text, escaped inside and there alone."""
    texts, thoughts = [], []
    at = 0
    while found := _BLOCK.search(content, at):
        inside = content.find(">", found.end()) + 1
        end = content.find(_END, inside)
        if not inside or end < 0:
            break
        texts.append(content[at : found.start()])
        attributes = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(content, found.end(), inside)}
        if found[1] == "reasoning":
            body = content[inside:end]
            body = body[body.find("</summary>") + len("</summary>") :] if "</summary>" in body else body
            lines = html.unescape(body).strip("\n").split("\n")
            thoughts.append("\n".join(line.removeprefix(">").removeprefix(" ") for line in lines))
            duration = attributes.get("duration", "")
            node.reasoning_s = _add(node.reasoning_s, parsed(duration))
        else:
            node.tool_calls.append(_call(attributes))
        at = end + len(_END)
    texts.append(content[at:])
    node.text = joined(text.strip("\n") for text in texts) if at else content
    node.reasoning = joined(thoughts)


def _call(attributes: Mapping[str, str]) -> ToolCall:
    result = attributes.get("result") or None
    if result is not None and isinstance(text := parsed(result), str):
        result = text
    return call(attributes.get("name"), attributes.get("arguments"), attributes.get("id"), result)


def _add(total: float | None, duration: Any) -> float | None:
    length = seconds(duration)
    return total if length is None else (total or 0.0) + length


def _down(found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The leaf by the last child at each step down from the first root."""
    at = next((name for name, message in found.items() if string(message.get("parentId")) not in found), None)
    seen: set[str] = set()
    while at is not None and at not in seen:
        seen.add(at)
        children = found[at].get("childrenIds")
        below = (
            [name for name in children if isinstance(name, str) and name in found] if isinstance(children, list) else []
        )
        if not below:
            return at
        at = below[-1]
    return None


def _system(found: Mapping[str, Mapping[str, Any]]) -> str:
    return joined(string(message.get("content")) for message in found.values() if message.get("role") == "system")


def _sampling(params: Mapping[str, Any]) -> Sampling:
    """The settings of the chat that are ours too, if they make sense together."""
    known = {name: params[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed") if name in params}
    try:
        return sampling_of(known)
    except ValueError:
        return Sampling()
