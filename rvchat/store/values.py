"""Conversations as plain JSON values and back: the form that columns and exports share.

Reading ignores keys it does not know and takes the default for those that are missing, so that a file of a later
version is still read; a value of the wrong kind is a ValueError that names it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from rvchat.store.printable import text_of
from rvchat.types import Attachment, Conversation, Message, MessageStatus, Origin, Role, Sampling, Stats, ToolCall

LAST_MOMENT = 253402300799.0  # 9999-12-31T23:59:59Z, the last that a calendar of four digits knows

# Outside strings JSON has none of these.
_UNESCAPED = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def dumps(value: Any) -> str:
    """Compact JSON that any file takes. Numbers that JSON has no sign for are written as text."""
    try:
        return text_of(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except ValueError:
        return text_of(json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":")))


def terminal_safe(document: str) -> str:
    """JSON that says the same without the control characters and lone surrogates it may hold as they are."""
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


# --- writing ---------------------------------------------------------------------------------------------------


def tool_call_value(call: ToolCall) -> dict[str, Any]:
    value: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
    if call.raw:
        value["raw"] = call.raw
    if call.id:
        value["id"] = call.id
    if call.result is not None:
        value["result"] = call.result
    return value


def message_value(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "parent_id": message.parent_id,
        "role": message.role,
        "content": message.content,
        "created": message.created,
        "reasoning": message.reasoning,
        "reasoning_s": message.reasoning_s,
        "tool_calls": [tool_call_value(call) for call in message.tool_calls],
        "attachments": [asdict(attachment) for attachment in message.attachments],
        "status": message.status,
        "finish": message.finish,
        "error": message.error,
        "model": message.model,
        "sampling": asdict(message.sampling) if message.sampling else None,
        "stats": asdict(message.stats) if message.stats else None,
    }


def conversation_value(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created,
        "changed": conversation.changed,
        "pinned": conversation.pinned,
        "model": conversation.model,
        "system": conversation.system,
        "sampling": asdict(conversation.sampling),
        "max_new_tokens": conversation.max_new_tokens,
        "thinking": conversation.thinking,
        "deleted": conversation.deleted,
        "origin": asdict(conversation.origin) if conversation.origin else None,
        "leaf_id": conversation.leaf_id,
        "messages": [message_value(message) for message in conversation.messages],
    }


# --- reading ---------------------------------------------------------------------------------------------------


def field(value: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any) -> Any:
    """`value[key]` if it is a `kind`, `default` if it is missing or null. ValueError: it is something else."""
    found = value.get(key)
    if found is None:
        return default
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f"{key} is {json.dumps(found)[:60]}")
    return text_of(found) if isinstance(found, str) else found


def moment(value: Mapping[str, Any], key: str, default: float | None) -> float | None:
    """Seconds since the epoch. ValueError: outside what a calendar knows."""
    found: float | None = field(value, key, (int, float), default)
    if found is not None and not 0 <= found <= LAST_MOMENT:  # also false for NaN
        raise ValueError(f"{key} is {found}, which is no time")
    return None if found is None else float(found)


def number(value: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number. ValueError: it is something else."""
    found = field(value, key, (int, float), default)
    try:
        result = float(found)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ValueError(f"{key} is no number that can be kept")
    return result


def count(value: Mapping[str, Any], key: str, default: int | None) -> int | None:
    """A whole number from 0 that a column holds. ValueError: it is something else."""
    found: int | None = field(value, key, int, default)
    if found is not None and not 0 <= found < 1 << 63:
        raise ValueError(f"{key} is out of range")
    return found


def sampling_of(value: Mapping[str, Any]) -> Sampling:
    default = Sampling()
    return Sampling(
        temperature=number(value, "temperature", default.temperature),
        top_k=count(value, "top_k", default.top_k) or 0,
        top_p=number(value, "top_p", default.top_p),
        min_p=number(value, "min_p", default.min_p),
        repetition_penalty=number(value, "repetition_penalty", default.repetition_penalty),
        seed=field(value, "seed", int, None),
    )


def stats_of(value: Mapping[str, Any]) -> Stats:
    return Stats(
        prompt_tokens=count(value, "prompt_tokens", 0) or 0,
        reused_tokens=count(value, "reused_tokens", 0) or 0,
        new_tokens=count(value, "new_tokens", 0) or 0,
        ttft_s=number(value, "ttft_s", 0.0),
        prefill_s=number(value, "prefill_s", 0.0),
        decode_s=number(value, "decode_s", 0.0),
    )


def tool_call_of(value: Mapping[str, Any]) -> ToolCall:
    return ToolCall(
        name=field(value, "name", str, ""),
        arguments=field(value, "arguments", dict, {}),
        raw=field(value, "raw", str, ""),
        id=field(value, "id", str, ""),
        result=field(value, "result", str, None),
    )


def attachment_of(value: Mapping[str, Any]) -> Attachment:
    return Attachment(
        kind=field(value, "kind", str, "file"), name=field(value, "name", str, ""), text=field(value, "text", str, "")
    )


def objects(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A list of objects; empty where it is missing. ValueError: it is something else."""
    found = field(value, key, list, [])
    for entry in found:
        if not isinstance(entry, dict):
            raise ValueError(f"{key} has {json.dumps(entry)[:60]} where an object belongs")
    return list(found)


def message_of(value: Mapping[str, Any]) -> Message:
    """The message that `message_value` wrote. ValueError names what is missing or wrong."""
    role: Any = value.get("role")
    status: Any = value.get("status", "complete")
    if role not in get_args(Role):
        raise ValueError(f"role is {json.dumps(role)[:60]}")
    if status not in get_args(MessageStatus):
        raise ValueError(f"status is {json.dumps(status)[:60]}")
    sampling, stats = field(value, "sampling", dict, None), field(value, "stats", dict, None)
    return Message(
        id=required(value, "id"),
        parent_id=field(value, "parent_id", str, None),
        role=role,
        content=field(value, "content", str, ""),
        created=moment(value, "created", 0.0) or 0.0,
        reasoning=field(value, "reasoning", str, ""),
        reasoning_s=None if value.get("reasoning_s") is None else number(value, "reasoning_s", 0.0),
        tool_calls=tuple(tool_call_of(entry) for entry in objects(value, "tool_calls")),
        attachments=tuple(attachment_of(entry) for entry in objects(value, "attachments")),
        status=status,
        finish=field(value, "finish", str, None),
        error=field(value, "error", str, None),
        model=field(value, "model", str, None),
        sampling=None if sampling is None else sampling_of(sampling),
        stats=None if stats is None else stats_of(stats),
    )


def conversation_of(value: Mapping[str, Any]) -> Conversation:
    """The conversation that `conversation_value` wrote, its messages in the order they came in."""
    origin = field(value, "origin", dict, None)
    created = moment(value, "created", 0.0) or 0.0
    return Conversation(
        id=required(value, "id"),
        title=field(value, "title", str, ""),
        created=created,
        changed=moment(value, "changed", created) or 0.0,
        messages=tuple(message_of(entry) for entry in objects(value, "messages")),
        leaf_id=field(value, "leaf_id", str, None),
        pinned=field(value, "pinned", bool, False),
        model=field(value, "model", str, None),
        system=field(value, "system", str, ""),
        sampling=sampling_of(field(value, "sampling", dict, {})),
        max_new_tokens=count(value, "max_new_tokens", None),
        thinking=field(value, "thinking", bool, False),
        deleted=moment(value, "deleted", None),
        origin=None if origin is None else origin_of(origin),
    )


def origin_of(value: Mapping[str, Any]) -> Origin:
    return Origin(
        program=field(value, "program", str, ""),
        id=field(value, "id", str, ""),
        folder=field(value, "folder", str, ""),
        archived=field(value, "archived", bool, False),
        forked_from=field(value, "forked_from", str, ""),
    )


def required(value: Mapping[str, Any], key: str) -> str:
    found: str = field(value, key, str, "")
    if not found:
        raise ValueError(f"{key} is missing")
    return found
