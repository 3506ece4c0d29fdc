"""ShareGPT data sets: `conversations` of `from` and `value`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rvchat.store.imports.draft import (
    Draft,
    Node,
    NotAConversationError,
    call,
    joined,
    mappings,
    parsed,
    string,
    without_think,
)
from rvchat.types import Role

_SPEAKERS: dict[Role, tuple[str, ...]] = {
    "user": ("human", "user"),
    "assistant": ("gpt", "chatgpt", "assistant", "model", "bing", "bard", "function_call"),
    "tool": ("observation", "tool", "function_response"),
}
_ROLES: dict[str, Role] = {name: role for role, names in _SPEAKERS.items() for name in names}


def recognises(entry: Mapping[str, Any]) -> bool:
    return any("from" in turn and "value" in turn for turn in mappings(entry.get("conversations")))


def read(entry: Mapping[str, Any]) -> Draft:
    draft = Draft("sharegpt", id=_id(entry.get("id")), same_by_content=True)
    system = [string(entry.get("system"))]
    for index, turn in enumerate(mappings(entry["conversations"])):
        speaker, value = string(turn.get("from")).lower(), string(turn.get("value"))
        if speaker == "system":
            system.append(value)
            continue
        if speaker not in _ROLES:
            raise NotAConversationError(f"a message is from {speaker[:40] or 'nobody'}")
        node = Node(str(index), draft.leaf, _ROLES[speaker], value)
        if speaker == "function_call":
            said = parsed(value)
            node.text = ""
            if isinstance(said, dict) and "name" in said:
                node.tool_calls = [call(said["name"], said.get("arguments"))]
            elif value:
                node.tool_calls = [call("", value)]
        elif node.role == "assistant":
            node.reasoning, node.text = without_think(value)
        draft.nodes.append(node)
        draft.leaf = node.id
    draft.system = joined(system) or None
    return draft


def _id(value: Any) -> str:
    return str(value) if isinstance(value, int) else string(value)
