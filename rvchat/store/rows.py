"""Rows of the tables as values, and values as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rvchat.errors import StoreError
from rvchat.store.printable import one_line, text_of
from rvchat.store.values import (
    attachment_of,
    dumps,
    origin_of,
    sampling_of,
    stats_of,
    tool_call_of,
    tool_call_value,
)
from rvchat.types import Conversation, Message, Origin, Sampling, Stats

T = TypeVar("T")

CONVERSATION = (
    "id, title, created, changed, leaf_id, pinned, model, system, sampling, max_new_tokens, thinking, deleted, origin"
)
# What an update of a message may change comes last.
MESSAGE = (
    "id, parent_id, role, created, attachments, content, reasoning, reasoning_s, tool_calls, status, finish, error, "
    "model, sampling, stats"
)
CHANGEABLE = tuple(MESSAGE.split(", ")[5:])
SUMMARY = """
    id, title, created, changed, pinned, model, deleted,
    (SELECT count(*) FROM message m WHERE m.conversation = c.seq),
    CASE title WHEN '' THEN (
        SELECT substr(content, 1, 400) FROM message m
        WHERE m.conversation = c.seq AND role = 'user' ORDER BY seq LIMIT 1
    ) END
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation as a line of a list. `messages` counts those of all branches; `preview` is how its first question
    begins, on one line, where it has no title. Times are seconds since the epoch."""

    id: str
    title: str
    created: float
    changed: float
    pinned: bool
    model: str | None
    deleted: float | None
    messages: int
    preview: str

    @property
    def name(self) -> str:
        """What to call it: the title, or the first words while it has none."""
        return one_line(self.title) or self.preview or "Untitled"


def conversation(row: Sequence[Any], messages: tuple[Message, ...]) -> Conversation:
    """From a row of `CONVERSATION`."""
    return Conversation(
        id=row[0],
        title=row[1],
        created=row[2],
        changed=row[3],
        messages=messages,
        leaf_id=row[4],
        pinned=bool(row[5]),
        model=row[6],
        system=row[7],
        sampling=sampling_of(json.loads(row[8])),
        max_new_tokens=row[9],
        thinking=bool(row[10]),
        deleted=row[11],
        origin=origin_of(json.loads(row[12])) if row[12] else None,
    )


def message(row: Sequence[Any]) -> Message:
    """From a row of `MESSAGE`."""
    return Message(
        id=row[0],
        parent_id=row[1],
        role=row[2],
        created=row[3],
        attachments=tuple(map(attachment_of, json.loads(row[4]))) if row[4] else (),
        content=row[5],
        reasoning=row[6],
        reasoning_s=row[7],
        tool_calls=tuple(map(tool_call_of, json.loads(row[8]))) if row[8] else (),
        status=row[9],
        finish=row[10],
        error=row[11],
        model=row[12],
        sampling=sampling_of(json.loads(row[13])) if row[13] else None,
        stats=stats_of(json.loads(row[14])) if row[14] else None,
    )


def summary(row: Sequence[Any]) -> Summary:
    """From a row of `SUMMARY`."""
    return Summary(
        id=row[0],
        title=row[1],
        created=row[2],
        changed=row[3],
        pinned=bool(row[4]),
        model=row[5],
        deleted=row[6],
        messages=row[7],
        preview=one_line(row[8] or ""),
    )


def conversation_row(value: Conversation) -> tuple[Any, ...]:
    """For `CONVERSATION`."""
    return (
        value.id,
        text_of(value.title),
        value.created,
        value.changed,
        value.leaf_id,
        value.pinned,
        column(value.model),
        text_of(value.system),
        column(value.sampling),
        value.max_new_tokens,
        value.thinking,
        value.deleted,
        column(value.origin),
    )


def message_row(value: Message) -> tuple[Any, ...]:
    """For `MESSAGE`."""
    return (
        value.id,
        value.parent_id,
        value.role,
        value.created,
        dumps([asdict(entry) for entry in value.attachments]) if value.attachments else None,
        text_of(value.content),
        text_of(value.reasoning),
        value.reasoning_s,
        dumps([tool_call_value(call) for call in value.tool_calls]) if value.tool_calls else None,
        value.status,
        value.finish,
        column(value.error),
        column(value.model),
        column(value.sampling),
        column(value.stats),
    )


def column(value: Any) -> Any:
    """One value as a column holds it."""
    if isinstance(value, Sampling | Stats | Origin):
        return dumps(asdict(value))
    return text_of(value) if isinstance(value, str) else value


def ordered(messages: Sequence[Message]) -> list[Message]:
    """Parents before children, otherwise as given. StoreError: one has no way up to a first message."""
    result = parents_first((message.id, message.parent_id, message) for message in messages)
    if len(result) < len(messages):
        found = {message.id for message in result}
        lost = next(message for message in messages if message.id not in found)
        raise StoreError(f"Message {lost.id} answers {lost.parent_id}, which does not lead to a first message")
    return result


def parents_first(items: Iterable[tuple[str, str | None, T]]) -> list[T]:
    """From (id, parent's id, value) the values that a way leads to, each after its parent, otherwise as given."""
    result: list[T] = []
    placed: set[str] = set()
    waiting: dict[str, list[tuple[str, T]]] = {}
    for name, parent, value in items:
        if parent is not None and parent not in placed:
            waiting.setdefault(parent, []).append((name, value))
            continue
        ready = [(name, value)]
        while ready:
            found, item = ready.pop()
            placed.add(found)
            result.append(item)
            ready.extend(reversed(waiting.pop(found, [])))
    return result
