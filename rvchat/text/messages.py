"""The messages of a conversation as dictionaries, checked: whatever no format can express is refused here, by name.

A message is `{"role": ..., "content": ...}` with content a string, None, or a list of parts
(`{"type": "text", "text": ...}`, `{"type": "image"}`, ...). An assistant's may have `reasoning` (or
`reasoning_content`), `tool_calls` (`{"id": ..., "function": {"name": ..., "arguments": {...}}}`) and `tool_responses`
(`{"name": ..., "response": ...}`); a tool's has `tool_call_id` or `name`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rvchat.errors import BadInputError

Messages = Sequence[Mapping[str, Any]]

ROLES = ("system", "developer", "user", "assistant", "tool")
MEDIA = {
    "image": "image",
    "image_url": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
}
MAX_DEPTH = 64

_NAME = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message: text, or a medium whose content is not here."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]
    id: Any = None


@dataclass(frozen=True, slots=True)
class Response:
    """What a tool answered, as the assistant's own message may carry it."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Said:
    """A message that has been checked. `where` names it, `in_list` says that its content was a list of parts, and
    `value` is what a tool answered: text, a number, nothing."""

    where: str
    role: str
    parts: tuple[Part, ...]
    in_list: bool = False
    value: Any = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    responses: tuple[Response, ...] = ()
    call_id: Any = None
    name: str = "unknown"

    @property
    def is_system(self) -> bool:
        return self.role in ("system", "developer")


def check(messages: Messages) -> list[Said]:
    """Every message checked. Raises BadInputError, which names the first that cannot be used."""
    return [_check(index, message) for index, message in enumerate(messages)]


def refuse(where: str, what: str, hint: str = "") -> BadInputError:
    return BadInputError(f"{where}: {what}", hint)


def check_name(where: str, name: object) -> str:
    """A tool's name, which the format writes out between its own signs."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(where, f"the tool name {name!r} cannot be used", "Use letters, digits and _ . : - only.")
    return name


def check_value(where: str, value: object, depth: int = 0) -> None:
    """Refuses what JSON does not know."""
    if depth > MAX_DEPTH:
        raise refuse(where, f"values are nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise refuse(where, f"the key {key!r} is not text")
            check_value(where, inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_value(where, inner, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise refuse(where, f"the number {value} cannot be written")
    elif not (value is None or isinstance(value, str | int)):
        raise refuse(where, f"a value of type {type(value).__name__} cannot be written", "Use what JSON has.")


def _check(index: int, message: object) -> Said:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise refuse(where, f"it is {type(message).__name__}, not a dictionary")
    role = message.get("role")
    if role not in ROLES:
        raise refuse(where, f"the role {role!r} is unknown", f"Roles are {', '.join(ROLES)}.")
    where = f"messages[{index}] ({role})"
    content = message.get("content")
    said = Said(where, role, _parts(where, role, content), in_list=isinstance(content, list | tuple))
    if role == "assistant":
        return replace(
            said,
            reasoning=_reasoning(where, message),
            calls=tuple(_call(where, call) for call in _list(where, message, "tool_calls")),
            responses=tuple(_response(where, response) for response in _list(where, message, "tool_responses")),
        )
    if role == "tool":
        name = message.get("name")
        text = "".join(part.text for part in said.parts)
        return replace(
            said,
            value=text if said.in_list else content,
            call_id=message.get("tool_call_id"),
            name=check_name(where, name) if name else said.name,
        )
    return said


def _parts(where: str, role: str, content: object) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Part("text", content),)
    if role == "tool" and (isinstance(content, bool | int | float)):
        check_value(where, content)
        return ()
    if not isinstance(content, list | tuple):
        raise refuse(
            where,
            f"the content is {type(content).__name__}, neither text nor a list of parts",
            "Write it as text, or as tool_responses of the message that called." if role == "tool" else "",
        )
    return tuple(_part(where, part) for part in content)


def _part(where: str, part: object) -> Part:
    if not isinstance(part, Mapping):
        raise refuse(where, f"a part of the content is {type(part).__name__}, not a dictionary")
    kind = part.get("type")
    if kind == "text":
        text = part.get("text")
        if not isinstance(text, str):
            raise refuse(where, f"the text of a part is {type(text).__name__}")
        return Part("text", text)
    if kind in MEDIA:
        return Part(MEDIA[kind])
    raise refuse(where, f"a part of type {kind!r} is unknown", f"Parts are text, {', '.join(MEDIA)}.")


def _reasoning(where: str, message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    if not isinstance(reasoning, str):
        raise refuse(where, f"the reasoning is {type(reasoning).__name__}, not text")
    return reasoning


def _list(where: str, message: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    entries = message.get(key) or ()
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise refuse(where, f"{key} is not a list of dictionaries")
    return entries


def _call(where: str, call: Mapping[str, Any]) -> Call:
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise refuse(where, "a tool call has no function")
    name = check_name(where, function.get("name"))
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise refuse(
            where,
            f"the arguments of the call of {name} are {type(arguments).__name__}, not a dictionary",
            "Decode JSON text before it is passed.",
        )
    check_value(where, arguments)
    return Call(name, arguments, call.get("id"))


def _response(where: str, response: Mapping[str, Any]) -> Response:
    check_value(where, value := response.get("response"))
    return Response(check_name(where, response.get("name") or "unknown"), value)
